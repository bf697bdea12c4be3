// A GPT whose sequences are spread over context-parallel ranks, as threads: every loss and every
// gradient is that of one process.

#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "cp_support.h"
#include "tensor_parallel_support.h"
#include "tests/worker/parallel/thread_ranks.h"
#include "worker/data/context_slices.h"
#include "worker/parallel/parameter_slices.h"

namespace muster {
namespace {

constexpr double kTolerance = 1e-10;
constexpr int64_t kSeq = 16;

struct Layout {
  const char* name;
  int tp, cp;
  bool sequence_parallel = false;
};
const Layout kLayouts[] = {
    {"cp2", 1, 2}, {"cp4", 1, 4}, {"tp2_cp2", 2, 2}, {"tp2_cp2_sp", 2, 2, true}};

// Rotary, without norms of queries and keys: the fused operation.
TransformerConfig FusedLlamaLike() {
  TransformerConfig config = TpLlamaLike();
  config.qk_layernorm = false;
  return config;
}

// A whole model after one forward and backward pass.
struct Reference {
  std::unique_ptr<GptModel> model;
  at::Tensor loss_weights, losses;  // (B, S)

  Reference(const TransformerConfig& config, const Batch& batch) {
    model = MakeModel(config, at::kDouble);
    FillAtRandom(model->parameters(), 100);
    AttachMainGrads(model->parameters(), at::kDouble);
    losses = model->Forward(batch, {});
    loss_weights = RandomLeaf(losses.sizes(), 98).detach();
    (losses * loss_weights).sum().backward();
  }
  at::Tensor GradOfShard(const Parameter& shard) const {
    for (const ParameterPtr& p : model->parameters()) {
      if (p->name == shard.name) return ShardOf(GradOf(*p), shard);
    }
    ADD_FAILURE() << shard.name << " is not in the whole model";
    return {};
  }
};

// One rank's groups and model of a layout.
struct Rank {
  CommunicatorPtr tp, cp;
  std::unique_ptr<ContextGroups> levels;
  std::unique_ptr<GptModel> model;
  ContextPlace place;

  Rank(Communicator& world, const Layout& layout, const ContextForm& form, TransformerConfig config,
       const std::vector<ParameterPtr>& whole) {
    const int tp_rank = world.rank() % layout.tp, cp_rank = world.rank() / layout.tp;
    std::vector<int> tp_members, cp_members;
    for (int i = 0; i < layout.tp; ++i) tp_members.push_back(cp_rank * layout.tp + i);
    for (int i = 0; i < layout.cp; ++i) cp_members.push_back(i * layout.tp + tp_rank);
    tp = *world.Split(absl::StrCat("tp", cp_rank), tp_members);
    cp = *world.Split(absl::StrCat("cp", tp_rank), cp_members);
    levels = std::make_unique<ContextGroups>(*cp, form.a2a_size);
    place = {cp_rank, layout.cp};
    config.cp_comm_type.assign(config.num_layers, form.type);
    GptModel::Groups groups{.cp = levels->Place(*cp)};
    if (layout.tp > 1) groups.tp = TensorParallelOver(*tp, layout.sequence_parallel);
    RngTracker rng = *RngTracker::Create(1234, {.tp_rank = tp_rank}, false, false);
    model = std::make_unique<GptModel>(
        config,
        GptModel::Placement{.num_layers = config.num_layers, .seq_major = layout.sequence_parallel},
        groups, rng, at::kCPU, at::kDouble);
    at::NoGradGuard no_grad;
    for (const ParameterPtr& p : model->parameters()) {
      for (const ParameterPtr& source : whole) {
        if (source->name == p->name) p->data.copy_(ShardOf(source->data.detach(), *p));
      }
    }
    AttachMainGrads(model->parameters(), at::kDouble);
  }

  at::Tensor Losses(const Batch& batch) const {
    return model->Forward(SliceForContext(batch, place), {});
  }
  // Losses of this rank's tokens, then gradients.
  at::Tensor Run(const Batch& batch, const at::Tensor& loss_weights) const {
    const at::Tensor losses = Losses(batch);
    (losses * SliceForContext(loss_weights, 1, place)).sum().backward();
    return losses.detach();
  }
  // Summed over what the ranks have parts of.
  at::Tensor FinalGrad(const Parameter& p) const {
    at::Tensor grad = FinalGradOf(p, *tp).contiguous();
    WaitOrThrow(cp->AllReduce(grad, ReduceOp::kSum));
    return grad;
  }
};

struct Model {
  const char* name;
  TransformerConfig config;
};
std::vector<Model> Models() {
  return {{"gpt2", TpGpt2Like()}, {"llama", FusedLlamaLike()}, {"llama_qk_norm", TpLlamaLike()}};
}

class ContextModelTest : public testing::TestWithParam<Layout> {
 protected:
  // Every form of communication that the layout can have, for every model.
  void ExpectThatOfOneProcess(const std::vector<Model>& models, const Batch& batch,
                              RecomputeMode recompute = RecomputeMode::kNone) {
    for (const Model& model : models) {
      const Reference whole(model.config, batch);
      TransformerConfig config = model.config;
      config.recompute = recompute;
      for (const ContextForm& form : ContextForms(GetParam().cp)) {
        SCOPED_TRACE(absl::StrCat(model.name, " ", form.name));
        RunRanks(GetParam().tp * GetParam().cp, [&](CommunicatorPtr world) {
          const Rank rank(*world, GetParam(), form, config, whole.model->parameters());
          const at::Tensor losses = rank.Run(batch, whole.loss_weights);
          EXPECT_LE(MaxDifference(losses, SliceForContext(whole.losses, 1, rank.place)),
                    kTolerance);
          for (const ParameterPtr& p : rank.model->parameters()) {
            EXPECT_LE(MaxDifference(rank.FinalGrad(*p), whole.GradOfShard(*p)), kTolerance)
                << p->name;
          }
          return absl::OkStatus();
        });
      }
    }
  }
};

TEST_P(ContextModelTest, LossesAndGradientsAreThoseOfOneProcess) {
  ExpectThatOfOneProcess(Models(), RandomBatch(TpGpt2Like(), 2, kSeq, 5));
}

TEST_P(ContextModelTest, MasksAndPositionsOfDocumentsAreSlicedToo) {
  Batch batch = RandomBatch(TpGpt2Like(), 2, kSeq, 5);
  batch.attention_mask = at::ones({1, 1, kSeq, kSeq}, at::kBool).triu(1).repeat({2, 1, 1, 1});
  batch.attention_mask.narrow(2, 6, kSeq - 6).narrow(3, 0, 6).fill_(true);
  batch.position_ids.narrow(1, 6, kSeq - 6).sub_(6);
  ExpectThatOfOneProcess(Models(), batch);
}

// The exchanges of a recomputed layer are issued again, in the same order on every rank.
TEST_P(ContextModelTest, RecomputedLayersGiveTheSame) {
  const Batch batch = RandomBatch(TpGpt2Like(), 2, kSeq, 5);
  ExpectThatOfOneProcess({Models()[1]}, batch, RecomputeMode::kUniform);
  ExpectThatOfOneProcess({Models()[2]}, batch, RecomputeMode::kSelective);
}

// Each step draws its own mask, from this rank's generator: the same seed gives the same bits,
// recomputation draws them again, and evaluation draws none.
TEST_P(ContextModelTest, DropoutIsRepeatable) {
  TransformerConfig config = FusedLlamaLike();
  const Batch batch = RandomBatch(config, 2, kSeq, 5);
  const Reference whole(config, batch);
  config.attention_dropout = 0.3;
  for (const ContextForm& form : ContextForms(GetParam().cp)) {
    SCOPED_TRACE(form.name);
    RunRanks(GetParam().tp * GetParam().cp, [&](CommunicatorPtr world) {
      const auto run = [&](RecomputeMode recompute) {
        config.recompute = recompute;
        const Rank rank(*world, GetParam(), form, config, whole.model->parameters());
        std::vector<at::Tensor> results = {rank.Run(batch, whole.loss_weights)};
        for (const ParameterPtr& p : rank.model->parameters()) results.push_back(GradOf(*p));
        rank.model->SetTraining(false);
        EXPECT_LE(MaxDifference(rank.Losses(batch), SliceForContext(whole.losses, 1, rank.place)),
                  kTolerance);
        return results;
      };
      const std::vector<at::Tensor> first = run(RecomputeMode::kNone);
      for (const RecomputeMode again :
           {RecomputeMode::kNone, RecomputeMode::kSelective, RecomputeMode::kUniform}) {
        const std::vector<at::Tensor> second = run(again);
        for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(at::equal(first[i], second[i])) << i;
      }
      const at::Tensor without =
          SliceForContext(whole.losses, 1, {world->rank() / GetParam().tp, GetParam().cp});
      EXPECT_GT(MaxDifference(first[0], without), 1e-3);
      return absl::OkStatus();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, ContextModelTest, testing::ValuesIn(kLayouts),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace muster
