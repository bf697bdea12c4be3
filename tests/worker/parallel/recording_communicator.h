// Writes down when collectives start and are waited for. Stands before another group, or alone:
// then for a group whose peers hold zeros.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/comm/communicator.h"

namespace muster {

class RecordingCommunicator : public Communicator {
 public:
  explicit RecordingCommunicator(int size, std::string name = "dp_cp", int rank = 0)
      : rank_(rank), size_(size), name_(std::move(name)) {}

  explicit RecordingCommunicator(Communicator& inner)
      : inner_(&inner),
        rank_(inner.rank()),
        size_(inner.size()),
        name_(inner.name()),
        ranks_(inner.ranks()) {}

  // "start 1000", "wait 1000" of reductions, "gather 1000", "wait gather 1000": the number is where
  // the reduced or gathered range lies in its buffer.
  std::vector<std::string> TakeEvents() { return std::exchange(events_, {}); }
  // What this rank sent since the last call, by the formula of each collective: (n-1)/n of a
  // reduce-scattered or gathered tensor, twice that of an all-reduced one.
  double TakeBytes() { return std::exchange(bytes_, 0.0); }
  // Copies everything into another list too, the group's name before it.
  void ShareEvents(std::vector<std::string>* shared) { shared_ = shared; }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::string& name() const override { return name_; }
  const std::vector<int>& ranks() const override { return ranks_; }

  WorkPtr AllReduce(at::Tensor tensor, ReduceOp op) override {
    return Record("", tensor, 2, inner_ ? inner_->AllReduce(tensor, op) : nullptr);
  }
  WorkPtr ReduceScatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    return Record("", input, 1, inner_ ? inner_->ReduceScatter(output, input, op) : nullptr);
  }
  WorkPtr AllGather(at::Tensor output, at::Tensor input) override {
    return Record("gather ", output, 1, inner_ ? inner_->AllGather(output, input) : nullptr);
  }
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
    RecordedWork(RecordingCommunicator& group, std::string event, WorkPtr inner)
        : group_(group), event_(std::move(event)), inner_(std::move(inner)) {}
    absl::Status Wait() override {
      group_.Event(event_);
      return inner_ ? inner_->Wait() : absl::OkStatus();
    }
    bool IsDone() override { return true; }

   private:
    RecordingCommunicator& group_;
    const std::string event_;
    const WorkPtr inner_;
  };
  void Event(const std::string& event) {
    events_.push_back(event);
    if (shared_ != nullptr) shared_->push_back(absl::StrCat(name_, " ", event));
  }
  WorkPtr Record(const std::string& prefix, const at::Tensor& whole, int passes, WorkPtr inner) {
    const std::string where = absl::StrCat(prefix, whole.storage_offset());
    Event(prefix.empty() ? "start " + where : where);
    bytes_ += passes * (size_ - 1.0) / size_ * static_cast<double>(whole.nbytes());
    return std::make_shared<RecordedWork>(*this, "wait " + where, std::move(inner));
  }
  WorkPtr Unexpected() {
    Event("unexpected operation");
    return std::make_shared<RecordedWork>(*this, "wait for an unexpected operation", nullptr);
  }

  Communicator* const inner_ = nullptr;
  const int rank_, size_;
  const std::string name_;
  const std::vector<int> ranks_ = {0};
  std::vector<std::string> events_;
  std::vector<std::string>* shared_ = nullptr;
  double bytes_ = 0;
};

}  // namespace muster
