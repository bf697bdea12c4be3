// Pipeline groups for tests: one that writes down what passes through it, and one without peers
// whose operations end only when they are waited for.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "worker/comm/communicator.h"

namespace muster {

// "sf+rb": as ScheduleText names the members of an exchange.
inline std::string ExchangeText(const std::vector<P2POp>& batch) {
  std::string text;
  for (const P2POp& op : batch) {
    text += text.empty() ? "" : "+";
    text += op.kind == P2POp::Kind::kSend ? "s" : "r";
    text += op.channel == 0 ? "f" : "b";
  }
  return text;
}

// Refuses collectives: an executor makes none on this group.
class PipelineGroup : public Communicator {
 public:
  PipelineGroup(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::string& name() const override { return name_; }
  const std::vector<int>& ranks() const override { return ranks_; }
  WorkPtr AllReduce(at::Tensor, ReduceOp) override { return nullptr; }
  WorkPtr ReduceScatter(at::Tensor, at::Tensor, ReduceOp) override { return nullptr; }
  WorkPtr AllGather(at::Tensor, at::Tensor) override { return nullptr; }
  WorkPtr AllToAll(at::Tensor, at::Tensor, std::vector<int64_t>, std::vector<int64_t>) override {
    return nullptr;
  }
  WorkPtr Broadcast(at::Tensor, int) override { return nullptr; }
  WorkPtr Barrier() override { return nullptr; }
  absl::StatusOr<CommunicatorPtr> Split(std::string, std::vector<int>) override {
    return absl::UnimplementedError("not recorded");
  }
  void Abort(const std::string&) override {}
  std::string Describe() override { return ""; }

 private:
  const int rank_, size_;
  const std::string name_ = "pp";
  const std::vector<int> ranks_;
};

class RecordingPipeline final : public PipelineGroup {
 public:
  explicit RecordingPipeline(Communicator& inner)
      : PipelineGroup(inner.rank(), inner.size()), inner_(inner) {}
  WorkPtr SendRecv(std::vector<P2POp> batch) override {
    events.push_back(ExchangeText(batch));
    for (const P2POp& op : batch) {
      if (op.kind == P2POp::Kind::kSend) bytes_sent += op.tensor.nbytes();
    }
    return inner_.SendRecv(std::move(batch));
  }
  absl::Status OpenChannels() override {
    ++num_opened;
    return inner_.OpenChannels();
  }

  std::vector<std::string> events;
  int64_t bytes_sent = 0;
  int num_opened = 0;

 private:
  Communicator& inner_;
};

// What is received holds NaN until its operation was waited for.
class LatePipeline final : public PipelineGroup {
 public:
  using PipelineGroup::PipelineGroup;
  WorkPtr SendRecv(std::vector<P2POp> batch) override {
    events.push_back(ExchangeText(batch));
    for (const P2POp& op : batch) {
      if (op.kind == P2POp::Kind::kRecv) op.tensor.fill_(std::nan(""));
    }
    most_pending = std::max(most_pending, ++num_pending);
    return std::make_shared<LateWork>(*this, std::move(batch));
  }

  std::vector<std::string> events;
  int num_pending = 0, most_pending = 0;  // operations not waited for

 private:
  class LateWork final : public Work {
   public:
    LateWork(LatePipeline& group, std::vector<P2POp> batch)
        : group_(group), batch_(std::move(batch)) {}
    absl::Status Wait() override {
      if (done_) return absl::OkStatus();
      done_ = true;
      --group_.num_pending;
      group_.events.push_back("wait:" + ExchangeText(batch_));
      for (const P2POp& op : batch_) {
        if (op.kind == P2POp::Kind::kRecv) op.tensor.fill_(0.25);
      }
      return absl::OkStatus();
    }
    bool IsDone() override { return done_; }

   private:
    LatePipeline& group_;
    const std::vector<P2POp> batch_;
    bool done_ = false;
  };
};

}  // namespace muster
