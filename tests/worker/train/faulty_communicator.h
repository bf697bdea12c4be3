// A rank's groups that fail at a chosen operation: the rank dies before it, or never learns its
// outcome. Operations are counted over the world and all groups split from it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/comm/communicator.h"
#include "worker/comm/ready_work.h"

namespace muster {

class FaultyCommunicator final : public Communicator {
 public:
  struct Plan {
    int64_t dies_before = -1;        // number of the operation, from 0 on; -1: none
    int64_t loses_answer = -1;       // it is carried out, and this rank hears of an abort only
    int64_t operations = 0;          // so far
    std::vector<std::string> names;  // of them: "world max 5", "dp_cp barrier", ...
    std::function<void()> at_death = [] {};
  };
  FaultyCommunicator(CommunicatorPtr inner, CommunicatorPtr world, std::shared_ptr<Plan> plan)
      : inner_(std::move(inner)), world_(std::move(world)), plan_(std::move(plan)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const std::string& name() const override { return inner_->name(); }
  const std::vector<int>& ranks() const override { return inner_->ranks(); }

  WorkPtr AllReduce(at::Tensor tensor, ReduceOp op) override {
    return Run(absl::StrCat(op == ReduceOp::kMax ? " max " : " sum ", tensor.numel()),
               [&] { return inner_->AllReduce(tensor, op); });
  }
  WorkPtr ReduceScatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    return Run(" reduce_scatter", [&] { return inner_->ReduceScatter(output, input, op); });
  }
  WorkPtr AllGather(at::Tensor output, at::Tensor input) override {
    return Run(" all_gather", [&] { return inner_->AllGather(output, input); });
  }
  WorkPtr AllToAll(at::Tensor output, at::Tensor input, std::vector<int64_t> output_splits,
                   std::vector<int64_t> input_splits) override {
    return Run(" all_to_all",
               [&] { return inner_->AllToAll(output, input, output_splits, input_splits); });
  }
  WorkPtr Broadcast(at::Tensor tensor, int root) override {
    return Run(" broadcast", [&] { return inner_->Broadcast(tensor, root); });
  }
  WorkPtr SendRecv(std::vector<P2POp> batch) override {
    return Run(" send_recv", [&] { return inner_->SendRecv(batch); });
  }
  WorkPtr Barrier() override {
    return Run(" barrier", [&] { return inner_->Barrier(); });
  }
  absl::StatusOr<CommunicatorPtr> Split(std::string name, std::vector<int> members) override {
    ASSIGN_OR_RETURN(CommunicatorPtr group, inner_->Split(std::move(name), std::move(members)));
    if (group == nullptr) return group;
    return CommunicatorPtr(std::make_shared<FaultyCommunicator>(std::move(group), world_, plan_));
  }
  void Abort(const std::string& reason) override { inner_->Abort(reason); }
  std::string Describe() override { return inner_->Describe(); }

 private:
  template <typename Start>
  WorkPtr Run(const std::string& what, const Start& start) {
    const int64_t number = plan_->operations++;
    plan_->names.push_back(absl::StrCat(name(), what));
    if (number == plan_->dies_before) {
      plan_->at_death();
      world_->Abort("a rank died");
    }
    WorkPtr work = start();
    if (number != plan_->loses_answer) return work;
    (void)work->Wait();
    return MakeReadyWork(absl::AbortedError("aborted before the answer was read"));
  }

  const CommunicatorPtr inner_, world_;
  const std::shared_ptr<Plan> plan_;
};

}  // namespace muster
