#include "worker/comm/shm_communicator.h"

#include <ATen/ATen.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/comm/ready_work.h"
#include "worker/comm/self_communicator.h"
#include "worker/comm/self_mail.h"
#include "worker/comm/tensor_checks.h"

namespace muster {
namespace {

char* Data(const at::Tensor& tensor) { return static_cast<char*>(tensor.data_ptr()); }

absl::StatusOr<ShmDtype> DtypeOf(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return ShmDtype::kFloat;
    case at::kDouble:
      return ShmDtype::kDouble;
    case at::kHalf:
      return ShmDtype::kHalf;
    case at::kBFloat16:
      return ShmDtype::kBfloat16;
    case at::kLong:
      return ShmDtype::kInt64;
    case at::kInt:
      return ShmDtype::kInt32;
    case at::kChar:
      return ShmDtype::kInt8;
    case at::kByte:
      return ShmDtype::kUint8;
    case at::kBool:
      return ShmDtype::kBool;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("dtype ", DtypeName(dtype),
                       " cannot be reduced: use a float or integer type other than int16"));
  }
}

ShmReduceOp OpOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return ShmReduceOp::kSum;
    case ReduceOp::kMax:
      return ShmReduceOp::kMax;
    case ReduceOp::kMin:
      return ShmReduceOp::kMin;
  }
  return ShmReduceOp::kSum;
}

absl::Status CheckCpu(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().is_cpu()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "shared memory works on CPU tensors only: use the nccl backend");
}

class ShmWork final : public Work {
 public:
  ShmWork(std::shared_ptr<ShmEngine> engine, ShmOpPtr op)
      : engine_(std::move(engine)), op_(std::move(op)) {}
  absl::Status Wait() override { return engine_->Wait(op_); }
  bool IsDone() override { return engine_->IsDone(op_); }

 private:
  const std::shared_ptr<ShmEngine> engine_;
  const ShmOpPtr op_;
};

class ShmCommunicator final : public Communicator {
 public:
  ShmCommunicator(std::string name, std::vector<int> ranks, int rank, std::vector<int> node_ranks,
                  std::shared_ptr<ShmEngine> engine)
      : name_(std::move(name)),
        ranks_(std::move(ranks)),
        rank_(rank),
        node_ranks_(std::move(node_ranks)),
        engine_(std::move(engine)) {
    std::vector<int> places;
    for (int global : ranks_) places.push_back(node_ranks_[global]);
    group_ = engine_->FindOrMake(name_, ranks_, rank_, places);
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  const std::string& name() const override { return name_; }
  const std::vector<int>& ranks() const override { return ranks_; }

  WorkPtr AllReduce(at::Tensor tensor, ReduceOp op) override {
    const OpShape shape = ShapeOf("all_reduce", tensor);
    absl::Status bad = CheckTensor("tensor", tensor);
    if (bad.ok()) bad = CheckCpu(tensor);
    if (!bad.ok()) return Refuse(shape, bad);
    const auto reduction = Reduction(tensor, op);
    if (!reduction.ok()) return Refuse(shape, reduction.status());
    if (tensor.numel() == 0) return Nothing();
    return Collective(shape, ReduceOpName(op), {tensor},
                      MakeShmAllReduce(rank(), size(), Data(tensor), *reduction));
  }

  WorkPtr ReduceScatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    const OpShape shape = ShapeOf("reduce_scatter", input, output);
    absl::Status bad = CheckSlices("input", input, "output", output, size());
    if (bad.ok()) bad = CheckCpu(input);
    if (bad.ok()) bad = CheckCpu(output);
    if (!bad.ok()) return Refuse(shape, bad);
    const auto reduction = Reduction(output, op);
    if (!reduction.ok()) return Refuse(shape, reduction.status());
    if (input.numel() == 0) return Nothing();
    return Collective(shape, ReduceOpName(op), {output, input},
                      MakeShmReduceScatter(rank(), size(), Data(output), Data(input), *reduction));
  }

  WorkPtr AllGather(at::Tensor output, at::Tensor input) override {
    const OpShape shape = ShapeOf("all_gather", input, output);
    absl::Status bad = CheckSlices("output", output, "input", input, size());
    if (bad.ok()) bad = CheckCpu(input);
    if (bad.ok()) bad = CheckCpu(output);
    if (!bad.ok()) return Refuse(shape, bad);
    if (input.numel() == 0) return Nothing();
    return Collective(shape, "", {output, input},
                      MakeShmAllGather(rank(), size(), Data(output), Data(input),
                                       static_cast<int64_t>(input.nbytes())));
  }

  WorkPtr AllToAll(at::Tensor output, at::Tensor input, std::vector<int64_t> output_splits,
                   std::vector<int64_t> input_splits) override {
    const OpShape shape = ShapeOf("all_to_all", input, output);
    absl::Status bad = CheckAllToAll(output, input);
    if (bad.ok()) bad = CheckCpu(input);
    if (bad.ok()) bad = CheckCpu(output);
    if (!bad.ok()) return Refuse(shape, bad);
    auto sent = SplitElements("input", input, input_splits, size());
    if (!sent.ok()) return Refuse(shape, sent.status());
    auto received = SplitElements("output", output, output_splits, size());
    if (!received.ok()) return Refuse(shape, received.status());
    for (int64_t& count : *sent) count *= input.element_size();
    for (int64_t& count : *received) count *= output.element_size();
    // Sizes differ between members: they are compared pair by pair.
    return Signed(shape, absl::StrCat("all_to_all of ", DtypeName(input.scalar_type())),
                  {output, input},
                  MakeShmAllToAll(rank(), size(), Data(output), Data(input), *std::move(received),
                                  *std::move(sent)));
  }

  WorkPtr Broadcast(at::Tensor tensor, int root) override {
    const OpShape shape = ShapeOf("broadcast", tensor);
    absl::Status bad = CheckTensor("tensor", tensor);
    if (bad.ok()) bad = CheckRoot(root, size());
    if (bad.ok()) bad = CheckCpu(tensor);
    if (!bad.ok()) return Refuse(shape, bad);
    if (tensor.numel() == 0) return Nothing();
    return Collective(shape, absl::StrCat("from ", root), {tensor},
                      MakeShmBroadcast(rank(), size(), Data(tensor),
                                       static_cast<int64_t>(tensor.nbytes()), root));
  }

  WorkPtr SendRecv(std::vector<P2POp> batch) override {
    const OpShape shape{"send_recv"};
    absl::Status bad = CheckBatch(batch, size());
    for (const P2POp& op : batch) bad.Update(CheckCpu(op.tensor));
    if (bad.ok()) bad = self_mail_.Exchange(batch, rank());
    if (!bad.ok()) return Refuse(shape, bad);
    auto op = std::make_shared<ShmOp>();
    op->shape = shape;
    std::vector<at::Tensor> tensors;
    for (const P2POp& one : batch) {
      if (one.peer == rank() || one.tensor.numel() == 0) continue;
      tensors.push_back(one.tensor);
      op->transfers.push_back({.is_send = one.kind == P2POp::Kind::kSend,
                               .peer = one.peer,
                               .channel = one.channel,
                               .data = Data(one.tensor),
                               .bytes = static_cast<int64_t>(one.tensor.nbytes())});
    }
    if (tensors.empty()) return Nothing();
    return Start(std::move(op), std::move(tensors));
  }

  WorkPtr Barrier() override {
    return Signed({"barrier"}, "barrier", {}, MakeShmBarrier(rank(), size()));
  }

  absl::StatusOr<CommunicatorPtr> Split(std::string name, std::vector<int> members) override {
    RETURN_IF_ERROR(engine_->state().failure());
    const int index = IndexOf(members, rank());
    if (index < 0) return CommunicatorPtr();
    if (absl::Status bad = CheckMembers(name, members, size()); !bad.ok()) {
      engine_->state().Fail(bad);
      return bad;
    }
    std::vector<int> global;
    for (int member : members) global.push_back(ranks()[member]);
    if (global.size() == 1) return MakeSelfCommunicator(std::move(name), global[0]);
    return MakeShmCommunicator(std::move(name), std::move(global), index, node_ranks_, engine_);
  }

  void Abort(const std::string& reason) override {
    engine_->state().Fail(absl::AbortedError(reason));
  }

  std::string Describe() override { return engine_->Describe(group_); }
  void Observe(OpObserver* observer) override { group_->log().Observe(observer); }

 private:
  static absl::StatusOr<ShmReduction> Reduction(const at::Tensor& tensor, ReduceOp op) {
    ASSIGN_OR_RETURN(const ShmDtype dtype, DtypeOf(tensor.scalar_type()));
    return ShmReduction{.reduce = FindShmReduce(dtype, OpOf(op)),
                        .element_size = static_cast<size_t>(tensor.element_size()),
                        .count = tensor.numel()};
  }

  WorkPtr Collective(const OpShape& shape, absl::string_view detail,
                     std::vector<at::Tensor> tensors, ShmCollectivePtr collective) {
    return Signed(shape, absl::StrCat(shape.ToString(), detail.empty() ? "" : " ", detail),
                  std::move(tensors), std::move(collective));
  }
  WorkPtr Signed(const OpShape& shape, std::string signature, std::vector<at::Tensor> tensors,
                 ShmCollectivePtr collective) {
    auto op = std::make_shared<ShmOp>();
    op->shape = shape;
    op->signature = std::move(signature);
    op->collective = std::move(collective);
    return Start(std::move(op), std::move(tensors));
  }
  WorkPtr Start(ShmOpPtr op, std::vector<at::Tensor> tensors) {
    if (!tensors.empty()) {
      op->memory = std::make_shared<std::vector<at::Tensor>>(std::move(tensors));
    }
    engine_->Start(group_, op);
    return std::make_shared<ShmWork>(engine_, std::move(op));
  }

  // Sizes are the same on all members, so nobody communicates.
  WorkPtr Nothing() { return MakeReadyWork(engine_->state().failure()); }
  WorkPtr Refuse(const OpShape& shape, const absl::Status& why) {
    engine_->state().Fail(Annotate(
        why, absl::StrCat("group ", name_, ", ", shape.ToString(), " (rank ", ranks_[rank_], ")")));
    return MakeReadyWork(engine_->state().failure());
  }

  const std::string name_;
  const std::vector<int> ranks_;
  const int rank_;
  const std::vector<int> node_ranks_;
  const std::shared_ptr<ShmEngine> engine_;
  ShmGroup* group_ = nullptr;
  SelfMail self_mail_;
};

}  // namespace

CommunicatorPtr MakeShmCommunicator(std::string name, std::vector<int> ranks, int rank,
                                    std::vector<int> node_ranks,
                                    std::shared_ptr<ShmEngine> engine) {
  return std::make_shared<ShmCommunicator>(std::move(name), std::move(ranks), rank,
                                           std::move(node_ranks), std::move(engine));
}

}  // namespace muster
