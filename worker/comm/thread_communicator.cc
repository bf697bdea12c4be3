#include "worker/comm/thread_communicator.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "worker/comm/joined_work.h"
#include "worker/comm/local_reduce.h"
#include "worker/comm/ready_work.h"
#include "worker/comm/self_communicator.h"
#include "worker/comm/tensor_checks.h"

namespace muster {
namespace {

// Flat views: shapes do not matter to a collective, sizes do.
struct TensorPart final : ThreadPart {
  TensorPart(const at::Tensor& in, const at::Tensor& out)
      : input(in.detach().view(-1)), output(out.detach().view(-1)) {}
  explicit TensorPart(const at::Tensor& tensor) : TensorPart(tensor, tensor) {}

  at::Tensor input, output;
  std::vector<int64_t> input_counts, output_counts;  // elements for each member (all_to_all)
};
using Parts = std::vector<ThreadPartPtr>;

TensorPart& At(const Parts& parts, size_t member) {
  return static_cast<TensorPart&>(*parts[member]);
}

absl::Status AllReduceParts(const Parts& parts, ReduceOp op) {
  std::vector<at::Tensor> inputs;
  for (size_t i = 0; i < parts.size(); ++i) inputs.push_back(At(parts, i).input);
  const at::Tensor sum = ReduceInOrder(inputs, op);
  for (size_t i = 0; i < parts.size(); ++i) At(parts, i).output.copy_(sum);
  return absl::OkStatus();
}

// Outputs may alias the own slice of the inputs, so every slice is reduced before any is written.
absl::Status ReduceScatterParts(const Parts& parts, ReduceOp op) {
  const int64_t slice = At(parts, 0).output.numel();
  std::vector<at::Tensor> sums;
  for (size_t to = 0; to < parts.size(); ++to) {
    std::vector<at::Tensor> slices;
    for (size_t from = 0; from < parts.size(); ++from) {
      slices.push_back(At(parts, from).input.narrow(0, to * slice, slice));
    }
    sums.push_back(ReduceInOrder(slices, op));
  }
  for (size_t to = 0; to < parts.size(); ++to) At(parts, to).output.copy_(sums[to]);
  return absl::OkStatus();
}

// An input may be a slice of its own output; no other rank's slice is written there.
absl::Status AllGatherParts(const Parts& parts) {
  const int64_t slice = At(parts, 0).input.numel();
  for (size_t to = 0; to < parts.size(); ++to) {
    for (size_t from = 0; from < parts.size(); ++from) {
      At(parts, to).output.narrow(0, from * slice, slice).copy_(At(parts, from).input);
    }
  }
  return absl::OkStatus();
}

absl::Status AllToAllParts(const Parts& parts) {
  for (size_t to = 0; to < parts.size(); ++to) {
    int64_t out_begin = 0;
    for (size_t from = 0; from < parts.size(); ++from) {
      const std::vector<int64_t>& sent = At(parts, from).input_counts;
      const int64_t count = At(parts, to).output_counts[from];
      if (sent[to] != count) {
        return absl::InvalidArgumentError(absl::StrCat("member ", from, " sends ", sent[to],
                                                       " elements to member ", to,
                                                       ", which expects ", count));
      }
      const int64_t in_begin = std::accumulate(sent.begin(), sent.begin() + to, int64_t{0});
      At(parts, to)
          .output.narrow(0, out_begin, count)
          .copy_(At(parts, from).input.narrow(0, in_begin, count));
      out_begin += count;
    }
  }
  return absl::OkStatus();
}

absl::Status BroadcastParts(const Parts& parts, int root) {
  for (size_t i = 0; i < parts.size(); ++i) {
    if (static_cast<int>(i) != root) At(parts, i).output.copy_(At(parts, root).input);
  }
  return absl::OkStatus();
}

absl::Status MoveTensor(ThreadPart& received, const ThreadPart& sent) {
  c10::NoGradGuard no_grad;
  static_cast<TensorPart&>(received).output.copy_(static_cast<const TensorPart&>(sent).input);
  return absl::OkStatus();
}

// The groups of one world, found by name and members, so that each member of a split gets the same.
class Registry {
 public:
  std::shared_ptr<ThreadGroup> FindOrMake(const ThreadGroup& parent, const std::string& name,
                                          const std::vector<int>& ranks) {
    MutexLock lock(&mu_);
    std::shared_ptr<ThreadGroup>& group =
        groups_[absl::StrCat(name, ":", absl::StrJoin(ranks, ","))];
    if (group == nullptr) {
      group = std::make_shared<ThreadGroup>(name, ranks, parent.shared_state(), parent.options(),
                                            MoveTensor);
    }
    return group;
  }

 private:
  Mutex mu_;
  std::map<std::string, std::shared_ptr<ThreadGroup>> groups_ ABSL_GUARDED_BY(mu_);
};

class ThreadWork final : public Work {
 public:
  ThreadWork(std::shared_ptr<ThreadGroup> group, ThreadGroup::OpPtr op)
      : group_(std::move(group)), op_(std::move(op)) {}
  absl::Status Wait() override { return group_->Wait(op_); }
  bool IsDone() override { return group_->IsDone(op_); }

 private:
  const std::shared_ptr<ThreadGroup> group_;
  const ThreadGroup::OpPtr op_;
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadGroup> group, std::shared_ptr<Registry> registry,
                     int rank)
      : group_(std::move(group)), registry_(std::move(registry)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  const std::string& name() const override { return group_->name(); }
  const std::vector<int>& ranks() const override { return group_->ranks(); }

  WorkPtr AllReduce(at::Tensor tensor, ReduceOp op) override {
    if (absl::Status bad = CheckTensor("tensor", tensor); !bad.ok()) return Refuse(bad);
    return Post(ShapeOf("all_reduce", tensor), ReduceOpName(op),
                std::make_shared<TensorPart>(tensor),
                [op](const Parts& parts) { return AllReduceParts(parts, op); });
  }

  WorkPtr ReduceScatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    absl::Status bad = CheckSlices("input", input, "output", output, size());
    if (!bad.ok()) return Refuse(bad);
    return Post(ShapeOf("reduce_scatter", input, output), ReduceOpName(op),
                std::make_shared<TensorPart>(input, output),
                [op](const Parts& parts) { return ReduceScatterParts(parts, op); });
  }

  WorkPtr AllGather(at::Tensor output, at::Tensor input) override {
    absl::Status bad = CheckSlices("output", output, "input", input, size());
    if (!bad.ok()) return Refuse(bad);
    return Post(ShapeOf("all_gather", input, output), "",
                std::make_shared<TensorPart>(input, output), AllGatherParts);
  }

  WorkPtr AllToAll(at::Tensor output, at::Tensor input, std::vector<int64_t> output_splits,
                   std::vector<int64_t> input_splits) override {
    if (absl::Status bad = CheckAllToAll(output, input); !bad.ok()) return Refuse(bad);
    auto sent = SplitElements("input", input, input_splits, size());
    if (!sent.ok()) return Refuse(sent.status());
    auto received = SplitElements("output", output, output_splits, size());
    if (!received.ok()) return Refuse(received.status());
    auto part = std::make_shared<TensorPart>(input, output);
    part->input_counts = *std::move(sent);
    part->output_counts = *std::move(received);
    // Sizes differ between members: AllToAllParts compares them pair by pair.
    return PostSigned(ShapeOf("all_to_all", input, output),
                      absl::StrCat("all_to_all of ", DtypeName(input.scalar_type())),
                      std::move(part), AllToAllParts);
  }

  WorkPtr Broadcast(at::Tensor tensor, int root) override {
    if (absl::Status bad = CheckTensor("tensor", tensor); !bad.ok()) return Refuse(bad);
    if (absl::Status bad = CheckRoot(root, size()); !bad.ok()) return Refuse(bad);
    return Post(ShapeOf("broadcast", tensor), absl::StrCat("from ", root),
                std::make_shared<TensorPart>(tensor),
                [root](const Parts& parts) { return BroadcastParts(parts, root); });
  }

  WorkPtr SendRecv(std::vector<P2POp> batch) override {
    if (absl::Status bad = CheckBatch(batch, size()); !bad.ok()) return Refuse(bad);
    // One post a channel; the batch progresses as a whole all the same, since nobody waits between.
    std::vector<ThreadGroup::Transfer> transfers[kNumP2PChannels];
    for (const P2POp& op : batch) {
      const bool is_send = op.kind == P2POp::Kind::kSend;
      const bool buffered = is_send && !group_->options().blocking_sends;
      transfers[op.channel].push_back(
          {is_send, op.peer, ShapeOf("tensor of", op.tensor).ToString(),
           std::make_shared<TensorPart>(buffered ? op.tensor.detach().clone() : op.tensor),
           static_cast<int64_t>(op.tensor.nbytes())});
    }
    std::vector<WorkPtr> works;
    for (int channel = 0; channel < kNumP2PChannels; ++channel) {
      if (transfers[channel].empty() && !(channel == 0 && batch.empty())) continue;
      works.push_back(Handle(group_->PostBatch(rank_, std::move(transfers[channel]), channel)));
    }
    return Join(std::move(works));
  }

  WorkPtr Barrier() override {
    return PostSigned({"barrier"}, "barrier", nullptr,
                      [](const Parts&) { return absl::OkStatus(); });
  }

  absl::StatusOr<CommunicatorPtr> Split(std::string name, std::vector<int> members) override {
    RETURN_IF_ERROR(group_->state().failure());
    const int rank = IndexOf(members, rank_);
    if (rank < 0) return CommunicatorPtr();
    if (absl::Status bad = CheckMembers(name, members, size()); !bad.ok()) {
      return group_->Refuse(bad);
    }
    std::vector<int> global;
    for (int member : members) global.push_back(ranks()[member]);
    if (members.size() == 1) return MakeSelfCommunicator(std::move(name), global[0]);
    return CommunicatorPtr(std::make_shared<ThreadCommunicator>(
        registry_->FindOrMake(*group_, name, global), registry_, rank));
  }

  void Abort(const std::string& reason) override {
    group_->state().Fail(absl::AbortedError(reason));
  }

  std::string Describe() override { return group_->Describe(rank_); }
  void Observe(OpObserver* observer) override { group_->Observe(rank_, observer); }

 private:
  WorkPtr Refuse(const absl::Status& why) { return MakeReadyWork(group_->Refuse(why)); }
  WorkPtr Handle(ThreadGroup::OpPtr op) {
    return std::make_shared<ThreadWork>(group_, std::move(op));
  }
  WorkPtr Post(const OpShape& shape, absl::string_view detail, ThreadPartPtr part,
               ThreadGroup::Combine combine) {
    return PostSigned(shape, absl::StrCat(shape.ToString(), detail.empty() ? "" : " ", detail),
                      std::move(part), std::move(combine));
  }
  WorkPtr PostSigned(const OpShape& shape, std::string signature, ThreadPartPtr part,
                     ThreadGroup::Combine combine) {
    auto guarded = [combine = std::move(combine)](const Parts& parts) {
      c10::NoGradGuard no_grad;
      return combine(parts);
    };
    return Handle(group_->PostCollective(
        rank_, {shape, std::move(signature), std::move(part), std::move(guarded)}));
  }

  const std::shared_ptr<ThreadGroup> group_;
  const std::shared_ptr<Registry> registry_;
  const int rank_;
};

}  // namespace

std::vector<CommunicatorPtr> MakeThreadWorld(int size, ThreadWorldOptions options) {
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  auto group = std::make_shared<ThreadGroup>("world", ranks, std::make_shared<AbortState>(),
                                             options, MoveTensor);
  auto registry = std::make_shared<Registry>();
  std::vector<CommunicatorPtr> world;
  for (int rank = 0; rank < size; ++rank) {
    world.push_back(std::make_shared<ThreadCommunicator>(group, registry, rank));
  }
  return world;
}

}  // namespace muster
