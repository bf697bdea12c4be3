// The parity matrix, context parallelism: sequences cut over ranks give the numbers of one process.

#include <string>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/parity/parity_settings.h"

namespace muster {
namespace {

const Settings kHierarchy = {"parallel.hierarchical_context_parallel_sizes=[2,2]"};

void ExpectParityOfEveryCommType(const Settings& model) {
  ExpectParity(model, {{"cp2, p2p", World(2) + Cp(2)},
                       {"cp2, all_gather", World(2) + Cp(2, "all_gather")},
                       {"cp2, a2a", World(2) + Cp(2, "a2a")},
                       {"cp4, p2p", World(4) + Cp(4)},
                       {"cp4, all_gather", World(4) + Cp(4, "all_gather")},
                       {"cp4, a2a", World(4) + Cp(4, "a2a")},
                       {"cp4, a2a+p2p", World(4) + Cp(4, "a2a+p2p") + kHierarchy}});
}

TEST(ContextParityTest, EveryCommType) { ExpectParityOfEveryCommType({}); }

TEST(ContextParityTest, EveryCommTypeLlama) {
  ExpectParityOfEveryCommType(kLlama + Settings{"model.num_query_groups=4"});
}

TEST(ContextParityTest, FewQueryGroups) {
  ExpectParity(kLlama, {{"cp2, a2a", World(2) + Cp(2, "a2a")},
                        {"cp4, p2p", World(4) + Cp(4)},
                        {"cp4, all_gather", World(4) + Cp(4, "all_gather")}});
}

TEST(ContextParityTest, OneCommTypeALayer) {
  ExpectParity({}, {{"cp2", World(2) + Settings{"parallel.context_parallel_size=2",
                                                "parallel.cp_comm_type=[\"p2p\",\"all_gather\","
                                                "\"a2a\",\"p2p\"]"}}});
}

TEST(ContextParityTest, WithTensorPipelineAndDataParallelism) {
  ExpectParity({}, {{"tp2 cp2", World(4) + Tp(2) + Cp(2)},
                    {"tp2 cp2, sp", World(4) + Tp(2) + Cp(2) + kSequenceParallel},
                    {"tp2 cp2, a2a", World(4) + Tp(2) + Cp(2, "a2a")},
                    {"pp2 cp2", World(4) + Pp(2) + Cp(2)},
                    {"pp2 v2 cp2, all_gather", World(4) + Pp(2) + Vpp(2) + Cp(2, "all_gather")},
                    {"tp2 cp2 pp2, sp", World(8) + Tp(2) + Cp(2) + Pp(2) + kSequenceParallel},
                    {"dp2 cp2, overlapped", World(4) + Cp(2) + kOverlapGradReduce},
                    {"dp2 cp2, distributed optimizer",
                     World(4) + Cp(2) + kDistributedOptimizer + kOverlapAll},
                    {"dp2 cp2, two instances",
                     World(4) + Cp(2) + kDistributedOptimizer + Instances(2) + kOverlapAll}});
}

TEST(ContextParityTest, WithTensorPipelineAndDataParallelismLlama) {
  ExpectParity(
      kLlama,
      {{"tp2 cp2, sp", World(4) + Tp(2) + Cp(2) + kSequenceParallel},
       {"tp2 cp2 pp2 v2, sp", World(8) + Tp(2) + Cp(2) + Pp(2) + Vpp(2) + kSequenceParallel},
       {"dp2 cp2, distributed optimizer", World(4) + Cp(2) + kDistributedOptimizer + kOverlapAll}});
}

TEST(ContextParityTest, Recomputation) {
  const Settings full = {"training.recompute_granularity=full", "training.recompute_method=uniform",
                         "training.recompute_num_layers=1"};
  const Settings selective = {"training.recompute_granularity=selective"};
  ExpectParity({},
               {{"cp2, full", World(2) + Cp(2) + full},
                {"cp2, all_gather, selective", World(2) + Cp(2, "all_gather") + selective},
                {"cp2 pp2, selective, partial", World(4) + Cp(2) + Pp(2) + selective + kPartial}});
}

// Masks that differ from sample to sample: the sum over tokens is the same however they are spread.
TEST(ContextParityTest, LossPerToken) {
  ExpectParity({"training.calculate_per_token_loss=true", "data.eod_mask_loss=true"},
               {{"cp2", World(2) + Cp(2)},
                {"cp4, a2a", World(4) + Cp(4, "a2a")},
                {"pp2 cp2", World(4) + Pp(2) + Cp(2)},
                {"dp2 cp2", World(4) + Cp(2)}});
}

// A mask of documents is cut on its query dimension; the loss counts all tokens.
TEST(ContextParityTest, MasksOfDocuments) {
  ExpectParity({"data.reset_attention_mask=true", "data.reset_position_ids=true"},
               {{"cp2, p2p", World(2) + Cp(2)},
                {"cp2, all_gather", World(2) + Cp(2, "all_gather")},
                {"cp2, a2a", World(2) + Cp(2, "a2a")},
                {"tp2 cp2, sp", World(4) + Tp(2) + Cp(2) + kSequenceParallel},
                {"pp2 cp2", World(4) + Pp(2) + Cp(2)}});
}

// The mean over ranks of their own means is not the mean over tokens where masks differ (reference
// 5.1): then a context parallel rank counts as a data parallel one, and layouts of equal dp x cp
// and equal slices agree.
TEST(ContextParityTest, MeanOfLocalMeans) {
  ParityModel parity({"training.fp64=true", "data.eod_mask_loss=true"});
  const Curve cp2 = parity.Run(World(2) + Cp(2));
  ASSERT_EQ(cp2.steps.size(), 10u);
  const Curve one = parity.Run({});
  EXPECT_NE(cp2.steps.back().lm_loss, one.steps.back().lm_loss);
  for (const Layout& layout : std::vector<Layout>{
           {"all_gather", World(2) + Cp(2, "all_gather")},
           {"tp2", World(4) + Tp(2) + Cp(2)},
           {"pp2", World(4) + Pp(2) + Cp(2)},
           {"dp2, distributed optimizer", World(4) + Cp(2) + kDistributedOptimizer + kOverlapAll},
           {"tp2 pp2, sp", World(8) + Tp(2) + Cp(2) + Pp(2) + kSequenceParallel}}) {
    SCOPED_TRACE(layout.name);
    ExpectSame(parity.Run(layout.settings), cp2, Fp64Bounds());
  }
}

}  // namespace
}  // namespace muster
