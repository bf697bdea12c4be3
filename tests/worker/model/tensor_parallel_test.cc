// Tensor parallelism, ranks as threads: every loss and every gradient of a split GPT equals the
// slice of the same model's on one process.

#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "tensor_parallel_support.h"
#include "tests/worker/parallel/thread_ranks.h"
#include "worker/parallel/parameter_slices.h"

namespace muster {
namespace {

constexpr double kTolerance = 1e-10;

struct Layout {
  const char* name;
  int tp;
  bool sequence_parallel;
};
const Layout kLayouts[] = {
    {"tp2", 2, false}, {"tp2_sp", 2, true}, {"tp4", 4, false}, {"tp4_sp", 4, true}};

// A whole model after one forward and backward pass.
struct Reference {
  std::unique_ptr<GptModel> model;
  at::Tensor loss_weights, losses;

  Reference(const TransformerConfig& config, const Batch& batch, at::ScalarType dtype) {
    model = MakeModel(config, dtype);
    FillAtRandom(model->parameters(), 100);
    AttachMainGrads(model->parameters(), at::kDouble);
    losses = model->Forward(batch, {});
    loss_weights = RandomLeaf(losses.sizes(), 98).detach();
    (losses * loss_weights).sum().backward();
  }
  const Parameter& Of(const Parameter& shard) const {
    for (const ParameterPtr& p : model->parameters()) {
      if (p->name == shard.name) return *p;
    }
    ADD_FAILURE() << shard.name << " is not in the whole model";
    return shard;
  }
};

void ExpectGradsOfReference(const GptModel& shard, const Reference& whole, Communicator& world) {
  for (const ParameterPtr& p : shard.parameters()) {
    SCOPED_TRACE(p->name);
    const at::Tensor grad = FinalGradOf(*p, world);
    EXPECT_LE(MaxDifference(grad, ShardOf(GradOf(whole.Of(*p)), *p)), kTolerance);
  }
}

struct Case {
  const char* name;
  TransformerConfig config;
  Layout layout;
};
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const Layout& layout : kLayouts) {
    cases.push_back({"gpt2", TpGpt2Like(), layout});
    cases.push_back({"llama", TpLlamaLike(), layout});
  }
  return cases;
}

class TensorParallelTest : public testing::TestWithParam<Case> {};

TEST_P(TensorParallelTest, LossesAndGradientsAreThoseOfOneProcess) {
  const auto& [name, config, layout] = GetParam();
  const Batch batch = RandomBatch(config, 2, 8, 5);
  const Reference whole(config, batch, at::kDouble);
  RunRanks(layout.tp, [&](CommunicatorPtr world) {
    auto shard = MakeShard(config, TensorParallelOver(*world, layout.sequence_parallel),
                           whole.model->parameters(), at::kDouble);
    AttachMainGrads(shard->parameters(), at::kDouble);
    const at::Tensor losses = shard->Forward(batch, {});
    EXPECT_LE(MaxDifference(losses, whole.losses), kTolerance);
    (losses * whole.loss_weights).sum().backward();
    ExpectGradsOfReference(*shard, whole, *world);
    return absl::OkStatus();
  });
}

TEST_P(TensorParallelTest, WithoutMainGradsToo) {
  const auto& [name, config, layout] = GetParam();
  const Batch batch = RandomBatch(config, 2, 8, 5);
  const Reference whole(config, batch, at::kDouble);
  RunRanks(layout.tp, [&](CommunicatorPtr world) {
    auto shard = MakeShard(config, TensorParallelOver(*world, layout.sequence_parallel),
                           whole.model->parameters(), at::kDouble);
    (shard->Forward(batch, {}) * whole.loss_weights).sum().backward();
    ExpectGradsOfReference(*shard, whole, *world);
    return absl::OkStatus();
  });
}

// Stages that hold the embedding alone, the layers, the loss alone.
TEST_P(TensorParallelTest, ThreeStagesJoinedAreOneProcess) {
  const auto& [name, config, layout] = GetParam();
  const Batch batch = RandomBatch(config, 2, 8, 5);
  const Reference whole(config, batch, at::kDouble);
  const bool tied = !config.untie_embeddings_and_output_weights;
  RunRanks(layout.tp, [&](CommunicatorPtr world) {
    const TensorParallel tp = TensorParallelOver(*world, layout.sequence_parallel);
    const GptModel::Placement placements[] = {
        {.post_process = false, .num_layers = 0, .seq_major = true},
        {.pre_process = false, .post_process = false, .num_layers = 2, .seq_major = true},
        {.pre_process = false,
         .layer_offset = 2,
         .num_layers = 0,
         .separate_tied_output = tied,
         .seq_major = true}};
    std::vector<std::unique_ptr<GptModel>> stages;
    std::vector<at::Tensor> inputs, outputs;
    for (const GptModel::Placement& placement : placements) {
      stages.push_back(MakeShard(config, tp, whole.model->parameters(), at::kDouble, placement));
      AttachMainGrads(stages.back()->parameters(), at::kDouble);
      if (!outputs.empty()) {
        EXPECT_EQ(outputs.back().sizes(), at::IntArrayRef({8 / tp.sequence_parts(), 2, 32}));
        inputs.push_back(outputs.back().detach().clone().set_requires_grad(true));
      }
      outputs.push_back(
          stages.back()->Forward(batch, inputs.empty() ? at::Tensor() : inputs.back()));
    }
    EXPECT_LE(MaxDifference(outputs[2], whole.losses), kTolerance);
    (outputs[2] * whole.loss_weights).sum().backward();
    outputs[1].backward(inputs[1].grad());
    outputs[0].backward(inputs[0].grad());
    at::Tensor word_grad;
    for (const auto& stage : stages) {
      for (const ParameterPtr& p : stage->parameters()) {
        SCOPED_TRACE(p->name);
        const bool word = p->shared || p->name == "embedding.word_embeddings.weight";
        const at::Tensor grad = FinalGradOf(*p, *world);
        if (tied && word) {  // summed over the embedding group in finalize
          word_grad = word_grad.defined() ? word_grad + grad : grad;
          continue;
        }
        EXPECT_LE(MaxDifference(grad, ShardOf(GradOf(whole.Of(*p)), *p)), kTolerance);
      }
    }
    if (!tied) return absl::OkStatus();
    const Parameter& word = *stages[0]->parameters()[0];
    EXPECT_LE(MaxDifference(word_grad, ShardOf(GradOf(whole.Of(word)), word)), kTolerance);
    return absl::OkStatus();
  });
}

TEST_P(TensorParallelTest, LogitsAreGatheredAndTheirGradientReturns) {
  const auto& [name, config, layout] = GetParam();
  Batch batch = RandomBatch(config, 2, 8, 5);
  batch.labels = at::Tensor();
  const Reference whole(config, batch, at::kDouble);
  RunRanks(layout.tp, [&](CommunicatorPtr world) {
    auto shard = MakeShard(config, TensorParallelOver(*world, layout.sequence_parallel),
                           whole.model->parameters(), at::kDouble);
    const at::Tensor logits = shard->Forward(batch, {});
    EXPECT_EQ(logits.sizes(), whole.losses.sizes());
    EXPECT_LE(MaxDifference(logits, whole.losses), kTolerance);
    (logits * whole.loss_weights).sum().backward();
    ExpectGradsOfReference(*shard, whole, *world);
    return absl::OkStatus();
  });
}

TEST_P(TensorParallelTest, AnExplicitMaskTakesTheUnfusedPath) {
  const auto& [name, config, layout] = GetParam();
  Batch batch = RandomBatch(config, 2, 8, 5);
  at::Tensor mask = at::ones({2, 1, 8, 8}, at::kBool).triu(1);
  mask.narrow(2, 5, 3).narrow(3, 0, 5).fill_(true);  // a document ends after 5 tokens
  batch.attention_mask = mask;
  const Reference whole(config, batch, at::kDouble);
  RunRanks(layout.tp, [&](CommunicatorPtr world) {
    auto shard = MakeShard(config, TensorParallelOver(*world, layout.sequence_parallel),
                           whole.model->parameters(), at::kDouble);
    const at::Tensor losses = shard->Forward(batch, {});
    EXPECT_LE(MaxDifference(losses, whole.losses), kTolerance);
    (losses * whole.loss_weights).sum().backward();
    ExpectGradsOfReference(*shard, whole, *world);
    return absl::OkStatus();
  });
}

// The collectives of a recomputed layer are issued again, in the same order on every rank.
TEST_P(TensorParallelTest, RecomputedLayersGiveTheSame) {
  auto [name, config, layout] = GetParam();
  const Batch batch = RandomBatch(config, 2, 8, 5);
  const Reference whole(config, batch, at::kDouble);
  config.recompute = RecomputeMode::kUniform;
  RunRanks(layout.tp, [&, config = config, layout = layout](CommunicatorPtr world) {
    auto shard = MakeShard(config, TensorParallelOver(*world, layout.sequence_parallel),
                           whole.model->parameters(), at::kDouble);
    AttachMainGrads(shard->parameters(), at::kDouble);
    const at::Tensor losses = shard->Forward(batch, {});
    EXPECT_LE(MaxDifference(losses, whole.losses), kTolerance);
    (losses * whole.loss_weights).sum().backward();
    ExpectGradsOfReference(*shard, whole, *world);
    return absl::OkStatus();
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, TensorParallelTest, testing::ValuesIn(Cases()),
                         [](const auto& info) {
                           return std::string(info.param.name) + "_" + info.param.layout.name;
                         });

TEST(TensorParallelDropoutTest, WithoutSequenceParallelTheMasksAreThoseOfOneProcess) {
  TransformerConfig config = TpGpt2Like();
  config.hidden_dropout = 0.3;
  const Batch batch = RandomBatch(config, 2, 8, 5);
  const Reference whole(config, batch, at::kDouble);
  RunRanks(2, [&](CommunicatorPtr world) {
    auto shard = MakeShard(config, TensorParallelOver(*world, false), whole.model->parameters(),
                           at::kDouble);
    const at::Tensor losses = shard->Forward(batch, {});
    EXPECT_LE(MaxDifference(losses, whole.losses), kTolerance);
    (losses * whole.loss_weights).sum().backward();
    ExpectGradsOfReference(*shard, whole, *world);
    return absl::OkStatus();
  });
}

// An embedding stage alone, of a word table of ones: its output is the mask.
at::Tensor EmbeddingMasks(bool sequence_parallel) {
  TransformerConfig config = TpLlamaLike();
  config.hidden_dropout = 0.5;
  const Batch batch = RandomBatch(config, 2, 8, 5);
  auto whole = MakeModel(config, at::kDouble);
  {
    at::NoGradGuard no_grad;
    for (const ParameterPtr& p : whole->parameters()) p->data.fill_(1);
  }
  std::vector<at::Tensor> masks(2);
  RunRanks(2, [&](CommunicatorPtr world) {
    auto stage =
        MakeShard(config, TensorParallelOver(*world, sequence_parallel), whole->parameters(),
                  at::kDouble, {.post_process = false, .num_layers = 0, .seq_major = true});
    masks[world->rank()] = stage->Forward(batch, {}).detach();
    return absl::OkStatus();
  });
  return at::stack(masks);
}

TEST(TensorParallelDropoutTest, SlicesOfTheSequenceHaveMasksOfTheirOwn) {
  const at::Tensor equal = EmbeddingMasks(false), own = EmbeddingMasks(true);
  ASSERT_EQ(equal.sizes(), at::IntArrayRef({2, 8, 2, 32}));
  ASSERT_EQ(own.sizes(), at::IntArrayRef({2, 4, 2, 32}));
  EXPECT_TRUE(at::equal(equal[0], equal[1]));
  // Independent masks of 256 elements agree in about half of them.
  EXPECT_NEAR(own[0].eq(own[1]).to(at::kDouble).mean().item<double>(), 0.5, 0.15);
  for (const at::Tensor& masks : {equal, own}) {
    EXPECT_NEAR(masks.eq(0).to(at::kDouble).mean().item<double>(), 0.5, 0.1);
  }
}

TEST(TensorParallelDropoutTest, LossesAgreeOverRanksWithAllDropout) {
  for (const bool sequence_parallel : {false, true}) {
    SCOPED_TRACE(sequence_parallel);
    TransformerConfig config = TpGpt2Like();
    config.hidden_dropout = config.attention_dropout = 0.2;
    const Batch batch = RandomBatch(config, 2, 8, 5);
    auto whole = MakeModel(config, at::kDouble);
    RunRanks(2, [&](CommunicatorPtr world) {
      auto shard = MakeShard(config, TensorParallelOver(*world, sequence_parallel),
                             whole->parameters(), at::kDouble);
      const at::Tensor losses = shard->Forward(batch, {});
      at::Tensor least = losses.detach().contiguous().clone();
      WaitOrThrow(world->AllReduce(least, ReduceOp::kMin));
      EXPECT_TRUE(at::isfinite(losses).all().item<bool>());
      EXPECT_TRUE(at::equal(least, losses.detach()));
      losses.sum().backward();
      // What is neither split nor summed over tp afterwards has to be equal already.
      for (const ParameterPtr& p : shard->parameters()) {
        if (p->tensor_model_parallel || p->sequence_parallel || p->is_qk_layernorm) continue;
        SCOPED_TRACE(p->name);
        at::Tensor lowest = p->data.grad().clone();
        WaitOrThrow(world->AllReduce(lowest, ReduceOp::kMin));
        EXPECT_LE(MaxDifference(lowest, p->data.grad()), kTolerance);
      }
      return absl::OkStatus();
    });
  }
}

TEST(TensorParallelFlagsTest, AreMegatrons) {
  for (const bool sequence_parallel : {false, true}) {
    SCOPED_TRACE(sequence_parallel);
    for (const TransformerConfig& config : {TpGpt2Like(), TpLlamaLike()}) {
      auto whole = MakeModel(config, at::kFloat);
      RunRanks(2, [&](CommunicatorPtr world) {
        auto shard = MakeShard(config, TensorParallelOver(*world, sequence_parallel),
                               whole->parameters(), at::kFloat);
        for (const ParameterPtr& p : shard->parameters()) {
          SCOPED_TRACE(p->name);
          const auto has = [&](const char* part) {
            return p->name.find(part) != std::string::npos;
          };
          const bool row_bias = has("linear_proj.bias") || has("linear_fc2.bias");
          const bool column = has("linear_qkv") || has("linear_fc1");
          const bool row = has("linear_proj.weight") || has("linear_fc2.weight");
          const bool table = has("word_embeddings") || has("output_layer");
          EXPECT_EQ(p->sequence_parallel, sequence_parallel && (row_bias || has("layernorm")));
          EXPECT_EQ(p->tensor_model_parallel, column || row || table);
          EXPECT_EQ(p->partition_dim, row ? 1 : column || table ? 0 : -1);
          EXPECT_EQ(p->partition_stride, has("linear_fc1") && config.swiglu ? 2 : 1);
        }
        return absl::OkStatus();
      });
    }
  }
}

TEST(TensorParallelInitTest, SplitWeightsDifferOverTpAndReplicatedOnesDoNot) {
  RunRanks(2, [&](CommunicatorPtr world) {
    RngTracker rng = *RngTracker::Create(1234, {.tp_rank = world->rank()}, false, false);
    const TransformerConfig config = TpGpt2Like();
    GptModel model(config, {.num_layers = config.num_layers},
                   {.tp = TensorParallelOver(*world, false)}, rng, at::kCPU, at::kFloat);
    for (const ParameterPtr& p : model.parameters()) {
      if (p->data.dim() == 1) continue;
      SCOPED_TRACE(p->name);
      at::Tensor lowest = p->data.detach().clone();
      WaitOrThrow(world->AllReduce(lowest, ReduceOp::kMin));
      const bool differs = MaxDifference(lowest, p->data) > 0;
      // (Rank 0 may hold the minimum here and there, never everywhere.)
      EXPECT_EQ(differs, p->tensor_model_parallel);
    }
    return absl::OkStatus();
  });
}

TEST(TensorParallelPrecisionTest, Bf16IsCloseToOneProcess) {
  for (const bool sequence_parallel : {false, true}) {
    for (const TransformerConfig& config : {TpGpt2Like(), TpLlamaLike()}) {
      SCOPED_TRACE(config.swiglu);
      const Batch batch = RandomBatch(config, 2, 8, 5);
      auto whole = MakeModel(config, at::kBFloat16);
      AttachMainGrads(whole->parameters(), at::kFloat);
      const at::Tensor want = whole->Forward(batch, {});
      want.mean().backward();
      RunRanks(2, [&](CommunicatorPtr world) {
        auto shard = MakeShard(config, TensorParallelOver(*world, sequence_parallel),
                               whole->parameters(), at::kBFloat16);
        AttachMainGrads(shard->parameters(), at::kFloat);
        const at::Tensor losses = shard->Forward(batch, {});
        EXPECT_EQ(losses.scalar_type(), at::kFloat);
        EXPECT_LE(MaxDifference(losses, want), 2e-2);
        losses.mean().backward();
        for (const ParameterPtr& p : shard->parameters()) {
          SCOPED_TRACE(p->name);
          const at::Tensor grad = FinalGradOf(*p, *world);
          for (const ParameterPtr& q : whole->parameters()) {
            if (q->name != p->name) continue;
            const at::Tensor slice = ShardOf(q->main_grad, *p);
            const double scale = q->main_grad.abs().max().item<double>();
            EXPECT_LE(MaxDifference(grad, slice), 0.06 * scale);
          }
        }
        return absl::OkStatus();
      });
    }
  }
}

// Gives a parameter its values when it is first asked for; until then they are NaN.
class LateValues final : public ParamGatherer {
 public:
  explicit LateValues(const std::vector<ParameterPtr>& parameters) : parameters_(parameters) {
    at::NoGradGuard no_grad;
    for (const ParameterPtr& p : parameters_) {
      values_.push_back(p->data.detach().clone());
      p->data.fill_(std::nan(""));
      p->gatherer = this;
    }
  }
  void ParamNeeded(Parameter& parameter) override {
    at::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (parameters_[i].get() == &parameter) parameter.data.copy_(values_[i]);
    }
  }

 private:
  const std::vector<ParameterPtr> parameters_;
  std::vector<at::Tensor> values_;
};

TEST(AwaitGatherTest, EveryParameterIsAwaitedBeforeItIsRead) {
  for (const TransformerConfig& config : {TpGpt2Like(), TpLlamaLike()}) {
    const Batch batch = RandomBatch(config, 2, 8, 5);
    auto whole = MakeModel(config, at::kDouble);
    FillAtRandom(whole->parameters(), 100);
    EXPECT_TRUE(whole->awaits_parameters());
    const at::Tensor want = whole->Forward(batch, {}).detach();
    RunRanks(2, [&](CommunicatorPtr world) {
      for (const bool sequence_parallel : {false, true}) {
        auto shard = MakeShard(config, TensorParallelOver(*world, sequence_parallel),
                               whole->parameters(), at::kDouble);
        LateValues late(shard->parameters());
        EXPECT_LE(MaxDifference(shard->Forward(batch, {}), want), kTolerance);
      }
      return absl::OkStatus();
    });
    LateValues late(whole->parameters());
    EXPECT_EQ(MaxDifference(whole->Forward(batch, {}), want), 0);
  }
}

TEST(TensorParallelErrorTest, ATokenOutsideTheVocabularyIsNotEmbeddedAsZero) {
  const TransformerConfig config = TpLlamaLike();
  auto whole = MakeModel(config, at::kFloat);
  for (const bool label : {false, true}) {
    SCOPED_TRACE(label);
    Batch batch = RandomBatch(config, 1, 8, 5);
    (label ? batch.labels : batch.tokens)[0][3] = config.padded_vocab_size;
    RunRanks(2, [&](CommunicatorPtr world) {
      auto shard =
          MakeShard(config, TensorParallelOver(*world, false), whole->parameters(), at::kFloat);
      EXPECT_ANY_THROW(shard->Forward(batch, {}));
      return absl::OkStatus();
    });
  }
}

}  // namespace
}  // namespace muster
