// The distributed optimizer over ranks as threads equals all-reduced gradients and whole updates,
// on models drawn from a seed: gradients, parameters after the gather, and no stale parameter.
#include <cstdlib>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "gtest/gtest.h"
#include "tests/worker/parallel/late_communicator.h"
#include "tests/worker/parallel/thread_ranks.h"
#include "worker/parallel/ddp.h"

namespace muster {
namespace {

using Chunks = std::vector<std::vector<ParameterPtr>>;

at::Tensor Normal(std::vector<int64_t> sizes, at::ScalarType dtype, uint64_t seed) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(sizes, generator, at::kDouble).to(dtype);
}

// The same on every rank: shapes and flags come from `seed` alone.
Chunks DrawModel(uint64_t seed, int num_chunks, const std::vector<at::ScalarType>& dtypes) {
  std::mt19937_64 random(seed);
  Chunks chunks(num_chunks);
  int count = 0;
  for (auto& chunk : chunks) {
    const int num_params = 1 + static_cast<int>(random() % 8);
    const int tied = random() % 2 ? static_cast<int>(random() % num_params) : -1;
    for (int i = 0; i < num_params; ++i) {
      auto p = std::make_shared<Parameter>();
      p->name = absl::StrCat("p", count);
      const int64_t rows = 1 + static_cast<int64_t>(random() % 40);
      const int64_t columns = 1 + static_cast<int64_t>(random() % 20);
      const at::ScalarType dtype = dtypes[random() % dtypes.size()];
      p->data = Normal({rows, columns}, dtype, seed + 77 * ++count).set_requires_grad(true);
      p->allreduce = random() % 4 != 0;
      p->shared_embedding = i == tied;
      chunk.push_back(p);
    }
  }
  return chunks;
}

DdpOptions DrawOptions(uint64_t seed) {
  std::mt19937_64 random(seed ^ 0x5eed);
  DdpOptions options{.overlap_grad_reduce = random() % 4 != 0, .use_distributed_optimizer = true};
  options.grad_reduce_in_fp32 = random() % 2;
  options.average_in_collective = random() % 2;
  if (random() % 3 != 0) options.bucket_size = 1 + static_cast<int64_t>(random() % 900);
  options.overlap_param_gather = options.overlap_grad_reduce;
  options.align_param_gather = random() % 2;
  return options;
}

// The same model with all-reduced gradients and whole updates.
DdpOptions Plain(DdpOptions options) {
  options.use_distributed_optimizer = options.overlap_param_gather = false;
  return options;
}

// One backward pass: a gradient for each parameter from the end of the model to its start.
void Contribute(const Chunks& chunks, uint64_t seed) {
  for (auto chunk = chunks.rbegin(); chunk != chunks.rend(); ++chunk) {
    for (auto p = chunk->rbegin(); p != chunk->rend(); ++p)
      (*p)->AccumulateGrad(Normal((*p)->data.sizes().vec(), (*p)->data.scalar_type(), ++seed));
  }
}

// What an optimizer does, element by element.
void Update(const std::vector<OwnedShard>& shards) {
  at::NoGradGuard no_grad;
  for (const OwnedShard& shard : shards) shard.data.sub_(shard.grad.to(shard.data.dtype()) * 0.25);
}

absl::Status ReduceStep(DistributedDataParallel& ddp, const Chunks& chunks, uint64_t seed) {
  ddp.ZeroGradBuffer();
  {
    auto no_sync = ddp.no_sync();
    Contribute(chunks, seed);
  }
  Contribute(chunks, seed + 500);
  for (int chunk = 0; chunk < ddp.num_chunks(); ++chunk) RETURN_IF_ERROR(ddp.FinishGradSync(chunk));
  return absl::OkStatus();
}

// How far apart sums in different orders may be.
double Tolerance(at::ScalarType dtype, bool same_order) {
  if (same_order) return 0;
  return dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 1e-5 : 0.1;
}

absl::Status ExpectNear(const at::Tensor& got, const at::Tensor& want, double tolerance,
                        const std::string& what) {
  const double error =
      (got.detach().to(at::kDouble) - want.detach().to(at::kDouble)).abs().max().item<double>();
  if (error <= tolerance) return absl::OkStatus();  // NaN is not
  return absl::InternalError(absl::StrCat(what, " differs by ", error));
}

absl::Status CompareSteps(const ParallelContext& parallel, uint64_t seed, bool same_order,
                          const std::vector<at::ScalarType>& dtypes) {
  const int num_chunks = 1 + static_cast<int>(seed % 3);
  const DdpOptions options = DrawOptions(seed);
  const Chunks sharded = DrawModel(seed, num_chunks, dtypes);
  const Chunks whole = DrawModel(seed, num_chunks, dtypes);
  const DdpGroups groups = DdpGroups::Of(parallel);
  ASSIGN_OR_RETURN(auto ddp, DistributedDataParallel::Create(sharded, groups, options));
  ASSIGN_OR_RETURN(auto plain, DistributedDataParallel::Create(whole, groups, Plain(options)));
  const std::vector<OwnedShard> owned = ddp->shards(), all = plain->shards();
  // Ranks that start from different values (data_parallel_random_init) are made equal.
  for (const Chunks* model : {&sharded, &whole})
    for (const auto& chunk : *model)
      for (const ParameterPtr& p : chunk) p->data.detach().add_(parallel.rank());
  RETURN_IF_ERROR(ddp->BroadcastParams());
  RETURN_IF_ERROR(plain->BroadcastParams());

  for (int step = 0; step < 3; ++step) {
    const uint64_t gradients = seed * 10007 + step * 101 + parallel.rank() * 1009;
    RETURN_IF_ERROR(ReduceStep(*ddp, sharded, gradients));
    RETURN_IF_ERROR(ReduceStep(*plain, whole, gradients));
    auto twin = [&](const Parameter& p) {
      for (const OwnedShard& shard : all)
        if (shard.parameter->name == p.name) return shard.parameter;
      return ParameterPtr();
    };
    for (const OwnedShard& shard : owned) {
      const Parameter& p = *shard.parameter;
      const at::Tensor want =
          twin(p)->main_grad.view(-1).narrow(0, shard.in_param.begin, shard.in_param.size());
      RETURN_IF_ERROR(ExpectNear(shard.grad.view(-1), want,
                                 Tolerance(p.main_grad.scalar_type(), same_order),
                                 absl::StrCat("step ", step, ": gradient of ", p.name)));
    }
    Update(owned);
    Update(all);
    RETURN_IF_ERROR(ddp->SyncParams());
    for (const auto& chunk : sharded) {
      for (const ParameterPtr& p : chunk) {
        RETURN_IF_ERROR(ExpectNear(p->data, twin(*p)->data,
                                   Tolerance(p->main_grad.scalar_type(), same_order),
                                   absl::StrCat("step ", step, ": ", p->name)));
        // All members of the reduction group hold the same bits.
        const at::Tensor highest = p->data.detach().to(at::kDouble).clone();
        Communicator& group = p->allreduce ? *groups.dp_cp : *groups.expert_dp;
        RETURN_IF_ERROR(group.AllReduce(highest, ReduceOp::kMax)->Wait());
        RETURN_IF_ERROR(ExpectNear(p->data, highest, 0, absl::StrCat(p->name, " on some rank")));
      }
    }
  }
  return absl::OkStatus();
}

struct Layout {
  std::string name;
  TopologySpec topology;
  friend std::ostream& operator<<(std::ostream& out, const Layout& layout) {
    return out << layout.name;
  }
};

class ShardedTrainingTest : public ::testing::TestWithParam<Layout> {
 protected:
  static void SetUpTestSuite() { at::set_num_threads(1); }
};

TEST_P(ShardedTrainingTest, EqualsAllReducedGradientsAndWholeUpdates) {
  const TopologySpec& spec = GetParam().topology;
  // One instance adds in the order of the all-reduce, so that even bits are equal.
  const bool same_order = spec.num_distributed_optimizer_instances == 1;
  std::vector<at::ScalarType> dtypes = {at::kDouble, at::kFloat};
  if (same_order) dtypes.push_back(at::kBFloat16);
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    RunRanks(spec.world_size, [&](CommunicatorPtr world) -> absl::Status {
      ASSIGN_OR_RETURN(const RankTopology topology, RankTopology::Create(spec));
      ASSIGN_OR_RETURN(const ParallelContext parallel,
                       ParallelContext::Create(topology, world->rank(), world));
      return CompareSteps(parallel, seed, same_order, dtypes);
    });
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ShardedTrainingTest,
    ::testing::Values(
        Layout{"Dp2", {.world_size = 2}}, Layout{"Dp3", {.world_size = 3}},
        Layout{"Dp4Ep2", {.world_size = 4, .ep = 2}}, Layout{"Dp2Cp2", {.world_size = 4, .cp = 2}},
        Layout{"Dp4Instances2", {.world_size = 4, .num_distributed_optimizer_instances = 2}},
        Layout{"Dp4Instances4", {.world_size = 4, .num_distributed_optimizer_instances = 4}},
        Layout{"Dp4Ep2Instances2",
               {.world_size = 4, .ep = 2, .num_distributed_optimizer_instances = 2}}),
    [](const auto& info) { return info.param.name; });

// Forward passes of several microbatches in an order close to the model's, while every gather
// finishes as late as it may; each parameter must be whole and new when AwaitGather returns.
absl::Status ReadNoStaleParameter(const CommunicatorPtr& world, uint64_t seed) {
  std::mt19937_64 random(seed);  // the same on every rank
  const int num_chunks = 1 + static_cast<int>(random() % 3);
  DdpOptions options = DrawOptions(seed);
  options.overlap_grad_reduce = options.overlap_param_gather = true;
  options.check_for_nan_in_grad = false;
  const std::vector<at::ScalarType> dtypes = {at::kFloat, at::kBFloat16};
  const Chunks sharded = DrawModel(seed, num_chunks, dtypes);
  const Chunks whole = DrawModel(seed, num_chunks, dtypes);
  LateCommunicator late(*world, seed);
  ASSIGN_OR_RETURN(auto ddp, DistributedDataParallel::Create(
                                 sharded, {.dp_cp = &late, .expert_dp = &late}, options));
  ASSIGN_OR_RETURN(auto plain,
                   DistributedDataParallel::Create(
                       whole, {.dp_cp = world.get(), .expert_dp = world.get()}, Plain(options)));
  const std::vector<OwnedShard> owned = ddp->shards(), all = plain->shards();

  int num_gathers = 0;
  auto read = [&](int chunk, int index, const std::string& when) {
    Parameter& p = *sharded[chunk][index];
    p.AwaitGather();
    return ExpectNear(p.data, whole[chunk][index]->data, 0,
                      absl::StrCat(when, ", chunk ", chunk, ": ", p.name));
  };
  for (int step = 0; step < 4; ++step) {
    const std::string when = absl::StrCat("seed ", seed, ", step ", step);
    const int before = late.num_operations();
    const bool scheduled = options.align_param_gather && random() % 4 != 0;
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      for (int chunk = 0; chunk < num_chunks; ++chunk) {
        if (scheduled && microbatch == 0) {
          if (chunk == 0) RETURN_IF_ERROR(ddp->StartParamSync(0));
          if (chunk + 1 < num_chunks) RETURN_IF_ERROR(ddp->StartParamSync(chunk + 1));
        }
        for (int i = 0; i < static_cast<int>(sharded[chunk].size()); ++i) {
          late.Drift();
          RETURN_IF_ERROR(read(chunk, i, when));
          // A module that runs out of turn (tied weights do), and recomputation.
          if (random() % 5 == 0) {
            RETURN_IF_ERROR(read(chunk, static_cast<int>(random() % sharded[chunk].size()), when));
          }
        }
      }
    }
    num_gathers += late.num_operations() - before;
    if (random() % 4 == 0) {  // evaluation
      const bool was_on = ddp->forward_pre_hook_enabled();
      RETURN_IF_ERROR(ddp->DisableForwardPreHook());
      for (int chunk = 0; chunk < num_chunks; ++chunk)
        for (int i = 0; i < static_cast<int>(sharded[chunk].size()); ++i)
          RETURN_IF_ERROR(read(chunk, i, when + ", evaluation"));
      if (was_on) ddp->EnableForwardPreHook();
    }
    const uint64_t gradients = seed * 10007 + step * 101 + world->rank() * 1009;
    RETURN_IF_ERROR(ReduceStep(*ddp, sharded, gradients));
    RETURN_IF_ERROR(ReduceStep(*plain, whole, gradients));
    Update(owned);
    Update(all);
    if (step == 0) ddp->EnableForwardPreHook();
  }
  if (num_gathers < 3) return absl::InternalError("the gathers never ran behind a forward pass");
  RETURN_IF_ERROR(ddp->SyncParams());
  for (int chunk = 0; chunk < num_chunks; ++chunk)
    for (int i = 0; i < static_cast<int>(sharded[chunk].size()); ++i)
      RETURN_IF_ERROR(read(chunk, i, "at the end"));
  return absl::OkStatus();
}

TEST(LateGatherTest, AwaitGatherNeverReturnsAStaleParameter) {
  at::set_num_threads(1);
  const char* const given = std::getenv("MUSTER_SEED");
  const uint64_t first = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  for (uint64_t seed = first; seed < first + (given != nullptr ? 1 : 40); ++seed) {
    SCOPED_TRACE(absl::StrCat("MUSTER_SEED=", seed));
    RunRanks(2 + static_cast<int>(seed % 2), [&](CommunicatorPtr world) -> absl::Status {
      return ReadNoStaleParameter(world, seed);
    });
    if (HasFailure()) return;
  }
}

// A gather that fails reaches the forward function as the exception that crosses autograd.
TEST(LateGatherTest, AbortedGatherIsACollectiveError) {
  at::set_num_threads(1);
  std::vector<CommunicatorPtr> worlds = MakeThreadWorld(2);
  auto p = std::make_shared<Parameter>();
  p->name = "p";
  p->data = at::ones({256}).set_requires_grad(true);
  auto ddp = DistributedDataParallel::Create(
      {{p}}, {.dp_cp = worlds[0].get(), .expert_dp = worlds[0].get()},
      {.overlap_grad_reduce = true,
       .use_distributed_optimizer = true,
       .overlap_param_gather = true});
  ASSERT_TRUE(ddp.ok()) << ddp.status();
  (*ddp)->EnableForwardPreHook();
  worlds[1]->Abort("rank 1 left");
  try {
    p->AwaitGather();
    FAIL() << "it returned";
  } catch (const CollectiveError& e) {
    EXPECT_EQ(e.status.code(), absl::StatusCode::kAborted);
  }
}

}  // namespace
}  // namespace muster
