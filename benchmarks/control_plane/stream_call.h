// One bidirectional stream of a client: writes queue up behind the one under way. Thread-safe; it
// keeps itself alive until gRPC has let go of it.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "common/runtime/mutex.h"

namespace muster::bench {

template <class Out, class In>
class StreamCall final : public grpc::ClientBidiReactor<Out, In> {
 public:
  using OnMessage = std::function<void(const In&)>;
  using OnEnd = std::function<void(const grpc::Status&)>;

  // `start` hands context and reactor to the stub's method.
  template <class Start>
  static std::shared_ptr<StreamCall> Open(Start start, OnMessage on_message, OnEnd on_end) {
    std::shared_ptr<StreamCall> call(new StreamCall(std::move(on_message), std::move(on_end)));
    call->self_ = call;
    start(&call->context_, call.get());
    call->StartRead(&call->in_);
    call->AddHold();  // writes come from outside of reactions
    call->StartCall();
    return call;
  }

  // Of no effect once the stream has broken.
  void Write(Out message) {
    MutexLock lock(&mu_);
    if (broken_) return;
    queue_.push_back(std::move(message));
    if (queue_.size() == 1) this->StartWrite(&queue_.front());
  }
  // So that a benchmark counts only what went out.
  bool idle() {
    MutexLock lock(&mu_);
    return queue_.empty() && !broken_;
  }
  void Cancel() { context_.TryCancel(); }

 private:
  StreamCall(OnMessage on_message, OnEnd on_end)
      : on_message_(std::move(on_message)), on_end_(std::move(on_end)) {}

  void OnReadDone(bool ok) override {
    if (ok) {
      on_message_(in_);
      this->StartRead(&in_);
      return;
    }
    {
      MutexLock lock(&mu_);
      broken_ = true;
    }
    this->RemoveHold();
  }
  void OnWriteDone(bool ok) override {
    MutexLock lock(&mu_);
    queue_.pop_front();
    if (ok && !broken_ && !queue_.empty()) this->StartWrite(&queue_.front());
  }
  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<StreamCall> self = std::move(self_);
    on_end_(status);
  }

  const OnMessage on_message_;
  const OnEnd on_end_;
  grpc::ClientContext context_;
  In in_;
  Mutex mu_;
  std::deque<Out> queue_ ABSL_GUARDED_BY(mu_);  // front: being written
  bool broken_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<StreamCall> self_;
};

}  // namespace muster::bench
