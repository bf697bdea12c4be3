#include "coordinator/core/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/schedule/from_spec.h"

namespace muster {
namespace {

constexpr absl::Duration kRecoveryPatience = absl::Seconds(3);

absl::Status NoSuchJob(const std::string& job_id) {
  return absl::NotFoundError(absl::StrCat("job \"", job_id, "\" is not known"));
}

// What a job is judged by. An agent that has had its acknowledgement does not say it again.
bool IsFinalWord(const ReportBody& body) {
  return std::holds_alternative<DoneMessage>(body) || std::holds_alternative<FailedMessage>(body) ||
         std::holds_alternative<ExitedReport>(body);
}

// The report is of the trainer that the worker has now.
bool Holds(const Worker& worker, const TrainerReport& report) {
  if (!worker.assignment.has_value()) return false;
  AssignmentRef from = report.assignment;
  // An agent that was told to stop what it was never told to launch does not know the rank: it says
  // none, or the one that a survivor had in the epoch before.
  if (std::holds_alternative<ExitedReport>(report.body)) from.rank = worker.assignment->rank;
  return from == *worker.assignment;
}

// Otherwise the worker is held beside the ranks: a spare, a helper, one that leaves.
bool IsOfRank(const JobMachine& job, const AssignmentRef& held) {
  return held.epoch == job.epoch() && held.rank >= 0 &&
         held.rank < static_cast<int>(job.ranks().size());
}

}  // namespace

Coordinator::Coordinator(const CoordinatorOptions& options)
    : options_(options),
      membership_(options.membership),
      rendezvous_(options.rendezvous),
      job_tag_(options.job_tag) {}

Outcome Coordinator::Handle(const Event& event, absl::Time now) {
  Outcome out;
  out.status = std::visit([&](const auto& e) { return On(e, now, &out); }, event);
  TellNews(now);
  Reform(now, &out.actions);
  Admit(now, &out.actions);
  FlushChanged(&out.actions);
  return out;
}

std::vector<Action> Coordinator::Tick(absl::Time now) {
  std::vector<Action> actions;
  const auto silence_of = [this](const std::string& job_id) { return SilenceOf(job_id); };
  const std::vector<LostAgent> all_lost = membership_.Tick(now, silence_of);
  TellNews(now);
  for (const LostAgent& lost : all_lost) OnLost(lost, now, &actions);
  rendezvous_.Expire(now, &actions);
  EndSettling(now);
  const SignsOfLife signs = Signs();
  for (auto it = live_.begin(); it != live_.end();) {
    JobMachine& job = *jobs_.at(*it);
    const bool released = job.released();
    if (released) ForgetEverywhere(job, &actions);
    it = released ? live_.erase(it) : std::next(it);
    if (released) continue;
    JobEffects effects;
    job.Tick(now, &effects, signs);
    Apply(job, effects, &actions);
  }
  Reform(now, &actions);
  Admit(now, &actions);
  Rearrange(now, &actions);
  FlushChanged(&actions);
  return actions;
}

absl::Status Coordinator::On(const RegisterAgent& event, absl::Time now, Outcome* out) {
  std::vector<LostAgent> lost;
  RETURN_IF_ERROR(membership_.Register(event, now, &lost));
  decided_ = true;
  for (const LostAgent& agent : lost) OnLost(agent, now, &out->actions);
  for (size_t i = 0; i < std::min(event.workers.size(), event.checks.size()); ++i) {
    OnDeviceCheck(event.workers[i].name, event.checks[i], now);
  }
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
  RETURN_IF_ERROR(membership_.Beat(event, now));
  if (event.progress.empty()) return absl::OkStatus();
  const Agent& agent = *membership_.FindStream(event.stream);
  for (const TrainerProgress& progress : event.progress) {
    if (!agent.Holds(progress.job_id)) continue;
    JobMachine* job = MutableJob(progress.job_id);
    const int64_t version = job->version();
    job->OnProgress(agent.incarnation, progress, now);
    if (job->version() != version) changed_.insert(progress.job_id);
    Touch(*job);
  }
  return absl::OkStatus();
}

absl::Status Coordinator::On(const LeaveAgent& event, absl::Time now, Outcome* out) {
  ASSIGN_OR_RETURN(LostAgent lost, membership_.Leave(event));
  out->actions.emplace_back(EndStream{std::exchange(lost.stream, 0), absl::OkStatus()});
  OnLost(lost, now, &out->actions);
  return absl::OkStatus();
}

absl::Status Coordinator::On(const StorageState& event, absl::Time now, Outcome* out) {
  storage_ = event;
  ++queue_generation_;
  return absl::OkStatus();
}

absl::Status Coordinator::On(const ReportBatch& event, absl::Time now, Outcome* out) {
  // While the journal cannot be written, batches are turned away before they come here. What they
  // said must not be taken for lost: the agent has it, and sends it again by its next stream.
  if (const Agent* sender = membership_.FindStream(event.stream);
      sender != nullptr && !storage_.writable && event.sequence > sender->reports_through + 1) {
    return absl::FailedPreconditionError(absl::StrCat(
        "report batch ", event.sequence, " came, but ", sender->reports_through + 1, " is next"));
  }
  ASSIGN_OR_RETURN(const bool is_new, membership_.AcceptBatch(event.stream, event.sequence, now));
  const Agent* agent = membership_.FindStream(event.stream);
  const std::string incarnation = agent->incarnation;
  if (is_new) {
    for (const TrainerReport& report : event.reports) {
      const AssignmentRef& from = report.assignment;
      const Worker* worker = membership_.FindWorker(from.worker);
      JobMachine* job = MutableJob(from.job_id);
      if (worker == nullptr || worker->incarnation != incarnation || job == nullptr) {
        ++num_stale_reports_;
        continue;
      }
      if (const auto* check = std::get_if<DeviceCheck>(&report.body)) {
        OnDeviceCheck(from.worker, *check, now);
        continue;
      }
      if (IsFinalWord(report.body)) decided_ = true;
      JobEffects effects;
      if (!Holds(*worker, report)) {
        ++num_stale_reports_;
        // What it had done before it heard of the next epoch is done.
        job->OnLateReport(from.rank, from.epoch, from.worker, report.body, now, &effects);
      } else if (IsOfRank(*job, *worker->assignment)) {
        const int rank = worker->assignment->rank;
        if (const auto* step = std::get_if<StepMessage>(&report.body)) {
          membership_.NoteProgress(from.job_id, from.epoch, step->iteration, now);
        }
        if (const auto* examined = std::get_if<ExamineMessage>(&report.body)) {
          OnExamined(*job, rank, *examined, now);
        }
        job->OnReport(rank, report.body, now, &effects);
        membership_.SetPhase(from.worker, job->ranks()[rank].phase);
      } else {
        job->OnExtraReport(from.worker, report.body, now, &effects);
        const ExtraSlot* extra = job->FindExtra(from.worker);
        if (extra != nullptr) membership_.SetPhase(from.worker, extra->slot.phase);
      }
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
  if (!storage_.writable) {
    return absl::UnavailableError(
        absl::StrCat("no jobs are taken now: ", storage_.reason, "; try again later"));
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
  const auto waiting = std::count_if(live_.begin(), live_.end(), [this](int64_t sequence) {
    return jobs_.at(sequence)->state() == JobState::kQueued;
  });
  if (static_cast<size_t>(waiting) >= options_.max_waiting_jobs || !MakeRoom()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(waiting, " jobs wait in the queue; try again when some have ended"));
  }
  const int64_t sequence = next_sequence_++;
  self_unsaved_ = decided_ = true;
  const std::string job_id = job_tag_.empty() ? absl::StrCat("job-", sequence)
                                              : absl::StrCat("job-", job_tag_, "-", sequence);
  const int64_t train_iters = Resolve(parsed.spec, 0).train_iters;
  auto job = std::make_unique<JobMachine>(
      JobMachine::Identity{job_id, event.spec_json, event.idempotency_key, sequence},
      std::move(parsed.spec), train_iters, options_.jobs, now);
  job->Enqueue(now);
  AddJob(std::move(job));
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
  decided_ = true;
  ++queue_generation_;
  changed_.insert(event.job_id);
  Apply(*job, effects, &out->actions);
  return absl::OkStatus();
}

absl::Status Coordinator::On(const RequestDirective& event, absl::Time now, Outcome* out) {
  JobMachine* job = MutableJob(event.job_id);
  if (job == nullptr) return NoSuchJob(event.job_id);
  JobEffects effects;
  ASSIGN_OR_RETURN(
      const Directive directive,
      job->Request({.kind = event.kind, .reason = event.reason, .iterations = event.iterations},
                   now, &effects));
  changed_.insert(event.job_id);
  Apply(*job, effects, &out->actions);
  out->reply = DirectiveReply{
      .number = directive.number, .epoch = job->epoch(), .world_size = job->world_size()};
  return absl::OkStatus();
}

absl::Status Coordinator::On(const SetKey& event, absl::Time now, Outcome* out) {
  decided_ = true;  // unlike a report it is not sent again once it is answered
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
  decided_ = true;
  if (lost.stream != 0) {
    actions->emplace_back(EndStream{lost.stream, absl::AbortedError(lost.reason)});
  }
  const FailureKind kind = NoteLost(lost, now);
  for (const AssignmentRef& assignment : lost.assignments) {
    JobMachine* job = MutableJob(assignment.job_id);
    MUSTER_CHECK(job != nullptr && assignment.epoch <= job->epoch());
    JobEffects effects;
    if (!IsOfRank(*job, assignment)) {
      job->OnExtraLost(assignment.worker, lost.reason, now, &effects);
    } else {
      job->OnWorkerLost(assignment.rank, kind, lost.reason, now, &effects);
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
    forgotten_jobs_.insert(it->first);
    unsaved_jobs_.erase(it->first);
    live_.erase(it->first);
    reforming_.erase(it->first);
    planned_at_.erase(it->first);
    agents_of_job_.erase(it->first);
    arbiters_.erase(it->first);
    jobs_.erase(it);
    return true;
  }
  return false;
}

void Coordinator::AddJob(std::unique_ptr<JobMachine> job) {
  const JobMachine::Identity& identity = job->identity();
  job_sequence_[identity.job_id] = identity.sequence;
  if (!identity.idempotency_key.empty()) idempotency_[identity.idempotency_key] = identity.job_id;
  if (!job->released()) live_.insert(identity.sequence);
  Touch(*job);
  jobs_[identity.sequence] = std::move(job);
}

void Coordinator::Touch(const JobMachine& job) {
  if (job.unsaved()) unsaved_jobs_.insert(job.identity().sequence);
  if (job.wants_plan() || job.change_is_due()) reforming_.insert(job.identity().sequence);
}

SignsOfLife Coordinator::Signs() const {
  const auto of_agent = [this](const std::string& incarnation) -> std::optional<absl::Time> {
    const Agent* agent = membership_.FindAgent(incarnation);
    if (agent == nullptr) return std::nullopt;
    return agent->last_sign;
  };
  return {.of_agent = of_agent, .silent_after = membership_.heartbeat_timeout()};
}

JobSilence Coordinator::SilenceOf(const std::string& job_id) const {
  const JobMachine* job = FindJob(job_id);
  if (job == nullptr || !IsActive(job->state())) return {.trains = false};
  // Ranks have seen another one fail, and its cause is sought: a silent agent is it, most likely,
  // and must be found out within the symptom window.
  if (job->aborted()) {
    return {.trains = true, .patience = absl::ZeroDuration(), .recovers = true};
  }
  // A recovery waits for nobody who may be gone. Once a rank trains all have come through.
  if (job->state() == JobState::kRecovering) {
    return {.trains = true, .patience = kRecoveryPatience, .recovers = !job->some_train()};
  }
  const std::optional<WaitPhase> phase = job->wait_phase();
  // While it starts, and when it is done, no steps can tell of life.
  const bool steps = phase.has_value() && *phase >= WaitPhase::kStep && !job->some_are_done();
  return {
      .trains = true,
      .patience = steps ? job->phase_limits().Limit(*phase) : options_.membership.silence_limit};
}

void Coordinator::EndSettling(absl::Time now) {
  if (settle_until_ == absl::InfinitePast()) return;
  const bool over = settle_until_ <= now || membership_.num_awaited() == 0;
  if (over) settle_until_ = absl::InfinitePast();
  if (hold_plans_until_ != absl::InfinitePast() && (over || hold_plans_until_ <= now)) {
    hold_plans_until_ = absl::InfinitePast();
    planned_at_.clear();
  }
  for (const int64_t sequence : live_) {
    JobMachine& job = *jobs_.at(sequence);
    if (!job.limits_stand_still() || (!over && AwaitsRanks(job))) continue;
    job.StartLimits(now);
    Touch(job);
  }
}

bool Coordinator::AwaitsRanks(const JobMachine& job) const {
  return std::any_of(job.ranks().begin(), job.ranks().end(), [&](const RankSlot& slot) {
    const Agent* agent = slot.held ? membership_.FindAgent(slot.incarnation) : nullptr;
    return agent != nullptr && agent->awaited_until.has_value();
  });
}

void Coordinator::FlushChanged(std::vector<Action>* actions) {
  for (const std::string& job_id : changed_) actions->emplace_back(JobChanged{job_id});
  changed_.clear();
}

}  // namespace muster
