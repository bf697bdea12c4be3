// A group whose collectives finish as late and in as odd an order as the contract of
// worker/comm/communicator.h allows: outputs hold NaN until the work is waited for, or until some
// later call happens to finish it. Inputs that are touched before that are reported.
// Thread-safety: one thread (the rank's).
#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "absl/strings/str_cat.h"
#include "worker/comm/communicator.h"

namespace muster {

class LateCommunicator : public Communicator {
 public:
  LateCommunicator(Communicator& inner, uint64_t seed)
      : inner_(inner), random_(seed * 1000 + inner.rank()) {}

  // Finishes some of what is in flight, in any order.
  void Drift() {
    std::vector<std::shared_ptr<LateWork>> pending = std::exchange(pending_, {});
    std::shuffle(pending.begin(), pending.end(), random_);
    for (const auto& work : pending) {
      if (random_() % 3 == 0) {
        work->Finish();
      } else {
        pending_.push_back(work);
      }
    }
  }
  int num_operations() const { return num_operations_; }

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  const std::string& name() const override { return inner_.name(); }
  const std::vector<int>& ranks() const override { return inner_.ranks(); }

  WorkPtr AllReduce(at::Tensor tensor, ReduceOp op) override {
    const at::Tensor result = tensor.clone();
    return Later(tensor, result, at::Tensor(), inner_.AllReduce(result, op));
  }
  WorkPtr ReduceScatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    const at::Tensor result = at::empty_like(output);
    return Later(output, result, input, inner_.ReduceScatter(result, input.clone(), op));
  }
  WorkPtr AllGather(at::Tensor output, at::Tensor input) override {
    const at::Tensor result = at::empty_like(output);
    WorkPtr work = inner_.AllGather(result, input.clone());
    // The own shard is an input: it stays as it is, wherever it lies.
    const at::Tensor own = input.clone();
    WorkPtr later = Later(output, result, input, std::move(work));
    input.copy_(own);
    static_cast<LateWork&>(*later).NoteInputs();
    return later;
  }
  WorkPtr AllToAll(at::Tensor, at::Tensor, std::vector<int64_t>, std::vector<int64_t>) override {
    return nullptr;
  }
  WorkPtr Broadcast(at::Tensor tensor, int root) override { return inner_.Broadcast(tensor, root); }
  WorkPtr SendRecv(std::vector<P2POp>) override { return nullptr; }
  WorkPtr Barrier() override { return inner_.Barrier(); }
  absl::StatusOr<CommunicatorPtr> Split(std::string, std::vector<int>) override {
    return absl::UnimplementedError("not split");
  }
  void Abort(const std::string& reason) override { inner_.Abort(reason); }
  std::string Describe() override { return inner_.Describe(); }

 private:
  class LateWork : public Work {
   public:
    LateWork(at::Tensor output, at::Tensor result, at::Tensor input, WorkPtr inner)
        : output_(std::move(output)),
          result_(std::move(result)),
          input_(std::move(input)),
          inner_(std::move(inner)) {
      NoteInputs();
    }
    void NoteInputs() {
      output_before_ = output_.clone();
      if (input_.defined()) input_before_ = input_.clone();
    }
    void Finish() {
      if (finished_) return;
      finished_ = true;
      status_ = inner_->Wait();
      if (!status_.ok()) return;
      auto untouched = [](const at::Tensor& now, const at::Tensor& before) {
        return at::allclose(now, before, 0, 0, /*equal_nan=*/true);
      };
      if (!untouched(output_, output_before_) ||
          (input_.defined() && !untouched(input_, input_before_))) {
        status_ = absl::InternalError("a tensor of an operation in flight was written");
      }
      output_.copy_(result_);
    }
    absl::Status Wait() override {
      Finish();
      return status_;
    }
    bool IsDone() override { return finished_; }

   private:
    at::Tensor output_;
    const at::Tensor result_, input_;
    const WorkPtr inner_;
    at::Tensor output_before_, input_before_;
    bool finished_ = false;
    absl::Status status_;
  };
  WorkPtr Later(at::Tensor output, at::Tensor result, at::Tensor input, WorkPtr inner) {
    Drift();
    ++num_operations_;
    output.fill_(std::numeric_limits<double>::quiet_NaN());
    pending_.push_back(std::make_shared<LateWork>(std::move(output), std::move(result),
                                                  std::move(input), std::move(inner)));
    return pending_.back();
  }

  Communicator& inner_;
  std::mt19937_64 random_;
  std::vector<std::shared_ptr<LateWork>> pending_;
  int num_operations_ = 0;
};

}  // namespace muster
