// Dispatchers, ranks as threads: outputs and every gradient of a split layer are those of a loop
// over tokens and experts on one process.

#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/status.h"
#include "dispatcher_support.h"
#include "tests/worker/parallel/thread_ranks.h"
#include "worker/ops/autograd_op.h"

namespace muster {
namespace {

constexpr double kTolerance = 1e-12;

std::vector<LayerCase> Cases() {
  const std::pair<int, int> sizes[] = {{1, 1}, {2, 1}, {4, 1}, {1, 2}, {2, 2}, {4, 2}};
  std::vector<LayerCase> cases;
  for (const auto dispatcher : {TokenDispatcherType::kAllToAll, TokenDispatcherType::kAllGather}) {
    for (const auto& [ep, etp] : sizes) {
      for (const Routing routing : {Routing::kTopk, Routing::kDropped, Routing::kPadded,
                                    Routing::kOneExpert, Routing::kIdleRanks, Routing::kNothing}) {
        cases.push_back({.ep = ep, .etp = etp, .dispatcher = dispatcher, .routing = routing});
      }
    }
  }
  return cases;
}

class DispatcherTest : public testing::TestWithParam<LayerCase> {};

TEST_P(DispatcherTest, OutputsAndGradientsAreThoseOfALoopOverTokens) {
  const LayerCase layer = GetParam();
  WholeLayer whole = MakeLayer(layer, 11);
  RunReference(whole);
  RunRanks(layer.ep * layer.etp, [&](CommunicatorPtr world) -> absl::Status {
    ASSIGN_OR_RETURN(const RankGroups groups, MakeGroups(layer, world));
    const RankLayer part = PartOf(whole, layer, groups.groups);
    const auto dispatcher = MakeTokenDispatcher(ConfigOf(layer), groups.groups);
    const Dispatched dispatched = dispatcher->Dispatch(part.x, {part.probs, part.map});
    const at::Tensor output = dispatcher->Combine(dispatched, RunExperts(part, dispatched));
    const RankLayer expected = PartOf({.x = whole.output,
                                       .probs = whole.probs.grad(),
                                       .map = whole.x.grad(),
                                       .w1 = whole.w1.grad(),
                                       .w2 = whole.w2.grad(),
                                       .loss_weights = whole.loss_weights},
                                      layer, groups.groups);
    EXPECT_LE(MaxDifference(output, expected.x), kTolerance);
    // As in a model, where more than the experts depends on them.
    const at::Tensor nothing = 0 * (part.x.sum() + part.probs.sum());
    ((output * part.loss_weights).sum() + nothing).backward();
    EXPECT_LE(MaxDifference(part.x.grad(), expected.map), kTolerance);
    EXPECT_LE(MaxDifference(part.probs.grad(), expected.probs), kTolerance);
    for (const auto& [weight, grad] : {std::pair(part.w1, expected.w1), {part.w2, expected.w2}}) {
      const at::Tensor got = weight.grad().defined() ? weight.grad() : at::zeros_like(weight);
      EXPECT_LE(MaxDifference(got, grad), kTolerance);
    }
    return absl::OkStatus();
  });
}

TEST_P(DispatcherTest, WithoutRecordingTheOutputIsTheSame) {
  const LayerCase layer = GetParam();
  WholeLayer whole = MakeLayer(layer, 12);
  RunReference(whole);
  RunRanks(layer.ep * layer.etp, [&](CommunicatorPtr world) -> absl::Status {
    at::NoGradGuard no_grad;
    ASSIGN_OR_RETURN(const RankGroups groups, MakeGroups(layer, world));
    const RankLayer part = PartOf(whole, layer, groups.groups);
    const auto dispatcher = MakeTokenDispatcher(ConfigOf(layer), groups.groups);
    int calls = 0;
    const Dispatched dispatched =
        dispatcher->Dispatch(part.x, {part.probs, part.map}, [&] { ++calls; });
    const at::Tensor output =
        dispatcher->Combine(dispatched, RunExperts(part, dispatched), [&] { ++calls; });
    const int64_t begin = world->rank() * layer.tokens;
    EXPECT_LE(MaxDifference(output, whole.output.narrow(0, begin, layer.tokens)), kTolerance);
    EXPECT_FALSE(output.requires_grad());
    EXPECT_EQ(calls, 2);
    return absl::OkStatus();
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, DispatcherTest, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.Name(); });

// One rank's posts and waits of a forward and a backward pass; "other" where the other work runs,
// forward and backward.
std::vector<std::string> EventsOf(const LayerCase& layer) {
  WholeLayer whole = MakeLayer(layer, 13);
  std::vector<std::string> events;
  RunRanks(layer.ep * layer.etp, [&](CommunicatorPtr world) -> absl::Status {
    ASSIGN_OR_RETURN(const RankGroups groups, MakeGroups(layer, world));
    std::vector<std::string> own;
    ExpertParallel logged = groups.groups;
    std::vector<std::unique_ptr<PostLog>> logs;
    for (auto [member, name] : {std::pair(&ExpertParallel::ep, "ep"),
                                {&ExpertParallel::etp, "etp"},
                                {&ExpertParallel::tp_ep, "tp_ep"}}) {
      if (logged.*member == nullptr) continue;
      logs.push_back(std::make_unique<PostLog>(*(logged.*member), name, own));
      logged.*member = logs.back().get();
    }
    const RankLayer part = PartOf(whole, layer, groups.groups);
    const auto dispatcher = MakeTokenDispatcher(ConfigOf(layer), logged);
    at::Tensor other = RandomLeaf({1}, 1);
    auto work = [&] {
      own.push_back("other");
      other = RecordOp(other + 1, {other}, [&own](const TensorList& grads, const NeedsGrad&) {
        own.push_back("other");
        return grads;
      });
    };
    const Dispatched dispatched = dispatcher->Dispatch(part.x, {part.probs, part.map}, work);
    const at::Tensor outputs = RunExperts(part, dispatched);
    const at::Tensor output = dispatcher->Combine(dispatched, outputs, work);
    own.push_back("backward");
    ((output * part.loss_weights).sum() + other.sum()).backward();
    if (world->rank() == 0) events = own;
    return absl::OkStatus();
  });
  return events;
}

// 6 tokens of 3 numbers to 2 of 4 experts: 12 rows, 36 numbers, however they are spread.
TEST(DispatcherOrderTest, AllToAllsTravelTogetherWhileOtherWorkRuns) {
  EXPECT_THAT(
      EventsOf({.ep = 2, .routing = Routing::kPadded}),
      testing::ElementsAre("ep post all_to_all 36", "ep post all_to_all 12", "other",
                           "ep wait all_to_all 36", "ep wait all_to_all 12",
                           "ep post all_to_all 36", "other", "ep wait all_to_all 36",  //
                           "backward", "ep post all_to_all 36", "other", "ep wait all_to_all 36",
                           "ep post all_to_all 36", "ep post all_to_all 12", "other",
                           "ep wait all_to_all 36", "ep wait all_to_all 12"));
}

TEST(DispatcherOrderTest, OnlyWithoutPaddingAreCountsExchanged) {
  const std::vector<std::string> events = EventsOf({.ep = 2});
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(events[0], "tp_ep post all_gather 4");
  EXPECT_EQ(events[1], "tp_ep wait all_gather 4");
  EXPECT_EQ(std::count(events.begin(), events.end(), "tp_ep post all_gather 4"), 1);
}

TEST(DispatcherOrderTest, ExpertTensorParallelismGathersAfterTheAllToAllAndMirrorsThat) {
  EXPECT_THAT(
      EventsOf({.ep = 2, .etp = 2, .routing = Routing::kPadded}),
      testing::ElementsAre(
          "ep post all_to_all 36", "ep post all_to_all 12", "other", "ep wait all_to_all 36",
          "ep wait all_to_all 12", "etp post all_gather 36", "etp post all_gather 12",
          "etp wait all_gather 36", "etp wait all_gather 12",  //
          "etp post reduce_scatter 72", "etp wait reduce_scatter 72", "ep post all_to_all 36",
          "other", "ep wait all_to_all 36",  //
          "backward", "ep post all_to_all 36", "other", "ep wait all_to_all 36",
          "etp post all_gather 36", "etp wait all_gather 36",  //
          "etp post reduce_scatter 72", "etp post reduce_scatter 24", "etp wait reduce_scatter 72",
          "etp wait reduce_scatter 24", "ep post all_to_all 36", "ep post all_to_all 12", "other",
          "ep wait all_to_all 36", "ep wait all_to_all 12"));
}

TEST(DispatcherOrderTest, AllGathersTravelTogetherWhileOtherWorkRuns) {
  EXPECT_THAT(
      EventsOf({.ep = 2, .dispatcher = TokenDispatcherType::kAllGather}),
      testing::ElementsAre("tp_ep post all_gather 24", "tp_ep post all_gather 24",
                           "tp_ep post all_gather 18", "other", "tp_ep wait all_gather 24",
                           "tp_ep wait all_gather 24", "tp_ep wait all_gather 18",  //
                           "tp_ep post reduce_scatter 36", "other", "tp_ep wait reduce_scatter 36",
                           "backward", "tp_ep post all_gather 18", "other",
                           "tp_ep wait all_gather 18",  //
                           "tp_ep post reduce_scatter 48", "tp_ep post reduce_scatter 36", "other",
                           "tp_ep wait reduce_scatter 48", "tp_ep wait reduce_scatter 36"));
}

TEST(DispatcherOrderTest, AloneNothingIsExchanged) {
  EXPECT_THAT(EventsOf({}), testing::ElementsAre("other", "other", "backward", "other", "other"));
}

// The last rank leaves where `stop` says; the others must end, with its reason.
enum class Stop { kBeforeDispatch, kBeforeCombine, kBeforeBackward };
class DispatcherAbortTest : public testing::TestWithParam<std::tuple<TokenDispatcherType, Stop>> {};

TEST_P(DispatcherAbortTest, FreesAllRanks) {
  const auto [type, stop] = GetParam();
  const LayerCase layer{.ep = 2, .etp = 2, .dispatcher = type};
  const WholeLayer whole = MakeLayer(layer, 14);
  RunRanks(4, [&, stop = stop](CommunicatorPtr world) -> absl::Status {
    ASSIGN_OR_RETURN(const RankGroups groups, MakeGroups(layer, world));
    const RankLayer part = PartOf(whole, layer, groups.groups);
    const auto dispatcher = MakeTokenDispatcher(ConfigOf(layer), groups.groups);
    WaitOrThrow(world->Barrier());  // all have formed their groups
    auto leave_at = [&](Stop here) {
      if (world->rank() != 3 || stop != here) return;
      world->Abort("rank 3 is lost");
      throw CollectiveError(absl::AbortedError("rank 3 is lost"));
    };
    try {
      leave_at(Stop::kBeforeDispatch);
      const Dispatched dispatched = dispatcher->Dispatch(part.x, {part.probs, part.map});
      leave_at(Stop::kBeforeCombine);
      const at::Tensor output = dispatcher->Combine(dispatched, RunExperts(part, dispatched));
      leave_at(Stop::kBeforeBackward);
      (output * part.loss_weights).sum().backward();
      ADD_FAILURE() << "rank " << world->rank() << " went on";
    } catch (const CollectiveError& e) {
      EXPECT_EQ(e.status.code(), absl::StatusCode::kAborted);
      EXPECT_THAT(e.what(), testing::HasSubstr("rank 3 is lost"));
    }
    return absl::OkStatus();
  });
}
INSTANTIATE_TEST_SUITE_P(Places, DispatcherAbortTest,
                         testing::Combine(testing::Values(TokenDispatcherType::kAllToAll,
                                                          TokenDispatcherType::kAllGather),
                                          testing::Values(Stop::kBeforeDispatch,
                                                          Stop::kBeforeCombine,
                                                          Stop::kBeforeBackward)));

// Experts that hand their rows on: each token comes back as often as it went out.
TEST(DispatcherBf16Test, RowsComeBackExactly) {
  for (const auto type : {TokenDispatcherType::kAllToAll, TokenDispatcherType::kAllGather}) {
    for (const int etp : {1, 2}) {
      const LayerCase layer{.ep = 2, .etp = etp, .dispatcher = type};
      SCOPED_TRACE(layer.Name());
      const WholeLayer whole = MakeLayer(layer, 15);
      RunRanks(layer.ep * layer.etp, [&](CommunicatorPtr world) -> absl::Status {
        ASSIGN_OR_RETURN(const RankGroups groups, MakeGroups(layer, world));
        const RankLayer part = PartOf(whole, layer, groups.groups);
        const auto dispatcher = MakeTokenDispatcher(ConfigOf(layer), groups.groups);
        const at::Tensor x = part.x.detach().to(at::kBFloat16).set_requires_grad(true);
        const at::Tensor probs = part.probs.detach().to(at::kFloat).set_requires_grad(true);
        const Dispatched dispatched = dispatcher->Dispatch(x, {probs, part.map});
        EXPECT_EQ(dispatched.probs.scalar_type(), at::kFloat);
        const at::Tensor output = dispatcher->Combine(dispatched, dispatched.tokens.clone());
        EXPECT_EQ(output.scalar_type(), at::kBFloat16);
        EXPECT_EQ(MaxDifference(output, x * (2 * etp)), 0);
        output.backward(x.detach());
        EXPECT_EQ(x.grad().scalar_type(), at::kBFloat16);
        EXPECT_EQ(MaxDifference(x.grad(), x.detach() * (2 * etp)), 0);
        return absl::OkStatus();
      });
    }
  }
}

// 256 + 1 + 1 + 1 in bf16 would stay 256 at each addition; in the weights' fp32 it is 259, then
// rounded to 260.
TEST(DispatcherBf16Test, TheCombiningSumIsInTheTypeOfTheWeights) {
  const LayerCase layer{.ep = 4, .dispatcher = TokenDispatcherType::kAllGather, .topk = 4};
  RunRanks(4, [&](CommunicatorPtr world) -> absl::Status {
    ASSIGN_OR_RETURN(const RankGroups groups, MakeGroups(layer, world));
    const auto dispatcher = MakeTokenDispatcher(ConfigOf(layer), groups.groups);
    const at::Tensor x = at::ones({2, 3}, at::kBFloat16);
    const Dispatched dispatched =
        dispatcher->Dispatch(x, {at::ones({2, 4}, at::kFloat), at::ones({2, 4}, at::kBool)});
    const at::Tensor outputs = at::full_like(dispatched.tokens, world->rank() == 0 ? 256 : 1);
    EXPECT_EQ(MaxDifference(dispatcher->Combine(dispatched, outputs), x * 260), 0);
    return absl::OkStatus();
  });
}

TEST(DispatcherPaddingTest, ACapacityAboveTheTokensTakesThemAll) {
  for (const auto type : {TokenDispatcherType::kAllToAll, TokenDispatcherType::kAllGather}) {
    const LayerCase layer{.ep = 2, .dispatcher = type, .routing = Routing::kPadded};
    MoeConfig config = ConfigOf(layer);
    config.capacity_factor = 8;  // ceil(6 * 2 / 4 * 8) = 24 rows
    RunRanks(2, [&](CommunicatorPtr world) -> absl::Status {
      ASSIGN_OR_RETURN(const RankGroups groups, MakeGroups(layer, world));
      const auto dispatcher = MakeTokenDispatcher(config, groups.groups);
      const Dispatched dispatched =
          dispatcher->Dispatch(at::ones({6, 3}), {at::ones({6, 4}), at::ones({6, 4}, at::kBool)});
      EXPECT_THAT(dispatched.rows_per_expert, testing::ElementsAre(12, 12));
      EXPECT_EQ(dispatched.tokens.size(0), 24);
      return absl::OkStatus();
    });
  }
}

}  // namespace
}  // namespace muster
