// Writes down when reductions start and are waited for. Stands before another group, or alone: then
// for a group whose peers hold zeros.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/comm/communicator.h"

namespace muster {

class RecordingCommunicator : public Communicator {
 public:
  explicit RecordingCommunicator(int size, std::string name = "dp_cp")
      : size_(size), name_(std::move(name)) {}

  explicit RecordingCommunicator(Communicator& inner)
      : inner_(&inner), size_(inner.size()), name_(inner.name()), ranks_(inner.ranks()) {}

  // "start 1000", "wait 1000": the number is where the reduced range lies in its buffer.
  std::vector<std::string> TakeEvents() { return std::exchange(events_, {}); }

  int rank() const override { return inner_ ? inner_->rank() : 0; }
  int size() const override { return size_; }
  const std::string& name() const override { return name_; }
  const std::vector<int>& ranks() const override { return ranks_; }

  WorkPtr AllReduce(at::Tensor tensor, ReduceOp op) override {
    const std::string where = absl::StrCat(tensor.storage_offset());
    events_.push_back("start " + where);
    return std::make_shared<RecordedWork>(events_, "wait " + where,
                                          inner_ ? inner_->AllReduce(tensor, op) : nullptr);
  }
  WorkPtr ReduceScatter(at::Tensor, at::Tensor, ReduceOp) override { return Unexpected(); }
  WorkPtr AllGather(at::Tensor, at::Tensor) override { return Unexpected(); }
  WorkPtr AllToAll(at::Tensor, at::Tensor, std::vector<int64_t>, std::vector<int64_t>) override {
    return Unexpected();
  }
  WorkPtr Broadcast(at::Tensor, int) override { return Unexpected(); }
  WorkPtr SendRecv(std::vector<P2POp>) override { return Unexpected(); }
  WorkPtr Barrier() override { return Unexpected(); }
  absl::StatusOr<CommunicatorPtr> Split(std::string, std::vector<int>) override {
    return absl::UnimplementedError("not recorded");
  }
  void Abort(const std::string&) override {}
  std::string Describe() override { return ""; }

 private:
  class RecordedWork : public Work {
   public:
    RecordedWork(std::vector<std::string>& events, std::string event, WorkPtr inner = nullptr)
        : events_(events), event_(std::move(event)), inner_(std::move(inner)) {}
    absl::Status Wait() override {
      events_.push_back(event_);
      return inner_ ? inner_->Wait() : absl::OkStatus();
    }
    bool IsDone() override { return true; }

   private:
    std::vector<std::string>& events_;
    const std::string event_;
    const WorkPtr inner_;
  };
  WorkPtr Unexpected() {
    events_.push_back("unexpected operation");
    return std::make_shared<RecordedWork>(events_, "wait for an unexpected operation");
  }

  Communicator* const inner_ = nullptr;
  const int size_;
  const std::string name_;
  const std::vector<int> ranks_ = {0};
  std::vector<std::string> events_;
};

}  // namespace muster
