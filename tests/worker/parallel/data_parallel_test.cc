// Data parallelism over ranks as threads equals one process on the whole batch.
#include <algorithm>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "common/base/status.h"
#include "gtest/gtest.h"
#include "tests/worker/parallel/recording_communicator.h"
#include "tests/worker/parallel/thread_ranks.h"
#include "worker/parallel/ddp.h"
#include "worker/parallel/finalize_grads.h"

namespace muster {
namespace {

constexpr int kMicrobatches = 2, kSteps = 3, kRowsPerMicrobatch = 3;

at::Tensor Values(std::vector<int64_t> sizes, double phase) {
  int64_t numel = 1;
  for (int64_t s : sizes) numel *= s;
  return (at::arange(numel, at::kDouble) * 0.7 + phase).sin().view(sizes);
}

// Two layers; the input weight is used again at the output (tied).
std::vector<at::Tensor> InitialWeights() {
  return {Values({16, 8}, 0.1), Values({16}, 0.2), Values({16, 16}, 0.3), Values({16}, 0.4),
          Values({8}, 0.5)};
}
at::Tensor Loss(const std::vector<at::Tensor>& w, const at::Tensor& rows) {
  const at::Tensor h = at::gelu(at::linear(rows, w[0], w[1]));
  const at::Tensor g = at::tanh(at::linear(h, w[2], w[3]));
  return (at::matmul(g, w[0]) + w[4] - rows.cos()).square().mean();
}

// (ranks * microbatches * rows, 8) of one step.
at::Tensor BatchOfStep(int step, int ranks) {
  return Values({ranks * kMicrobatches * kRowsPerMicrobatch, 8}, 10.0 + step);
}

struct RankRun {
  std::vector<std::vector<at::Tensor>> grads;                            // step, parameter
  std::vector<std::vector<std::string>> in_no_sync, in_last, in_finish;  // events of each step
};

std::vector<RankRun> RunDataParallel(int ranks, bool overlap) {
  std::vector<RankRun> runs(ranks);
  RunRanks(ranks, [&](CommunicatorPtr world) -> absl::Status {
    RankRun& run = runs[world->rank()];
    std::vector<ParameterPtr> params;
    std::vector<at::Tensor> weights;
    for (const at::Tensor& value : InitialWeights()) {
      auto p = std::make_shared<Parameter>();
      p->name = absl::StrCat("w", params.size());
      // Ranks start from different values; BroadcastParams makes them rank 0's.
      p->data = (value + world->rank()).set_requires_grad(true);
      params.push_back(p);
      weights.push_back(p->data);
    }
    RecordingCommunicator recorder(*world);
    const DdpOptions options{.overlap_grad_reduce = overlap, .bucket_size = 100};
    {
      // The recorder takes all-reduces only.
      ASSIGN_OR_RETURN(auto plain,
                       DistributedDataParallel::Create(
                           {params}, {.dp_cp = world.get(), .expert_dp = world.get()}, options));
      RETURN_IF_ERROR(plain->BroadcastParams());
    }
    ASSIGN_OR_RETURN(auto ddp,
                     DistributedDataParallel::Create(
                         {params}, {.dp_cp = &recorder, .expert_dp = &recorder}, options));
    for (int step = 0; step < kSteps; ++step) {
      ddp->ZeroGradBuffer();
      const at::Tensor batch = BatchOfStep(step, ranks);
      auto backward = [&](int microbatch) {
        const int first = (world->rank() * kMicrobatches + microbatch) * kRowsPerMicrobatch;
        (Loss(weights, batch.narrow(0, first, kRowsPerMicrobatch)) / kMicrobatches).backward();
      };
      {
        auto no_sync = ddp->no_sync();
        for (int m = 0; m + 1 < kMicrobatches; ++m) backward(m);
      }
      run.in_no_sync.push_back(recorder.TakeEvents());
      backward(kMicrobatches - 1);
      run.in_last.push_back(recorder.TakeEvents());
      RETURN_IF_ERROR(ddp->FinishGradSync(0));
      run.in_finish.push_back(recorder.TakeEvents());
      run.grads.emplace_back();
      for (const ParameterPtr& p : params) run.grads.back().push_back(p->main_grad.clone());
    }
    return absl::OkStatus();
  });
  return runs;
}

class DataParallelTest : public ::testing::TestWithParam<int> {
 protected:
  // Must come before ranks start (threads as ranks make a team each otherwise).
  static void SetUpTestSuite() { at::set_num_threads(1); }
};

TEST_P(DataParallelTest, GradientsEqualOneProcessOnTheWholeBatch) {
  const int ranks = GetParam();
  for (bool overlap : {false, true}) {
    SCOPED_TRACE(overlap ? "overlap" : "no overlap");
    const std::vector<RankRun> runs = RunDataParallel(ranks, overlap);
    for (int step = 0; step < kSteps; ++step) {
      std::vector<at::Tensor> weights = InitialWeights();
      for (at::Tensor& w : weights) w.set_requires_grad(true);
      Loss(weights, BatchOfStep(step, ranks)).backward();
      for (const RankRun& run : runs) {
        ASSERT_EQ(run.grads.size(), static_cast<size_t>(kSteps));
        for (size_t i = 0; i < weights.size(); ++i) {
          EXPECT_LE((run.grads[step][i] - weights[i].grad()).abs().max().item<double>(), 1e-12);
          EXPECT_TRUE(at::equal(run.grads[step][i], runs[0].grads[step][i]));
        }
      }
    }
  }
}

TEST_P(DataParallelTest, OverlapChangesNoBit) {
  const std::vector<RankRun> off = RunDataParallel(GetParam(), false);
  const std::vector<RankRun> on = RunDataParallel(GetParam(), true);
  for (int step = 0; step < kSteps; ++step)
    for (size_t i = 0; i < off[0].grads[step].size(); ++i)
      EXPECT_TRUE(at::equal(off[0].grads[step][i], on[0].grads[step][i]));
}

TEST_P(DataParallelTest, EachBucketIsReducedOnceAStepAndNoneUnderNoSync) {
  for (bool overlap : {false, true}) {
    for (const RankRun& run : RunDataParallel(GetParam(), overlap)) {
      for (int step = 0; step < kSteps; ++step) {
        EXPECT_TRUE(run.in_no_sync[step].empty());
        std::vector<std::string> started;
        auto collect = [&](const std::vector<std::string>& events) {
          for (const std::string& e : events)
            if (e.rfind("start", 0) == 0) started.push_back(e);
        };
        collect(run.in_last[step]);
        // From the second step on the reductions start while the backward pass runs.
        EXPECT_EQ(started.size(), overlap && step > 0 ? 2u : 0u);
        collect(run.in_finish[step]);
        EXPECT_EQ(started.size(), overlap ? 2u : 1u);
        std::sort(started.begin(), started.end());
        EXPECT_EQ(std::unique(started.begin(), started.end()), started.end());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, DataParallelTest, ::testing::Values(2, 4));

// Golden G5.1: (sum, tokens) of each rank's two microbatches; theta = 1 multiplies every loss, so
// its gradient is the objective's value.
TEST(GradScalingTest, GoldenG5_1) {
  struct Microbatch {
    double sum;
    int64_t tokens;
  };
  const Microbatch data[2][2] = {{{6, 3}, {4, 1}}, {{2, 2}, {8, 4}}};
  at::set_num_threads(1);
  for (bool per_token : {false, true}) {
    for (bool average_in_collective : {false, true}) {
      if (per_token && average_in_collective) continue;  // excluded by Create
      SCOPED_TRACE(testing::Message() << per_token << average_in_collective);
      double gradients[2] = {0, 0};
      RunRanks(2, [&](CommunicatorPtr world) -> absl::Status {
        ASSIGN_OR_RETURN(const RankTopology topology, RankTopology::Create({.world_size = 2}));
        ASSIGN_OR_RETURN(const ParallelContext parallel,
                         ParallelContext::Create(topology, world->rank(), world));
        auto theta = std::make_shared<Parameter>();
        theta->name = "theta";
        theta->data = at::ones({1}, at::kDouble).set_requires_grad(true);
        ASSIGN_OR_RETURN(auto ddp, DistributedDataParallel::Create(
                                       {{theta}}, DdpGroups::Of(parallel),
                                       {.average_in_collective = average_in_collective,
                                        .calculate_per_token_loss = per_token}));
        ddp->ZeroGradBuffer();
        int64_t tokens = 0;
        for (const Microbatch& m : data[world->rank()]) {
          const double scale = per_token ? 1.0 : 1.0 / std::max<int64_t>(m.tokens, 1) / 2;
          (theta->data * m.sum * scale).sum().backward();
          tokens += m.tokens;
        }
        std::optional<at::Tensor> num_tokens;
        if (per_token) num_tokens = at::full({}, tokens, at::kLong);
        RETURN_IF_ERROR(FinalizeModelGrads(*ddp, parallel, num_tokens));
        gradients[world->rank()] = theta->main_grad.item<double>();
        return absl::OkStatus();
      });
      EXPECT_DOUBLE_EQ(gradients[0], per_token ? 2.0 : 2.25);
      EXPECT_EQ(gradients[0], gradients[1]);
    }
  }
}

}  // namespace
}  // namespace muster
