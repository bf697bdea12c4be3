// Runs blocking calls on as many threads as there are calls at a time; idle threads are used again.
// Dropping the pool does not wait: a thread ends after the call it is in. Thread-safe. Torch-free.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "common/runtime/mutex.h"

namespace muster {

class ElasticPool {
 public:
  ElasticPool() : shared_(std::make_shared<Shared>()) {}
  ~ElasticPool() {
    MutexLock lock(&shared_->mu);
    shared_->closed = true;
    shared_->changed.NotifyAll();
  }

  void Run(std::function<void()> call) {
    {
      MutexLock lock(&shared_->mu);
      shared_->calls.push_back(std::move(call));
      if (static_cast<int>(shared_->calls.size()) <= shared_->idle) {
        shared_->changed.NotifyOne();
        return;
      }
    }
    std::thread([shared = shared_] { Serve(*shared); }).detach();
  }

 private:
  struct Shared {
    Mutex mu;
    CondVar changed;
    std::deque<std::function<void()>> calls ABSL_GUARDED_BY(mu);
    int idle ABSL_GUARDED_BY(mu) = 0;
    bool closed ABSL_GUARDED_BY(mu) = false;
  };

  static void Serve(Shared& shared) {
    for (;;) {
      std::function<void()> call;
      {
        MutexLock lock(&shared.mu);
        ++shared.idle;
        while (shared.calls.empty() && !shared.closed) shared.changed.Wait(&shared.mu);
        --shared.idle;
        if (shared.calls.empty()) return;
        call = std::move(shared.calls.front());
        shared.calls.pop_front();
      }
      call();
    }
  }

  const std::shared_ptr<Shared> shared_;
};

}  // namespace muster
