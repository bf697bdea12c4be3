// Writes down the collectives of a group, and of the groups split from it, before it passes them
// on.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/comm/communicator.h"

namespace muster {

// "tp sum 5", "world max 5", "dp_cp reduce_scatter 12" (elements of the input), "world barrier".
// The log belongs to the rank's thread.
class LoggingCommunicator final : public Communicator {
 public:
  using Log = std::shared_ptr<std::vector<std::string>>;
  LoggingCommunicator(CommunicatorPtr inner, Log log)
      : inner_(std::move(inner)), log_(std::move(log)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const std::string& name() const override { return inner_->name(); }
  const std::vector<int>& ranks() const override { return inner_->ranks(); }
  WorkPtr AllReduce(at::Tensor tensor, ReduceOp op) override {
    const char* const kind = op == ReduceOp::kSum   ? " sum "
                             : op == ReduceOp::kMax ? " max "
                                                    : " min ";
    log_->push_back(absl::StrCat(name(), kind, tensor.numel()));
    return inner_->AllReduce(tensor, op);
  }
  WorkPtr ReduceScatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    log_->push_back(absl::StrCat(name(), " reduce_scatter ", input.numel()));
    return inner_->ReduceScatter(output, input, op);
  }
  WorkPtr AllGather(at::Tensor output, at::Tensor input) override {
    log_->push_back(absl::StrCat(name(), " all_gather ", input.numel()));
    return inner_->AllGather(output, input);
  }
  WorkPtr AllToAll(at::Tensor output, at::Tensor input, std::vector<int64_t> output_splits,
                   std::vector<int64_t> input_splits) override {
    return inner_->AllToAll(output, input, std::move(output_splits), std::move(input_splits));
  }
  WorkPtr Broadcast(at::Tensor tensor, int root) override {
    log_->push_back(absl::StrCat(name(), " broadcast from ", root));
    return inner_->Broadcast(tensor, root);
  }
  WorkPtr SendRecv(std::vector<P2POp> batch) override { return inner_->SendRecv(std::move(batch)); }
  WorkPtr Barrier() override {
    log_->push_back(absl::StrCat(name(), " barrier"));
    return inner_->Barrier();
  }
  absl::StatusOr<CommunicatorPtr> Split(std::string name, std::vector<int> members) override {
    ASSIGN_OR_RETURN(CommunicatorPtr group, inner_->Split(std::move(name), std::move(members)));
    if (group == nullptr) return group;
    return CommunicatorPtr(std::make_shared<LoggingCommunicator>(std::move(group), log_));
  }
  void Abort(const std::string& reason) override { inner_->Abort(reason); }
  std::string Describe() override { return inner_->Describe(); }

 private:
  const CommunicatorPtr inner_;
  const Log log_;
};

}  // namespace muster
