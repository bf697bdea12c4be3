#include "worker/core/agent_machine.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace muster {
namespace {

constexpr size_t kMaxReceived = 256;  // assignments a worker remembers

AssignmentKey KeyOf(const std::string& worker, const LaunchOrder& launch) {
  return {.worker = worker, .job_id = launch.job_id, .epoch = launch.epoch};
}

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

void KeepEarlier(std::optional<absl::Duration>* earliest, std::optional<absl::Duration> other) {
  if (other && (!*earliest || *other < **earliest)) *earliest = other;
}

}  // namespace

bool AgentMachine::Worker::Received(const std::string& job_id, int64_t epoch) const {
  return std::any_of(received.begin(), received.end(), [&](const auto& entry) {
    return entry.first == job_id && entry.second >= epoch;
  });
}

AgentMachine::AgentMachine(Options options)
    : options_(std::move(options)), reports_(options_.reports) {
  for (const std::string& name : options_.workers) workers_[name].name = name;
  MUSTER_CHECK_MSG(workers_.size() == options_.workers.size(), "two workers of one name");
}

std::vector<AgentAction> AgentMachine::Handle(const AgentEvent& event, absl::Duration now) {
  now_ = now;
  std::visit([this](const auto& e) { On(e); }, event);
  if (connected_) {
    for (auto& batch : reports_.TakeDue(now)) {
      actions_.push_back(SendBatchAction{std::move(batch)});
    }
  }
  LeaveWhenDone();
  return std::exchange(actions_, {});
}

std::vector<JobProgress> AgentMachine::Progress() const {
  std::map<std::string, JobProgress> jobs;
  for (const auto& [name, worker] : workers_) {
    if (worker.state != State::kTraining || worker.iteration == 0) continue;
    JobProgress& job = jobs[worker.launch->job_id];
    if (worker.launch->epoch < job.epoch) continue;
    if (worker.launch->epoch > job.epoch) {
      job = {.job_id = worker.launch->job_id, .epoch = worker.launch->epoch};
    }
    job.iteration = std::max(job.iteration, worker.iteration);
  }
  std::vector<JobProgress> result;
  for (auto& [job_id, progress] : jobs) result.push_back(std::move(progress));
  return result;
}

std::optional<absl::Duration> AgentMachine::NextWake() const {
  std::optional<absl::Duration> wake;
  if (connected_) KeepEarlier(&wake, reports_.NextDue());
  KeepEarlier(&wake, terminate_due_);
  if (!exited_) KeepEarlier(&wake, farewell_due_);
  if (!exited_) KeepEarlier(&wake, give_up_due_);
  for (const auto& [name, worker] : workers_) KeepEarlier(&wake, worker.hello_due);
  return wake;
}

void AgentMachine::On(const CoordinatorOrder& order) {
  std::visit([this](const auto& o) { OnOrder(o); }, order);
}

void AgentMachine::On(const StreamLostEvent&) {
  connected_ = false;
  reports_.Disconnect();
}

void AgentMachine::On(const IncarnationOverEvent&) {
  StartAfresh("the coordinator has given this agent's work to others");
}

void AgentMachine::On(const TerminateEvent&) {
  const bool now = ++terminations_ > 1;
  for (auto& [name, worker] : workers_) {
    switch (worker.state) {
      case State::kIdle:
        break;
      case State::kLaunching:
        Stop(worker, absl::ZeroDuration(), "the worker's agent is ending");
        break;
      case State::kTraining:
        if (now || worker.done) {
          Stop(worker, now ? absl::ZeroDuration() : options_.leave_grace,
               "the worker's agent is ending");
        } else {
          actions_.push_back(SignalTrainerAction{name, worker.run});
        }
        break;
      case State::kStopping:
        if (now) {
          actions_.push_back(
              EndTrainerAction{name, worker.run, absl::ZeroDuration(), "the agent was told twice"});
        }
        break;
    }
  }
  if (!now) terminate_due_ = now_ + options_.terminate_grace;
  const absl::Duration give_up =
      now_ + options_.hang_limit +
      (now ? absl::ZeroDuration() : options_.terminate_grace + options_.leave_grace);
  KeepEarlier(&give_up_due_, give_up);
}

void AgentMachine::On(const TickEvent&) {
  for (auto& [name, worker] : workers_) {
    if (worker.hello_due && now_ >= *worker.hello_due) {
      Stop(worker, absl::ZeroDuration(),
           absl::StrCat("the trainer said nothing for ", absl::FormatDuration(options_.hello_limit),
                        " after its start"));
    }
    if (terminate_due_ && now_ >= *terminate_due_) {
      Stop(worker, options_.leave_grace, "the worker's agent is ending");
    }
  }
  if (terminate_due_ && now_ >= *terminate_due_) terminate_due_.reset();
}

// ---- the coordinator's orders

template <typename Function>
void AgentMachine::Forward(const std::string& job_id, int64_t epoch, Function function) {
  for (auto& [name, worker] : workers_) {
    if (worker.state == State::kIdle || worker.launch->job_id != job_id ||
        worker.launch->epoch != epoch) {
      continue;
    }
    function(worker);
  }
}

void AgentMachine::OnOrder(const WelcomeOrder& order) {
  auto unknown_batches = reports_.Resume(order.reports_through);
  if (!unknown_batches) {
    StartAfresh("the coordinator has lost its record of this agent's reports");
    return;
  }
  connected_ = true;
  for (auto& batch : *unknown_batches) actions_.push_back(SendBatchAction{std::move(batch)});

  for (auto& [name, worker] : workers_) {
    if (worker.state == State::kIdle) continue;
    const AssignmentKey key = KeyOf(name, *worker.launch);
    if (std::find(order.running.begin(), order.running.end(), key) == order.running.end()) {
      Stop(worker, absl::ZeroDuration(), "the coordinator does not count on it any more");
    }
  }
}

void AgentMachine::OnOrder(const LaunchOrder& order) {
  const auto shared = std::make_shared<const LaunchOrder>(order);
  for (const LaunchOrder::Assignment& assignment : order.assignments) Launch(shared, assignment);
}

void AgentMachine::Launch(const std::shared_ptr<const LaunchOrder>& order,
                          const LaunchOrder::Assignment& assignment) {
  const auto found = workers_.find(assignment.worker);
  if (found == workers_.end()) {
    Refuse(*order, assignment, absl::StrCat("this agent has no worker ", assignment.worker));
    return;
  }
  Worker& worker = found->second;
  if (worker.Received(order->job_id, order->epoch)) return;
  worker.received.emplace_back(order->job_id, order->epoch);
  if (worker.received.size() > kMaxReceived) worker.received.pop_front();
  if (terminations_ > 0) {
    Refuse(*order, assignment, "the worker's agent is ending");
    return;
  }
  LaunchOrder::Assignment resolved = assignment;
  if (resolved.num_threads <= 0) resolved.num_threads = options_.default_num_threads;
  if (worker.state == State::kIdle) {
    worker = Worker{.name = worker.name,
                    .state = State::kLaunching,
                    .run = worker.run + 1,
                    .launch = order,
                    .assignment = resolved,
                    .hello_due = now_ + options_.hello_limit,
                    .received = std::move(worker.received)};
    actions_.push_back(StartTrainerAction{worker.name, worker.run, order, resolved});
    return;
  }
  if (worker.launch->job_id == order->job_id && worker.state == State::kTraining) {
    worker.launch = order;
    worker.assignment = resolved;
    worker.done = worker.aborted = worker.has_unique_id = false;
    worker.iteration = 0;
    Send(worker, MakeAssign(worker));
    return;
  }
  Refuse(*order, assignment,
         absl::StrCat("worker ", worker.name, " still has the trainer of job ",
                      worker.launch->job_id, ", epoch ", worker.launch->epoch));
}

void AgentMachine::Refuse(const LaunchOrder& order, const LaunchOrder::Assignment& assignment,
                          std::string reason) {
  reports_.Add({.assignment = KeyOf(assignment.worker, order),
                .rank = assignment.rank,
                .report = TrainerExited{.launch_error = std::move(reason)}},
               now_);
}

void AgentMachine::OnOrder(const UniqueIdOrder& order) {
  Forward(order.job_id, order.epoch, [&](Worker& worker) {
    if (std::exchange(worker.has_unique_id, true)) return;
    Send(worker, UniqueIdMessage{order.epoch, order.id});
  });
}

// Repeated directives go on: a trainer knows which numbers it holds.
void AgentMachine::OnOrder(const DirectiveOrder& order) {
  Forward(order.job_id, order.epoch, [&](Worker& worker) {
    Send(worker, DirectiveMessage{order.epoch, order.directive});
  });
}

void AgentMachine::OnOrder(const AbortOrder& order) {
  Forward(order.job_id, order.epoch, [&](Worker& worker) {
    if (std::exchange(worker.aborted, true)) return;
    Send(worker, AbortMessage{order.epoch, order.reason});
  });
}

void AgentMachine::OnOrder(const StopOrder& order) {
  const auto found = workers_.find(order.assignment.worker);
  if (found == workers_.end()) return;
  Worker& worker = found->second;
  const AssignmentKey& key = order.assignment;
  if (worker.state != State::kIdle && KeyOf(worker.name, *worker.launch) == key) {
    Stop(worker, order.grace, order.reason);
    return;
  }
  if (worker.Received(key.job_id, key.epoch)) return;   // it has ended, and that was reported
  worker.received.emplace_back(key.job_id, key.epoch);  // a Launch behind it comes too late
  reports_.Add({.assignment = key,
                .report = TrainerExited{.launch_error = "the order to launch it never came"}},
               now_);
}

void AgentMachine::OnOrder(const AckOrder& order) { reports_.Acknowledge(order.through); }

// ---- the trainers

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
  std::visit(
      [&](const auto& m) {
        using Message = std::decay_t<decltype(m)>;
        if constexpr (std::is_same_v<Message, ProgressMessage> ||
                      std::is_same_v<Message, StepMessage>) {
          worker.iteration = std::max(worker.iteration, m.iteration);
        }
        if constexpr (!std::is_same_v<Message, HelloMessage> &&
                      !std::is_same_v<Message, StoreRequestMessage> &&
                      !std::is_same_v<Message, ProgressMessage>) {
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

// ---- helpers

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
                       .plugin_dirs = options_.plugin_dirs};
}

void AgentMachine::StartAfresh(absl::string_view reason) {
  connected_ = false;
  for (auto& [name, worker] : workers_) {
    worker.received.clear();
    if (worker.state == State::kIdle) continue;
    worker.report_exit = false;
    Stop(worker, absl::ZeroDuration(), reason);
  }
  reports_.Reset();
  actions_.push_back(NewIncarnationAction{std::string(reason)});
}

void AgentMachine::LeaveWhenDone() {
  if (terminations_ == 0 || exited_) return;
  const bool given_up = give_up_due_ && now_ >= *give_up_due_;
  for (const auto& [name, worker] : workers_) {
    if (worker.state != State::kIdle && !given_up) return;
  }
  // Also while the coordinator is away: it may be back in a moment, and then it knows how its job
  // ended here.
  if (!farewell_due_) farewell_due_ = now_ + options_.farewell_limit;
  if (!reports_.empty() && now_ < *farewell_due_ && !given_up) return;
  exited_ = true;
  actions_.push_back(ExitAgentAction{.goodbye = connected_ && reports_.empty() && !given_up});
}

}  // namespace muster
