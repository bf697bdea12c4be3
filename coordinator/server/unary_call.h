// A unary call that is answered later, from any thread, by whoever claims it first: the engine with
// the answer, or gRPC because the caller has gone. Keeps itself alive until gRPC has let go of it.
// Made by CallGate::Begin, which counts it. Thread-safe.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/rpc/convert.h"

namespace muster {

class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  struct Options {
    std::string client;                               // the peer, as gRPC names it
    std::function<void(grpc::StatusCode)> on_finish;  // once, before the answer goes out
    std::function<void()> on_done;                    // once, when gRPC has let go of the call
  };
  static std::shared_ptr<UnaryCall> New(Options options) {
    std::shared_ptr<UnaryCall> call(new UnaryCall(std::move(options)));
    call->self_ = call;
    return call;
  }

  const std::string& client() const { return options_.client; }

  // What else is to be done when the caller has gone. At most once, before the service method
  // returns (gRPC cancels no call before it has the reactor).
  void OnCancelled(std::function<void()> also) { on_cancel_ = std::move(also); }

  // True once: the caller fills the response and calls Finish.
  bool Claim() { return !claimed_.exchange(true); }
  bool claimed() const { return claimed_; }

  // Precondition: the call was claimed by the caller.
  void Finish(const grpc::Status& status) {
    if (options_.on_finish) options_.on_finish(status.error_code());
    grpc::ServerUnaryReactor::Finish(status);
  }
  // For an answer without a response.
  void Answer(const absl::Status& status) {
    if (Claim()) Finish(ToGrpc(status));
  }

 private:
  explicit UnaryCall(Options options) : options_(std::move(options)) {}

  void OnCancel() override {
    if (!Claim()) return;
    if (on_cancel_) on_cancel_();
    Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override {
    if (options_.on_done) options_.on_done();
    self_.reset();
  }

  const Options options_;
  std::function<void()> on_cancel_;
  std::atomic<bool> claimed_ = false;
  std::shared_ptr<UnaryCall> self_;
};

}  // namespace muster
