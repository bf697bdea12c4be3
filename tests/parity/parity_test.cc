// The parity matrix: any layout gives the losses, gradient norms, evaluations and final weights of
// one process, over ten optimizer steps from the same weights, in fp64 (1e-10) and fp32.

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/parity/parity_run.h"
#include "tests/parity/parity_settings.h"

namespace muster {
namespace {

TEST(ParityTest, DataParallel) {
  ExpectParity({}, {{"dp2", World(2)},
                    {"dp4", World(4)},
                    {"dp8", World(8)},
                    {"dp2, overlapped", World(2) + kOverlapGradReduce},
                    {"dp4, mean in the collective",
                     World(4) + Settings{"parallel.ddp_average_in_collective=true"}}});
}

TEST(ParityTest, TensorParallel) {
  ExpectParity(
      {}, {{"tp2", World(2) + Tp(2)},
           {"tp4", World(4) + Tp(4)},
           {"tp2, sp", World(2) + Tp(2) + kSequenceParallel},
           {"tp4, sp", World(4) + Tp(4) + kSequenceParallel},
           {"dp2 tp2", World(4) + Tp(2)},
           {"dp2 tp2, sp, overlapped", World(4) + Tp(2) + kSequenceParallel + kOverlapGradReduce}});
}

TEST(ParityTest, TensorParallelLlama) {
  ExpectParity(kLlama, {{"tp2", World(2) + Tp(2)},
                        {"tp2, sp", World(2) + Tp(2) + kSequenceParallel},
                        {"dp2 tp2, sp", World(4) + Tp(2) + kSequenceParallel}});
}

TEST(ParityTest, PipelineParallel) {
  ExpectParity({}, {{"pp2", World(2) + Pp(2)},
                    {"pp4", World(4) + Pp(4)},
                    {"pp2 v2", World(2) + Pp(2) + Vpp(2)},
                    {"dp2 pp2", World(4) + Pp(2)},
                    {"dp2 pp2 v2, overlapped", World(4) + Pp(2) + Vpp(2) + kOverlapGradReduce},
                    {"dp2 pp2 v2, overlapped, not aligned",
                     World(4) + Pp(2) + Vpp(2) + kOverlapGradReduce + kNotAligned}});
}

TEST(ParityTest, VirtualStagesOfFourRanks) {
  // One layer in each of eight chunks.
  ExpectParity(
      {"model.num_layers=8"},
      {{"pp4 v2", World(4) + Pp(4) + Vpp(2)},
       {"pp4 v2, p2p not overlapped",
        World(4) + Pp(4) + Vpp(2) + Settings{"parallel.overlap_p2p_comm=false"}},
       {"pp4 v2, p2p overlapped throughout",
        World(4) + Pp(4) + Vpp(2) + Settings{"parallel.overlap_p2p_comm_warmup_flush=true"}},
       {"pp2 v4, groups of 4",
        World(2) + Pp(2) + Vpp(4) +
            Settings{"parallel.microbatch_group_size_per_virtual_pipeline_stage=4"}},
       {"dp2 pp4 v2", World(8) + Pp(4) + Vpp(2)}});
}

TEST(ParityTest, UnevenStages) {
  const Settings first1 = {"parallel.decoder_first_pipeline_num_layers=1"};
  const Settings last1 = {"parallel.decoder_last_pipeline_num_layers=1"};
  ExpectParity({},
               {{"first 1 of 4", World(2) + Pp(2) + first1},
                {"last 1 of 4", World(2) + Pp(2) + last1},
                {"1, 2, 1", World(3) + Pp(3) + first1 + last1},
                {"embedding and loss count as layers",
                 World(2) + Pp(2) +
                     Settings{"parallel.account_for_embedding_in_pipeline_split=true",
                              "parallel.account_for_loss_in_pipeline_split=true"}},
                {"layout Et|tt|tL", World(3) + Pp(3) + PipelineLayout("Et|tt|tL")},
                {"layout E|t|tt|tL", World(2) + Pp(2) + PipelineLayout("E|t|tt|tL")},
                {"layout with empty stages", World(4) + Pp(4) + PipelineLayout("E|t|t|t|t|||L")}});
}

TEST(ParityTest, UntiedEmbeddings) {
  ExpectParity(kUntied, {{"tp2", World(2) + Tp(2)},
                         {"pp2", World(2) + Pp(2)},
                         {"pp2 v2", World(2) + Pp(2) + Vpp(2)},
                         {"dp2, distributed optimizer", World(2) + kDistributedOptimizer}});
}

TEST(ParityTest, TensorAndPipelineParallel) {
  ExpectParity({}, {{"tp2 pp2", World(4) + Tp(2) + Pp(2)},
                    {"tp2 pp2, sp", World(4) + Tp(2) + Pp(2) + kSequenceParallel},
                    {"dp2 tp2 pp2", World(8) + Tp(2) + Pp(2)},
                    {"dp2 tp2 pp2 v2, sp, overlapped",
                     World(8) + Tp(2) + Pp(2) + Vpp(2) + kSequenceParallel + kOverlapGradReduce}});
}

TEST(ParityTest, TensorAndPipelineParallelLlama) {
  ExpectParity(kLlama, {{"tp2 pp2 v2, sp", World(4) + Tp(2) + Pp(2) + Vpp(2) + kSequenceParallel},
                        {"dp2 tp2 pp2", World(8) + Tp(2) + Pp(2)}});
}

TEST(ParityTest, DistributedOptimizer) {
  ExpectParity(
      {}, {{"dp2", World(2) + kDistributedOptimizer},
           {"dp4", World(4) + kDistributedOptimizer},
           {"dp4, two instances", World(4) + kDistributedOptimizer + Instances(2)},
           {"dp2, gradients overlapped", World(2) + kDistributedOptimizer + kOverlapGradReduce},
           {"dp2, all overlapped", World(2) + kDistributedOptimizer + kOverlapAll},
           {"dp2, all overlapped, not aligned",
            World(2) + kDistributedOptimizer + kOverlapAll + kNotAligned},
           {"dp4, two instances, all overlapped",
            World(4) + kDistributedOptimizer + Instances(2) + kOverlapAll}});
}

TEST(ParityTest, DistributedOptimizerWithTensorAndPipelineParallel) {
  ExpectParity(
      {},
      {{"dp2 tp2", World(4) + Tp(2) + kDistributedOptimizer},
       {"dp2 tp2, sp, overlapped",
        World(4) + Tp(2) + kSequenceParallel + kDistributedOptimizer + kOverlapAll},
       {"dp2 pp2", World(4) + Pp(2) + kDistributedOptimizer},
       {"dp2 pp2 v2, overlapped", World(4) + Pp(2) + Vpp(2) + kDistributedOptimizer + kOverlapAll},
       {"dp2 pp2 v2, overlapped, not aligned",
        World(4) + Pp(2) + Vpp(2) + kDistributedOptimizer + kOverlapAll + kNotAligned},
       {"dp2 tp2 pp2", World(8) + Tp(2) + Pp(2) + kDistributedOptimizer + kOverlapAll},
       {"dp4 tp2, two instances", World(8) + Tp(2) + kDistributedOptimizer + Instances(2)},
       {"dp4 pp2, two instances, overlapped",
        World(8) + Pp(2) + kDistributedOptimizer + Instances(2) + kOverlapAll}});
}

TEST(ParityTest, LossPerToken) {
  // Masks that differ from sample to sample.
  const Settings model = {"training.calculate_per_token_loss=true", "data.eod_mask_loss=true"};
  ExpectParity(model, {{"dp2", World(2)},
                       {"tp2", World(2) + Tp(2)},
                       {"pp2", World(2) + Pp(2)},
                       {"dp2 pp2 v2, distributed optimizer",
                        World(4) + Pp(2) + Vpp(2) + kDistributedOptimizer + kOverlapAll}});
}

TEST(ParityTest, MeanOfMicrobatchMeansWithUnequalMasks) {
  const Settings model = {"data.eod_mask_loss=true", "data.reset_attention_mask=true",
                          "data.reset_position_ids=true"};
  ExpectParity(model, {{"dp2", World(2)},
                       {"tp2, sp", World(2) + Tp(2) + kSequenceParallel},
                       {"pp2", World(2) + Pp(2)},
                       {"pp2 v2", World(2) + Pp(2) + Vpp(2)}});
}

TEST(ParityTest, Recomputation) {
  const Settings full = {"training.recompute_granularity=full", "training.recompute_method=uniform",
                         "training.recompute_num_layers=1"};
  const Settings block = {"training.recompute_granularity=full", "training.recompute_method=block",
                          "training.recompute_num_layers=1"};
  const Settings selective = {"training.recompute_granularity=selective"};
  ExpectParity({}, {{"one process, full", full},
                    {"one process, selective", selective},
                    {"tp2, sp, full", World(2) + Tp(2) + kSequenceParallel + full},
                    {"tp2, selective", World(2) + Tp(2) + selective},
                    {"pp2, block", World(2) + Pp(2) + block},
                    {"pp4, partial, block", World(4) + Pp(4) + block + kPartial},
                    {"tp2 pp2 v2, sp, partial, selective",
                     World(4) + Tp(2) + Pp(2) + Vpp(2) + kSequenceParallel + selective + kPartial},
                    {"dp2 pp2 v2, full, distributed optimizer",
                     World(4) + Pp(2) + Vpp(2) + full + kDistributedOptimizer + kOverlapAll}});
}

TEST(ParityTest, Sgd) {
  ExpectParity({"optimizer.optimizer=sgd", "optimizer.lr=0.02"},
               {{"tp2", World(2) + Tp(2)},
                {"dp2, distributed optimizer", World(2) + kDistributedOptimizer},
                {"pp2", World(2) + Pp(2)}});
}

TEST(ParityTest, GroupOverrides) {
  // A key norm's bias has a gradient of zero in theory; the larger eps keeps Adam from dividing its
  // rounding by itself.
  ExpectParity({"optimizer.adam_eps=1e-5", "optimizer.decoupled_lr=0.0005",
                "optimizer.decoupled_min_lr=0.0001", "model.qk_layernorm=true",
                "optimizer.apply_wd_to_qk_layernorm=true"},
               {{"tp2", World(2) + Tp(2)},
                {"tp2, sp", World(2) + Tp(2) + kSequenceParallel},
                {"pp2", World(2) + Pp(2)},
                {"dp4, distributed optimizer", World(4) + kDistributedOptimizer}});
}

TEST(ParityTest, Muon) {
  const Settings muon = {"optimizer.optimizer=muon", "optimizer.muon_matmul_precision=highest"};
  const Settings distributed = {"optimizer.muon_tp_mode=distributed"};
  const Settings layer_wise = {"optimizer.optimizer=dist_muon"};
  ExpectParity(muon, {{"dp2", World(2)},
                      {"tp2", World(2) + Tp(2)},
                      {"tp2, distributed", World(2) + Tp(2) + distributed},
                      {"tp2 pp2", World(4) + Tp(2) + Pp(2)},
                      {"dp2, layer-wise", World(2) + layer_wise},
                      {"dp4, layer-wise", World(4) + layer_wise},
                      {"dp2 tp2, layer-wise", World(4) + Tp(2) + layer_wise}});
}

TEST(ParityTest, MuonLlama) {
  ExpectParity(kLlama + Settings{"optimizer.optimizer=muon", "optimizer.muon_use_nesterov=true",
                                 "optimizer.muon_matmul_precision=highest"},
               {{"tp2", World(2) + Tp(2)},
                {"tp2 pp2 v2, sp", World(4) + Tp(2) + Pp(2) + Vpp(2) + kSequenceParallel}});
}

// Hidden dropout of regions that are replicated over tp is drawn alike on every tp rank, and alike
// in one process (reference 3). Attention dropout is not: each tp rank has heads of its own.
TEST(ParityTest, DropoutHasTheSameMasksWhereTheRegionIsReplicated) {
  ExpectParity({"model.attention_dropout=0", "model.hidden_dropout=0.1"},
               {{"tp2", World(2) + Tp(2)}, {"tp4", World(4) + Tp(4)}});
}

// What does not touch the generators leaves the masks as they are.
TEST(ParityTest, DropoutIsNotChangedByOverlapShardingOrRecomputation) {
  ParityModel parity({"model.attention_dropout=0.1", "model.hidden_dropout=0.1"});
  const Settings full = {"training.recompute_granularity=full", "training.recompute_method=uniform",
                         "training.recompute_num_layers=1"};
  const struct {
    const char* name;
    Settings plain, other;
  } rows[] = {
      {"one process, recomputed", {}, full},
      {"tp2 sp, recomputed", World(2) + Tp(2) + kSequenceParallel,
       World(2) + Tp(2) + kSequenceParallel + full},
      {"pp2, partially recomputed", World(2) + Pp(2), World(2) + Pp(2) + kPartial},
      {"pp2, recomputed", World(2) + Pp(2), World(2) + Pp(2) + full},
      {"dp2, overlapped", World(2), World(2) + kOverlapGradReduce},
      {"dp2 pp2 v2, distributed optimizer overlapped", World(4) + Pp(2) + Vpp(2),
       World(4) + Pp(2) + Vpp(2) + kDistributedOptimizer + kOverlapAll},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    ExpectSame(parity.Run(row.other), parity.Run(row.plain), Fp32Bounds());
  }
}

// A loss scale that overflows at first: the same steps are skipped, on all ranks, and the scale
// takes the same course. Gradients are summed over microbatches of loss / m and only then divided
// by the data-parallel size, so d ranks reach the values of one process with d times the scale.
// Gradients are accumulated in fp32: half sums overflow later than whole ones.
TEST(ParityTest, Fp16WithAForcedOverflow) {
  ParityModel parity({"training.fp16=true", "training.loss_scale_window=4", "training.hysteresis=1",
                      "training.train_iters=40",
                      "parallel.accumulate_allreduce_grads_in_fp32=true"});
  const double scale = 4294967296.0;
  const auto run = [&](int dp, const Settings& layout) {
    Curve curve = parity.Run(
        layout + Settings{absl::StrFormat("training.initial_loss_scale=%.17g", scale / dp)});
    for (StepMessage& step : curve.steps) step.loss_scale *= dp;
    return curve;
  };
  const Curve one = run(1, {});
  int skipped = 0;
  for (const StepMessage& step : one.steps) skipped += step.skipped ? 1 : 0;
  EXPECT_GT(skipped, 3);
  EXPECT_LT(skipped, 36);
  const Bounds bounds{.loss = 2e-2, .grad_norm = 0.1, .weight = 40 * 0.002};
  const struct {
    const char* name;
    int dp;
    Settings settings;
  } rows[] = {{"dp2", 2, World(2)},
              {"tp2", 1, World(2) + Tp(2)},
              {"pp2", 1, World(2) + Pp(2)},
              {"dp2, distributed optimizer", 2, World(2) + kDistributedOptimizer + kOverlapAll},
              {"dp2 tp2 pp2", 2, World(8) + Tp(2) + Pp(2)}};
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    ExpectSame(run(row.dp, row.settings), one, bounds);
  }
}

// Every data-parallel rank draws weights of its own and then gets those of the first one, which are
// those of one process.
TEST(ParityTest, RandomInitOfDataParallelRanksStartsFromTheFirstRanksWeights) {
  ParityModel parity({"training.fp64=true"});
  const Settings fresh = {"checkpoint.pretrained_checkpoint=null"};
  const Settings random = {"training.data_parallel_random_init=true"};
  const Curve one = parity.Run(fresh);
  ExpectSame(parity.Run(fresh + World(2) + random), one, Fp64Bounds());
  ExpectSame(parity.Run(fresh + World(4) + random + kDistributedOptimizer + kOverlapAll), one,
             Fp64Bounds());
}

TEST(ParityTest, Bf16StaysNear) {
  ParityModel parity({"training.bf16=true"});
  const Curve one = parity.Run({});
  const Bounds bounds{.loss = 1e-2, .grad_norm = 0.1, .weight = 10 * 0.002};
  for (const Layout& layout : std::vector<Layout>{
           {"tp2, sp", World(2) + Tp(2) + kSequenceParallel},
           {"pp2", World(2) + Pp(2)},
           {"dp2, distributed optimizer", World(2) + kDistributedOptimizer + kOverlapAll}}) {
    SCOPED_TRACE(layout.name);
    ExpectSame(parity.Run(layout.settings), one, bounds);
  }
}

}  // namespace
}  // namespace muster
