// The parity matrix, fully sharded data parallelism: every strategy gives the numbers of one
// process.

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/parity/parity_settings.h"

namespace muster {
namespace {

// In every layout that strategies share.
void ExpectStrategyParity(const Settings& strategy, const Settings& model = {}) {
  ExpectParity(model, {{"dp2", World(2) + strategy},
                       {"dp4", World(4) + strategy},
                       {"dp2 tp2", World(4) + Tp(2) + strategy},
                       {"dp2 tp2, sp", World(4) + Tp(2) + kSequenceParallel + strategy},
                       {"dp2 cp2", World(4) + Cp(2) + strategy}});
}

TEST(FsdpParityTest, NoShard) { ExpectStrategyParity(MegatronFsdp("no_shard")); }
TEST(FsdpParityTest, Optim) { ExpectStrategyParity(MegatronFsdp("optim")); }
TEST(FsdpParityTest, OptimGrads) { ExpectStrategyParity(MegatronFsdp("optim_grads")); }
TEST(FsdpParityTest, OptimGradsParams) { ExpectStrategyParity(MegatronFsdp("optim_grads_params")); }
TEST(FsdpParityTest, OptimGradsParamsLlama) {
  ExpectStrategyParity(MegatronFsdp("optim_grads_params"), kLlama);
}
TEST(FsdpParityTest, Fsdp2) { ExpectStrategyParity(kFsdp2, kUntied); }
TEST(FsdpParityTest, Fsdp2Llama) { ExpectStrategyParity(kFsdp2, kLlama); }
TEST(FsdpParityTest, Fsdp2WithoutReshardingAfterForward) {
  ExpectStrategyParity(kFsdp2NoReshard, kUntied);
}

TEST(FsdpParityTest, HybridSharding) {
  const Settings zero3 = MegatronFsdp("optim_grads_params") + Instances(2);
  ExpectParity({}, {{"dp4, replicas", World(4) + zero3},
                    {"dp4, optimizer sharded over replicas",
                     World(4) + zero3 + Settings{"parallel.outer_dp_sharding_strategy=optim"}}});
}

TEST(FsdpParityTest, WithPipelineParallelism) {
  ExpectParity(
      {}, {{"optim, dp2 pp2", World(4) + Pp(2) + MegatronFsdp("optim")},
           {"optim_grads, dp2 pp2 v2", World(4) + Pp(2) + Vpp(2) + MegatronFsdp("optim_grads")},
           {"optim_grads_params, dp2 pp2", World(4) + Pp(2) + MegatronFsdp("optim_grads_params")},
           {"optim_grads_params, dp2 tp2 pp2 v2, sp", World(8) + Tp(2) + kSequenceParallel + Pp(2) +
                                                          Vpp(2) +
                                                          MegatronFsdp("optim_grads_params")}});
}

TEST(FsdpParityTest, LossPerTokenAndRecomputation) {
  const Settings full = {"training.recompute_granularity=full", "training.recompute_method=uniform",
                         "training.recompute_num_layers=1"};
  ExpectParity(
      {"training.calculate_per_token_loss=true", "data.eod_mask_loss=true"},
      {{"optim_grads", World(2) + MegatronFsdp("optim_grads")},
       {"optim_grads_params", World(2) + MegatronFsdp("optim_grads_params")},
       {"optim_grads_params, recomputed", World(2) + MegatronFsdp("optim_grads_params") + full}});
  ExpectParity(kUntied, {{"fsdp2, recomputed", World(2) + kFsdp2 + full}});
}

TEST(FsdpParityTest, Experts) {
  ParityModel parity(kMoe + Settings{"training.fp64=true", "model.moe_aux_loss_coeff=0.02"});
  const Curve one = parity.Run({});
  for (const char* strategy : {"optim", "optim_grads", "optim_grads_params"}) {
    SCOPED_TRACE(strategy);
    ExpectSame(parity.Run(World(2) + MegatronFsdp(strategy)), one, Fp64Bounds());
    ExpectSame(parity.Run(World(4) + Ep(2) + MegatronFsdp(strategy)), one, Fp64Bounds());
  }
}

TEST(FsdpParityTest, Sgd) {
  ExpectParity({"optimizer.optimizer=sgd", "optimizer.lr=0.02"},
               {{"dp2", World(2) + MegatronFsdp("optim_grads_params")}});
}

}  // namespace
}  // namespace muster
