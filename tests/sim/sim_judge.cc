// SimCluster's judgement at the end of a run, when everything has been well for a while.
#include <algorithm>

#include "tests/sim/sim_cluster.h"

namespace muster {

void SimCluster::Judge() {
  if (!host_.up()) return sim_.Wrong("there is no coordinator");
  const Coordinator& core = host_.core();
  for (const auto& [sequence, job] : core.jobs()) JudgeJob(*job);
  int num_workers = 0;
  for (const auto& [name, worker] : core.membership().workers()) {
    const Agent& agent = *core.membership().FindAgent(worker.incarnation);
    num_workers += agent.state == AgentState::kAlive;
    if (!core.membership().IsIdle(worker)) {
      sim_.Wrong(absl::StrCat(name, " is not idle: ", AgentStateName(agent.state),
                              worker.hold.draining ? ", draining" : "",
                              worker.assignment.has_value()
                                  ? absl::StrCat(", holds ", worker.assignment->job_id)
                                  : ""));
    }
  }
  if (num_workers != agents_.num_workers()) {
    sim_.Wrong(absl::StrCat(num_workers, " of ", agents_.num_workers(), " workers are alive"));
  }
  for (int node = 0; node < agents_.size(); ++node) {
    const std::string name = agents_.NodeName(node);
    for (const AssignmentRef& running : agents_.Running(node)) {
      sim_.Wrong(
          absl::StrCat(running.worker, " still runs rank ", running.rank, " of ", running.job_id));
    }
    if (!agents_.AllAcknowledged(node)) {
      sim_.Wrong(absl::StrCat(name, " holds reports that nobody took"));
    }
  }
  checks_.Promises();
  checks_.CompareWithRestored();
}

void SimCluster::JudgeJob(const JobMachine& job) {
  const auto bad = [&](const std::string& what) {
    sim_.Wrong(absl::StrCat(job.job_id(), " (", JobStateName(job.state()), ", ", job.reason(),
                            "): ", what));
  };
  if (sim_.tracing()) {
    for (const auto& entry : job.history().events().entries()) {
      sim_.Trace(job.job_id(), " event: ", entry.value.kind, ": ", entry.value.text);
    }
  }
  if (!job.ended()) bad(absl::StrCat("did not end; ", job.Progress()));
  if (job.ended() && !job.released()) bad("holds workers");
  tally_.restarts += std::max<int>(job.restarts(), static_cast<int>(job.epoch()) - 1);
  tally_.completed += job.state() == JobState::kCompleted;
  tally_.failed += job.state() == JobState::kFailed;
  tally_.cancelled += job.state() == JobState::kCancelled;
  tally_.exited += job.state() == JobState::kExited;
  const SimTrainers::World* world = trainers_.FindWorld(job.job_id(), job.epoch());
  if (job.state() == JobState::kCompleted) {
    // Every step once and in order, whatever was repeated, lost, restored and run again on the way.
    // Reports may be lost with the worker that held them, which is said then.
    int64_t iteration = 0;
    bool told = false;
    for (const auto& entry : job.history().events().entries()) {
      told |= entry.value.kind == "ledger_gap";
    }
    for (const auto& entry : job.history().steps().entries()) {
      ++iteration;
      if (entry.value.step.iteration != iteration && !told) bad("a step is missing");
      if (entry.value.step.iteration < iteration) bad("a step is there twice");
      iteration = entry.value.step.iteration;
    }
    // A job that is told to leave may do so before it is where it was when it failed.
    const bool left_early = world != nullptr && world->iteration < world->train_iters;
    if (world == nullptr || iteration < world->iteration ||
        (iteration > world->iteration && !left_early)) {
      bad(absl::StrCat("has ", iteration, " steps, not those that were made"));
    }
    if (iteration != job.train_iters() && !world->exiting) {
      bad(absl::StrCat("has ", iteration, " steps of ", job.train_iters()));
    }
  }
  if (job.state() == JobState::kCancelled && !checks_.WasCancelled(job.job_id()) &&
      checks_.submitted().contains(job.job_id())) {
    // The answer to a cancellation may be lost, and then it is asked again until there is one.
    bad("nobody cancelled it");
  }
  if (job.state() == JobState::kFailed) {
    // The cause is a rank that something happened to, not one that only noticed.
    const FailureCause& cause = *job.cause();
    const SimTrainers::World* world = trainers_.FindWorld(job.job_id(), cause.epoch);
    const bool rank_hit = world != nullptr && world->faulted.contains(cause.rank.value_or(-1));
    const bool worker_hit = trainers_.WasHit(cause.worker);
    if (!rank_hit && !worker_hit && !faults_.Hit(cause.node, checks_.CauseSeenAt(job.job_id())))
      bad("blames a healthy rank");
  }
}

}  // namespace muster
