// The door between the unary calls of all services and the engine: counts calls, holds each client
// to its limits and gives it its turns (call_limiter.h), and keeps the statistics. Thread-safe.
#pragma once

#include <grpcpp/server_context.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "common/runtime/clock.h"
#include "common/runtime/mutex.h"
#include "coordinator/engine/engine.h"
#include "coordinator/server/call_limiter.h"
#include "coordinator/server/rpc_stats.h"
#include "coordinator/server/unary_call.h"

namespace muster {

class CallGate {
 public:
  // `engine` and `clock` outlive the gate, the gate its calls.
  CallGate(const ServerLimits& limits, Engine* engine, Clock* clock)
      : engine_(engine), clock_(clock), limiter_(limits) {}

  enum class Kind { kPlain, kMayWait };
  // A new call of the RPC `path`. Beyond a limit it is answered already, and what is asked for it
  // below is not done.
  std::shared_ptr<UnaryCall> Begin(const grpc::CallbackServerContext* context,
                                   absl::string_view path, Kind kind = Kind::kPlain);

  // As the engine's, once it is the client's turn. When the engine refuses, or a call was answered
  // or cancelled before its turn, the callback does not run, and the call is answered.
  void Post(const std::shared_ptr<UnaryCall>& call, Event event, Engine::Done done);
  void Read(const std::shared_ptr<UnaryCall>& call, Engine::ReadFn read);
  void Watch(const std::shared_ptr<UnaryCall>& call, const std::string& job_id, absl::Duration wait,
             Engine::Attempt attempt);

  // For an event without an answer (the end of a wait): no turn, no call.
  void PostAside(Event event) { (void)engine_->Post(std::move(event), nullptr); }

  // For what only the callbacks of Read and Watch may ask of it.
  Engine* engine() const { return engine_; }
  const RpcStats& stats() const { return stats_; }
  int calls();
  int queued();

 private:
  // `enter` puts something into the engine's queue that ends the turn when it is handled.
  struct Work {
    std::shared_ptr<UnaryCall> call;
    std::function<absl::Status()> enter;
  };
  void Enter(Work work);
  void Run(Work work);  // it holds a turn
  void EndTurn(const std::string& client);

  Engine* const engine_;
  Clock* const clock_;
  RpcStats stats_;
  Mutex mu_;
  CallLimiter<Work> limiter_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
