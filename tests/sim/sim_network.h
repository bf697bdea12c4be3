// The network between the nodes, the people and the coordinator in a simulation. A stream keeps its
// order, against others anything may come first; it is delayed, broken with what was under way,
// and learned of as broken late or never on the other side. Calls and their replies get lost,
// which the caller sees as UNAVAILABLE. A node that is cut off reaches nobody: what is under way
// stalls until the end of the cut, or the stream breaks.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "coordinator/core/types.h"
#include "tests/sim/sim_context.h"

namespace muster {

class SimNetwork {
 public:
  struct Ends {
    std::function<absl::Status(Event, std::function<void(const Outcome&)>)> post;
    std::function<void(const Heartbeat&)> beat;
    std::function<void(int node, StreamId, const AgentMessage&)> to_agent;
    std::function<void(int node, StreamId, const absl::Status&)> agent_lost_stream;
  };
  struct Tally {
    int broken_streams = 0, repeated = 0, refused = 0, lost_replies = 0;
  };
  static constexpr int kPeople = -1;  // the node that is never cut off

  explicit SimNetwork(Sim* sim) : sim_(sim) {}
  void Connect(Ends ends) { ends_ = std::move(ends); }
  // No more losses and repetitions.
  void Calm() { calm_ = true; }

  absl::Duration Delay();  // of one message
  // Until that time nothing passes between this node and the coordinator.
  void Cut(int node, absl::Duration until);
  void Heal();
  bool IsCut(int node) const;
  absl::Duration cut_until(int node) const;

  // ---- streams
  StreamId Open(int node, const std::string& incarnation);
  void ToCoordinator(StreamId stream, Event event);
  void ToAgent(StreamId stream, const AgentMessage& message);
  void EndByCoordinator(StreamId stream, const absl::Status& status);
  void Break(StreamId stream, bool coordinator_learns);
  // One side is gone.
  void AgentDied(StreamId stream);
  void CoordinatorDied();

  // ---- calls
  using Reply = std::function<void(const Outcome&)>;
  void Call(int node, Event event, Reply reply);
  // `reply`: its outcome's status, and the entries when that is OK.
  using WaitReply = std::function<void(const absl::Status&, const KeyValues&)>;
  void Wait(int node, WaitPrefix wait, WaitReply reply);
  void Answer(const WaitDone& done);

  const Tally& tally() const { return tally_; }
  int max_queued() const { return max_queued_; }
  static constexpr int kMaxQueued = 10'000;  // AgentStream::kMaxQueued

 private:
  struct Link {
    int node = 0;
    bool agent_open = true, server_open = true;
    bool stalls = true;                 // what a cut does to it
    absl::Duration last_up, last_down;  // arrival of the last message each way
    int queued_down = 0;
    // The coordinator reads the next message once it has answered the last one.
    std::deque<Event> unread;
    bool reading = false;
  };
  struct Waiting {
    int node = 0;
    WaitReply reply;
  };
  void ArriveUp(StreamId stream, Event event);
  void ReadNext(StreamId stream);
  void ArriveDown(StreamId stream, const AgentMessage& message);
  void LoseAgentSide(StreamId stream, const absl::Status& status);
  void LoseServerSide(StreamId stream);
  void Finish(int64_t call, int node, const Outcome& outcome);

  Sim* const sim_;
  Ends ends_;
  bool calm_ = false;
  std::map<StreamId, Link> links_;
  StreamId next_stream_ = 1;
  std::map<int, absl::Duration> cuts_;
  std::map<int64_t, Reply> calls_;  // that the coordinator has not answered
  std::map<WaitToken, Waiting> waits_;
  int64_t next_call_ = 1;
  Tally tally_;
  int max_queued_ = 0;
};

}  // namespace muster
