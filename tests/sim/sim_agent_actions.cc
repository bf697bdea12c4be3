// SimAgents' part that brings events to the machine and carries its actions out.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/sim_agent.h"
#include "tests/sim/sim_convert.h"

namespace muster {
namespace {

constexpr absl::Duration kStorePatience = absl::Minutes(15);
constexpr size_t kSpillBound = 20'000;  // reports

}  // namespace

// ---- events

void SimAgents::Doer::Handle(const AgentEvent& event, StreamId stream) {
  if (all_.sim_->steady() < agent_.frozen_until) {
    agent_.inbox.emplace_back(event, stream);
    return;
  }
  if (stream != 0) agent_.order_stream = stream;
  if (const auto* order = std::get_if<CoordinatorOrder>(&event)) {
    int64_t through = -1;
    if (const auto* ack = std::get_if<AckOrder>(order)) through = ack->through;
    if (const auto* welcome = std::get_if<WelcomeOrder>(order)) through = welcome->reports_through;
    while (!agent_.unacknowledged.empty() && agent_.unacknowledged.begin()->first <= through) {
      all_.watch_.acknowledged(
          ToEvent(*agent_.unacknowledged.begin()->second, agent_.stream).reports);
      agent_.unacknowledged.erase(agent_.unacknowledged.begin());
    }
  }
  const int life = agent_.life;
  for (const AgentAction& action : agent_.machine->Handle(event, all_.sim_->steady())) {
    std::visit([this](const auto& a) { Do(a); }, action);
    if (!agent_.up || agent_.life != life) return;
  }
  all_.SetAlarm(agent_.node);
}

void SimAgents::OnTrainerStarted(const SimRun& run, int64_t pid) {
  Agent& agent = *agents_[run.node];
  if (!agent.up || agent.life != run.life) return;
  Doer(this, &agent).Handle(RunEvent{run.worker, run.run, RunEvent::Started{pid}});
}

void SimAgents::OnTrainerSaid(const SimRun& run, const TrainerToAgent& message) {
  Agent& agent = *agents_[run.node];
  if (!agent.up || agent.life != run.life) return;
  Doer(this, &agent).Handle(RunEvent{run.worker, run.run, message});
}

void SimAgents::OnTrainerExited(const SimRun& run, const SimExit& exit) {
  Agent& agent = *agents_[run.node];
  if (!agent.up || agent.life != run.life) return;
  const auto running = agent.running.find({run.worker, run.run});
  if (running != agent.running.end()) {
    agent.past.push_back(running->second);
    agent.running.erase(running);
  }
  agent.pids.erase({run.worker, run.run});
  const bool crashed = exit.launch_error.empty() && (exit.exit_code != 0 || exit.signal != 0);
  if (!crashed || sim_->Chance(0.5)) return OnTrainerGone(run, exit);
  // The kernel takes its time to free what it held.
  sim_->At(sim_->Between(absl::Milliseconds(1), absl::Milliseconds(400)),
           [this, run, exit] { OnTrainerGone(run, exit); });
  Doer(this, &agent)
      .Handle(RunEvent{run.worker, run.run,
                       RunEvent::Dying{{.exit_code = exit.exit_code, .signal = exit.signal}}});
}

void SimAgents::OnTrainerGone(const SimRun& run, const SimExit& exit) {
  Agent& agent = *agents_[run.node];
  if (!agent.up || agent.life != run.life) return;
  Doer(this, &agent)
      .Handle(RunEvent{run.worker, run.run,
                       TrainerExited{.exit_code = exit.exit_code,
                                     .signal = exit.signal,
                                     .launch_error = exit.launch_error}});
}

void SimAgents::SayStale(int node) {
  Agent& agent = *agents_[node];
  // The coordinator must know by now that it is over. (Memories wake the machine minutes later.)
  if (!agent.up) return;
  const std::optional<absl::Duration> wake = agent.machine->NextWake();
  const bool settled = agent.up && agent.welcomed && agent.stream != 0 &&
                       agent.unacknowledged.empty() &&
                       (!wake || *wake > sim_->steady() + absl::Minutes(3));
  if (agent.past.empty() || !settled) return;
  // Beside the machine, whose own fences would not let this out.
  const AssignmentRef from = agent.past[sim_->Pick(static_cast<int>(agent.past.size()))];
  const ReportBody body = sim_->Chance(0.5) ? ReportBody(ExitedReport{.signal = 6})
                                            : ReportBody(DoneMessage{from.epoch, 0, "x"});
  agent.stale = TrainerReport{from, body};
}

// ---- actions

void SimAgents::Doer::Do(const StartTrainerAction& action) {
  const SimRun run{agent_.node, agent_.life, action.worker, action.run};
  agent_.running[{action.worker, action.run}] = {action.worker, action.launch->job_id,
                                                 action.launch->epoch, action.assignment.rank};
  agent_.pids[{action.worker, action.run}] = all_.trainers_->Start(run);
}

void SimAgents::Doer::Do(const SendToTrainerAction& action) {
  const auto pid = agent_.pids.find({action.worker, action.run});
  if (pid == agent_.pids.end()) return;
  if (const auto* assign = std::get_if<AssignMessage>(&action.message)) {
    AssignmentRef& running = agent_.running[{action.worker, action.run}];
    if (running.epoch < assign->epoch) agent_.past.push_back(running);
    running = {action.worker, assign->job_id, assign->epoch, assign->rank};
  }
  AgentToTrainer message = action.message;
  if (auto* assign = std::get_if<AssignMessage>(&message);
      assign != nullptr && action.snapshot_memory != 0) {
    assign->snapshot_memory = all_.MemoryName(agent_, action.snapshot_memory);
  }
  all_.sim_->At(absl::Microseconds(100),
                [trainers = all_.trainers_, pid = pid->second, message = std::move(message)] {
                  trainers->Send(pid, message);
                });
}

void SimAgents::Doer::Do(const SignalTrainerAction& action) {
  const auto pid = agent_.pids.find({action.worker, action.run});
  if (pid != agent_.pids.end()) all_.trainers_->Signal(pid->second);
}

void SimAgents::Doer::Do(const EndTrainerAction& action) {
  const auto pid = agent_.pids.find({action.worker, action.run});
  if (pid != agent_.pids.end()) all_.trainers_->End(pid->second, action.grace);
}

void SimAgents::Doer::Do(const StoreRequestAction& action) {
  all_.Ask(agent_.node, agent_.life, action.worker, action.run, action.job_id, action.request,
           all_.sim_->steady() + kStorePatience);
}

// Simulated trainers record nothing.
void SimAgents::Doer::Do(const TracePieceAction&) {
  all_.sim_->Wrong(absl::StrCat(agent_.name, " was given a trace"));
}

void SimAgents::Doer::Do(const LookAtProcessAction& action) {
  const auto pid = agent_.pids.find({action.worker, action.run});
  const bool running = pid != agent_.pids.end();
  const std::string state = running ? all_.trainers_->ProcessState(pid->second) : "";
  const SimRun run{agent_.node, agent_.life, action.worker, action.run};
  all_.sim_->At(absl::Microseconds(100), [all = &all_, run, request = action.request, running,
                                          state] {
    Agent& agent = *all->agents_[run.node];
    if (!agent.up || agent.life != run.life) return;
    Doer(all, &agent)
        .Handle(RunEvent{run.worker, run.run, RunEvent::ProcessSeen{request, running, state, 0}});
  });
}

void SimAgents::Doer::Do(const FreeSnapshotMemoryAction& action) {
  all_.trainers_->FreeMemory(all_.MemoryName(agent_, action.id));
}

// Simulated devices are good.
void SimAgents::Doer::Do(const CheckDeviceAction& action) {
  const int node = agent_.node, life = agent_.life;
  const DeviceCheckedEvent event{
      action.assignment,
      action.rank,
      {.device = "cpu", .kind = "simulated", .fingerprint = "f0", .copy_gb_per_s = 10}};
  all_.sim_->At(absl::Seconds(1), [all = &all_, node, life, event] {
    Agent& agent = *all->agents_[node];
    if (agent.up && agent.life == life) Doer(all, &agent).Handle(event);
  });
}

void SimAgents::Doer::Do(const SendBatchAction& action) {
  agent_.unacknowledged[action.batch->sequence] = action.batch;
  if (agent_.stream == 0 || agent_.order_stream != agent_.stream) return;
  ReportBatch event = ToEvent(*action.batch, agent_.stream);
  if (agent_.stale.has_value()) event.reports.push_back(*agent_.stale);
  agent_.stale.reset();
  if (all_.sim_->tracing()) all_.sim_->Trace(agent_.name, " -> ", Describe(event));
  all_.network_->ToCoordinator(agent_.stream, std::move(event));
}

void SimAgents::Doer::Do(const NewIncarnationAction&) {
  ++all_.tally_.incarnations;
  agent_.incarnation =
      absl::StrCat("incarnation-", agent_.name, "-", agent_.life, "-", all_.tally_.incarnations);
  agent_.registered = false;
  agent_.unacknowledged.clear();
  all_.sim_->Trace(agent_.name, ": starts afresh as ", agent_.incarnation);
  if (agent_.stream != 0) all_.network_->Break(agent_.stream, /*coordinator_learns=*/true);
}

void SimAgents::Doer::Do(const ExitAgentAction&) {
  all_.sim_->Trace(agent_.name, ": has ended in order");
  if (!agent_.pids.empty()) all_.sim_->Wrong(absl::StrCat(agent_.name, " left with trainers"));
  agent_.up = false;
  agent_.unacknowledged.clear();
  if (agent_.stream != 0) {
    all_.network_->ToCoordinator(agent_.stream, LeaveAgent{agent_.stream, "SIGTERM"});
    all_.network_->AgentDied(std::exchange(agent_.stream, 0));
  }
}

// The rendezvous service is asked again while it cannot be reached; its answers are final.
void SimAgents::Ask(int node, int life, const std::string& worker, int64_t run,
                    const std::string& job_id, const StoreRequestMessage& request,
                    absl::Duration deadline) {
  const auto reply = [=, this](const absl::Status& status, const KeyValues& entries) {
    Agent& agent = *agents_[node];
    if (!agent.up || agent.life != life) return;
    const bool again = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
                       absl::IsResourceExhausted(status);
    if (again && sim_->steady() < deadline) {
      sim_->At(sim_->Between(absl::Milliseconds(100), absl::Seconds(1)), [=, this] {
        Agent& later = *agents_[node];
        if (!later.up || later.life != life || !later.pids.contains({worker, run})) return;
        Ask(node, life, worker, run, job_id, request, deadline);
      });
      return;
    }
    Doer(this, &agent)
        .Handle(RunEvent{worker, run,
                         StoreReplyMessage{.request = request.request,
                                           .ok = status.ok(),
                                           .error = std::string(status.message()),
                                           .error_code = static_cast<int>(status.code()),
                                           .entries = entries}});
  };
  if (request.op == StoreRequestMessage::Op::kSet) {
    network_->Call(node, SetKey{job_id, request.epoch, request.key, request.value},
                   [reply](const Outcome& outcome) { reply(outcome.status, {}); });
    return;
  }
  network_->Wait(node,
                 WaitPrefix{.job_id = job_id,
                            .epoch = request.epoch,
                            .prefix = request.key,
                            .count = request.count,
                            .limit = absl::Minutes(1)},
                 reply);
}

std::string SimAgents::MemoryName(const Agent& agent, int64_t memory) {
  return absl::StrCat(agent.name, "/", agent.life, "/", memory);
}

// ---- the state folder

absl::Status SimSpill::Append(const std::deque<NodeReport>& reports) {
  if (full) return absl::ResourceExhaustedError("the disk is full");
  size_t kept = 0;
  for (const auto& chunk : chunks_) kept += chunk.size();
  if (kept + reports.size() > kSpillBound) return absl::ResourceExhaustedError("the bound");
  chunks_.emplace_back(reports.begin(), reports.end());
  num_spilled += static_cast<int64_t>(reports.size());
  return absl::OkStatus();
}

ReportSpill::Taken SimSpill::TakeOldest() {
  Taken taken{.reports = std::move(chunks_.front())};
  taken.first = taken.reports.front().assignment;
  taken.rank = taken.reports.front().rank;
  chunks_.pop_front();
  return taken;
}

}  // namespace muster
