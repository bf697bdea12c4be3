// AgentMachine's part that listens and speaks to the trainers.
#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/core/agent_machine.h"

namespace muster {
namespace {

// Hello has no epoch; every other message of a trainer has.
int64_t EpochOf(const TrainerToAgent& message) {
  return std::visit(
      [](const auto& m) -> int64_t {
        if constexpr (std::is_same_v<std::decay_t<decltype(m)>, HelloMessage>) {
          return 0;
        } else {
          return m.epoch;
        }
      },
      message);
}

}  // namespace

void AgentMachine::On(const RunEvent& event) {
  const auto found = workers_.find(event.worker);
  if (found == workers_.end()) return;
  Worker& worker = found->second;
  if (worker.state == State::kIdle || worker.run != event.run) return;
  if (worker.dying && !std::holds_alternative<TrainerExited>(event.what)) return;
  if (const auto* started = std::get_if<RunEvent::Started>(&event.what)) {
    worker.pid = started->pid;
  } else if (const auto* message = std::get_if<TrainerToAgent>(&event.what)) {
    OnTrainerMessage(worker, *message);
  } else if (const auto* log = std::get_if<RunEvent::LogLine>(&event.what)) {
    Report(worker, NodeLogLines{{log->line}});
  } else if (const auto* garbage = std::get_if<RunEvent::Garbage>(&event.what)) {
    Stop(worker, absl::ZeroDuration(),
         absl::StrCat("the trainer sent a message that can't be read: ", garbage->error));
  } else if (const auto* reply = std::get_if<StoreReplyMessage>(&event.what)) {
    if (worker.state == State::kTraining) {
      actions_.push_back(SendToTrainerAction{worker.name, worker.run, *reply});
    }
  } else if (const auto* note = std::get_if<RunEvent::Note>(&event.what)) {
    Report(worker, EventMessage{worker.attempt.launch->epoch, note->kind, note->text});
  } else if (const auto* seen = std::get_if<RunEvent::ProcessSeen>(&event.what)) {
    OnProcessSeen(worker, *seen);
  } else if (const auto* dying = std::get_if<RunEvent::Dying>(&event.what)) {
    OnDying(worker, dying->exit);
  } else {
    OnExit(worker, std::get<TrainerExited>(event.what));
  }
}

void AgentMachine::OnTrainerMessage(Worker& worker, const TrainerToAgent& message) {
  if (const auto* hello = std::get_if<HelloMessage>(&message)) {
    OnHello(worker, *hello);
    return;
  }
  if (EpochOf(message) != worker.attempt.launch->epoch) return;
  if (worker.former) {  // it has taken its new assignment up
    worker.former.reset();
    worker.attempt.queued.clear();
  }
  if (const auto* reply = std::get_if<ProbeReplyMessage>(&message)) {
    OnProbeReply(worker, *reply);
    return;
  }
  if (const auto* request = std::get_if<StoreRequestMessage>(&message)) {
    actions_.push_back(
        StoreRequestAction{worker.name, worker.run, worker.attempt.launch->job_id, *request});
    return;
  }
  if (const auto* piece = std::get_if<TracePieceMessage>(&message)) {
    actions_.push_back(TracePieceAction{worker.name, worker.run, worker.attempt.launch->job_id,
                                        worker.attempt.assignment.rank, *piece});
    return;
  }
  std::visit(
      [&](const auto& m) {
        using Message = std::decay_t<decltype(m)>;
        if constexpr (std::is_same_v<Message, ProgressMessage> ||
                      std::is_same_v<Message, StepMessage>) {
          worker.iteration = std::max(worker.iteration, m.iteration);
        }
        if constexpr (!std::is_same_v<Message, HelloMessage> &&
                      !std::is_same_v<Message, StoreRequestMessage> &&
                      !std::is_same_v<Message, TracePieceMessage> &&
                      !std::is_same_v<Message, ProgressMessage> &&
                      !std::is_same_v<Message, ProbeReplyMessage>) {
          Report(worker, m);
        }
      },
      message);
  if (std::holds_alternative<DoneMessage>(message) ||
      std::holds_alternative<FailedMessage>(message)) {
    worker.done = true;
    if (terminations_ > 0) {
      Stop(worker, options_.leave_grace, "the worker's agent is ending");
    }
  }
}

void AgentMachine::OnHello(Worker& worker, const HelloMessage& hello) {
  worker.hello_due.reset();
  if (worker.state != State::kLaunching) return;  // stopping, or a second hello
  if (hello.version != kControlProtocolVersion) {
    Stop(worker, absl::ZeroDuration(),
         absl::StrCat("the trainer speaks version ", hello.version,
                      " of the control protocol, its "
                      "agent version ",
                      kControlProtocolVersion,
                      ": install muster-worker and muster-trainer of one release"));
    return;
  }
  worker.state = State::kTraining;
  worker.revision = hello.revision;
  SendAssign(worker);
  for (const AgentToTrainer& message : std::exchange(worker.attempt.queued, {})) {
    Send(worker, worker.attempt, message);
  }
}

std::optional<AgentMachine::Attempt> AgentMachine::TakeSuccessor(Worker& worker) {
  std::optional<Attempt> successor = std::exchange(worker.next, std::nullopt);
  if (worker.former && worker.state == State::kTraining && terminations_ == 0) {
    // It died before it took its new assignment up: that one is for a new process.
    successor = std::exchange(worker.attempt, *std::exchange(worker.former, std::nullopt));
  }
  return successor;
}

void AgentMachine::ReportExit(const Worker& worker, TrainerExited exit) {
  if (exit.pid == 0) exit.pid = worker.pid;
  if (!worker.stop_reason.empty()) {
    // The reader of the log must not take a kill of ours for a crash.
    exit.last_log_lines.push_back(absl::StrCat("(stopped by its agent: ", worker.stop_reason, ")"));
  }
  Report(worker, std::move(exit));
}

void AgentMachine::OnDying(Worker& worker, const TrainerExited& exit) {
  worker.hello_due.reset();
  memories_.End(worker.name, now_);  // it writes no more; its rank may go on elsewhere with them
  worker.next = TakeSuccessor(worker);
  ReportExit(worker, exit);
  worker.dying = true;
  worker.state = State::kStopping;
  worker.attempt.queued.clear();
}

void AgentMachine::OnExit(Worker& worker, const TrainerExited& exit) {
  if (!worker.dying) memories_.End(worker.name, now_);
  std::optional<Attempt> successor = TakeSuccessor(worker);
  const bool crashed = exit.launch_error.empty() && worker.stop_reason.empty() &&
                       (exit.signal != 0 || exit.exit_code != 0);
  if (!worker.dying) ReportExit(worker, exit);
  if (crashed && worker.report_exit) {
    actions_.push_back(CheckDeviceAction{worker.key(), worker.attempt.assignment.rank});
  }
  worker = Worker{.name = worker.name,
                  .run = worker.run,
                  .received = std::move(worker.received),
                  .not_started = std::move(worker.not_started)};
  if (successor) Start(worker, *std::move(successor));
}

void AgentMachine::Report(const Worker& worker, decltype(NodeReport::report) report) {
  if (!worker.report_exit) return;
  reports_.Add({.assignment = worker.key(),
                .rank = worker.attempt.assignment.rank,
                .report = std::move(report)},
               now_);
}

void AgentMachine::Send(Worker& worker, Attempt& attempt, const AgentToTrainer& message) {
  const bool is_next = worker.next && &attempt == &*worker.next;
  const bool speaks = worker.state == State::kTraining && !is_next;
  if (is_next || worker.state == State::kLaunching || (speaks && worker.former)) {
    attempt.queued.push_back(message);
  }
  if (speaks) actions_.push_back(SendToTrainerAction{worker.name, worker.run, message});
}

void AgentMachine::Stop(Worker& worker, absl::Duration grace, absl::string_view reason) {
  worker.hello_due.reset();
  switch (worker.state) {
    case State::kIdle:
      return;
    case State::kTraining:
      actions_.push_back(
          SendToTrainerAction{worker.name, worker.run, ShutdownMessage{std::string(reason)}});
      break;
    case State::kLaunching:
    case State::kStopping:  // again: perhaps with a shorter grace
      break;
  }
  // The first reason stands.
  if (worker.stop_reason.empty()) worker.stop_reason = std::string(reason);
  worker.state = State::kStopping;
  worker.attempt.queued.clear();
  actions_.push_back(EndTrainerAction{worker.name, worker.run, grace, std::string(reason)});
}

void AgentMachine::SendAssign(Worker& worker) {
  const LaunchOrder& launch = *worker.attempt.launch;
  const LaunchOrder::Assignment& assignment = worker.attempt.assignment;
  const bool is_spare = assignment.rank < 0;
  actions_.push_back(SendToTrainerAction{
      .worker = worker.name,
      .run = worker.run,
      .message = AssignMessage{.job_id = launch.job_id,
                               .epoch = launch.epoch,
                               .rank = assignment.rank,
                               .world_size = launch.world_size,
                               .spec_json = launch.spec_json,
                               .host_address = assignment.host_address,
                               .device = assignment.device,
                               .num_threads = assignment.num_threads,
                               .directives_through = launch.directives_through,
                               .plugin_dirs = options_.plugin_dirs,
                               .num_helpers = launch.num_helpers,
                               .buddy = assignment.buddy,
                               .ledger_through = launch.ledger_through,
                               .examine_json = launch.examine_json},
      .snapshot_memory =
          is_spare ? 0 : memories_.Assign(worker.name, launch.job_id, assignment.rank)});
}

}  // namespace muster
