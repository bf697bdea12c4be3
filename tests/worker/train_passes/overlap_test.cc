// One rank against peers that answer late: what an overlapped exchange is not waited for.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/worker/train_passes/recording_pipeline.h"
#include "tests/worker/train_passes/toy_pipeline.h"

namespace muster {
namespace {

const ToyShape kShape;

struct LoneRun {
  std::string text;
  int most_pending = 0;
  int passes_meanwhile = 0;  // passes that ran while an exchange was under way
};

LoneRun RunAlone(const ScheduleOptions& options, int rank) {
  LoneRun out;
  const auto schedule = MakeRankSchedule(options, rank);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  ToyRank toy(kShape, options, rank);
  EXPECT_TRUE(toy.Wrap().ok());
  toy.ddp->ZeroGradBuffer();
  LatePipeline pp(rank, options.pp);
  std::vector<int> num_forward(toy.chunks.size()), num_backward(toy.chunks.size());
  for (size_t c = 0; c < toy.chunks.size(); ++c) {
    toy.chunks[c]->on_forward = [&, c] {
      pp.events.push_back(absl::StrCat("F", c, ".", num_forward[c]++));
      out.passes_meanwhile += pp.num_pending > 0;
    };
    toy.chunks[c]->parameters()[c == 0 && rank == 0 ? 2 : 1]->data.register_hook(
        [&, c](const at::Tensor&) {
          pp.events.push_back(absl::StrCat("B", c, ".", num_backward[c]++));
          out.passes_meanwhile += pp.num_pending > 0;
        });
  }
  const auto result = RunForwardBackward(toy.PassOptions(*schedule, pp));
  EXPECT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(pp.num_pending, 0) << "left behind at the end";
  // NaN here: a tensor was read before its operation was waited for.
  const auto gradients = toy.FinishGradients();
  for (const auto& [name, gradient] : *gradients) {
    EXPECT_TRUE(at::isfinite(gradient).all().item<bool>()) << name;
  }
  out.text = absl::StrJoin(pp.events, " ");
  out.most_pending = pp.most_pending;
  return out;
}

TEST(OverlapTest, WithoutItEveryExchangeIsWaitedForWhereItStands) {
  const LoneRun run = RunAlone({.pp = 2, .virtual_pp = 2, .num_microbatches = 2}, 1);
  EXPECT_EQ(run.passes_meanwhile, 0);
  EXPECT_EQ(run.most_pending, 1);
  EXPECT_TRUE(absl::StartsWith(run.text, "rf wait:rf F0.0 sf+rf wait:sf+rf F0.1")) << run.text;
}

// List G4.6 of the reference, with m = 2.
TEST(OverlapTest, AReceiveIsWaitedForWhereItsTensorIsNeeded) {
  const LoneRun run =
      RunAlone({.pp = 2, .virtual_pp = 2, .num_microbatches = 2, .overlap_p2p_comm = true}, 1);
  EXPECT_EQ(run.text,
            "rf wait:rf F0.0 sf+rf wait:sf+rf F0.1 sf+rf wait:sf+rf F1.0 rf B1.0 sb wait:rf F1.1 "
            "B1.1 sb+rb wait:sb+rb B0.0 sb+rb wait:sb+rb B0.1 sb wait:sb wait:sb");
}

TEST(OverlapTest, PassesRunWhileExchangesAreUnderWay) {
  for (const int rank : {0, 1, 2, 3}) {
    SCOPED_TRACE(rank);
    const ScheduleOptions options{
        .pp = 4, .virtual_pp = 2, .num_microbatches = 8, .overlap_p2p_comm = true};
    const LoneRun run = RunAlone(options, rank);
    // Nearly all of 2 * 8 forward and 2 * 8 backward passes.
    EXPECT_GE(run.passes_meanwhile, 24);
    // Two a direction with sends, and those whose tensor is still to come.
    EXPECT_LE(run.most_pending, 8);
  }
}

}  // namespace
}  // namespace muster
