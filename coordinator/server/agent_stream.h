// One agent's open stream (MembershipService.Connect), and the table of all of them.
//
// Heartbeats stay here: the newest is noted, and the engine collects once a tick from the streams
// that have had one. Of the other messages one is handled at a time: the next is read when the
// engine has taken the one before, so an agent that sends too fast is slowed down by its own
// connection. Outgoing messages queue up behind the one that is being written; an agent that does
// not read loses its stream when too many wait. Thread-safe.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "common/runtime/clock.h"
#include "common/runtime/mutex.h"
#include "coordinator/engine/engine.h"
#include "coordinator/server/limits.h"
#include "muster/v1/membership.pb.h"

namespace muster {

class AgentStreams;

class AgentStream final : public grpc::ServerBidiReactor<v1::ConnectRequest, v1::ConnectResponse>,
                          public std::enable_shared_from_this<AgentStream> {
 public:
  // `address`: of the peer, without port.
  AgentStream(StreamId id, std::string address, AgentStreams* streams);
  void Begin();  // once it is in the table

  void Send(const AgentMessage& message);
  // The first status counts; what is being written is completed.
  void End(const absl::Status& status);
  // DEADLINE_EXCEEDED for a stream that has not said hello.
  void EndUnlessGreeted(absl::Duration limit);
  // The heartbeat noted since the last call; reading goes on if it had stopped for it.
  void TakeHeartbeat(std::vector<Heartbeat>* heartbeats);

  StreamId id() const { return id_; }
  const std::string& address() const { return address_; }

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  void Note(const v1::Heartbeat& heartbeat);
  // The event in the message just read. INVALID_ARGUMENT for one out of place.
  absl::StatusOr<Event> EventOf(const v1::ConnectRequest& request);
  void Read();
  void PostClose();
  void FinishIfIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  static constexpr size_t kMaxQueued = 10'000;            // messages
  static constexpr size_t kMaxQueuedBytes = 128ul << 20;  // of all but the one being written

  const StreamId id_;
  const std::string address_;
  AgentStreams* const streams_;
  v1::ConnectRequest request_;            // of the read that is under way
  std::atomic<bool> said_hello_ = false;  // written by reads only

  // gRPC starts operations under this lock; their reactions come on other turns (never from within
  // the call that started them, on threads that hold no lock of ours).
  Mutex mu_;
  std::list<v1::ConnectResponse> queue_ ABSL_GUARDED_BY(mu_);  // front: being written
  size_t queued_bytes_ ABSL_GUARDED_BY(mu_) = 0;               // of all but the front
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);  // wanted
  bool finished_ ABSL_GUARDED_BY(mu_) = false;            // Finish was called
  bool close_posted_ ABSL_GUARDED_BY(mu_) = false;

  Heartbeat newest_ ABSL_GUARDED_BY(mu_);          // keeps its memory from one to the next
  int heartbeats_noted_ ABSL_GUARDED_BY(mu_) = 0;  // since the last TakeHeartbeat
  bool reading_held_ ABSL_GUARDED_BY(mu_) = false;
};

class AgentStreams {
 public:
  // `clock` outlives the table.
  AgentStreams(const ServerLimits& limits, Clock* clock) : limits_(limits), clock_(clock) {}
  // Once, before the first Open. The engine outlives the streams.
  void SetEngine(Engine* engine) { engine_ = engine; }

  // Returns the reactor for gRPC; it removes itself when gRPC is done with it. `peer`: as gRPC
  // names it. Beyond a limit the stream ends at once.
  AgentStream* Open(const std::string& peer);
  std::shared_ptr<AgentStream> Find(StreamId id);
  void EndAll(const absl::Status& status);

  // The engine's heartbeat source: one thread at a time. Ends streams that do not say hello, too.
  void Collect(std::vector<Heartbeat>* heartbeats);

  int num_open();
  int64_t num_heartbeats() const { return num_heartbeats_.load(std::memory_order_relaxed); }

 private:
  friend class AgentStream;
  absl::Status Admit(const std::string& address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Remove(const AgentStream& stream);
  void NoteHeartbeatOf(std::shared_ptr<AgentStream> stream);

  const ServerLimits limits_;
  Clock* const clock_;
  Engine* engine_ = nullptr;
  std::atomic<int64_t> num_heartbeats_ = 0;

  Mutex mu_;
  StreamId next_ ABSL_GUARDED_BY(mu_) = 1;
  std::unordered_map<StreamId, std::shared_ptr<AgentStream>> streams_ ABSL_GUARDED_BY(mu_);
  std::unordered_map<std::string, int> of_address_ ABSL_GUARDED_BY(mu_);
  struct Opened {
    StreamId id;
    absl::Duration hello_until;  // steady time
  };
  std::deque<Opened> opened_ ABSL_GUARDED_BY(mu_);  // in order of time; front: looked at next

  Mutex beats_mu_;  // a lock of its own: taken for every heartbeat
  std::vector<std::shared_ptr<AgentStream>> with_heartbeat_ ABSL_GUARDED_BY(beats_mu_);
  std::vector<std::shared_ptr<AgentStream>> collecting_;  // Collect only
};

}  // namespace muster
