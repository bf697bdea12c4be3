// A GPT built from a spec on a grid of tensor and pipeline ranks.

#include <cmath>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "common/base/status.h"
#include "tensor_parallel_support.h"
#include "tests/worker/parallel/thread_ranks.h"

namespace muster {
namespace {

JobSpec SpecOf(int tp, int pp, bool sequence_parallel) {
  JobSpec spec;
  spec.model.num_layers = 2;
  spec.model.hidden_size = 32;
  spec.model.num_attention_heads = 4;
  spec.model.attention_dropout = spec.model.hidden_dropout = 0;
  spec.model.swiglu = true;
  spec.parallel.tensor_model_parallel_size = tp;
  spec.parallel.pipeline_model_parallel_size = pp;
  spec.parallel.sequence_parallel = sequence_parallel;
  return spec;
}

ResolvedSpec SizesOf() {
  ResolvedSpec sizes;
  sizes.ffn_hidden_size = 64;
  sizes.kv_channels = 8;
  sizes.num_query_groups = 4;
  sizes.max_position_embeddings = 16;
  sizes.padded_vocab_size = 64;
  return sizes;
}

absl::StatusOr<std::unique_ptr<GptModel>> Build(const JobSpec& spec,
                                                const ParallelContext& parallel,
                                                GptModel::Placement where) {
  const ResolvedSpec sizes = SizesOf();
  const RankCoordinates& at_rank = parallel.coordinates();
  ASSIGN_OR_RETURN(
      RngTracker rng,
      RngTracker::Create(1234, {.tp_rank = at_rank.tp, .pp_rank = at_rank.pp}, false, false));
  ExpertState experts;  // without MoE layers nobody keeps it
  return GptModel::Create({.spec = spec,
                           .sizes = sizes,
                           .parallel = parallel,
                           .rng = rng,
                           .experts = experts,
                           .device = at::kCPU,
                           .params_dtype = at::kDouble,
                           .pre_process = where.pre_process,
                           .post_process = where.post_process,
                           .layer_offset = where.layer_offset,
                           .num_layers = where.num_layers});
}

TEST(TensorParallelBuildTest, StagesOfSplitLayersExchangeSlicesOfTheSequence) {
  for (const bool sequence_parallel : {false, true}) {
    SCOPED_TRACE(sequence_parallel);
    const JobSpec spec = SpecOf(2, 2, sequence_parallel);
    const absl::StatusOr<RankTopology> topology =
        RankTopology::Create({.world_size = 4, .tp = 2, .pp = 2});
    ASSERT_TRUE(topology.ok());
    std::vector<at::Tensor> sent(2), tables(4), losses(4);
    RunRanks(4, [&](CommunicatorPtr world) -> absl::Status {
      const int rank = world->rank();
      ASSIGN_OR_RETURN(const ParallelContext parallel,
                       ParallelContext::Create(*topology, rank, world));
      const bool first = parallel.coordinates().pp == 0;
      const int tp_rank = parallel.coordinates().tp;
      ASSIGN_OR_RETURN(const auto model, Build(spec, parallel,
                                               {.pre_process = first,
                                                .post_process = !first,
                                                .layer_offset = first ? 0 : 1,
                                                .num_layers = 1}));
      for (const ParameterPtr& p : model->parameters()) {
        EXPECT_EQ(p->sequence_parallel,
                  sequence_parallel && (p->name.find("layernorm") != std::string::npos ||
                                        p->name.ends_with("linear_proj.bias") ||
                                        p->name.ends_with("linear_fc2.bias")));
        if (p->shared_embedding) tables[rank] = p->data.detach();
      }
      const Batch batch = RandomBatch(TinyConfig(), 2, 8, 5);
      if (first) sent[tp_rank] = model->Forward(batch, {}).detach();
      RETURN_IF_ERROR(world->Barrier()->Wait());
      if (!first) losses[rank] = model->Forward(batch, sent[tp_rank]).detach();
      return absl::OkStatus();
    });
    ASSERT_TRUE(sent[0].defined() && losses[3].defined());
    EXPECT_EQ(sent[0].sizes(), at::IntArrayRef({sequence_parallel ? 4 : 8, 2, 32}));
    EXPECT_EQ(at::equal(sent[0], sent[1]), !sequence_parallel);
    // The tied table: a half a tp rank, the first stage's values on the last.
    EXPECT_EQ(tables[0].sizes(), at::IntArrayRef({32, 32}));
    EXPECT_TRUE(at::equal(tables[0], tables[2]) && at::equal(tables[1], tables[3]));
    EXPECT_FALSE(at::equal(tables[0], tables[1]));
    EXPECT_TRUE(at::equal(losses[2], losses[3]));
    EXPECT_EQ(losses[2].sizes(), at::IntArrayRef({2, 8}));
    EXPECT_NEAR(losses[2].mean().item<double>(), std::log(64.0), 0.5);
  }
}

TEST(TensorParallelBuildTest, SequenceParallelismAloneOnARankIsOff) {
  const auto model = Build(SpecOf(1, 1, true), ParallelContext::SingleProcess(), {.num_layers = 2});
  ASSERT_TRUE(model.ok()) << model.status();
  for (const ParameterPtr& p : (*model)->parameters()) EXPECT_FALSE(p->sequence_parallel);
  EXPECT_EQ((*model)->Forward(RandomBatch(TinyConfig(), 2, 7, 5), {}).sizes(),
            at::IntArrayRef({2, 7}));
}

}  // namespace
}  // namespace muster
