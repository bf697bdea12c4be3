// FullyShardedDataParallel around a toy model whose passes are played by hand: what it sends and
// when, what it keeps, and that its sums are those of DistributedDataParallel.

#include "worker/parallel/fsdp.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "tests/worker/parallel/logging_communicator.h"
#include "tests/worker/parallel/recording_communicator.h"
#include "tests/worker/parallel/thread_ranks.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ParameterPtr Param(std::string name, std::vector<int64_t> shape, int unit, at::ScalarType dtype,
                   bool expert = false) {
  auto p = std::make_shared<Parameter>();
  p->name = std::move(name);
  auto generator = at::detail::createCPUGenerator(std::hash<std::string>()(p->name) % 1000);
  p->data = at::randn(shape, generator, at::TensorOptions().dtype(at::kDouble)).to(dtype);
  p->data.set_requires_grad(true);
  p->unit = unit;
  p->allreduce = !expert;
  p->global_shape = shape;
  p->global_offset.assign(shape.size(), 0);
  return p;
}

// An embedding, layers of different sizes (so that their messages can be told apart), a head.
std::vector<ParameterPtr> ToyParams(at::ScalarType dtype, bool experts = false) {
  std::vector<ParameterPtr> params = {Param("embedding.weight", {31, 20}, -1, dtype)};
  for (int unit = 0; unit < 3; ++unit) {
    const std::string layer = absl::StrCat("decoder.layers.", unit);
    params.push_back(Param(layer + ".weight", {13, 10 * (unit + 1)}, unit, dtype));
    params.push_back(Param(layer + ".bias", {7}, unit, dtype));
    if (experts) params.push_back(Param(layer + ".expert", {5, 11}, unit, dtype, true));
  }
  params.push_back(Param("output_layer.weight", {3, 50}, -1, dtype));
  return params;
}

// What a rank's backward pass of a microbatch contributes to a parameter.
at::Tensor Gradient(const Parameter& p, int rank, int step, int microbatch) {
  const auto seed =
      std::hash<std::string>()(p.name) % 1000 + 1000 * rank + 17 * step + 100000 * microbatch;
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randn(p.data.sizes(), generator, at::TensorOptions().dtype(at::kDouble))
      .to(p.data.scalar_type());
}

using Mark = std::function<void(const std::string&)>;

// One microbatch, as GptModel and autograd would run it.
absl::Status PlayMicrobatch(DataParallel& dp, UnitHooks* hooks,
                            const std::vector<ParameterPtr>& params, int rank, int step,
                            int microbatch, const Mark& mark = nullptr) {
  const auto of = [&](int unit, const std::function<void(Parameter&)>& fn) {
    for (const ParameterPtr& p : params)
      if (p->unit == unit) fn(*p);
  };
  const auto say = [&](const std::string& what) {
    if (mark) mark(what);
  };
  const auto read = [](Parameter& p) {
    p.AwaitGather();
    EXPECT_TRUE(p.data.isfinite().all().item<bool>());
  };
  const auto give = [&](Parameter& p) { p.AccumulateGrad(Gradient(p, rank, step, microbatch)); };
  read(*params.front());
  for (int unit = 0; unit < 3; ++unit) {
    if (hooks != nullptr) hooks->BeforeForward(unit);
    say(absl::StrCat("forward ", unit));
    of(unit, read);
    if (hooks != nullptr) hooks->AfterForward(unit);
  }
  read(*params.back());
  give(*params.back());
  for (int unit = 2; unit >= 0; --unit) {
    if (hooks != nullptr) hooks->BeforeBackward(unit);
    say(absl::StrCat("backward ", unit));
    of(unit, [&](Parameter& p) {
      EXPECT_TRUE(p.data.isfinite().all().item<bool>());
      give(p);
    });
    if (hooks != nullptr) hooks->AfterBackward(unit);
  }
  give(*params.front());
  say("end");
  return dp.EndBackward(0);
}

absl::Status PlayStep(DataParallel& dp, UnitHooks* hooks, const std::vector<ParameterPtr>& params,
                      int rank, int step, int num_microbatches, const Mark& mark = nullptr) {
  dp.ZeroGradBuffer();
  for (int i = 0; i < num_microbatches; ++i) {
    std::optional<DataParallel::NoSync> no_sync;
    if (i + 1 < num_microbatches) no_sync.emplace(dp);
    RETURN_IF_ERROR(PlayMicrobatch(dp, hooks, params, rank, step, i, mark));
  }
  RETURN_IF_ERROR(dp.FinishGradSync(0));
  for (const OwnedShard& shard : dp.shards()) {
    c10::NoGradGuard no_grad;
    at::Tensor data = shard.data;
    data.sub_(shard.grad.to(data.scalar_type()), 0.1);
  }
  return dp.gathers_behind_forward() ? absl::OkStatus() : dp.SyncParams();
}

DdpGroups Plain(Communicator& group) { return {.dp_cp = &group, .expert_dp = &group}; }

std::vector<at::Tensor> Values(const std::vector<ParameterPtr>& params) {
  std::vector<at::Tensor> values;
  for (const ParameterPtr& p : params) values.push_back(p->data.detach().clone());
  return values;
}

const FsdpOptions kForms[] = {
    {},                           // optim_grads_params
    {.shard_parameters = false},  // optim_grads
    {.shard_parameters = false, .overlap_param_gather = true},
    {.root_by_microbatch = true},  // torch FSDP2
    {.reshard_after_forward = false, .root_by_microbatch = true},
};

bool HasMemory(const at::Tensor& tensor) { return tensor.storage().data() != nullptr; }

struct Outcome {
  std::vector<at::Tensor> values;  // after the steps
  int64_t temporary_after_first = 0, temporary_at_end = 0;
};

// `options` null: the distributed optimizer.
absl::StatusOr<Outcome> PlaySteps(Communicator& world, const FsdpOptions* options,
                                  at::ScalarType dtype, int num_steps, int num_microbatches,
                                  const DdpGroups& groups, bool experts = false) {
  const std::vector<ParameterPtr> params = ToyParams(dtype, experts);
  std::unique_ptr<DataParallel> dp;
  UnitHooks* hooks = nullptr;
  FullyShardedDataParallel* fsdp = nullptr;
  if (options == nullptr) {
    ASSIGN_OR_RETURN(
        dp, DistributedDataParallel::Create({params}, groups, {.use_distributed_optimizer = true}));
  } else {
    ASSIGN_OR_RETURN(auto made, FullyShardedDataParallel::Create({params}, groups, *options));
    fsdp = made.get();
    hooks = fsdp->unit_hooks(0);
    dp = std::move(made);
  }
  Outcome outcome;
  for (int step = 0; step < num_steps; ++step) {
    RETURN_IF_ERROR(PlayStep(*dp, hooks, params, world.rank(), step, num_microbatches));
    if (fsdp != nullptr && step == 0) outcome.temporary_after_first = fsdp->temporary_bytes();
  }
  if (fsdp != nullptr) outcome.temporary_at_end = fsdp->temporary_bytes();
  RETURN_IF_ERROR(dp->SyncParams());
  outcome.values = Values(params);
  return outcome;
}

TEST(FsdpTest, WithOneMicrobatchTheBitsAreThoseOfTheDistributedOptimizer) {
  for (const int size : {1, 2, 4}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      RunRanks(size, [&](CommunicatorPtr world) -> absl::Status {
        ASSIGN_OR_RETURN(const Outcome expected,
                         PlaySteps(*world, nullptr, dtype, 3, 1, Plain(*world)));
        for (const FsdpOptions& form : kForms) {
          ASSIGN_OR_RETURN(const Outcome got, PlaySteps(*world, &form, dtype, 3, 1, Plain(*world)));
          for (size_t i = 0; i < got.values.size(); ++i)
            EXPECT_TRUE(at::equal(got.values[i], expected.values[i])) << size << " " << i;
        }
        return absl::OkStatus();
      });
    }
  }
}

TEST(FsdpTest, WithSeveralMicrobatchesTheSumsAreTheSame) {
  RunRanks(4, [&](CommunicatorPtr world) -> absl::Status {
    ASSIGN_OR_RETURN(const Outcome expected,
                     PlaySteps(*world, nullptr, at::kDouble, 3, 4, Plain(*world)));
    for (const FsdpOptions& form : kForms) {
      ASSIGN_OR_RETURN(const Outcome got,
                       PlaySteps(*world, &form, at::kDouble, 3, 4, Plain(*world)));
      for (size_t i = 0; i < got.values.size(); ++i)
        EXPECT_TRUE(at::allclose(got.values[i], expected.values[i], 1e-13, 1e-13)) << i;
      // Nothing is allocated after the first step.
      EXPECT_EQ(got.temporary_after_first, got.temporary_at_end);
    }
    return absl::OkStatus();
  });
}

// Four ranks in two instances: shards over pairs, sums over all; and experts over groups of their
// own: pairs, then ranks alone.
TEST(FsdpTest, InstancesAndExpertsReduceOverTheirGroups) {
  RunRanks(4, [&](CommunicatorPtr world) -> absl::Status {
    const int low = world->rank() / 2 * 2, parity = world->rank() % 2;
    ASSIGN_OR_RETURN(CommunicatorPtr intra_a, world->Split("intra_a", {0, 1}));
    ASSIGN_OR_RETURN(CommunicatorPtr intra_b, world->Split("intra_b", {2, 3}));
    ASSIGN_OR_RETURN(CommunicatorPtr inter_a, world->Split("inter_a", {0, 2}));
    ASSIGN_OR_RETURN(CommunicatorPtr inter_b, world->Split("inter_b", {1, 3}));
    Communicator* const intra = (low == 0 ? intra_a : intra_b).get();
    Communicator* const inter = (parity == 0 ? inter_a : inter_b).get();
    ASSIGN_OR_RETURN(const Outcome expected,
                     PlaySteps(*world, nullptr, at::kDouble, 2, 2, Plain(*world)));
    const DdpGroups hybrid = {.dp_cp = world.get(),
                              .expert_dp = world.get(),
                              .intra_dp_cp = intra,
                              .intra_expert_dp = intra,
                              .inter = inter};
    for (FsdpOptions form : kForms) {
      for (const bool outer : {false, true}) {
        form.shard_optimizer_over_instances = outer;
        ASSIGN_OR_RETURN(const Outcome got, PlaySteps(*world, &form, at::kDouble, 2, 2, hybrid));
        for (size_t i = 0; i < got.values.size(); ++i)
          EXPECT_TRUE(at::allclose(got.values[i], expected.values[i], 1e-13, 1e-13))
              << i << " outer " << outer;
      }
    }
    for (Communicator* expert_dp : {intra, inter}) {
      const DdpGroups groups = {.dp_cp = world.get(), .expert_dp = expert_dp};
      ASSIGN_OR_RETURN(const Outcome with_ddp,
                       PlaySteps(*world, nullptr, at::kDouble, 2, 2, groups, true));
      for (const FsdpOptions& form : kForms) {
        ASSIGN_OR_RETURN(const Outcome got,
                         PlaySteps(*world, &form, at::kDouble, 2, 2, groups, true));
        for (size_t i = 0; i < got.values.size(); ++i)
          EXPECT_TRUE(at::allclose(got.values[i], with_ddp.values[i], 1e-13, 1e-13)) << i;
      }
    }
    return absl::OkStatus();
  });
}

TEST(FsdpTest, AnExpertAloneInItsGroupSendsNothing) {
  RunRanks(2, [&](CommunicatorPtr world) -> absl::Status {
    ASSIGN_OR_RETURN(CommunicatorPtr a, world->Split("a", {0}));
    ASSIGN_OR_RETURN(CommunicatorPtr b, world->Split("b", {1}));
    RecordingCommunicator alone(*(world->rank() == 0 ? a : b));
    const DdpGroups groups = {.dp_cp = world.get(), .expert_dp = &alone};
    ASSIGN_OR_RETURN(const Outcome expected,
                     PlaySteps(*world, nullptr, at::kDouble, 2, 3, groups, true));
    alone.TakeEvents();
    const FsdpOptions form;
    ASSIGN_OR_RETURN(const Outcome got, PlaySteps(*world, &form, at::kDouble, 2, 3, groups, true));
    for (size_t i = 0; i < got.values.size(); ++i)
      EXPECT_TRUE(at::allclose(got.values[i], expected.values[i], 1e-13, 1e-13)) << i;
    EXPECT_THAT(alone.TakeEvents(), ElementsAre());
    return absl::OkStatus();
  });
}

// Elements of each flat piece: parameters at multiples of 64, the end at a multiple of 128.
constexpr int64_t kRoot = 896, kUnits[] = {256, 384, 512};

TEST(FsdpTest, TheNextUnitTravelsBeforeThisOneComputes) {
  RunRanks(2, [&](CommunicatorPtr world) -> absl::Status {
    auto log = std::make_shared<std::vector<std::string>>();
    LoggingCommunicator group(world, log);
    const std::vector<ParameterPtr> params = ToyParams(at::kFloat);
    ASSIGN_OR_RETURN(auto fsdp,
                     FullyShardedDataParallel::Create({params}, Plain(group), FsdpOptions{}));
    const Mark mark = [&](const std::string& what) { log->push_back(what); };
    RETURN_IF_ERROR(PlayStep(*fsdp, fsdp->unit_hooks(0), params, world->rank(), 0, 1, mark));
    std::map<std::string, std::string> names;
    const auto name = [&](int64_t numel, const std::string& unit) {
      names[absl::StrCat("world all_gather ", numel / 2)] = "gather " + unit;
      names[absl::StrCat("world reduce_scatter ", numel)] = "reduce " + unit;
    };
    name(kRoot, "root");
    for (int unit = 0; unit < 3; ++unit) name(kUnits[unit], absl::StrCat(unit));
    std::vector<std::string> events;
    for (const std::string& event : *log)
      events.push_back(names.contains(event) ? names[event] : event);
    EXPECT_THAT(events, ElementsAre("gather root", "gather 0",  // behind the embedding
                                    "gather 1", "forward 0", "gather 2", "forward 1", "forward 2",
                                    "gather 2", "gather 1", "backward 2", "reduce 2", "gather 0",
                                    "backward 1", "reduce 1", "backward 0", "reduce 0", "end",
                                    "reduce root"));
    return absl::OkStatus();
  });
}

TEST(FsdpTest, BytesOfAStep) {
  RunRanks(4, [&](CommunicatorPtr world) -> absl::Status {
    constexpr int kMicrobatches = 3;
    const int64_t units = kUnits[0] + kUnits[1] + kUnits[2];
    const int64_t all = units + kRoot;  // the root's layout is another one by microbatch
    struct Row {
      FsdpOptions options;
      int64_t gathered;  // elements
    };
    const int64_t split_root = 640 + 256;  // embedding, output layer
    const Row rows[] = {
        {{}, kMicrobatches * 2 * units + kRoot},
        {{.shard_parameters = false}, all},
        {{.shard_parameters = false, .overlap_param_gather = true}, all},
        {{.root_by_microbatch = true}, kMicrobatches * (2 * units + split_root)},
        {{.reshard_after_forward = false, .root_by_microbatch = true},
         kMicrobatches * (units + split_root)},
    };
    for (const Row& row : rows) {
      RecordingCommunicator group(*world);
      const std::vector<ParameterPtr> params = ToyParams(at::kBFloat16);
      FsdpOptions options = row.options;
      options.grad_reduce_in_fp32 = true;
      ASSIGN_OR_RETURN(auto fsdp,
                       FullyShardedDataParallel::Create({params}, Plain(group), options));
      for (int step = 0; step < 2; ++step) {
        group.TakeBytes();
        RETURN_IF_ERROR(
            PlayStep(*fsdp, fsdp->unit_hooks(0), params, world->rank(), step, kMicrobatches));
      }
      const double reduced = kMicrobatches * 4.0 * static_cast<double>(all);
      EXPECT_EQ(group.TakeBytes(), 0.75 * (2.0 * static_cast<double>(row.gathered) + reduced));
    }
    return absl::OkStatus();
  });
}

TEST(FsdpTest, ShardsAndTemporariesHaveTheSizeOfTheFormula) {
  RunRanks(4, [&](CommunicatorPtr world) -> absl::Status {
    const std::vector<ParameterPtr> params = ToyParams(at::kFloat);
    ASSIGN_OR_RETURN(auto fsdp,
                     FullyShardedDataParallel::Create({params}, Plain(*world), FsdpOptions{}));
    RETURN_IF_ERROR(PlayStep(*fsdp, fsdp->unit_hooks(0), params, world->rank(), 0, 2));
    // Units of different sizes: of each one block for values and one for gradients, which are of
    // the same size in fp32 and never wanted at once more often than that.
    EXPECT_EQ(fsdp->temporary_bytes(), 4 * 2 * (kRoot + kUnits[0] + kUnits[1] + kUnits[2]));
    // Together the ranks own every element once.
    at::Tensor owned = at::zeros({1}, at::kLong);
    for (const OwnedShard& shard : fsdp->shards()) owned += shard.data.numel();
    RETURN_IF_ERROR(world->AllReduce(owned, ReduceOp::kSum)->Wait());
    int64_t total = 0;
    for (const ParameterPtr& p : params) total += p->data.numel();
    EXPECT_EQ(owned.item<int64_t>(), total);
    return absl::OkStatus();
  });
}

TEST(FsdpTest, LeavesStayAndHaveNoMemoryBetweenPasses) {
  RunRanks(2, [&](CommunicatorPtr world) -> absl::Status {
    const std::vector<ParameterPtr> params = ToyParams(at::kFloat);
    const std::vector<at::Tensor> before = Values(params);
    const at::Tensor leaf = params[1]->data;
    ASSIGN_OR_RETURN(auto fsdp,
                     FullyShardedDataParallel::Create({params}, Plain(*world), FsdpOptions{}));
    EXPECT_TRUE(leaf.is_same(params[1]->data));
    EXPECT_TRUE(leaf.requires_grad());
    EXPECT_FALSE(HasMemory(leaf));
    const at::Tensor made_later = leaf.detach();
    RETURN_IF_ERROR(fsdp->SyncParams());
    for (size_t i = 0; i < params.size(); ++i)
      EXPECT_TRUE(at::equal(params[i]->data, before[i])) << i;
    EXPECT_TRUE(at::equal(made_later, before[1]));
    RETURN_IF_ERROR(fsdp->ReleaseParams());
    EXPECT_FALSE(HasMemory(made_later));
    return absl::OkStatus();
  });
}

// A plugin's model that tells nobody about its layers: all of it is the root.
TEST(FsdpTest, WithoutUnitsTheWholeModelIsGatheredOnceAStep) {
  RunRanks(2, [&](CommunicatorPtr world) -> absl::Status {
    auto log = std::make_shared<std::vector<std::string>>();
    LoggingCommunicator group(world, log);
    const std::vector<ParameterPtr> params = ToyParams(at::kDouble);
    for (const ParameterPtr& p : params) p->unit = -1;
    const std::vector<at::Tensor> before = Values(params);
    ASSIGN_OR_RETURN(auto fsdp,
                     FullyShardedDataParallel::Create({params}, Plain(group), FsdpOptions{}));
    fsdp->ZeroGradBuffer();
    std::vector<at::Tensor> sums;
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      for (size_t i = 0; i < params.size(); ++i) {
        params[i]->AwaitGather();
        EXPECT_TRUE(at::equal(params[i]->data, before[i])) << i;
        if (microbatch == 0) sums.push_back(at::zeros_like(before[i]));
        for (const int rank : {0, 1}) sums[i] += Gradient(*params[i], rank, 0, microbatch) / 2;
        params[i]->AccumulateGrad(Gradient(*params[i], world->rank(), 0, microbatch));
      }
      RETURN_IF_ERROR(fsdp->EndBackward(0));
    }
    RETURN_IF_ERROR(fsdp->FinishGradSync(0));
    for (const OwnedShard& shard : fsdp->shards()) {
      const size_t i = std::find(params.begin(), params.end(), shard.parameter) - params.begin();
      const at::Tensor expected =
          sums[i].flatten().narrow(0, shard.in_param.begin, shard.in_param.size());
      EXPECT_TRUE(at::allclose(shard.grad.flatten(), expected, 1e-13, 1e-13));
    }
    const std::string all = "world all_gather 1024", sum = "world reduce_scatter 2048";
    EXPECT_THAT(*log, ElementsAre(all, sum, sum));
    return absl::OkStatus();
  });
}

// A recomputed forward pass inside the backward pass of a checkpoint of units 1 and 2.
TEST(FsdpTest, RecomputationKeepsWhatTheBackwardPassNeeds) {
  RunRanks(2, [&](CommunicatorPtr world) -> absl::Status {
    auto log = std::make_shared<std::vector<std::string>>();
    LoggingCommunicator group(world, log);
    const std::vector<ParameterPtr> params = ToyParams(at::kFloat);
    ASSIGN_OR_RETURN(auto fsdp,
                     FullyShardedDataParallel::Create({params}, Plain(group), FsdpOptions{}));
    fsdp->ZeroGradBuffer();
    UnitHooks& hooks = *fsdp->unit_hooks(0);
    const auto readable = [&](int unit) {
      for (const ParameterPtr& p : params) {
        if (p->unit == unit) {
          EXPECT_TRUE(p->data.isfinite().all().item<bool>());
        }
      }
    };
    hooks.BeforeBackward(2);
    for (int unit : {1, 2}) {
      hooks.BeforeForward(unit);
      readable(unit);
      hooks.AfterForward(unit);
    }
    for (int unit : {2, 1, 0}) {
      if (unit < 2) hooks.BeforeBackward(unit);
      readable(unit);
      hooks.AfterBackward(unit);
      EXPECT_FALSE(HasMemory(params[1 + 2 * unit]->data));
    }
    int gathers = 0;
    for (const std::string& event : *log) gathers += absl::StrContains(event, "all_gather") ? 1 : 0;
    EXPECT_EQ(gathers, 3);
    RETURN_IF_ERROR(fsdp->EndBackward(0));
    return fsdp->FinishGradSync(0);
  });
}

TEST(FsdpTest, ALostGradientAndANanAreNamed) {
  RunRanks(2, [&](CommunicatorPtr world) -> absl::Status {
    const std::vector<ParameterPtr> params = ToyParams(at::kFloat);
    ASSIGN_OR_RETURN(auto fsdp,
                     FullyShardedDataParallel::Create({params}, Plain(*world), FsdpOptions{}));
    UnitHooks* hooks = fsdp->unit_hooks(0);
    fsdp->ZeroGradBuffer();
    RETURN_IF_ERROR(PlayMicrobatch(*fsdp, hooks, params, world->rank(), 0, 0));
    RETURN_IF_ERROR(fsdp->CheckBucketNorms());
    fsdp->unit_hooks(0)->BeforeBackward(1);
    params[3]->AccumulateGrad(at::full_like(params[3]->main_grad, std::nan("")));
    fsdp->unit_hooks(0)->AfterBackward(1);
    EXPECT_THAT(fsdp->CheckBucketNorms().ToString(),
                HasSubstr("found NaN in the local gradient norm of unit 1, where "
                          "decoder.layers.1.bias is first"));
    params[1]->AccumulateGrad(at::ones({13, 10}));
    EXPECT_THAT(fsdp->FinishGradSync(0).ToString(),
                HasSubstr("decoder.layers.0.bias arrived after its reduction had started"));
    return absl::OkStatus();
  });
}

TEST(FsdpTest, AnAbortFreesARankThatWaitsForAUnit) {
  std::vector<CommunicatorPtr> worlds = MakeThreadWorld(2);
  std::thread waiting([&] {
    const std::vector<ParameterPtr> params = ToyParams(at::kFloat);
    auto fsdp = FullyShardedDataParallel::Create({params}, Plain(*worlds[0]), FsdpOptions{});
    ASSERT_TRUE(fsdp.ok());
    try {
      (*fsdp)->unit_hooks(0)->BeforeForward(0);  // the other rank never comes
      ADD_FAILURE() << "gathered without its peer";
    } catch (const CollectiveError& error) {
      EXPECT_EQ(error.status.code(), absl::StatusCode::kAborted);
    }
  });
  worlds[1]->Abort("the test says so");
  waiting.join();
}

TEST(FsdpTest, RefusesWhatCannotBe) {
  RunRanks(1, [](CommunicatorPtr world) -> absl::Status {
    std::vector<ParameterPtr> params = ToyParams(at::kFloat);
    EXPECT_THAT(FullyShardedDataParallel::Create(
                    {params}, Plain(*world),
                    {.average_in_collective = true, .calculate_per_token_loss = true})
                    .status()
                    .ToString(),
                HasSubstr("calculate_per_token_loss"));
    ASSIGN_OR_RETURN(auto first,
                     FullyShardedDataParallel::Create({params}, Plain(*world), FsdpOptions{}));
    EXPECT_EQ(
        FullyShardedDataParallel::Create({params}, Plain(*world), FsdpOptions{}).status().code(),
        absl::StatusCode::kFailedPrecondition);
    params.push_back(params[0]);
    first.reset();
    EXPECT_EQ(
        FullyShardedDataParallel::Create({params}, Plain(*world), FsdpOptions{}).status().code(),
        absl::StatusCode::kInvalidArgument);
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace muster
