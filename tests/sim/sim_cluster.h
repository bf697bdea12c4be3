// SimCluster: the coordinator's core, N agents with their trainers, and a client, in one thread
// with a made-up clock. A seed decides every delay, loss, repetition, crash and request; the same
// seed gives the same run.
//
// Faults: messages are delayed; streams break and lose what was under way; the coordinator learns
// of a break late or never; batches and calls are repeated; sometimes two batches change places;
// trainers and agents crash; agents are cut off for a while. Invariants are checked after every
// event.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/coordinator.h"
#include "coordinator/core/invariants.h"

namespace muster {

struct SimOptions {
  uint32_t seed = 1;
  int num_agents = 5;
  int num_jobs = 6;
  absl::Duration faults = absl::Seconds(60);  // how long faults happen
  absl::Duration calm = absl::Seconds(150);   // then everything heals, and all must end
};

class SimCluster {
 public:
  explicit SimCluster(const SimOptions& options);
  ~SimCluster();

  // What went wrong; empty: nothing.
  std::vector<std::string> Run();

  // What happened, so that a test can see that it was not nothing.
  struct Tally {
    int completed = 0, failed = 0, cancelled = 0, lost_agents = 0, broken_streams = 0, repeated = 0,
        refused = 0;
    int64_t events = 0, stale_reports = 0;
  };
  Tally tally() const { return tally_; }

 private:
  struct Trainer;
  struct Agent;
  struct World;

  // ---- time and chance
  void At(absl::Duration delay, std::function<void()> action);
  bool Chance(double probability);
  int Pick(int below);
  absl::Duration Delay();  // of one message

  // ---- the coordinator
  Outcome Deliver(const Event& event);
  void CarryOut(const std::vector<Action>& actions);
  void Check();

  // ---- agents
  void Boot(int agent);
  void Register(int agent, int life);
  void Connect(int agent);
  void BreakStream(int agent, bool coordinator_learns);
  void CrashAgent(int agent);
  void ToCoordinator(int agent, Event event);
  void Beat(int agent, int life);
  void Report(int agent, const AssignmentRef& from, ReportBody body);
  void SendUnacknowledged(int agent);
  void OnMessage(int agent, StreamId stream, const AgentMessage& message);

  // ---- trainers
  void Launch(int agent, const LaunchMessage& launch);
  void KillTrainer(int agent, const std::string& worker, int signal);
  void StepWorld(const std::string& job_id, int64_t epoch);
  World& WorldOf(const std::string& job_id, int64_t epoch);

  // ---- people
  void SubmitSome();
  void MeddleSome();
  void CauseFault();
  void Judge();

  const SimOptions options_;
  std::mt19937 random_;
  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  const absl::Time start_ = now_;
  struct Timed {
    absl::Time time;
    int64_t order;
    std::function<void()> action;
    bool operator>(const Timed& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };
  std::priority_queue<Timed, std::vector<Timed>, std::greater<>> timeline_;
  int64_t next_order_ = 0;

  std::unique_ptr<Coordinator> core_;
  InvariantChecker checker_;
  std::vector<std::string> wrong_;
  std::vector<std::unique_ptr<Agent>> agents_;
  std::map<StreamId, int> stream_agent_;
  StreamId next_stream_ = 1;
  std::map<std::pair<std::string, int64_t>, std::unique_ptr<World>> worlds_;
  std::vector<std::string> job_ids_;
  std::map<std::string, absl::Time> node_fault_;  // when a node was last crashed or cut off
  bool calm_ = false;
  Tally tally_;
};

}  // namespace muster
