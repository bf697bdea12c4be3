// One agent's open stream (MembershipService.Connect), and the table of all of them.
//
// One incoming message is handled at a time: the next is read when the engine has taken the one
// before, so an agent that sends too fast is slowed down by its own connection. Outgoing messages
// queue up behind the one that is being written; an agent that does not read loses its stream when
// too many wait. Thread-safe.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/runtime/mutex.h"
#include "coordinator/engine/engine.h"
#include "muster/v1/membership.pb.h"

namespace muster {

class AgentStreams;

class AgentStream final : public grpc::ServerBidiReactor<v1::ConnectRequest, v1::ConnectResponse> {
 public:
  AgentStream(StreamId id, Engine* engine, AgentStreams* streams);
  void Begin();  // once it is in the table

  void Send(const AgentMessage& message);
  // The first status counts; what is being written is completed.
  void End(const absl::Status& status);

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // The event in the message just read. INVALID_ARGUMENT for one out of place.
  absl::StatusOr<Event> EventOf(const v1::ConnectRequest& request);
  void Read();
  void PostClose();
  void FinishIfIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  static constexpr size_t kMaxQueued = 10'000;  // messages

  const StreamId id_;
  Engine* const engine_;
  AgentStreams* const streams_;
  v1::ConnectRequest request_;  // of the read that is under way
  bool said_hello_ = false;     // reads only

  // gRPC starts operations under this lock; their reactions come on other turns (never from within
  // the call that started them, on threads that hold no lock of ours).
  Mutex mu_;
  std::deque<v1::ConnectResponse> queue_ ABSL_GUARDED_BY(mu_);  // front: being written
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);  // wanted
  bool finished_ ABSL_GUARDED_BY(mu_) = false;            // Finish was called
  bool close_posted_ ABSL_GUARDED_BY(mu_) = false;
};

class AgentStreams {
 public:
  // Returns the reactor for gRPC; it removes itself when gRPC is done with it.
  AgentStream* Open(Engine* engine);
  std::shared_ptr<AgentStream> Find(StreamId id);
  void Remove(StreamId id);
  void EndAll(const absl::Status& status);

 private:
  Mutex mu_;
  StreamId next_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<StreamId, std::shared_ptr<AgentStream>> streams_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
