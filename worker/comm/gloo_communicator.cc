#include "worker/comm/gloo_communicator.h"

#include <ATen/ATen.h>

#include <csignal>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/comm/gloo_group.h"
#include "worker/comm/local_reduce.h"
#include "worker/comm/ready_work.h"
#include "worker/comm/self_communicator.h"
#include "worker/comm/self_mail.h"
#include "worker/comm/tensor_checks.h"

namespace muster {
namespace {

using Works = GlooGroup::Works;

// Channel c of SendRecv has the tag kFirstChannelTag + c.
constexpr int kAllGatherTag = 0, kReduceScatterTag = 1, kFirstChannelTag = 2;
// From this size on an all-gather sends straight from the input into the outputs; gloo's own takes
// fewer messages, but two copies of everything.
constexpr int64_t kDirectAllGatherBytes = 64 << 10;

// What moves data only moves bytes: any type, bool included.
at::Tensor Bytes(const at::Tensor& tensor) { return tensor.detach().view(-1).view(at::kByte); }

// Gloo calls a bool uint8, whose sum of two trues would be no bool: "or" is the maximum.
c10d::ReduceOp GlooReduceOp(at::ScalarType dtype, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return dtype == at::kBool ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
  }
  return c10d::ReduceOp::SUM;
}

absl::Status CheckReducible(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kLong:
    case at::kInt:
    case at::kChar:
    case at::kByte:
    case at::kBool:
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(absl::StrCat("dtype ", DtypeName(dtype),
                                                     " cannot be reduced on gloo: use a float or "
                                                     "integer type other than int16"));
  }
}

absl::Status CheckCpu(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().is_cpu()) return absl::OkStatus();
  return absl::InvalidArgumentError("gloo works on CPU tensors only: use the nccl backend");
}

Works SendAndReceive(c10d::Backend& gloo, const std::vector<P2POp>& batch, int first_tag) {
  Works works;
  for (const P2POp& op : batch) {
    std::vector<at::Tensor> tensors{Bytes(op.tensor)};
    const int tag = first_tag + op.channel;
    works.push_back(op.kind == P2POp::Kind::kSend ? gloo.send(tensors, op.peer, tag)
                                                  : gloo.recv(tensors, op.peer, tag));
  }
  return works;
}

Works AllToAllBytes(c10d::Backend& gloo, at::Tensor output, at::Tensor input,
                    std::vector<int64_t> output_bytes, std::vector<int64_t> input_bytes) {
  return {gloo.alltoall_base(output, input, output_bytes, input_bytes)};
}

// output = parts[0] op parts[1] op ..., in this order. `scratch` holds what lies between: one of
// the first two parts. The output may be one of the parts: it is written last.
void ReducePartsInto(const at::Tensor& output, const std::vector<at::Tensor>& parts,
                     const at::Tensor& scratch, ReduceOp op) {
  at::Tensor left = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    at::Tensor result = i + 1 == parts.size() ? output : scratch;
    Combine(result, left, parts[i], op);
    left = result;
  }
}

std::string Signature(const OpShape& shape, absl::string_view detail) {
  return absl::StrCat(shape.ToString(), detail.empty() ? "" : " ", detail);
}

class GlooCommunicator final : public Communicator {
 public:
  GlooCommunicator(std::string name, std::shared_ptr<GlooFamily> family,
                   std::shared_ptr<GlooGroup> group)
      : name_(std::move(name)), family_(std::move(family)), group_(std::move(group)) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  const std::string& name() const override { return name_; }
  const std::vector<int>& ranks() const override { return group_->ranks(); }

  WorkPtr AllReduce(at::Tensor tensor, ReduceOp op) override {
    const OpShape shape = ShapeOf("all_reduce", tensor);
    absl::Status bad = CheckTensor("tensor", tensor);
    if (bad.ok()) bad = CheckReducible(tensor.scalar_type());
    if (bad.ok()) bad = CheckCpu(tensor);
    if (!bad.ok()) return Refuse(shape, bad);
    if (tensor.numel() == 0) return Nothing();
    return group_->Start({.shape = shape,
                          .issue = [tensor, op](c10d::Backend& gloo) -> Works {
                            std::vector<at::Tensor> tensors{tensor.detach().view(-1)};
                            c10d::AllreduceOptions options;
                            options.reduceOp = GlooReduceOp(tensor.scalar_type(), op);
                            return {gloo.allreduce(tensors, options)};
                          },
                          .signature = Signature(shape, ReduceOpName(op))});
  }

  // The slices go straight to their owners, who add them in rank order: as many bytes on the wire
  // as a ring, in one step, and no copy.
  WorkPtr ReduceScatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    const OpShape shape = ShapeOf("reduce_scatter", input, output);
    absl::Status bad = CheckSlices("input", input, "output", output, size());
    if (bad.ok()) bad = CheckReducible(input.scalar_type());
    if (bad.ok()) bad = CheckCpu(input);
    if (!bad.ok()) return Refuse(shape, bad);
    if (input.numel() == 0) return Nothing();
    const int64_t slice = output.numel();
    const at::Tensor flat = input.detach().view(-1);
    std::vector<at::Tensor> parts(size());
    parts[rank()] = flat.narrow(0, rank() * slice, slice);
    std::vector<P2POp> batch;
    for (int step = 1; step < size(); ++step) {
      const int to = (rank() + step) % size(), from = (rank() - step + size()) % size();
      parts[from] = at::empty({slice}, input.options());
      batch.push_back({P2POp::Kind::kRecv, parts[from], from});
      batch.push_back({P2POp::Kind::kSend, flat.narrow(0, to * slice, slice), to});
    }
    at::Tensor received = parts[rank() == 0 ? 1 : 0];
    return group_->Start({.shape = shape,
                          .issue =
                              [batch](c10d::Backend& gloo) {
                                return SendAndReceive(gloo, batch, kReduceScatterTag);
                              },
                          .finish = [parts, received, output = output.detach().view(-1),
                                     op] { ReducePartsInto(output, parts, received, op); },
                          .point_to_point = true,
                          .signature = Signature(shape, ReduceOpName(op))});
  }

  WorkPtr AllGather(at::Tensor output, at::Tensor input) override {
    const OpShape shape = ShapeOf("all_gather", input, output);
    absl::Status bad = CheckSlices("output", output, "input", input, size());
    if (bad.ok()) bad = CheckCpu(input);
    if (!bad.ok()) return Refuse(shape, bad);
    if (input.numel() == 0) return Nothing();
    if (static_cast<int64_t>(input.nbytes()) >= kDirectAllGatherBytes) {
      return DirectAllGather(shape, output, input);
    }
    return group_->Start({.shape = shape,
                          .issue = [output, input](c10d::Backend& gloo) -> Works {
                            at::Tensor out = Bytes(output), in = Bytes(input);
                            return {gloo._allgather_base(out, in)};
                          },
                          .signature = Signature(shape, "")});
  }

  WorkPtr AllToAll(at::Tensor output, at::Tensor input, std::vector<int64_t> output_splits,
                   std::vector<int64_t> input_splits) override {
    const OpShape shape = ShapeOf("all_to_all", input, output);
    absl::Status bad = CheckAllToAll(output, input);
    if (bad.ok()) bad = CheckCpu(input);
    if (!bad.ok()) return Refuse(shape, bad);
    auto sent = SplitElements("input", input, input_splits, size());
    if (!sent.ok()) return Refuse(shape, sent.status());
    auto received = SplitElements("output", output, output_splits, size());
    if (!received.ok()) return Refuse(shape, received.status());
    for (int64_t& count : *sent) count *= input.element_size();  // gloo counts bytes here
    for (int64_t& count : *received) count *= output.element_size();
    return group_->Start(
        {.shape = shape,
         .issue =
             [output, input, out = *received, in = *sent](c10d::Backend& gloo) {
               return AllToAllBytes(gloo, Bytes(output), Bytes(input), out, in);
             },
         .signature = absl::StrCat("all_to_all of ", DtypeName(input.scalar_type())),
         .sent = *sent,
         .received = *received});
  }

  WorkPtr Broadcast(at::Tensor tensor, int root) override {
    const OpShape shape = ShapeOf("broadcast", tensor);
    absl::Status bad = CheckTensor("tensor", tensor);
    if (bad.ok()) bad = CheckRoot(root, size());
    if (bad.ok()) bad = CheckCpu(tensor);
    if (!bad.ok()) return Refuse(shape, bad);
    if (tensor.numel() == 0) return Nothing();
    return group_->Start({.shape = shape,
                          .issue = [tensor, root](c10d::Backend& gloo) -> Works {
                            std::vector<at::Tensor> tensors{Bytes(tensor)};
                            c10d::BroadcastOptions options;
                            options.rootRank = root;
                            return {gloo.broadcast(tensors, options)};
                          },
                          .signature = Signature(shape, absl::StrCat("from ", root))});
  }

  WorkPtr SendRecv(std::vector<P2POp> batch) override {
    const OpShape shape{"send_recv"};
    absl::Status bad = CheckBatch(batch, size());
    for (const P2POp& op : batch) bad.Update(CheckCpu(op.tensor));
    if (bad.ok()) bad = self_mail_.Exchange(batch, rank());
    if (!bad.ok()) return Refuse(shape, bad);
    std::vector<OpTransfer> transfers;
    if (group_->observed()) transfers = TransfersOf(batch);
    std::vector<P2POp> remote;
    for (P2POp& op : batch) {
      if (op.peer != rank() && op.tensor.numel() > 0) remote.push_back(std::move(op));
    }
    return group_->Start({.shape = shape,
                          .issue =
                              [remote = std::move(remote)](c10d::Backend& gloo) {
                                return SendAndReceive(gloo, remote, kFirstChannelTag);
                              },
                          .point_to_point = true,
                          .transfers = std::move(transfers)});
  }

  WorkPtr Barrier() override {
    return group_->Start({.shape = {"barrier"},
                          .issue = [](c10d::Backend& gloo) -> Works { return {gloo.barrier()}; },
                          .signature = "barrier"});
  }

  absl::StatusOr<CommunicatorPtr> Split(std::string name, std::vector<int> members) override {
    RETURN_IF_ERROR(family_->state().failure());
    const int rank = IndexOf(members, group_->rank());
    if (rank < 0) return CommunicatorPtr();
    if (absl::Status bad = CheckMembers(name, members, size()); !bad.ok()) {
      family_->Fail(bad);
      return bad;
    }
    std::vector<int> global;
    for (int member : members) global.push_back(ranks()[member]);
    if (global.size() == 1) return MakeSelfCommunicator(std::move(name), global[0]);
    std::shared_ptr<GlooGroup> group = family_->FindOrMake(name, global, rank);
    return CommunicatorPtr(
        std::make_shared<GlooCommunicator>(std::move(name), family_, std::move(group)));
  }

  void Abort(const std::string& reason) override { family_->Fail(absl::AbortedError(reason)); }

  std::string Describe() override { return group_->Describe(); }
  void Observe(OpObserver* observer) override { group_->Observe(observer); }

 private:
  WorkPtr DirectAllGather(const OpShape& shape, const at::Tensor& output, const at::Tensor& input) {
    const at::Tensor out = Bytes(output), in = Bytes(input);
    const int64_t slice = in.numel();
    std::vector<P2POp> batch;
    // Everybody starts with its right neighbour, so that no rank is flooded first.
    for (int step = 1; step < size(); ++step) {
      const int to = (rank() + step) % size(), from = (rank() - step + size()) % size();
      batch.push_back({P2POp::Kind::kRecv, out.narrow(0, from * slice, slice), from});
      batch.push_back({P2POp::Kind::kSend, in, to});
    }
    return group_->Start({.shape = shape,
                          .issue =
                              [batch, output, input, own = out.narrow(0, rank() * slice, slice),
                               in](c10d::Backend& gloo) {
                                CopyFlat(own, in);
                                return SendAndReceive(gloo, batch, kAllGatherTag);
                              },
                          .point_to_point = true,
                          .signature = Signature(shape, "")});
  }

  // Sizes are the same on all members, so nobody communicates.
  WorkPtr Nothing() { return MakeReadyWork(family_->state().failure()); }
  WorkPtr Refuse(const OpShape& shape, const absl::Status& why) {
    family_->Fail(Annotate(why, absl::StrCat("group ", name_, ", ", shape.ToString(), " (rank ",
                                             ranks()[rank()], ")")));
    return MakeReadyWork(family_->state().failure());
  }

  const std::string name_;
  const std::shared_ptr<GlooFamily> family_;
  const std::shared_ptr<GlooGroup> group_;
  SelfMail self_mail_;
};

absl::Status CheckOptions(const GlooOptions& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank=", options.rank, " must be 0 to size-1, with size=", options.size, " at least 1"));
  }
  if (options.size > 1 && options.store == nullptr) {
    return absl::InvalidArgumentError("store must be set: the members find each other through it");
  }
  return absl::OkStatus();
}

absl::StatusOr<CommunicatorPtr> Make(const GlooOptions& options, bool wait) {
  RETURN_IF_ERROR(CheckOptions(options));
  std::signal(SIGPIPE, SIG_IGN);
  if (options.size == 1) return MakeSelfCommunicator(options.name, options.rank);
  const auto family = GlooFamily::Make({.epoch = options.epoch,
                                        .host = options.host,
                                        .store = options.store,
                                        .form_limit = options.form_limit,
                                        .operation_limit = options.operation_limit,
                                        .check_collectives = options.check_collectives,
                                        .state = options.state});
  std::vector<int> ranks(options.size);
  std::iota(ranks.begin(), ranks.end(), 0);
  std::shared_ptr<GlooGroup> group = family->FindOrMake(options.name, ranks, options.rank);
  group->StartForming();
  if (wait) RETURN_IF_ERROR(group->WaitFormed());
  return CommunicatorPtr(
      std::make_shared<GlooCommunicator>(options.name, family, std::move(group)));
}

}  // namespace

absl::StatusOr<CommunicatorPtr> FormGlooWorld(const GlooOptions& options) {
  return Make(options, /*wait=*/true);
}

absl::StatusOr<CommunicatorPtr> StartGlooWorld(const GlooOptions& options) {
  return Make(options, /*wait=*/false);
}

}  // namespace muster
