// Whole steps of data-parallel ranks: DistributedDataParallel with the distributed optimizer, with
// and without overlapped gathers and over one and two instances, against the same ranks that each
// hold everything.
#include <string>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "gtest/gtest.h"
#include "tests/worker/optim/optim_test_util.h"
#include "tests/worker/parallel/thread_ranks.h"
#include "worker/parallel/ddp.h"

namespace muster {
namespace {

constexpr int kSteps = 10;

struct Job {
  at::ScalarType dtype = at::kFloat;
  bool grads_in_fp32 = false;
  OptimizerOptions options;
  int dp = 2;
  int instances = 1;
  bool distributed = false;
  bool overlap = false;
};

// Two chunks, as of a rank with virtual stages.
std::vector<std::vector<ParameterPtr>> MakeChunks(at::ScalarType dtype) {
  const std::vector<std::vector<std::pair<std::string, std::vector<int64_t>>>> shapes = {
      {{"emb.weight", {50, 20}}, {"fc1.weight", {40, 20}}, {"fc1.bias", {40}}},
      {{"fc2.weight", {20, 41}}, {"fc2.bias", {20}}, {"head.weight", {50, 20}}}};
  std::vector<std::vector<ParameterPtr>> chunks;
  double phase = 0;
  for (const auto& of_chunk : shapes) {
    chunks.emplace_back();
    for (const auto& [name, shape] : of_chunk) {
      auto p = std::make_shared<Parameter>();
      p->name = name;
      p->data = Waves(shape, ++phase, dtype).set_requires_grad(true);
      p->is_embedding_or_output_parameter = name == "emb.weight" || name == "head.weight";
      chunks.back().push_back(p);
    }
  }
  return chunks;
}

// A rank's gradient: multiples of 1/64, so that sums over ranks are exact in any order.
at::Tensor RankGrad(const Parameter& p, int step, int rank, double phase) {
  const at::Tensor waves = Waves(p.data.sizes().vec(), phase + 5 * step + 50 * rank, at::kDouble);
  return (waves * 32).round().div_(64).to(p.data.scalar_type());
}

absl::StatusOr<std::vector<at::Tensor>> TrainRank(const Job& job, CommunicatorPtr world) {
  const auto topology = RankTopology::Create(
      {.world_size = job.dp, .num_distributed_optimizer_instances = job.instances});
  RETURN_IF_ERROR(topology.status());
  const int rank = world->rank();
  ASSIGN_OR_RETURN(const ParallelContext parallel,
                   ParallelContext::Create(*topology, rank, std::move(world)));
  JobSpec spec;
  spec.parallel.use_distributed_optimizer = job.distributed;
  const auto chunks = MakeChunks(job.dtype);
  ASSIGN_OR_RETURN(auto ddp,
                   DistributedDataParallel::Create(
                       chunks, DdpGroups::Of(parallel),
                       {.overlap_grad_reduce = job.overlap,
                        .grad_reduce_in_fp32 = job.grads_in_fp32,
                        .bucket_size = job.overlap ? std::optional<int64_t>(500) : std::nullopt,
                        .use_distributed_optimizer = job.distributed,
                        .overlap_param_gather = job.distributed && job.overlap}));
  std::vector<ParameterPtr> params;
  for (const auto& chunk : chunks) params.insert(params.end(), chunk.begin(), chunk.end());
  ASSIGN_OR_RETURN(
      auto optimizer,
      Optimizer::Create(params, ddp->shards(), OptimizerGroups::Of(parallel, spec), job.options));
  for (int step = 0; step < kSteps; ++step) {
    ddp->ZeroGradBuffer();
    for (const ParameterPtr& p : params) p->AwaitGather();  // the forward pass
    double phase = 0;
    for (auto p = params.rbegin(); p != params.rend(); ++p)
      (*p)->AccumulateGrad(RankGrad(**p, step, rank, ++phase));
    for (int chunk = 0; chunk < ddp->num_chunks(); ++chunk)
      RETURN_IF_ERROR(ddp->FinishGradSync(chunk));
    SetLr(*optimizer, 0.01, 0.1);
    ASSIGN_OR_RETURN(const PreparedStep prepared, optimizer->PrepareStep());
    if (!optimizer->CommitStep(prepared).success) return absl::InternalError("skipped");
    if (!ddp->options().overlap_param_gather) RETURN_IF_ERROR(ddp->SyncParams());
    RETURN_IF_ERROR(optimizer->GatherUpdatedParams());
    if (step == 0 && job.distributed && job.overlap) {
      RETURN_IF_ERROR(ddp->SyncParams());
      ddp->EnableForwardPreHook();
    }
  }
  if (ddp->forward_pre_hook_enabled()) RETURN_IF_ERROR(ddp->DisableForwardPreHook());
  std::vector<at::Tensor> values;
  for (const ParameterPtr& p : params) values.push_back(p->data.detach().clone());
  return values;
}

// Of every rank; all ranks must hold the same.
std::vector<at::Tensor> Train(const Job& job) {
  at::set_num_threads(1);
  std::vector<std::vector<at::Tensor>> values(job.dp);
  RunRanks(job.dp, [&](CommunicatorPtr world) -> absl::Status {
    const int rank = world->rank();
    ASSIGN_OR_RETURN(values[rank], TrainRank(job, std::move(world)));
    return absl::OkStatus();
  });
  for (int rank = 1; rank < job.dp; ++rank) {
    EXPECT_EQ(values[rank].size(), values[0].size());
    for (size_t i = 0; i < values[0].size(); ++i)
      EXPECT_TRUE(at::equal(values[rank][i], values[0][i])) << "rank " << rank << ", " << i;
  }
  return values[0];
}

void ExpectDistributedEqualsPlain(Job job) {
  for (const int dp : {2, 4}) {
    job.dp = dp;
    job.instances = 1;
    job.distributed = job.overlap = false;
    const std::vector<at::Tensor> plain = Train(job);
    job.distributed = true;
    for (const int instances : {1, 2}) {
      for (const bool overlap : {false, true}) {
        SCOPED_TRACE(testing::Message()
                     << "dp " << dp << ", instances " << instances << ", overlap " << overlap);
        job.instances = instances;
        job.overlap = overlap;
        const std::vector<at::Tensor> sharded = Train(job);
        for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::equal(plain[i], sharded[i])) << i;
      }
    }
  }
}

TEST(DdpOptimizerTest, AdamFp32) { ExpectDistributedEqualsPlain({.options = {.clip_grad = 0}}); }
TEST(DdpOptimizerTest, AdamFp64) {
  ExpectDistributedEqualsPlain({.dtype = at::kDouble, .options = {.clip_grad = 0}});
}
TEST(DdpOptimizerTest, AdamBf16WithGradientsInFp32) {
  ExpectDistributedEqualsPlain(
      {.dtype = at::kBFloat16, .grads_in_fp32 = true, .options = {.clip_grad = 0}});
}
TEST(DdpOptimizerTest, SgdBf16WithDecoupledLr) {
  ExpectDistributedEqualsPlain(
      {.dtype = at::kBFloat16,
       .grads_in_fp32 = true,
       .options = {.kind = OptimizerOptions::Kind::kSgd,
                   .clip_grad = 0,
                   .param_groups = {.decoupled_lr = 0.05, .decoupled_min_lr = 0.01}}});
}
// Squares of multiples of 1/256 add up exactly in fp64, so even the clipped steps are equal.
TEST(DdpOptimizerTest, AdamFp64Clipped) {
  ExpectDistributedEqualsPlain({.dtype = at::kDouble, .options = {.clip_grad = 1}});
}

TEST(DdpOptimizerTest, LayerWiseMuonEqualsPlain) {
  Job job{.dtype = at::kBFloat16,
          .grads_in_fp32 = true,
          .options = {.kind = OptimizerOptions::Kind::kMuon,
                      .param_groups = {.scalar_optimizer = "adam"}}};
  for (const int dp : {2, 3}) {
    job.dp = dp;
    job.options.layer_wise = false;
    const std::vector<at::Tensor> plain = Train(job);
    job.options.layer_wise = true;
    const std::vector<at::Tensor> layer_wise = Train(job);
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::equal(plain[i], layer_wise[i])) << i;
  }
}

}  // namespace
}  // namespace muster
