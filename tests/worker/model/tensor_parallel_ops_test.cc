// The operations that talk over tp, one by one: gradients against central differences in double,
// the vocab-parallel loss against the reference's numbers, and what passes over the group when.

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tensor_parallel_support.h"
#include "tests/worker/parallel/thread_ranks.h"
#include "worker/model/cross_entropy.h"
#include "worker/model/linear.h"
#include "worker/model/lm_head.h"

namespace muster {
namespace {

using testing::ElementsAre;

// A leaf of which every rank holds the same copy, or its own part.
struct Leaf {
  at::Tensor tensor;
  bool replicated = false;
};

// As GradientError, over a group: `output` is one tensor that every rank has (replicated), or of
// which each has its part. All ranks go through the same elements in the same order, since each
// evaluation talks.
double GradientErrorOver(Communicator& group, const std::vector<Leaf>& leaves,
                         bool output_replicated, const std::function<at::Tensor()>& output) {
  const at::Tensor first = output();
  const uint64_t seed = output_replicated ? 99 : 99 + group.rank();
  const at::Tensor weights = RandomLeaf(first.sizes(), seed).detach();
  (first * weights).sum().backward();
  at::NoGradGuard no_grad;
  const auto value = [&] {
    const at::Tensor sum = (output() * weights).sum();
    if (!output_replicated) WaitOrThrow(group.AllReduce(sum, ReduceOp::kSum));
    return sum.item<double>();
  };
  constexpr double kStep = 1e-5;
  double worst = 0;
  for (const Leaf& leaf : leaves) {
    if (!leaf.tensor.grad().defined()) return std::numeric_limits<double>::infinity();
    const at::Tensor grad = leaf.tensor.grad().contiguous();
    for (int owner = 0; owner < (leaf.replicated ? 1 : group.size()); ++owner) {
      const bool mine = leaf.replicated || owner == group.rank();
      for (int64_t i = 0; i < leaf.tensor.numel(); ++i) {
        double& element = leaf.tensor.data_ptr<double>()[i];
        const double saved = element;
        if (mine) element = saved + kStep;
        const double up = value();
        if (mine) element = saved - kStep;
        const double down = value();
        element = saved;
        const double numeric = (up - down) / (2 * kStep);
        const double error =
            std::abs(grad.const_data_ptr<double>()[i] - numeric) / std::max(1.0, std::abs(numeric));
        if (mine && !(error <= worst)) worst = error;
      }
    }
  }
  return worst;
}

class ParallelOpsTest : public testing::TestWithParam<bool> {
 protected:
  static constexpr double kTolerance = 1e-8;
  const bool sequence_parallel_ = GetParam();
  // Rows of a rank between the blocks; 6 in all.
  const int64_t own_rows_ = sequence_parallel_ ? 3 : 6;
  // Seeds: replicated leaves are equal on all ranks, others differ.
  Leaf Rows(int64_t width, const Communicator& world) const {
    const uint64_t seed = sequence_parallel_ ? 10 + world.rank() : 10;
    return {RandomLeaf({own_rows_, width}, seed), !sequence_parallel_};
  }
};

TEST_P(ParallelOpsTest, ColumnLinearMatchesDifferences) {
  RunRanks(2, [&](CommunicatorPtr world) {
    const TensorParallel tp = TensorParallelOver(*world, sequence_parallel_);
    const Leaf x = Rows(4, *world);
    const ParameterPtr weight = RandomParameter({3, 4}, 20 + world->rank());
    const ParameterPtr bias = RandomParameter({3}, 30 + world->rank());
    EXPECT_LE(GradientErrorOver(*world, {x, {weight->data}, {bias->data}}, false,
                                [&] { return ColumnParallelOp(x.tensor, weight, bias, tp); }),
              kTolerance);
    return absl::OkStatus();
  });
}

TEST_P(ParallelOpsTest, RowLinearMatchesDifferences) {
  RunRanks(2, [&](CommunicatorPtr world) {
    const TensorParallel tp = TensorParallelOver(*world, sequence_parallel_);
    const at::Tensor x = RandomLeaf({6, 3}, 10 + world->rank());
    const ParameterPtr weight = RandomParameter({4, 3}, 20 + world->rank());
    EXPECT_LE(GradientErrorOver(*world, {{x}, {weight->data}}, !sequence_parallel_,
                                [&] { return RowParallelOp(x, weight, tp); }),
              kTolerance);
    return absl::OkStatus();
  });
}

TEST_P(ParallelOpsTest, VocabParallelLossMatchesDifferences) {
  RunRanks(2, [&](CommunicatorPtr world) {
    const TensorParallel tp = TensorParallelOver(*world, sequence_parallel_);
    const Leaf hidden = Rows(4, *world);
    const ParameterPtr weight = RandomParameter({5, 4}, 20 + world->rank());
    const at::Tensor labels = at::tensor({0, 4, 5, 9, 7, 2}, at::kLong);
    EXPECT_LE(GradientErrorOver(*world, {hidden, {weight->data}}, true,
                                [&] { return LmHeadLossOp(hidden.tensor, weight, labels, tp); }),
              kTolerance);
    return absl::OkStatus();
  });
}

INSTANTIATE_TEST_SUITE_P(SequenceParallel, ParallelOpsTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "On" : "Off"; });

// Reference G14.1: logits 1, 2 on rank 0 and 3, 4 on rank 1, target 2.
TEST(VocabParallelCrossEntropyTest, GoldenOfTwoRanks) {
  RunRanks(2, [](CommunicatorPtr world) {
    const int rank = world->rank();
    auto weight = RandomParameter({2, 1}, 1);
    {
      at::NoGradGuard no_grad;
      weight->data.copy_(at::tensor({1.0 + 2 * rank, 2.0 + 2 * rank}, at::kDouble).view({2, 1}));
    }
    const at::Tensor hidden = at::ones({1, 1}, at::kDouble);  // logits are the weights
    const at::Tensor loss =
        LmHeadLossOp(hidden, weight, at::tensor({2}, at::kLong), TensorParallelOver(*world, false));
    EXPECT_NEAR(loss.item<double>(), 1.44018970, 5e-9);
    loss.sum().backward();
    const double want[2][2] = {{0.0320586, 0.0871443}, {-0.7631172, 0.6439143}};
    for (int64_t i = 0; i < 2; ++i) {
      EXPECT_NEAR(weight->data.grad()[i].item<double>(), want[rank][i], 5e-8);
    }
    return absl::OkStatus();
  });
}

TEST(VocabParallelCrossEntropyTest, FarApartLogitsKeepTheirDigits) {
  RunRanks(2, [](CommunicatorPtr world) {
    // fp32. Rank 0 holds logits near 0, rank 1 near 9000: a label on either.
    auto weight = std::make_shared<Parameter>();
    weight->data = at::tensor({0.25, 0.5, 9000.0, 9001.0}, at::kFloat)
                       .view({4, 1})
                       .narrow(0, 2 * world->rank(), 2)
                       .clone()
                       .set_requires_grad(true);
    const at::Tensor labels = at::tensor({0, 2, 3}, at::kLong);
    const at::Tensor loss =
        LmHeadLossOp(at::ones({3, 1}), weight, labels, TensorParallelOver(*world, false));
    const double log_s = std::log1p(std::exp(-1.0));
    EXPECT_NEAR(loss[0].item<double>(), 9000.75 + log_s, 1e-3);
    EXPECT_NEAR(loss[1].item<double>(), 1 + log_s, 1e-6);
    EXPECT_NEAR(loss[2].item<double>(), log_s, 1e-6);
    loss.sum().backward();
    EXPECT_TRUE(at::isfinite(weight->data.grad()).all().item<bool>());
    return absl::OkStatus();
  });
}

TEST(VocabParallelCrossEntropyTest, NanOnOneRankIsSeenOnAll) {
  RunRanks(2, [](CommunicatorPtr world) {
    for (int bad_rank = 0; bad_rank < 2; ++bad_rank) {
      const ParameterPtr weight = RandomParameter({3, 2}, 20 + world->rank());
      {
        at::NoGradGuard no_grad;
        if (world->rank() == bad_rank) weight->data[1][0] = std::nan("");
      }
      const at::Tensor loss =
          LmHeadLossOp(at::ones({2, 2}, at::kDouble), weight, at::tensor({0, 5}, at::kLong),
                       TensorParallelOver(*world, false));
      EXPECT_TRUE(loss.isnan().all().item<bool>());
    }
    return absl::OkStatus();
  });
}

TEST(VocabParallelCrossEntropyTest, LowPrecisionIsOneProcess) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(dtype);
    const at::Tensor hidden = RandomLeaf({12, 16}, 1).detach().to(dtype);
    const at::Tensor table = RandomLeaf({64, 16}, 2).detach().to(dtype);
    const at::Tensor labels = at::arange(12, at::kLong).mul(5);
    auto whole = std::make_shared<Parameter>();
    whole->data = table.clone().set_requires_grad(true);
    const at::Tensor want = LmHeadLossOp(hidden, whole, labels);
    want.sum().backward();
    RunRanks(4, [&](CommunicatorPtr world) {
      auto shard = std::make_shared<Parameter>();
      shard->data = table.narrow(0, 16 * world->rank(), 16).clone().set_requires_grad(true);
      const at::Tensor losses =
          LmHeadLossOp(hidden, shard, labels, TensorParallelOver(*world, false));
      EXPECT_EQ(losses.scalar_type(), at::kFloat);
      EXPECT_LE(MaxDifference(losses, want), 2e-6);  // sums of fp32 in another order
      losses.sum().backward();
      const at::Tensor slice = whole->data.grad().narrow(0, 16 * world->rank(), 16);
      EXPECT_LE(MaxDifference(shard->data.grad(), slice), dtype == at::kFloat ? 1e-6 : 1e-2);
      return absl::OkStatus();
    });
  }
}

// What a GPU without kernels of its own runs is the CPU kernels' function, on whole and split
// vocabularies.
TEST(ComposedCrossEntropyTest, EqualsTheFusedKernels) {
  const at::Tensor labels = at::arange(9, at::kLong).mul(3);
  const at::Tensor dloss = RandomLeaf({9}, 3, at::kFloat).detach();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    SCOPED_TRACE(dtype);
    const at::Tensor z = RandomLeaf({9, 12}, 2).detach().mul(8).to(dtype);
    const auto scale = dtype == at::kDouble ? dloss.to(at::kDouble) : dloss;
    for (const VocabShard shard : {VocabShard{0, 36}, VocabShard{12, 36}, VocabShard{24, 36}}) {
      SCOPED_TRACE(shard.begin);
      const auto fused = row_ops::CrossEntropy(z, labels, shard);
      const auto other = composed::CrossEntropy(z, labels, shard);
      EXPECT_LE(MaxDifference(fused.lse, other.lse), 5e-6);
      EXPECT_LE(MaxDifference(fused.loss, other.loss), 5e-6);
      // As if the other shards held as much again.
      const at::Tensor lse = fused.lse + 1, a = z.clone(), b = z.clone();
      row_ops::CrossEntropyBackward(a, labels, lse, scale, shard);
      composed::CrossEntropyBackward(b, labels, lse, scale, shard);
      EXPECT_LE(MaxDifference(a, b), dtype == at::kBFloat16 ? 4e-3 : 5e-6);
    }
  }
}

// Writes "dW" where the weight's gradient has been accumulated.
class NoteGrad final : public GradSink {
 public:
  explicit NoteGrad(std::vector<std::string>& events) : events_(events) {}
  void GradReady(Parameter&) override { events_.push_back("dW"); }

 private:
  std::vector<std::string>& events_;
};

std::vector<std::string> EventsOfColumnBackward(Communicator& world, bool sequence_parallel) {
  LoggingCommunicator log(world);
  const TensorParallel tp = TensorParallelOver(log, sequence_parallel);
  const ParameterPtr weight = RandomParameter({3, 4}, 20 + world.rank());
  AttachMainGrads({weight}, at::kDouble);
  NoteGrad note(log.events());
  weight->sink = &note;
  const at::Tensor y = ColumnParallelOp(RandomLeaf({4, 4}, 1), weight, nullptr, tp);
  log.events().clear();
  y.sum().backward();
  return log.events();
}

TEST(TensorParallelOverlapTest, TheInputGradientTravelsWhileTheWeightGradientIsComputed) {
  RunRanks(2, [](CommunicatorPtr world) {
    EXPECT_THAT(EventsOfColumnBackward(*world, false),
                ElementsAre("start all-reduce", "dW", "wait all-reduce"));
    EXPECT_THAT(EventsOfColumnBackward(*world, true),
                ElementsAre("start all-gather", "start reduce-scatter", "wait all-gather", "dW",
                            "wait reduce-scatter"));
    return absl::OkStatus();
  });
}

using TrafficMap = std::map<std::string, LoggingCommunicator::Traffic>;

struct Passes {
  TrafficMap forward, backward;
};

Passes TrafficOf(Communicator& world, const TransformerConfig& config, int64_t num_layers,
                 bool sequence_parallel) {
  LoggingCommunicator log(world);
  RngTracker rng = *RngTracker::Create(1234, {.tp_rank = world.rank()}, false, false);
  GptModel model(config, {.num_layers = num_layers, .seq_major = sequence_parallel},
                 {.tp = TensorParallelOver(log, sequence_parallel)}, rng, at::kCPU, at::kBFloat16);
  const at::Tensor loss = model.Forward(RandomBatch(config, 2, 8, 5), {}).sum();
  Passes passes;
  passes.forward = log.TakeTraffic();
  loss.backward();
  passes.backward = log.TakeTraffic();
  return passes;
}

TrafficMap Minus(TrafficMap a, const TrafficMap& b) {
  for (const auto& [kind, traffic] : b) {
    a[kind].calls -= traffic.calls;
    a[kind].bytes -= traffic.bytes;
  }
  std::erase_if(a, [](const auto& entry) { return entry.second.calls == 0; });
  return a;
}

// Reference 14.1. A: bytes of all rows (S B H, bf16). Gathers count a rank's slice, A / tp.
TEST(TensorParallelTrafficTest, ALayerMovesWhatTheTableSays) {
  constexpr int64_t kA = 8 * 2 * 32 * 2, kSlice = kA / 2;
  for (const TransformerConfig& config : {TpGpt2Like(), TpLlamaLike()}) {
    RunRanks(2, [&](CommunicatorPtr world) {
      for (const bool sequence_parallel : {false, true}) {
        const Passes one = TrafficOf(*world, config, 1, sequence_parallel);
        const Passes three = TrafficOf(*world, config, 3, sequence_parallel);
        const TrafficMap forward = Minus(three.forward, one.forward);
        const TrafficMap backward = Minus(three.backward, one.backward);
        // Two layers.
        if (sequence_parallel) {
          EXPECT_EQ(forward, (TrafficMap{{"all-gather", {2 * 2, 4 * kSlice}},
                                         {"reduce-scatter", {2 * 2, 4 * kA}}}));
          // x of both column linears again, dy of both row linears; dx of both column linears.
          EXPECT_EQ(backward, (TrafficMap{{"all-gather", {2 * 4, 8 * kSlice}},
                                          {"reduce-scatter", {2 * 2, 4 * kA}}}));
        } else {
          EXPECT_EQ(forward, (TrafficMap{{"all-reduce", {2 * 2, 4 * kA}}}));
          EXPECT_EQ(backward, (TrafficMap{{"all-reduce", {2 * 2, 4 * kA}}}));
        }
      }
      return absl::OkStatus();
    });
  }
}

// Outside the layers: the embedding's sum, the loss's numbers a row, the output layer's dx.
TEST(TensorParallelTrafficTest, EmbeddingAndLossMoveNoLogits) {
  constexpr int64_t kA = 8 * 2 * 32 * 2, kRow = 8 * 2 * 4;  // kRow: one fp32 number a row
  RunRanks(2, [&](CommunicatorPtr world) {
    const Passes plain = TrafficOf(*world, TpGpt2Like(), 0, false);
    EXPECT_EQ(plain.forward, (TrafficMap{{"all-reduce", {3, kA + 3 * kRow}}}));
    EXPECT_EQ(plain.backward, (TrafficMap{{"all-reduce", {1, kA}}}));
    const Passes rope = TrafficOf(*world, TpLlamaLike(), 0, true);
    EXPECT_EQ(rope.forward, (TrafficMap{{"reduce-scatter", {1, kA}},       // the embedding
                                        {"all-gather", {1, kA / 2}},       // into the output layer
                                        {"all-reduce", {2, 3 * kRow}}}));  // the loss
    EXPECT_EQ(rope.backward,
              (TrafficMap{{"all-gather", {2, kA}},  // hidden again; the embedding's dy
                          {"reduce-scatter", {1, kA}}}));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace muster
