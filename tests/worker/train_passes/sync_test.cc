// Pipelines whose chunks are wrapped for real data parallelism: two replicas of two stages.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "tests/worker/parallel/recording_communicator.h"
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
ToyReference MeanReference(int num_stages, int num_microbatches) {
  ToyReference mean = RunReference(kShape, num_stages, num_microbatches, 0);
  const ToyReference other = RunReference(kShape, num_stages, num_microbatches, 1);
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

// What this rank's optimizer owns moves down its gradient; the rest comes with the next gather.
void Descend(const DistributedDataParallel& ddp, double rate) {
  c10::NoGradGuard no_grad;
  for (const OwnedShard& shard : ddp.shards()) shard.data.sub_(shard.grad, rate);
}

void CheckDescent(bool align) {
  SCOPED_TRACE(align ? "align_param_gather" : "gathers when parameters are needed");
  constexpr int kNumSteps = 4;
  constexpr double kRate = 0.05;
  ScheduleOptions options{
      .pp = 2, .virtual_pp = 2, .num_microbatches = 4, .overlap_p2p_comm = true};
  // Weights of every step, without a pipeline.
  std::vector<std::map<std::string, at::Tensor>> weights(1);
  std::vector<ToyReference> want[2];
  for (int step = 0; step < kNumSteps; ++step) {
    for (const int dp_rank : {0, 1}) {
      want[dp_rank].push_back(RunReference(kShape, 4, 4, dp_rank, weights.back()));
    }
    std::map<std::string, at::Tensor> next = weights.back();
    for (const auto& [name, gradient] : want[0].back().gradients) {
      const at::Tensor mean = (gradient + want[1].back().gradients.at(name)) / 2;
      next[name] = want[0].back().weights.at(name) - mean * kRate;
    }
    weights.push_back(std::move(next));
  }

  const auto results = RunToyRanks(MakeThreadWorld(4), [&](Communicator& world) -> absl::Status {
    ASSIGN_OR_RETURN(const Groups groups, SplitWorld(world));
    const int dp_rank = groups.dp->rank();
    ToyRank toy(kShape, options, groups.pp->rank(), dp_rank);
    RecordingCommunicator dp(*groups.dp);
    std::vector<std::string> events;
    dp.ShareEvents(&events);
    RETURN_IF_ERROR(toy.Wrap({.overlap_grad_reduce = true,
                              .use_distributed_optimizer = true,
                              .overlap_param_gather = true,
                              .align_param_gather = align},
                             &dp));
    for (const auto& chunk : toy.chunks) {
      chunk->on_forward = [&] { events.push_back("forward"); };
    }
    for (int step = 0; step < kNumSteps; ++step) {
      ScheduleOptions now = options;
      now.has_param_sync_func = align && step > 0;
      ASSIGN_OR_RETURN(const RankSchedule schedule, MakeRankSchedule(now, groups.pp->rank()));
      toy.Rewind();
      toy.ddp->ZeroGradBuffer();
      events.clear();
      ASSIGN_OR_RETURN(const ForwardBackwardResult result,
                       RunForwardBackward(toy.PassOptions(schedule, *groups.pp)));
      for (const auto& [key, reported] : result.reported) {
        const at::Tensor& expected = want[dp_rank][step].reported;
        if (!at::allclose(reported, expected, 1e-12, 1e-12)) {
          return absl::InternalError(absl::StrCat("step ", step, ": loss ",
                                                  reported[0].item<double>(), " on replica ",
                                                  dp_rank, ", not ", expected[0].item<double>()));
        }
      }
      // Both chunks' parameters travel before anything runs, on both stages.
      if (now.has_param_sync_func) {
        const auto first = std::find(events.begin(), events.end(), "forward");
        const auto is_gather = [](const std::string& event) {
          return absl::StrContains(event, " gather") && !absl::StrContains(event, "wait");
        };
        if (std::count_if(events.begin(), first, is_gather) < 2 ||
            std::any_of(first, events.end(), is_gather)) {
          return absl::InternalError(absl::StrJoin(events, ", "));
        }
      }
      RETURN_IF_ERROR(toy.FinishGradients().status());
      Descend(*toy.ddp, kRate);
      if (step == 0) toy.ddp->EnableForwardPreHook();
    }
    return toy.ddp->DisableForwardPreHook();
  });
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
}

TEST(PipelineSyncTest, ShardedParametersAreWholeBeforeTheyAreUsed) {
  for (const bool align : {false, true}) CheckDescent(align);
}

}  // namespace
}  // namespace muster
