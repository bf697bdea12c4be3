// What one node of SimAgents is made of. Only for SimAgents' own files: it sees the agent's core.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/sim_agents.h"
#include "worker/core/agent_machine.h"

namespace muster {

// The agent's state folder: bounded, full for a while.
class SimSpill : public ReportSpill {
 public:
  absl::Status Append(const std::deque<NodeReport>& reports) override;
  Taken TakeOldest() override;
  bool empty() const override { return chunks_.empty(); }
  void Clear() override { chunks_.clear(); }

  bool full = false;
  int64_t num_spilled = 0;

 private:
  std::deque<std::vector<NodeReport>> chunks_;
};

struct SimAgents::Agent {
  int node = 0, num_slots = 1;
  std::string name;

  // ---- of one life of the process
  int life = 0;
  bool up = false, terminated = false;
  absl::Duration frozen_until;
  std::deque<std::pair<AgentEvent, StreamId>> inbox;  // while it is frozen
  SimSpill spill;
  std::unique_ptr<AgentMachine> machine;
  std::string incarnation;
  bool registered = false, welcomed = false;
  int attempt = 0;
  int64_t loop = 0;  // only the newest attempt to connect goes on
  StreamId stream = 0;
  StreamId order_stream = 0;  // of the last order: what its batches are for
  absl::Duration heartbeat_interval = absl::Milliseconds(500);
  int64_t beats = 0;
  absl::Duration alarm = absl::InfiniteDuration();
  std::map<std::pair<std::string, int64_t>, int64_t> pids;  // by worker and run
  std::map<std::pair<std::string, int64_t>, AssignmentRef> running;
  std::map<int64_t, std::shared_ptr<const NodeReportBatch>> unacknowledged;
  std::optional<TrainerReport> stale;  // goes with the next batch
  std::vector<AssignmentRef> past;     // of any life; their trainers have ended
};

// Carries one event to a machine and its actions out.
class SimAgents::Doer {
 public:
  Doer(SimAgents* all, Agent* agent) : all_(*all), agent_(*agent) {}
  // `stream`: that brought it, when it is an order.
  void Handle(const AgentEvent& event, StreamId stream = 0);

 private:
  void Do(const StartTrainerAction& action);
  void Do(const SendToTrainerAction& action);
  void Do(const SignalTrainerAction& action);
  void Do(const EndTrainerAction& action);
  void Do(const StoreRequestAction& action);
  void Do(const TracePieceAction& action);
  void Do(const LookAtProcessAction& action);
  void Do(const FreeSnapshotMemoryAction& action);
  void Do(const CheckDeviceAction& action);
  void Do(const SendBatchAction& action);
  void Do(const NewIncarnationAction& action);
  void Do(const ExitAgentAction& action);

  SimAgents& all_;
  Agent& agent_;
};

}  // namespace muster
