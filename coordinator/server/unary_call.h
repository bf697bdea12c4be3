// A unary call that is answered later, from any thread, by whoever claims it first: the engine with
// the answer, or gRPC because the caller has gone. Keeps itself alive until gRPC has let go of it.
// Thread-safe.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "common/rpc/convert.h"

namespace muster {

class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  // The service method returns call.get() to gRPC.
  static std::shared_ptr<UnaryCall> New(std::function<void()> on_cancel = nullptr) {
    std::shared_ptr<UnaryCall> call(new UnaryCall(std::move(on_cancel)));
    call->self_ = call;
    return call;
  }

  // True once: the caller fills the response and calls Finish.
  bool Claim() { return !claimed_.exchange(true); }
  bool claimed() const { return claimed_; }

  // For an answer without a response.
  void Answer(const absl::Status& status) {
    if (Claim()) Finish(ToGrpc(status));
  }

 private:
  explicit UnaryCall(std::function<void()> on_cancel) : on_cancel_(std::move(on_cancel)) {}

  void OnCancel() override {
    if (!Claim()) return;
    if (on_cancel_) on_cancel_();
    Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override { self_.reset(); }

  const std::function<void()> on_cancel_;
  std::atomic<bool> claimed_ = false;
  std::shared_ptr<UnaryCall> self_;
};

}  // namespace muster
