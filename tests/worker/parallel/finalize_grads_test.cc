#include "worker/parallel/finalize_grads.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/parallel/logging_communicator.h"
#include "tests/worker/parallel/thread_ranks.h"
#include "worker/parallel/ddp.h"

namespace muster {
namespace {

using testing::ElementsAre;

ParameterPtr Param(const std::string& name, int64_t numel) {
  auto p = std::make_shared<Parameter>();
  p->name = name;
  p->data = at::zeros({numel}, at::kDouble).set_requires_grad(true);
  return p;
}

// One rank of a job: parameters of every kind, sizes that tell them apart.
struct Rank {
  ParameterPtr split = Param("split", 7), norm = Param("norm", 3), qk = Param("qk", 2),
               averaged = Param("averaged", 4), embedding = Param("embedding", 6);
  bool has_embedding = true;
  std::vector<ParameterPtr> params() const {
    std::vector<ParameterPtr> all = {split, norm, qk, averaged};
    if (has_embedding) all.push_back(embedding);
    return all;
  }
};

Rank MakeRank(const RankCoordinates& where, int pp) {
  Rank rank;
  rank.split->tensor_model_parallel = true;
  rank.norm->sequence_parallel = true;
  rank.qk->is_qk_layernorm = true;
  // With both flags it is averaged, not summed.
  rank.averaged->average_gradients_across_tp_domain = rank.averaged->sequence_parallel = true;
  rank.has_embedding = where.pp == 0 || where.pp == pp - 1;
  rank.embedding->shared_embedding = pp > 1;
  rank.embedding->shared = pp > 1 && where.pp == pp - 1;
  return rank;
}

struct FinalizeCase {
  TopologySpec topology;
  DdpOptions options;
  bool per_token = false;
};

// Gradients are 1 + tp + 10 pp + 100 dp everywhere; `check` looks at the final ones.
void Finalize(
    const FinalizeCase& c,
    const std::function<void(const RankCoordinates&, const Rank&, DistributedDataParallel&,
                             const std::vector<std::string>& log)>& check) {
  at::set_num_threads(1);
  absl::StatusOr<RankTopology> topology = RankTopology::Create(c.topology);
  ASSERT_TRUE(topology.ok()) << topology.status();
  RunRanks(c.topology.world_size, [&](CommunicatorPtr inner) -> absl::Status {
    auto log = std::make_shared<std::vector<std::string>>();
    auto world = std::make_shared<LoggingCommunicator>(inner, log);
    ASSIGN_OR_RETURN(const ParallelContext parallel,
                     ParallelContext::Create(*topology, world->rank(), world));
    const RankCoordinates& where = parallel.coordinates();
    const Rank rank = MakeRank(where, c.topology.pp);
    ASSIGN_OR_RETURN(auto ddp, DistributedDataParallel::Create({rank.params()},
                                                               DdpGroups::Of(parallel), c.options));
    ddp->ZeroGradBuffer();
    for (const ParameterPtr& p : rank.params()) {
      p->AccumulateGrad(
          at::full_like(p->data.detach(), 1 + where.tp + 10 * where.pp + 100 * where.dp));
    }
    log->clear();
    std::optional<at::Tensor> num_tokens;
    // Stages without a loss hold no count: theirs must not be counted.
    if (c.per_token)
      num_tokens = at::full({}, where.pp == c.topology.pp - 1 ? 5 + 2 * where.dp : 99, at::kLong);
    RETURN_IF_ERROR(FinalizeModelGrads(*ddp, parallel, num_tokens));
    if (c.per_token) {
      EXPECT_EQ(num_tokens->item<int64_t>(), topology->dp() == 2 ? 12 : 5);
    }
    check(where, rank, *ddp, *log);
    return absl::OkStatus();
  });
}

// Every element's value; -1 where they differ.
double Value(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.flatten();
  return at::all(flat == flat[0]).item<bool>() ? flat[0].item<double>() : -1;
}

TEST(FinalizeGradsTest, OrderIsDataParallelThenTensorThenEmbeddingThenTokens) {
  Finalize({.topology = {.world_size = 8, .tp = 2, .pp = 2},
            .options = {.calculate_per_token_loss = true},
            .per_token = true},
           [](const RankCoordinates&, const Rank&, DistributedDataParallel&,
              const std::vector<std::string>& log) {
             EXPECT_THAT(log, ElementsAre("dp_cp sum 22", "tp sum 5", "tp sum 4", "embedding sum 6",
                                          "pp broadcast from 1", "dp_cp sum 1"));
           });
}

TEST(FinalizeGradsTest, ValuesAreThoseOfTheWholeModel) {
  for (bool per_token : {false, true}) {
    SCOPED_TRACE(per_token);
    Finalize(
        {.topology = {.world_size = 8, .tp = 2, .pp = 2},
         .options = {.calculate_per_token_loss = per_token},
         .per_token = per_token},
        [&](const RankCoordinates& where, const Rank& rank, DistributedDataParallel&,
            const std::vector<std::string>&) {
          // A sum over dp in per-token mode, divided by 12 tokens; else a mean.
          const double n = per_token ? 2.0 / 12 : 1;
          const double of_tp[2] = {51.0 + 10 * where.pp, 52.0 + 10 * where.pp};  // mean over dp
          EXPECT_DOUBLE_EQ(Value(rank.split->main_grad), n * of_tp[where.tp]);
          EXPECT_DOUBLE_EQ(Value(rank.norm->main_grad), n * (of_tp[0] + of_tp[1]));
          EXPECT_DOUBLE_EQ(Value(rank.qk->main_grad), n * (of_tp[0] + of_tp[1]));
          EXPECT_DOUBLE_EQ(Value(rank.averaged->main_grad), n * (of_tp[0] + of_tp[1]) / 2);
          EXPECT_DOUBLE_EQ(Value(rank.embedding->main_grad), n * (51 + 61 + 2 * where.tp));
        });
  }
}

TEST(FinalizeGradsTest, MiddleStagesShareNoEmbedding) {
  Finalize({.topology = {.world_size = 3, .pp = 3}},
           [](const RankCoordinates& where, const Rank& rank, DistributedDataParallel&,
              const std::vector<std::string>& log) {
             if (where.pp == 1) {
               EXPECT_THAT(log, ElementsAre());
             } else {
               EXPECT_THAT(log, ElementsAre("embedding sum 6"));
               EXPECT_EQ(Value(rank.embedding->main_grad), 22);
             }
           });
}

TEST(FinalizeGradsTest, SquaresThatWereKnownAreForgotten) {
  Finalize({.topology = {.world_size = 2, .tp = 2}},
           [](const RankCoordinates&, const Rank& rank, DistributedDataParallel&,
              const std::vector<std::string>&) {
             EXPECT_TRUE(rank.split->main_grad_squares.has_value());
             EXPECT_FALSE(rank.norm->main_grad_squares.has_value());
             EXPECT_FALSE(rank.averaged->main_grad_squares.has_value());
           });
}

// Each rank keeps its shard of every bucket; together with its peers over tp and the stages it must
// hold what the whole gradients would be.
TEST(FinalizeGradsTest, ReduceScatteredShardsAreFinalToo) {
  for (bool per_token : {false, true}) {
    SCOPED_TRACE(per_token);
    int64_t elements[2][2][2] = {};  // by dp, pp, tp: owned ones
    Finalize({.topology = {.world_size = 8, .tp = 2, .pp = 2},
              .options = {.calculate_per_token_loss = per_token, .use_distributed_optimizer = true},
              .per_token = per_token},
             [&](const RankCoordinates& where, const Rank& rank, DistributedDataParallel& ddp,
                 const std::vector<std::string>&) {
               const double n = per_token ? 2.0 / 12 : 1;
               const double of_tp[2] = {51.0 + 10 * where.pp, 52.0 + 10 * where.pp};
               const std::map<const Parameter*, double> expected = {
                   {rank.split.get(), n * of_tp[where.tp]},
                   {rank.norm.get(), n * (of_tp[0] + of_tp[1])},
                   {rank.qk.get(), n * (of_tp[0] + of_tp[1])},
                   {rank.averaged.get(), n * (of_tp[0] + of_tp[1]) / 2},
                   {rank.embedding.get(), n * (51 + 61 + 2 * where.tp)}};
               for (const OwnedShard& shard : ddp.shards()) {
                 SCOPED_TRACE(shard.parameter->name);
                 EXPECT_DOUBLE_EQ(Value(shard.grad), expected.at(shard.parameter.get()));
                 elements[where.dp][where.pp][where.tp] += shard.grad.numel();
               }
             });
    for (int pp : {0, 1}) {
      for (int tp : {0, 1}) EXPECT_EQ(elements[0][pp][tp] + elements[1][pp][tp], 22);
    }
  }
}

}  // namespace
}  // namespace muster
