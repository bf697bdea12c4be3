// SimCluster's requests and faults, and the judgement at the end.
#include <algorithm>
#include <utility>

#include "tests/coordinator/core/test_spec.h"
#include "tests/sim/sim_parts.h"

namespace muster {

// ---- people

void SimCluster::SubmitSome() {
  int num_workers = 0;
  for (const auto& agent : agents_) num_workers += agent->num_slots;
  const SubmitJob submit{
      .spec_json = TestSpec({.world_size = 1 + Pick(std::max(1, num_workers / 2)),
                             .spares = Chance(0.2) ? 1 : 0,
                             .priority = Pick(3),
                             .save = Chance(0.5) ? "/ckpt" : "",
                             .train_iters = 5 + Pick(40)}),
      .idempotency_key = absl::StrCat("key-", job_ids_.size())};
  const auto first = std::get<SubmitReply>(Deliver(submit).reply);
  if (first.job_id.empty()) {
    wrong_.push_back(absl::StrCat("spec refused: ", first.problems.at(0).ToString()));
    return;
  }
  if (Chance(0.5) && std::get<SubmitReply>(Deliver(submit).reply).job_id != first.job_id) {
    wrong_.push_back("a repeated submission made a second job");
  }
  job_ids_.push_back(first.job_id);
}

void SimCluster::MeddleSome() {
  if (job_ids_.empty()) return;
  const std::string job = job_ids_[Pick(static_cast<int>(job_ids_.size()))];
  switch (Pick(6)) {
    case 0:
      Deliver(CancelJob{.job_id = job, .mode = static_cast<CancelMode>(Pick(3))});
      break;
    case 1:
      Deliver(RequestDirective{.job_id = job, .kind = Directive::Kind::kEvaluate});
      break;
    case 2:
      Deliver(RequestDirective{.job_id = job, .kind = Directive::Kind::kCheckpoint});
      break;
    case 3: {
      const int i = Pick(options_.num_agents);
      Deliver(DrainWorker{.worker = agents_[i]->Worker(0), .undo = false});
      At(absl::Seconds(3), [this, i] { Deliver(DrainWorker{agents_[i]->Worker(0), true}); });
      break;
    }
    default: {
      const int64_t epoch = Pick(3);
      const auto outcome = Deliver(SetKey{.job_id = job, .epoch = epoch, .key = "k"});
      if (outcome.status.ok() && core_->rendezvous().epoch(job) != epoch) {
        wrong_.push_back("a key of a stale epoch was taken");
      }
    }
  }
}

void SimCluster::CauseFault() {
  const int i = Pick(options_.num_agents);
  Agent& agent = *agents_[i];
  switch (Pick(6)) {
    case 5:  // a confused agent speaks of what is over
      if (agent.past.empty() || !agent.up) break;
      Report(
          i, agent.past[Pick(static_cast<int>(agent.past.size()))],
          Chance(0.5) ? ReportBody(ExitedReport{.signal = 6}) : ReportBody(DoneMessage{1, 0, "x"}));
      break;
    case 0:
    case 1:
      BreakStream(i, Chance(0.7));
      break;
    case 2: {
      if (agent.trainers.empty()) break;
      auto victim =
          std::next(agent.trainers.begin(), Pick(static_cast<int>(agent.trainers.size())));
      const AssignmentRef from = victim->second.assignment;
      WorldOf(from.job_id, from.epoch).faulted.insert(from.rank);
      KillTrainer(i, victim->first, Chance(0.5) ? 9 : 11);
      break;
    }
    case 3:
      CrashAgent(i);
      At(absl::Milliseconds(100 + Pick(8000)), [=, this] { Boot(i); });
      break;
    case 4: {
      agent.cut_off_until = now_ + absl::Milliseconds(200 + Pick(3000));
      node_fault_[agent.node] = agent.cut_off_until;
      break;
    }
  }
}

void SimCluster::Judge() {
  for (const auto& [sequence, job] : core_->jobs()) {
    const auto bad = [&](const std::string& what) {
      wrong_.push_back(absl::StrCat(job->job_id(), " (", JobStateName(job->state()), ", ",
                                    job->reason(), "): ", what));
    };
    if (!job->ended()) bad(absl::StrCat("did not end; ", job->Progress()));
    if (job->ended() && !job->released()) bad("holds workers");
    tally_.completed += job->state() == JobState::kCompleted;
    tally_.failed += job->state() == JobState::kFailed;
    tally_.cancelled += job->state() == JobState::kCancelled;
    if (job->state() == JobState::kCompleted) {
      // Every step once and in order, whatever was repeated on the way.
      int64_t iteration = 0;
      for (const auto& entry : job->history().steps().entries()) {
        if (entry.value.step.iteration != ++iteration) bad("a step is missing");
      }
      if (iteration != job->train_iters()) bad(absl::StrCat("has ", iteration, " steps"));
    }
    if (job->state() == JobState::kFailed) {
      // The cause is a rank that something happened to, not one that only noticed.
      const World& world = WorldOf(job->job_id(), job->epoch());
      const FailureCause& cause = *job->cause();
      const auto fault = node_fault_.find(cause.node);
      const bool node_hit =
          fault != node_fault_.end() && fault->second > cause.time - absl::Seconds(10);
      if (!world.faulted.contains(cause.rank.value_or(-1)) && !node_hit) {
        bad("blames a healthy rank");
      }
    }
  }
  for (const auto& [name, worker] : core_->membership().workers()) {
    if (!core_->membership().IsIdle(worker)) wrong_.push_back(absl::StrCat(name, " is not idle"));
  }
  for (const auto& agent : agents_) {
    if (!agent->trainers.empty()) wrong_.push_back(absl::StrCat(agent->node, " runs a trainer"));
    if (!agent->unacknowledged.empty()) {
      wrong_.push_back(absl::StrCat(agent->node, " holds reports that nobody took"));
    }
  }
}

}  // namespace muster
