#include "worker/comm/nccl_communicator.h"

#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "worker/comm/joined_work.h"
#include "worker/comm/nccl_group.h"
#include "worker/comm/ready_work.h"
#include "worker/comm/self_communicator.h"
#include "worker/comm/tensor_checks.h"

namespace muster {
namespace {

absl::StatusOr<NcclType> TypeOf(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return NcclType::kFloat32;
    case at::kDouble:
      return NcclType::kFloat64;
    case at::kHalf:
      return NcclType::kFloat16;
    case at::kBFloat16:
      return NcclType::kBfloat16;
    case at::kLong:
      return NcclType::kInt64;
    case at::kInt:
      return NcclType::kInt32;
    case at::kChar:
      return NcclType::kInt8;
    case at::kByte:
    case at::kBool:
      return NcclType::kUint8;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("dtype ", DtypeName(dtype), " is not one that NCCL reduces"));
  }
}

// A sum of bools is "or", the maximum of their bytes.
NcclReduction ReductionOf(at::ScalarType dtype, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return dtype == at::kBool ? NcclReduction::kMax : NcclReduction::kSum;
    case ReduceOp::kMax:
      return NcclReduction::kMax;
    case ReduceOp::kMin:
      return NcclReduction::kMin;
  }
  return NcclReduction::kSum;
}

// What goes into one group call; GroupEnd is called whatever happens, as NCCL wants.
template <class Body>
NcclResult Grouped(NcclApi& api, Body body) {
  if (const NcclResult start = api.GroupStart(); start != NcclResult::kSuccess) return start;
  const NcclResult result = body();
  const NcclResult end = api.GroupEnd();
  return result == NcclResult::kSuccess || result == NcclResult::kInProgress ? end : result;
}

bool Went(NcclResult result) {
  return result == NcclResult::kSuccess || result == NcclResult::kInProgress;
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::string name, std::shared_ptr<NcclFamily> family,
                   std::shared_ptr<NcclGroup> group)
      : name_(std::move(name)), family_(std::move(family)), group_(std::move(group)) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  const std::string& name() const override { return name_; }
  const std::vector<int>& ranks() const override { return group_->ranks(); }

  WorkPtr AllReduce(at::Tensor tensor, ReduceOp op) override {
    const OpShape shape = ShapeOf("all_reduce", tensor);
    if (absl::Status bad = CheckTensor("tensor", tensor); !bad.ok()) return Refuse(shape, bad);
    const auto type = TypeOf(tensor.scalar_type());
    if (!type.ok()) return Refuse(shape, type.status());
    const NcclReduction reduction = ReductionOf(tensor.scalar_type(), op);
    return Start(shape, {tensor}, [=](NcclApi& api, NcclComm comm, CudaStream stream) {
      return api.AllReduce(tensor.data_ptr(), tensor.data_ptr(), tensor.numel(), *type, reduction,
                           comm, stream);
    });
  }

  WorkPtr ReduceScatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    const OpShape shape = ShapeOf("reduce_scatter", input, output);
    absl::Status bad = CheckSlices("input", input, "output", output, size());
    if (!bad.ok()) return Refuse(shape, bad);
    const auto type = TypeOf(input.scalar_type());
    if (!type.ok()) return Refuse(shape, type.status());
    const NcclReduction reduction = ReductionOf(input.scalar_type(), op);
    return Start(shape, {output, input}, [=](NcclApi& api, NcclComm comm, CudaStream stream) {
      return api.ReduceScatter(input.data_ptr(), output.data_ptr(), output.numel(), *type,
                               reduction, comm, stream);
    });
  }

  WorkPtr AllGather(at::Tensor output, at::Tensor input) override {
    const OpShape shape = ShapeOf("all_gather", input, output);
    absl::Status bad = CheckSlices("output", output, "input", input, size());
    if (!bad.ok()) return Refuse(shape, bad);
    return Start(shape, {output, input}, [=](NcclApi& api, NcclComm comm, CudaStream stream) {
      return api.AllGather(input.data_ptr(), output.data_ptr(), input.nbytes(), NcclType::kUint8,
                           comm, stream);
    });
  }

  WorkPtr AllToAll(at::Tensor output, at::Tensor input, std::vector<int64_t> output_splits,
                   std::vector<int64_t> input_splits) override {
    const OpShape shape = ShapeOf("all_to_all", input, output);
    if (absl::Status bad = CheckAllToAll(output, input); !bad.ok()) return Refuse(shape, bad);
    const auto sent = SplitElements("input", input, input_splits, size());
    if (!sent.ok()) return Refuse(shape, sent.status());
    const auto received = SplitElements("output", output, output_splits, size());
    if (!received.ok()) return Refuse(shape, received.status());
    return Start(shape, {output, input},
                 [=, in = *sent, out = *received](NcclApi& api, NcclComm comm, CudaStream stream) {
                   return Grouped(
                       api, [&] { return ExchangeAll(api, comm, stream, output, input, out, in); });
                 });
  }

  WorkPtr Broadcast(at::Tensor tensor, int root) override {
    const OpShape shape = ShapeOf("broadcast", tensor);
    absl::Status bad = CheckTensor("tensor", tensor);
    if (bad.ok()) bad = CheckRoot(root, size());
    if (!bad.ok()) return Refuse(shape, bad);
    return Start(shape, {tensor}, [=](NcclApi& api, NcclComm comm, CudaStream stream) {
      return api.Broadcast(tensor.data_ptr(), tensor.data_ptr(), tensor.nbytes(), NcclType::kUint8,
                           root, comm, stream);
    });
  }

  WorkPtr SendRecv(std::vector<P2POp> batch) override {
    const OpShape shape{"send_recv"};
    if (absl::Status bad = CheckBatch(batch, size()); !bad.ok()) return Refuse(shape, bad);
    // One group call a channel. The batch progresses as a whole all the same: the channels have
    // streams of their own.
    std::vector<P2POp> parts[kNumP2PChannels];
    for (P2POp& op : batch) parts[op.channel].push_back(std::move(op));
    if (!parts[1].empty() && gradients_ == nullptr) {
      return Refuse(shape, absl::FailedPreconditionError(
                               "channel 1 is not open: call OpenChannels on every member first"));
    }
    std::vector<WorkPtr> works;
    if (!parts[0].empty() || parts[1].empty()) works.push_back(Exchange(group_, parts[0]));
    if (!parts[1].empty()) works.push_back(Exchange(gradients_, parts[1]));
    return Join(std::move(works));
  }

  absl::Status OpenChannels() override {
    if (gradients_ != nullptr) return family_->state().failure();
    RETURN_IF_ERROR(family_->state().failure());
    auto channel = std::make_shared<NcclGroup>(absl::StrCat(name_, " (channel 1)"), ranks(), rank(),
                                               family_.get());
    const absl::Status status = group_->Split(/*color=*/0, /*key=*/rank(), channel.get());
    if (!status.ok()) return Failed(status);
    family_->Add(channel);
    gradients_ = std::move(channel);
    return absl::OkStatus();
  }

  // An all-reduce of one byte: NCCL has no barrier.
  WorkPtr Barrier() override {
    return Start({"barrier"}, {},
                 [token = group_->token()](NcclApi& api, NcclComm comm, CudaStream stream) {
                   return api.AllReduce(token, token, 1, NcclType::kUint8, NcclReduction::kMax,
                                        comm, stream);
                 });
  }

  absl::StatusOr<CommunicatorPtr> Split(std::string name, std::vector<int> members) override {
    RETURN_IF_ERROR(family_->state().failure());
    if (IsWholeGroup(members)) {
      return CommunicatorPtr(std::make_shared<NcclCommunicator>(std::move(name), family_, group_));
    }
    const int rank = IndexOf(members, group_->rank());
    const absl::Status valid = CheckMembers(name, members, size());
    if (rank >= 0 && !valid.ok()) return Failed(valid);
    std::vector<int> global;
    for (int member : members) {
      if (valid.ok()) global.push_back(ranks()[member]);
    }
    // All members of this group take part in the call; those without a communicator of their own
    // (nobody's, or alone in their group) with no colour. Disjoint groups have different first
    // members.
    const bool joins = rank >= 0 && members.size() > 1;
    auto child = joins ? std::make_shared<NcclGroup>(name, global, rank, family_.get()) : nullptr;
    const absl::Status status =
        group_->Split(joins ? members[0] : kNcclNoColor, joins ? rank : 0, child.get());
    if (!status.ok()) return Failed(status);
    if (rank < 0) return CommunicatorPtr();
    if (!joins) return MakeSelfCommunicator(std::move(name), global[0]);
    family_->Add(child);
    return CommunicatorPtr(
        std::make_shared<NcclCommunicator>(std::move(name), family_, std::move(child)));
  }

  void Abort(const std::string& reason) override { family_->Fail(absl::AbortedError(reason)); }
  std::string Describe() override {
    return absl::StrCat(group_->Describe(), gradients_ == nullptr ? "" : gradients_->Describe());
  }
  void Observe(OpObserver* observer) override {
    group_->Observe(observer);
    if (gradients_ != nullptr) gradients_->Observe(observer);
  }

 private:
  WorkPtr Exchange(const std::shared_ptr<NcclGroup>& group, const std::vector<P2POp>& batch) {
    std::vector<at::Tensor> tensors;
    for (const P2POp& op : batch) tensors.push_back(op.tensor);
    const auto launch = [batch](NcclApi& api, NcclComm comm, CudaStream stream) {
      return Grouped(api, [&] {
        NcclResult result = NcclResult::kSuccess;
        for (const P2POp& op : batch) {
          if (op.tensor.numel() == 0 || !Went(result)) continue;
          result = op.kind == P2POp::Kind::kSend
                       ? api.Send(op.tensor.data_ptr(), op.tensor.nbytes(), NcclType::kUint8,
                                  op.peer, comm, stream)
                       : api.Recv(op.tensor.data_ptr(), op.tensor.nbytes(), NcclType::kUint8,
                                  op.peer, comm, stream);
        }
        return result;
      });
    };
    std::vector<OpTransfer> transfers;
    if (group->observed()) transfers = TransfersOf(batch);
    return group->Start({"send_recv"}, std::move(tensors), launch, group, family_, transfers);
  }

  bool IsWholeGroup(const std::vector<int>& members) const {
    std::vector<int> all(size());
    std::iota(all.begin(), all.end(), 0);
    return members == all;
  }

  static NcclResult ExchangeAll(NcclApi& api, NcclComm comm, CudaStream stream,
                                const at::Tensor& output, const at::Tensor& input,
                                const std::vector<int64_t>& out_counts,
                                const std::vector<int64_t>& in_counts) {
    const int64_t element = input.element_size();
    auto* out = static_cast<char*>(output.data_ptr());
    const auto* in = static_cast<const char*>(input.data_ptr());
    NcclResult result = NcclResult::kSuccess;
    for (size_t peer = 0; peer < out_counts.size() && Went(result); ++peer) {
      const int64_t sent = in_counts[peer] * element, received = out_counts[peer] * element;
      if (sent > 0) result = api.Send(in, sent, NcclType::kUint8, peer, comm, stream);
      if (received > 0 && Went(result)) {
        result = api.Recv(out, received, NcclType::kUint8, peer, comm, stream);
      }
      in += sent;
      out += received;
    }
    return result;
  }

  WorkPtr Start(const OpShape& shape, std::vector<at::Tensor> tensors,
                const NcclGroup::Launch& launch) {
    return group_->Start(shape, std::move(tensors), launch, group_, family_);
  }
  absl::Status Failed(const absl::Status& why) {
    family_->Fail(why);
    return family_->state().failure();
  }
  WorkPtr Refuse(const OpShape& shape, const absl::Status& why) {
    return MakeReadyWork(Failed(Annotate(why, absl::StrCat("group ", name_, ", ", shape.ToString(),
                                                           " (rank ", ranks()[rank()], ")"))));
  }

  const std::string name_;
  const std::shared_ptr<NcclFamily> family_;
  const std::shared_ptr<NcclGroup> group_;
  std::shared_ptr<NcclGroup> gradients_;  // channel 1; null: not open
};

}  // namespace

absl::StatusOr<std::string> MakeNcclUniqueId(NcclApi& api) {
  NcclId id{};
  const NcclResult result = api.GetUniqueId(&id);
  if (result != NcclResult::kSuccess) {
    return absl::UnavailableError(
        absl::StrCat("NCCL cannot make a unique ID: ", api.Explain(result, nullptr)));
  }
  return std::string(id.data(), id.size());
}

absl::StatusOr<CommunicatorPtr> FormNcclWorld(const NcclOptions& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank=", options.rank, " must be 0 to size-1, with size=", options.size, " at least 1"));
  }
  NcclId id{};
  if (options.unique_id.size() != id.size()) {
    return absl::InvalidArgumentError(absl::StrCat("unique_id has ", options.unique_id.size(),
                                                   " bytes; it must be the ", id.size(),
                                                   " that MakeNcclUniqueId gave rank 0"));
  }
  std::memcpy(id.data(), options.unique_id.data(), id.size());
  auto family = std::make_shared<NcclFamily>(NcclFamily::Options{
      options.api, options.form_limit, options.operation_limit, options.poll_interval});
  std::vector<int> ranks(options.size);
  std::iota(ranks.begin(), ranks.end(), 0);
  auto group = std::make_shared<NcclGroup>(options.name, ranks, options.rank, family.get());
  family->Add(group);
  const absl::Status status = group->Join(id);
  if (!status.ok()) {
    family->Fail(status);
    return status;
  }
  return CommunicatorPtr(
      std::make_shared<NcclCommunicator>(options.name, std::move(family), std::move(group)));
}

}  // namespace muster
