#include "worker/core/agent_machine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace muster {
namespace {

void KeepEarlier(std::optional<absl::Duration>* earliest, std::optional<absl::Duration> other) {
  if (other && (!*earliest || *other < **earliest)) *earliest = other;
}

}  // namespace

AgentMachine::AgentMachine(Options options)
    : options_(std::move(options)),
      reports_(options_.reports),
      memories_(options_.snapshot_memories) {
  for (const std::string& name : options_.workers) workers_[name].name = name;
  MUSTER_CHECK_MSG(workers_.size() == options_.workers.size(), "two workers of one name");
}

std::vector<AgentAction> AgentMachine::Handle(const AgentEvent& event, absl::Duration now) {
  now_ = now;
  std::visit([this](const auto& e) { On(e); }, event);
  memories_.Expire(now);
  for (const int64_t id : memories_.TakeFreed()) actions_.push_back(FreeSnapshotMemoryAction{id});
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
    const LaunchOrder& launch = *worker.attempt.launch;
    JobProgress& job = jobs[launch.job_id];
    if (launch.epoch < job.epoch) continue;
    if (launch.epoch > job.epoch) job = {.job_id = launch.job_id, .epoch = launch.epoch};
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
  KeepEarlier(&wake, memories_.NextExpiry());
  for (const auto& [name, worker] : workers_) {
    KeepEarlier(&wake, worker.hello_due);
    if (worker.probe) KeepEarlier(&wake, worker.probe->due);
  }
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

void AgentMachine::On(const DeviceCheckedEvent& event) {
  reports_.Add({.assignment = event.assignment, .rank = event.rank, .report = event.check}, now_);
}

void AgentMachine::On(const TerminateEvent&) {
  const bool now = ++terminations_ > 1;
  for (auto& [name, worker] : workers_) {
    if (worker.next) {
      Refuse(*worker.next->launch, worker.next->assignment, "the worker's agent is ending");
      worker.next.reset();
    }
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
    if (worker.probe && worker.probe->due && now_ >= *worker.probe->due) {
      worker.probe->due.reset();
      LookAtProcess(worker);
    }
    if (terminate_due_ && now_ >= *terminate_due_) {
      Stop(worker, options_.leave_grace, "the worker's agent is ending");
    }
  }
  if (terminate_due_ && now_ >= *terminate_due_) terminate_due_.reset();
}

void AgentMachine::StartAfresh(absl::string_view reason) {
  connected_ = false;
  for (auto& [name, worker] : workers_) {
    worker.received.clear();
    worker.next.reset();
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
