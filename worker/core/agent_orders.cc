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
    return entry.first == job_id && entry.second >= epoch;
  });
}

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

void AgentMachine::OnOrder(const ForgetJobOrder&) {}

void AgentMachine::OnOrder(const ProbeJobOrder& order) {
  Forward(order.job_id, order.epoch, [&](Worker& worker) {
    Send(worker, ProbeMessage{.epoch = order.epoch, .request = order.request});
  });
}

}  // namespace muster
