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
    Send(worker, *reply);
  } else {
    OnExit(worker, std::get<TrainerExited>(event.what));
  }
}

void AgentMachine::OnTrainerMessage(Worker& worker, const TrainerToAgent& message) {
  if (const auto* hello = std::get_if<HelloMessage>(&message)) {
    OnHello(worker, *hello);
    return;
  }
  if (EpochOf(message) != worker.launch->epoch) return;
  if (const auto* request = std::get_if<StoreRequestMessage>(&message)) {
    actions_.push_back(
        StoreRequestAction{worker.name, worker.run, worker.launch->job_id, *request});
    return;
  }
  if (const auto* piece = std::get_if<TracePieceMessage>(&message)) {
    actions_.push_back(TracePieceAction{worker.name, worker.run, worker.launch->job_id,
                                        worker.assignment.rank, *piece});
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
        } else if constexpr (std::is_same_v<Message, ProbeReplyMessage>) {
          Report(worker, TrainerProbed{.request = m.request, .running = true, .reply = m});
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
  Send(worker, MakeAssign(worker));
  for (const AgentToTrainer& message : std::exchange(worker.queued, {})) Send(worker, message);
}

void AgentMachine::OnExit(Worker& worker, const TrainerExited& exit) {
  TrainerExited report = exit;
  if (report.pid == 0) report.pid = worker.pid;
  if (!worker.stop_reason.empty()) {
    // The reader of the log must not take a kill of ours for a crash.
    report.last_log_lines.push_back(
        absl::StrCat("(stopped by its agent: ", worker.stop_reason, ")"));
  }
  if (worker.report_exit) Report(worker, std::move(report));
  worker = Worker{.name = worker.name, .run = worker.run, .received = std::move(worker.received)};
}

void AgentMachine::Report(const Worker& worker, decltype(NodeReport::report) report) {
  if (!worker.report_exit) return;
  reports_.Add({.assignment = KeyOf(worker.name, *worker.launch),
                .rank = worker.assignment.rank,
                .report = std::move(report)},
               now_);
}

void AgentMachine::Send(Worker& worker, const AgentToTrainer& message) {
  switch (worker.state) {
    case State::kIdle:
    case State::kStopping:
      return;
    case State::kLaunching:
      worker.queued.push_back(message);
      return;
    case State::kTraining:
      actions_.push_back(SendToTrainerAction{worker.name, worker.run, message});
      return;
  }
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
  worker.queued.clear();
  actions_.push_back(EndTrainerAction{worker.name, worker.run, grace, std::string(reason)});
}

AgentToTrainer AgentMachine::MakeAssign(const Worker& worker) const {
  const LaunchOrder& launch = *worker.launch;
  return AssignMessage{.job_id = launch.job_id,
                       .epoch = launch.epoch,
                       .rank = worker.assignment.rank,
                       .world_size = launch.world_size,
                       .spec_json = launch.spec_json,
                       .host_address = worker.assignment.host_address,
                       .device = worker.assignment.device,
                       .num_threads = worker.assignment.num_threads,
                       .directives_through = launch.directives_through,
                       .plugin_dirs = options_.plugin_dirs,
                       .num_helpers = launch.num_helpers,
                       .buddy = worker.assignment.buddy,
                       .ledger_through = launch.ledger_through,
                       .examine_json = launch.examine_json};
}

}  // namespace muster
