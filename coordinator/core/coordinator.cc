#include "coordinator/core/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/schedule/from_spec.h"

namespace muster {
namespace {

absl::Status NoSuchJob(const std::string& job_id) {
  return absl::NotFoundError(absl::StrCat("job \"", job_id, "\" is not known"));
}

}  // namespace

Coordinator::Coordinator(const CoordinatorOptions& options)
    : options_(options), membership_(options.membership), rendezvous_(options.rendezvous) {}

Outcome Coordinator::Handle(const Event& event, absl::Time now) {
  Outcome out;
  out.status = std::visit([&](const auto& e) { return On(e, now, &out); }, event);
  Admit(now, &out.actions);
  FlushChanged(&out.actions);
  return out;
}

std::vector<Action> Coordinator::Tick(absl::Time now) {
  std::vector<Action> actions;
  for (const LostAgent& lost : membership_.Tick(now)) OnLost(lost, now, &actions);
  rendezvous_.Expire(now, &actions);
  for (auto& [sequence, job] : jobs_) {
    JobEffects effects;
    job->Tick(now, &effects);
    Apply(*job, effects, &actions);
  }
  Admit(now, &actions);
  FlushChanged(&actions);
  return actions;
}

absl::Status Coordinator::On(const RegisterAgent& event, absl::Time now, Outcome* out) {
  std::vector<LostAgent> lost;
  RETURN_IF_ERROR(membership_.Register(event, now, &lost));
  for (const LostAgent& agent : lost) OnLost(agent, now, &out->actions);
  out->reply = RegisterReply{membership_.FindAgent(event.incarnation)->workers,
                             membership_.heartbeat_interval(), membership_.heartbeat_timeout()};
  return absl::OkStatus();
}

absl::Status Coordinator::On(const OpenStream& event, absl::Time now, Outcome* out) {
  StreamId replaced = 0;
  ASSIGN_OR_RETURN(const Agent* agent, membership_.Open(event, now, &replaced));
  if (replaced != 0) {
    out->actions.emplace_back(
        EndStream{replaced, absl::AbortedError("a newer stream of this agent replaces this one")});
  }
  Resync(*agent, &out->actions);
  return absl::OkStatus();
}

absl::Status Coordinator::On(const CloseStream& event, absl::Time now, Outcome* out) {
  membership_.Close(event.stream, now);
  return absl::OkStatus();
}

absl::Status Coordinator::On(const Heartbeat& event, absl::Time now, Outcome* out) {
  return membership_.Beat(event, now);
}

absl::Status Coordinator::On(const LeaveAgent& event, absl::Time now, Outcome* out) {
  return absl::OkStatus();
}

absl::Status Coordinator::On(const StorageState& event, absl::Time now, Outcome* out) {
  storage_ = event;
  ++queue_generation_;
  return absl::OkStatus();
}

absl::Status Coordinator::On(const ReportBatch& event, absl::Time now, Outcome* out) {
  ASSIGN_OR_RETURN(const bool is_new, membership_.AcceptBatch(event.stream, event.sequence, now));
  const Agent* agent = membership_.FindStream(event.stream);
  const std::string incarnation = agent->incarnation;
  if (is_new) {
    for (const TrainerReport& report : event.reports) {
      const AssignmentRef& from = report.assignment;
      const Worker* worker = membership_.FindWorker(from.worker);
      JobMachine* job = MutableJob(from.job_id);
      if (worker == nullptr || worker->incarnation != incarnation || worker->assignment != from ||
          job == nullptr || from.rank < 0) {
        ++num_stale_reports_;
        continue;
      }
      if (const auto* phase = std::get_if<PhaseMessage>(&report.body)) {
        membership_.SetPhase(from.worker, phase->phase);
      }
      JobEffects effects;
      job->OnReport(from.rank, report.body, now, &effects);
      changed_.insert(from.job_id);
      Apply(*job, effects, &out->actions);
    }
  }
  Send(incarnation, AckMessage{membership_.FindAgent(incarnation)->reports_through}, &out->actions);
  return absl::OkStatus();
}

absl::Status Coordinator::On(const SubmitJob& event, absl::Time now, Outcome* out) {
  if (event.spec_json.size() > options_.max_spec_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("the spec has ", event.spec_json.size(),
                                                     " bytes; limit ", options_.max_spec_bytes));
  }
  const auto known = idempotency_.find(event.idempotency_key);
  if (!event.idempotency_key.empty() && known != idempotency_.end()) {
    if (FindJob(known->second)->identity().spec_json != event.spec_json) {
      return absl::AlreadyExistsError(absl::StrCat("idempotency_key \"", event.idempotency_key,
                                                   "\" was used for ", known->second,
                                                   " with another spec; use a new key"));
    }
    out->reply = SubmitReply{.job_id = known->second};
    return absl::OkStatus();
  }
  ParsedSpec parsed = ParseJobSpec(event.spec_json);
  if (parsed.problems.empty()) {
    if (const auto topology = RankTopology::Create(TopologyOf(parsed.spec)); !topology.ok()) {
      parsed.problems.push_back({"parallel", "", std::string(topology.status().message())});
    }
  }
  if (!parsed.problems.empty()) {
    out->reply = SubmitReply{.problems = std::move(parsed.problems)};
    return absl::OkStatus();
  }
  const auto waiting = std::count_if(jobs_.begin(), jobs_.end(), [](const auto& entry) {
    return entry.second->state() == JobState::kQueued;
  });
  if (static_cast<size_t>(waiting) >= options_.max_waiting_jobs || !MakeRoom()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(waiting, " jobs wait in the queue; try again when some have ended"));
  }
  const int64_t sequence = next_sequence_++;
  const std::string job_id = options_.job_tag.empty()
                                 ? absl::StrCat("job-", sequence)
                                 : absl::StrCat("job-", options_.job_tag, "-", sequence);
  const int64_t train_iters = Resolve(parsed.spec, 0).train_iters;
  auto job = std::make_unique<JobMachine>(
      JobMachine::Identity{job_id, event.spec_json, event.idempotency_key, sequence},
      std::move(parsed.spec), train_iters, options_.jobs, now);
  job->Enqueue(now);
  jobs_[sequence] = std::move(job);
  job_sequence_[job_id] = sequence;
  if (!event.idempotency_key.empty()) idempotency_[event.idempotency_key] = job_id;
  ++queue_generation_;
  changed_.insert(job_id);
  out->reply = SubmitReply{.job_id = job_id};
  return absl::OkStatus();
}

absl::Status Coordinator::On(const CancelJob& event, absl::Time now, Outcome* out) {
  JobMachine* job = MutableJob(event.job_id);
  if (job == nullptr) return NoSuchJob(event.job_id);
  JobEffects effects;
  job->Cancel(event.mode, event.reason, now, &effects);
  ++queue_generation_;
  changed_.insert(event.job_id);
  Apply(*job, effects, &out->actions);
  return absl::OkStatus();
}

absl::Status Coordinator::On(const RequestDirective& event, absl::Time now, Outcome* out) {
  JobMachine* job = MutableJob(event.job_id);
  if (job == nullptr) return NoSuchJob(event.job_id);
  JobEffects effects;
  ASSIGN_OR_RETURN(const Directive directive,
                   job->Request(event.kind, event.reason, now, &effects));
  changed_.insert(event.job_id);
  Apply(*job, effects, &out->actions);
  out->reply = DirectiveReply{directive.number};
  return absl::OkStatus();
}

absl::Status Coordinator::On(const DrainWorker& event, absl::Time now, Outcome* out) {
  return membership_.Drain(event.worker, event.undo);
}

absl::Status Coordinator::On(const SetKey& event, absl::Time now, Outcome* out) {
  return rendezvous_.Set(event, &out->actions);
}

absl::Status Coordinator::On(const WaitPrefix& event, absl::Time now, Outcome* out) {
  return rendezvous_.Wait(event, now, &out->actions);
}

absl::Status Coordinator::On(const CancelWait& event, absl::Time now, Outcome* out) {
  rendezvous_.Cancel(event.token);
  return absl::OkStatus();
}

const JobMachine* Coordinator::FindJob(const std::string& job_id) const {
  const auto found = job_sequence_.find(job_id);
  return found == job_sequence_.end() ? nullptr : jobs_.at(found->second).get();
}

JobMachine* Coordinator::MutableJob(const std::string& job_id) {
  return const_cast<JobMachine*>(FindJob(job_id));
}

void Coordinator::OnLost(const LostAgent& lost, absl::Time now, std::vector<Action>* actions) {
  if (lost.stream != 0) {
    actions->emplace_back(EndStream{lost.stream, absl::AbortedError(lost.reason)});
  }
  for (const AssignmentRef& assignment : lost.assignments) {
    JobMachine* job = MutableJob(assignment.job_id);
    MUSTER_CHECK(job != nullptr && job->epoch() == assignment.epoch);
    JobEffects effects;
    if (assignment.rank < 0) {
      job->OnSpareLost(assignment.worker, now);
      membership_.Release(assignment);
    } else {
      job->OnWorkerLost(assignment.rank, lost.reason, now, &effects);
    }
    changed_.insert(assignment.job_id);
    Apply(*job, effects, actions);
  }
}

bool Coordinator::MakeRoom() {
  if (jobs_.size() < options_.max_jobs) return true;
  for (auto it = jobs_.begin(); it != jobs_.end(); ++it) {
    const JobMachine& job = *it->second;
    if (!job.released()) continue;
    job_sequence_.erase(job.job_id());
    idempotency_.erase(job.identity().idempotency_key);
    jobs_.erase(it);
    return true;
  }
  return false;
}

void Coordinator::FlushChanged(std::vector<Action>* actions) {
  for (const std::string& job_id : changed_) actions->emplace_back(JobChanged{job_id});
  changed_.clear();
}

}  // namespace muster
