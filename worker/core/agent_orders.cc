// AgentMachine's part that carries out the coordinator's orders.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/core/agent_machine.h"

namespace muster {
namespace {

constexpr size_t kMaxReceived = 256;  // assignments a worker remembers

}  // namespace

bool AgentMachine::Worker::Received(const std::string& job_id, int64_t epoch) const {
  return std::any_of(received.begin(), received.end(), [&](const auto& entry) {
    return entry.job_id == job_id && entry.epoch >= epoch;
  });
}

bool AgentMachine::Worker::HadRank(const std::string& job_id, int64_t epoch) const {
  bool had_rank = false;
  for (const Launched& entry : received) {
    if (entry.job_id != job_id || entry.epoch < epoch) continue;
    if (entry.epoch > epoch || entry.as_spare) return false;
    had_rank = true;
  }
  return had_rank;
}

template <typename Function>
void AgentMachine::Forward(const std::string& job_id, int64_t epoch, Function function) {
  const auto is_it = [&](const Attempt& attempt) {
    return attempt.launch->job_id == job_id && attempt.launch->epoch == epoch;
  };
  for (auto& [name, worker] : workers_) {
    if (worker.state == State::kIdle) continue;
    if (is_it(worker.attempt)) function(worker, worker.attempt);
    if (worker.next && is_it(*worker.next)) function(worker, *worker.next);
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

  const auto is_listed = [&](const AssignmentKey& key) {
    return std::find(order.running.begin(), order.running.end(), key) != order.running.end();
  };
  constexpr char kReason[] = "the coordinator does not count on it any more";
  for (auto& [name, worker] : workers_) {
    if (worker.state == State::kIdle) continue;
    if (worker.next && !is_listed(KeyOf(name, *worker.next->launch))) {
      Refuse(*worker.next->launch, worker.next->assignment, kReason);
      worker.next.reset();
    }
    if (worker.runs() && !is_listed(worker.key()) && !IsToGoOn(worker, order)) {
      Stop(worker, absl::ZeroDuration(), kReason);
    }
  }
}

// It survived an epoch that ended while the stream was broken: the Launch of the newer one, which
// is still to come, is for it.
bool AgentMachine::IsToGoOn(const Worker& worker, const WelcomeOrder& order) const {
  const AssignmentKey key = worker.key();
  return std::any_of(order.running.begin(), order.running.end(), [&](const AssignmentKey& other) {
    return other.worker == key.worker && other.job_id == key.job_id && other.epoch > key.epoch &&
           !worker.Received(other.job_id, other.epoch);
  });
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
  const bool as_spare = assignment.rank < 0;
  const bool is_idle = !worker.runs() && !worker.next;
  // Its trainer with a rank has ended, as a helper's does once its state was given away.
  const bool is_spare_now = as_spare && is_idle && worker.HadRank(order->job_id, order->epoch);
  if (worker.Received(order->job_id, order->epoch) && !is_spare_now) {
    // A repetition; or a second spare of this epoch, which starts with the next one.
    if (is_idle && as_spare) worker.not_started = KeyOf(worker.name, *order);
    return;
  }
  worker.received.push_back({order->job_id, order->epoch, as_spare});
  if (worker.received.size() > kMaxReceived) worker.received.pop_front();
  if (terminations_ > 0) {
    Refuse(*order, assignment, "the worker's agent is ending");
    return;
  }
  Attempt attempt{.launch = order, .assignment = assignment};
  if (assignment.num_threads <= 0) attempt.assignment.num_threads = options_.default_num_threads;
  // What the worker is for, or will be for once its trainer has ended.
  const Attempt* const held =
      worker.next                                                             ? &*worker.next
      : worker.state == State::kLaunching || worker.state == State::kTraining ? &worker.attempt
                                                                              : nullptr;
  if (held != nullptr && held->launch->job_id != order->job_id) {
    Refuse(*order, assignment,
           absl::StrCat("worker ", worker.name, " still has the trainer of job ",
                        held->launch->job_id, ", epoch ", held->launch->epoch));
    return;
  }
  Take(worker, std::move(attempt));
}

void AgentMachine::Start(Worker& worker, Attempt attempt) {
  worker = Worker{.name = worker.name,
                  .state = State::kLaunching,
                  .run = worker.run + 1,
                  .attempt = std::move(attempt),
                  .hello_due = now_ + options_.hello_limit,
                  .received = std::move(worker.received)};
  actions_.push_back(StartTrainerAction{worker.name, worker.run, worker.attempt.launch,
                                        worker.attempt.assignment});
}

void AgentMachine::Take(Worker& worker, Attempt attempt) {
  switch (worker.state) {
    case State::kIdle:
      Start(worker, std::move(attempt));
      return;
    case State::kLaunching:  // it has been told nothing yet
      worker.attempt = std::move(attempt);
      return;
    case State::kTraining:
      if (!worker.former) worker.former = std::move(worker.attempt);
      worker.attempt = std::move(attempt);
      worker.done = false;
      worker.iteration = 0;
      worker.probe.reset();
      SendAssign(worker);
      return;
    case State::kStopping:
      worker.next = std::move(attempt);
      return;
  }
}

void AgentMachine::Refuse(const LaunchOrder& order, const LaunchOrder::Assignment& assignment,
                          std::string reason) {
  reports_.Add({.assignment = KeyOf(assignment.worker, order),
                .rank = assignment.rank,
                .report = TrainerExited{.launch_error = std::move(reason)}},
               now_);
}

void AgentMachine::OnOrder(const UniqueIdOrder& order) {
  Forward(order.job_id, order.epoch, [&](Worker& worker, Attempt& attempt) {
    if (std::exchange(attempt.has_unique_id, true)) return;
    Send(worker, attempt, UniqueIdMessage{order.epoch, order.id});
  });
}

// Repeated directives go on: a trainer knows which numbers it holds.
void AgentMachine::OnOrder(const DirectiveOrder& order) {
  Forward(order.job_id, order.epoch, [&](Worker& worker, Attempt& attempt) {
    Send(worker, attempt, DirectiveMessage{order.epoch, order.directive});
  });
}

void AgentMachine::OnOrder(const AbortOrder& order) {
  Forward(order.job_id, order.epoch, [&](Worker& worker, Attempt& attempt) {
    if (std::exchange(attempt.aborted, true)) return;
    Send(worker, attempt, AbortMessage{order.epoch, order.reason});
  });
}

void AgentMachine::OnOrder(const StopOrder& order) {
  const auto found = workers_.find(order.assignment.worker);
  if (found == workers_.end()) return;
  Worker& worker = found->second;
  const AssignmentKey& key = order.assignment;
  if (worker.runs() && worker.key() == key) {
    Stop(worker, order.grace, order.reason);
    return;
  }
  if (worker.next && KeyOf(worker.name, *worker.next->launch) == key) {
    Refuse(*worker.next->launch, worker.next->assignment,
           absl::StrCat("it was stopped before its start: ", order.reason));
    worker.next.reset();
    return;
  }
  if (worker.Received(key.job_id, key.epoch)) {  // it has ended, and that was reported
    if (std::exchange(worker.not_started, std::nullopt) == key) {
      reports_.Add({.assignment = key,
                    .report = TrainerExited{.launch_error = "a second trainer of this epoch never "
                                                            "came: it starts with the next one"}},
                   now_);
    }
    return;
  }
  // A Launch behind it comes too late, whatever it is for.
  worker.received.push_back({key.job_id, key.epoch, /*as_spare=*/true});
  if (worker.runs() && worker.attempt.launch->job_id == key.job_id) {
    // A survivor that waits for this epoch's Launch: its end is this assignment's.
    auto launch = std::make_shared<LaunchOrder>(*worker.attempt.launch);
    launch->epoch = key.epoch;
    worker.attempt.launch = std::move(launch);
    worker.former.reset();
    Stop(worker, order.grace, order.reason);
    return;
  }
  reports_.Add({.assignment = key,
                .report = TrainerExited{.launch_error = "the order to launch it never came"}},
               now_);
}

void AgentMachine::OnOrder(const AckOrder& order) { reports_.Acknowledge(order.through); }

void AgentMachine::OnOrder(const ForgetJobOrder& order) { memories_.ForgetJob(order.job_id); }

}  // namespace muster
