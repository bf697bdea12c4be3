#include "tests/coordinator/core/random_events.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/coordinator/core/test_spec.h"

namespace muster {

Event RandomEvents::Next(const Coordinator& core) {
  const int what = Pick(100);
  if (agents_.size() < 4 || what < 4) return Register();
  Agent& agent = agents_[Pick(static_cast<int>(agents_.size()))];
  if (what < 12) return OpenStream{agent.registration.incarnation, next_stream_++};
  if (what < 14) return CloseStream{agent.stream};
  if (what < 15) return LeaveAgent{agent.stream, Chance(50) ? "terminated" : ""};
  if (what < 22) {
    Heartbeat beat{.stream = agent.stream};
    if (Chance(50)) beat.progress.push_back({SomeJob(core), 1, Pick(50)});
    return beat;
  }
  if (what < 68) return Batch(core, &agent);
  if (what < 77) return Submit();
  if (what < 81) {
    return CancelJob{SomeJob(core), Chance(50) ? "no \"need\"\n" : "",
                     static_cast<CancelMode>(Pick(3))};
  }
  if (what < 86) {
    return RequestDirective{SomeJob(core), "asked", static_cast<Directive::Kind>(Pick(4))};
  }
  if (what < 89) {
    return DrainWorker{absl::StrCat("n", 1 + Pick(5), "/", Pick(2)), Chance(60)};
  }
  if (what < 96) {
    return SetKey{SomeJob(core), 1, absl::StrCat("group/", Pick(6)),
                  std::string(1 + Pick(5), static_cast<char>(Pick(256)))};
  }
  if (what < 98) {
    return WaitPrefix{next_wait_++, SomeJob(core), 1, "group/", 1 + Pick(4), absl::Seconds(5)};
  }
  return StorageState{Chance(70), "the journal's disk is full"};
}

void RandomEvents::Note(const Event& event, const Outcome& outcome) {
  if (const auto* open = std::get_if<OpenStream>(&event)) {
    for (Agent& agent : agents_) {
      if (agent.registration.incarnation != open->incarnation) continue;
      agent.stream = outcome.status.ok() ? open->stream : 0;
      for (const Action& action : outcome.actions) {
        const auto* send = std::get_if<SendToAgent>(&action);
        if (send == nullptr || send->stream != agent.stream) continue;
        const auto* welcome = std::get_if<WelcomeMessage>(&send->message);
        if (welcome != nullptr) agent.sent = welcome->reports_through;
      }
    }
  }
  if (std::holds_alternative<LeaveAgent>(event)) {
    std::erase_if(agents_, [&](const Agent& agent) {
      return agent.stream != 0 && agent.stream == std::get<LeaveAgent>(event).stream;
    });
  }
  if (const auto* close = std::get_if<CloseStream>(&event)) {
    for (Agent& agent : agents_) {
      if (agent.stream == close->stream) agent.stream = 0;
    }
  }
}

void RandomEvents::ForgetStreams() {
  for (Agent& agent : agents_) agent.stream = 0;
}

Event RandomEvents::Register() {
  if (!agents_.empty() && Chance(20)) {  // repeated
    return agents_[Pick(static_cast<int>(agents_.size()))].registration;
  }
  const std::string node = absl::StrCat("n", 1 + Pick(5));
  RegisterAgent agent{.incarnation = absl::StrCat("incarnation-\x01\xff-", next_life_++),
                      .node = node,
                      .version = "0.1",
                      .address = "10.0.0.1",
                      .num_cpus = 4};
  const bool cuda = Chance(20);
  for (int i = 0; i < 2; ++i) {
    agent.workers.push_back({absl::StrCat(node, "/", i), cuda ? absl::StrCat("cuda:", i) : "cpu",
                             cuda ? DeviceKind::kCuda : DeviceKind::kCpu, i});
  }
  if (agents_.size() > 12) agents_.erase(agents_.begin());
  agents_.push_back({.registration = agent});
  return agent;
}

Event RandomEvents::Batch(const Coordinator& core, Agent* agent) {
  ReportBatch batch{.stream = agent->stream, .sequence = agent->sent + 1};
  if (Chance(5)) batch.sequence = agent->sent + Pick(3);  // repeated, or a gap
  for (const WorkerInfo& info : agent->registration.workers) {
    const Worker* worker = core.membership().FindWorker(info.name);
    if (worker == nullptr || !worker->assignment.has_value() || Chance(30)) continue;
    AssignmentRef from = *worker->assignment;
    if (Chance(3)) from.epoch += 1;  // stale
    const JobMachine* job = core.FindJob(from.job_id);
    for (int i = Pick(3); i >= 0; --i) {
      const int last = static_cast<int>(job->ranks().size()) - 1;
      batch.reports.push_back({from, Report(*job, std::clamp(from.rank, 0, last))});
    }
  }
  if (batch.sequence > agent->sent) agent->sent = batch.sequence;
  return batch;
}

ReportBody RandomEvents::Report(const JobMachine& job, int rank) {
  const int what = Pick(100);
  static const char* const kPhases[] = {"forming",    "restoring", "training", "training",
                                        "evaluating", "saving",    "yielded",  "spare"};
  if (what < 30) return PhaseMessage{1, kPhases[Pick(8)], Chance(50) ? "1 of 2" : ""};
  if (what < 36) return PublishUniqueIdMessage{1, "abcd"};
  if (what < 66) {
    StepMessage step;
    step.iteration = std::max<int64_t>(1, job.iteration() + 1 - (Chance(10) ? Pick(3) : 0));
    step.consumed_samples = step.iteration * 8;
    // Mostly what any attempt finds.
    step.lm_loss = Chance(99) ? 1.0 / step.iteration : 7.0;
    if (step.iteration % 5 == 0) step.lm_loss.reset();
    if (Chance(20)) step.num_zeros = Pick(1000);
    if (Chance(20)) step.params_norm = Pick(1000) / 7.0;
    for (const auto& [name, value] : kStepSideLosses) {
      if (Chance(20)) step.*value = Pick(1000) / 3.0;
    }
    if (step.iteration % 2 == 0) step.grad_norm = std::numeric_limits<double>::infinity();
    step.learning_rate = Chance(10) ? std::numeric_limits<double>::quiet_NaN() : 0.1;
    step.elapsed_ms = Pick(4000) / 3.0;
    step.applied_directive = job.directives().last();
    step.timers_ms["forward-backward"] = 0.1;
    step.num_floating_point_operations_so_far = 1e30;
    return step;
  }
  if (what < 70) return EvaluationMessage{1, job.iteration(), "valid", 2.5, 12.2, false};
  if (what < 75) return CheckpointMessage{1, job.iteration(), "/ckpt", Chance(80), "quota", 12.5};
  if (what < 80) return EventMessage{1, "slow", "rank is \"slow\" \xc3\xa9"};
  if (what < 82) return RestoredMessage{1, job.iteration(), "live", "", 12.5, 3, 100};
  if (what < 83) return LogLines{{"hello"}};
  if (what < 91) return DoneMessage{1, Chance(80) ? 0 : 16, "trained"};
  if (what < 93) return FailedMessage{1, "no memory", Chance(60)};
  if (!job.ended() && !job.ranks()[rank].done.has_value() && Chance(70)) {
    return PhaseMessage{1, "training", ""};
  }
  if (Chance(50)) return ExitedReport{.exit_code = 0};
  return ExitedReport{.signal = 9, .last_log_lines = {"last", "words"}};
}

Event RandomEvents::Submit() {
  TestSpecOptions spec{.world_size = 1 + Pick(4), .spares = Pick(2), .priority = Pick(3)};
  spec.max_restarts = Chance(30) ? 0 : 1 + Pick(6);
  spec.elastic = Chance(40);
  spec.skip_poisoned_batch = Chance(50);
  spec.wait_for_workers_s = 1 + Pick(60);
  if (Chance(60)) spec.save = "/ckpt";
  SubmitJob submit{.spec_json = TestSpec(spec)};
  if (Chance(30)) submit.idempotency_key = absl::StrCat("key-", Pick(20));
  if (Chance(5)) submit.spec_json = "{}";
  return submit;
}

std::string RandomEvents::SomeJob(const Coordinator& core) {
  if (core.jobs().empty() || Chance(5)) return "job-none";
  // Mostly one of the newest.
  auto job = core.jobs().end();
  for (int i = Pick(6); i >= 0 && job != core.jobs().begin(); --i) --job;
  return job->second->job_id();
}

}  // namespace muster
