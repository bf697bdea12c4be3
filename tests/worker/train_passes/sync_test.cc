// Pipelines whose chunks are wrapped for real data parallelism: two replicas of two stages.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/worker/train_passes/toy_pipeline.h"
#include "worker/comm/thread_communicator.h"

namespace muster {
namespace {

const ToyShape kShape;

struct Groups {
  CommunicatorPtr dp, pp;
};
// Rank = 2 * pp_rank + dp_rank.
absl::StatusOr<Groups> SplitWorld(Communicator& world) {
  const int dp_rank = world.rank() % 2, stage = world.rank() / 2;
  Groups groups;
  ASSIGN_OR_RETURN(groups.dp, world.Split("dp", {2 * stage, 2 * stage + 1}));
  ASSIGN_OR_RETURN(groups.pp, world.Split("pp", {dp_rank, 2 + dp_rank}));
  return groups;
}

// The mean over both replicas.
ToyReference MeanReference(int num_stages, int num_microbatches,
                           const std::map<std::string, at::Tensor>& weights = {}) {
  ToyReference mean = RunReference(kShape, num_stages, num_microbatches, 0, weights);
  const ToyReference other = RunReference(kShape, num_stages, num_microbatches, 1, weights);
  for (auto& [name, gradient] : mean.gradients) {
    gradient = (gradient + other.gradients.at(name)) / 2;
  }
  return mean;
}

struct Case {
  ScheduleOptions options;
  DdpOptions ddp;
};

void CheckGradients(const Case& c) {
  SCOPED_TRACE(absl::StrCat("v", c.options.virtual_pp, c.options.overlap_p2p_comm ? " p2p" : "",
                            c.ddp.overlap_grad_reduce ? " overlap_grad_reduce" : "",
                            c.options.has_grad_sync_func ? " align" : ""));
  const ToyReference want = MeanReference(2 * c.options.virtual_pp, c.options.num_microbatches);
  const auto results = RunToyRanks(MakeThreadWorld(4), [&](Communicator& world) -> absl::Status {
    ASSIGN_OR_RETURN(const Groups groups, SplitWorld(world));
    ASSIGN_OR_RETURN(const RankSchedule schedule, MakeRankSchedule(c.options, groups.pp->rank()));
    ToyRank toy(kShape, c.options, groups.pp->rank(), groups.dp->rank());
    RETURN_IF_ERROR(toy.Wrap(c.ddp, groups.dp.get()));
    // The first step teaches the buckets their counts; the others reduce in the backward pass.
    for (int step = 0; step < 3; ++step) {
      toy.Rewind();
      toy.ddp->ZeroGradBuffer();
      RETURN_IF_ERROR(RunForwardBackward(toy.PassOptions(schedule, *groups.pp)).status());
      ASSIGN_OR_RETURN(const auto gradients, toy.FinishGradients());
      const std::string wrong = CompareGradients(gradients, want);
      if (!wrong.empty()) return absl::InternalError(absl::StrCat("step ", step, ": ", wrong));
    }
    return absl::OkStatus();
  });
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
}

TEST(PipelineSyncTest, GradientsOfReplicatedStagesAreTheMean) {
  for (const int v : {1, 2}) {
    for (const bool p2p : {false, true}) {
      if (p2p && v == 1) continue;
      for (const auto& [overlap, align] : {std::pair(false, false), {true, false}, {true, true}}) {
        CheckGradients({.options = {.pp = 2,
                                    .virtual_pp = v,
                                    .num_microbatches = 4,
                                    .overlap_p2p_comm = p2p,
                                    .has_grad_sync_func = align},
                        .ddp = {.overlap_grad_reduce = overlap, .bucket_size = 10}});
      }
    }
  }
}

}  // namespace
}  // namespace muster
