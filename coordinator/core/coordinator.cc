#include "coordinator/core/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/topology/placement.h"
#include "coordinator/core/job_topology.h"

namespace muster {
namespace {

absl::Status NoSuchJob(const std::string& job_id) {
  return absl::NotFoundError(absl::StrCat("job \"", job_id, "\" is not known"));
}

LaunchMessage::Assignment AssignmentFor(const JobMachine& job, int rank) {
  const RankSlot& slot = job.ranks()[rank];
  return {.worker = slot.worker,
          .rank = rank,
          .host_address = slot.host_address,
          .device = slot.device,
          .num_threads = slot.num_threads};
}

LaunchMessage LaunchFor(const JobMachine& job) {
  return {.job_id = job.job_id(),
          .epoch = job.epoch(),
          .spec_json = job.identity().spec_json,
          .world_size = job.world_size(),
          .directives_through = job.directives_through()};
}

bool HasTrainer(const RankSlot& slot) { return slot.trainer == RankSlot::Trainer::kLaunched; }

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
    if (const auto topology = TopologyOf(parsed.spec); !topology.ok()) {
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

void Coordinator::Resync(const Agent& agent, std::vector<Action>* actions) {
  WelcomeMessage welcome{.reports_through = agent.reports_through};
  std::map<std::string, std::vector<int>> ranks_of_job;
  for (const std::string& name : agent.workers) {
    const auto& assignment = membership_.FindWorker(name)->assignment;
    if (!assignment.has_value() || assignment->rank < 0) continue;
    welcome.running.push_back(*assignment);
    ranks_of_job[assignment->job_id].push_back(assignment->rank);
  }
  actions->emplace_back(SendToAgent{agent.stream, std::move(welcome)});
  for (const auto& [job_id, ranks] : ranks_of_job) {
    const JobMachine& job = *FindJob(job_id);
    const auto send = [&](AgentMessage message) {
      actions->emplace_back(SendToAgent{agent.stream, std::move(message)});
    };
    if (job.ended()) {
      if (job.state() == JobState::kFailed || job.state() == JobState::kCancelled) {
        send(AbortBroadcast{job_id, job.epoch(), job.reason()});
      }
      for (const int rank : ranks) {
        send(StopTrainerMessage{job.ranks()[rank].worker, job_id, job.epoch(), job.stop_grace(),
                                job.reason()});
      }
      continue;
    }
    if (job.aborted()) {
      send(AbortBroadcast{job_id, job.epoch(), job.reason()});
      continue;
    }
    LaunchMessage launch = LaunchFor(job);
    for (const int rank : ranks) launch.assignments.push_back(AssignmentFor(job, rank));
    send(std::move(launch));
    if (!job.unique_id().empty()) send(UniqueIdBroadcast{job_id, job.epoch(), job.unique_id()});
    for (const Directive& directive : job.directives().After(job.directives_through())) {
      send(DirectiveBroadcast{job_id, job.epoch(), directive});
    }
  }
}

void Coordinator::Apply(JobMachine& job, const JobEffects& effects, std::vector<Action>* actions) {
  if (!effects.empty()) changed_.insert(job.job_id());
  const std::string& job_id = job.job_id();
  for (const JobEffect& effect : effects) {
    if (std::holds_alternative<LaunchRanks>(effect)) {
      rendezvous_.Begin(job_id, job.epoch(), actions);
      SendLaunches(job, actions);
    } else if (std::holds_alternative<PublishUniqueId>(effect)) {
      Broadcast(job, UniqueIdBroadcast{job_id, job.epoch(), job.unique_id()}, actions);
    } else if (const auto* directive = std::get_if<PublishDirective>(&effect)) {
      Broadcast(job, DirectiveBroadcast{job_id, job.epoch(), directive->directive}, actions);
    } else if (const auto* abort = std::get_if<AbortEpoch>(&effect)) {
      Broadcast(job, AbortBroadcast{job_id, job.epoch(), abort->reason}, actions);
    } else if (std::holds_alternative<StopRanks>(effect)) {
      SendStops(job, actions);
    } else if (const auto* over = std::get_if<EndRendezvous>(&effect)) {
      rendezvous_.End(job_id, over->reason, actions);
    } else if (const auto* release = std::get_if<ReleaseRank>(&effect)) {
      membership_.Release({job.ranks()[release->rank].worker, job_id, job.epoch(), release->rank});
    } else if (std::holds_alternative<ReleaseSpares>(effect)) {
      for (const std::string& worker : job.spares()) {
        membership_.Release({worker, job_id, job.epoch(), -1});
      }
    }
  }
}

void Coordinator::SendLaunches(const JobMachine& job, std::vector<Action>* actions) {
  std::map<std::string, LaunchMessage> by_agent;
  for (int rank = 0; rank < job.world_size(); ++rank) {
    const std::string& incarnation = job.ranks()[rank].incarnation;
    auto launch = by_agent.find(incarnation);
    if (launch == by_agent.end()) launch = by_agent.emplace(incarnation, LaunchFor(job)).first;
    launch->second.assignments.push_back(AssignmentFor(job, rank));
  }
  for (auto& [incarnation, launch] : by_agent) Send(incarnation, std::move(launch), actions);
}

void Coordinator::SendStops(const JobMachine& job, std::vector<Action>* actions) {
  for (const RankSlot& slot : job.ranks()) {
    if (!HasTrainer(slot)) continue;
    Send(slot.incarnation,
         StopTrainerMessage{slot.worker, job.job_id(), job.epoch(), job.stop_grace(), job.reason()},
         actions);
  }
}

void Coordinator::Broadcast(const JobMachine& job, const AgentMessage& message,
                            std::vector<Action>* actions) {
  std::set<std::string> agents;
  for (const RankSlot& slot : job.ranks()) {
    if (HasTrainer(slot)) agents.insert(slot.incarnation);
  }
  for (const std::string& incarnation : agents) Send(incarnation, message, actions);
}

void Coordinator::Send(const std::string& incarnation, AgentMessage message,
                       std::vector<Action>* actions) {
  const Agent* agent = membership_.FindAgent(incarnation);
  // Without a stream it gets all that counts when it is welcomed again.
  if (agent == nullptr || agent->stream == 0) return;
  actions->emplace_back(SendToAgent{agent->stream, std::move(message)});
}

void Coordinator::Admit(absl::Time now, std::vector<Action>* actions) {
  while (admitted_ != std::pair(membership_.generation(), queue_generation_)) {
    admitted_ = {membership_.generation(), queue_generation_};
    std::vector<QueuedJob> queue;
    for (const auto& [sequence, job] : jobs_) {
      if (job->state() != JobState::kQueued) continue;
      const ResourcesSpec& wanted = job->spec().resources;
      queue.push_back({.job_id = job->job_id(),
                       .kind = job->kind(),
                       .num_workers = static_cast<int>(wanted.world_size + wanted.spares),
                       .priority = wanted.priority,
                       .sequence = sequence});
    }
    if (queue.empty()) return;
    std::map<DeviceKind, WorkerSupply> supply;
    for (const auto& [name, worker] : membership_.workers()) {
      const bool alive = membership_.FindAgent(worker.incarnation)->state == AgentState::kAlive;
      if (!alive || worker.draining) continue;
      ++supply[worker.info.kind].num_usable;
      if (membership_.IsIdle(worker)) ++supply[worker.info.kind].num_idle;
    }
    for (const AdmissionDecision& decision : DecideAdmission(std::move(queue), supply)) {
      JobMachine& job = *MutableJob(decision.job_id);
      const int64_t version = job.version();
      if (decision.start) {
        StartJob(job, now, actions);
      } else {
        job.SetQueueReason(decision.reason);
      }
      if (job.version() != version) changed_.insert(job.job_id());
    }
  }
}

void Coordinator::StartJob(JobMachine& job, absl::Time now, std::vector<Action>* actions) {
  std::vector<PlacementWorker> idle;
  for (const auto& [name, worker] : membership_.workers()) {
    if (worker.info.kind != job.kind() || !membership_.IsIdle(worker)) continue;
    idle.push_back({name, membership_.FindAgent(worker.incarnation)->node, worker.info.index});
  }
  const auto topology = TopologyOf(job.spec());
  MUSTER_CHECK(topology.ok());  // checked when it was submitted
  const auto placement = PlaceRanks(*topology, idle);
  MUSTER_CHECK(placement.ok());  // admission has counted
  std::vector<RankSlot> ranks;
  std::vector<bool> used(idle.size(), false);
  for (const size_t i : placement->worker_of_rank) {
    used[i] = true;
    const Worker& worker = *membership_.FindWorker(idle[i].name);
    const Agent& agent = *membership_.FindAgent(worker.incarnation);
    const int share = std::max(1, agent.num_cpus / static_cast<int>(agent.workers.size()));
    ranks.push_back(
        {.worker = worker.info.name,
         .incarnation = agent.incarnation,
         .node = agent.node,
         .host_address = agent.address,
         .device = worker.info.device,
         .num_threads = static_cast<int>(job.spec().training.num_threads.value_or(share))});
  }
  std::vector<std::string> spares;
  for (size_t i = 0; i < idle.size(); ++i) {
    if (static_cast<int64_t>(spares.size()) == job.spec().resources.spares) break;
    if (!used[i]) spares.push_back(idle[i].name);
  }
  JobEffects effects;
  job.Start(std::move(ranks), std::move(spares), now, &effects);
  for (int rank = 0; rank < job.world_size(); ++rank) {
    membership_.Assign({job.ranks()[rank].worker, job.job_id(), job.epoch(), rank});
  }
  for (const std::string& worker : job.spares()) {
    membership_.Assign({worker, job.job_id(), job.epoch(), -1});
  }
  Apply(job, effects, actions);
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
