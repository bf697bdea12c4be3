// The distributed optimizer's gradients and parameters (reference 6.4 to 6.6) on one rank of four,
// against groups that record.
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/parallel/recording_communicator.h"
#include "worker/parallel/ddp.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr DdpOptions kOverlap{.overlap_grad_reduce = true,
                              .bucket_size = 500,
                              .use_distributed_optimizer = true,
                              .overlap_param_gather = true};
constexpr DdpOptions kAligned{.overlap_grad_reduce = true,
                              .bucket_size = 500,
                              .use_distributed_optimizer = true,
                              .overlap_param_gather = true,
                              .align_param_gather = true};
constexpr DdpOptions kNoOverlap{.use_distributed_optimizer = true};

ParameterPtr MakeParameter(const std::string& name, std::vector<int64_t> sizes,
                           at::ScalarType dtype = at::kFloat) {
  auto p = std::make_shared<Parameter>();
  p->name = name;
  p->data = at::ones(sizes, dtype).set_requires_grad(true);
  return p;
}

// The model of the goldens G6.1 to G6.3: with four shards its buckets begin at 0 (head), 1024
// (middle) and 1792 (emb) and end at 2816.
std::vector<ParameterPtr> GoldenModel() {
  return {MakeParameter("emb", {100, 10}), MakeParameter("w1", {30, 10}),
          MakeParameter("b1", {10}),       MakeParameter("w2", {20, 10}),
          MakeParameter("b2", {7}),        MakeParameter("head", {1000})};
}

class ShardedDdpTest : public ::testing::Test {
 protected:
  std::unique_ptr<DistributedDataParallel> Make(const DdpOptions& options) {
    return Make({params_}, options);
  }
  std::unique_ptr<DistributedDataParallel> Make(std::vector<std::vector<ParameterPtr>> chunks,
                                                const DdpOptions& options) {
    auto ddp = DistributedDataParallel::Create(std::move(chunks), groups_, options);
    EXPECT_TRUE(ddp.ok()) << ddp.status();
    return *std::move(ddp);
  }
  void Contribute(int index) {
    Parameter& p = *params_[index];
    p.AccumulateGrad(at::ones(p.data.sizes()));
  }
  void Backward() {
    for (int i = 5; i >= 0; --i) Contribute(i);
  }
  // A step up to where the optimizer would run.
  void Step(DistributedDataParallel& ddp) {
    ddp.ZeroGradBuffer();
    Backward();
    EXPECT_TRUE(ddp.FinishGradSync(0).ok());
    intra_.TakeEvents();
  }
  std::vector<std::string> Await(int index) {
    params_[index]->AwaitGather();
    return intra_.TakeEvents();
  }

  RecordingCommunicator intra_{4, "intra"};
  RecordingCommunicator expert_{2, "intra_expert"};
  RecordingCommunicator inter_{2, "inter"};
  DdpGroups groups_{.dp_cp = &intra_, .expert_dp = &expert_};
  std::vector<ParameterPtr> params_ = GoldenModel();
};

TEST_F(ShardedDdpTest, ReduceScatterTraceIsGoldenG6_3) {
  auto ddp = Make(kOverlap);
  for (int step = 1; step <= 3; ++step) {
    SCOPED_TRACE(step);
    ddp->ZeroGradBuffer();
    {
      auto no_sync = ddp->no_sync();
      Backward();
    }
    EXPECT_THAT(intra_.TakeEvents(), IsEmpty());
    if (step == 1) {
      Backward();
      EXPECT_THAT(intra_.TakeEvents(), IsEmpty());
      ASSERT_TRUE(ddp->FinishGradSync(0).ok());
      EXPECT_THAT(intra_.TakeEvents(), ElementsAre("start 0", "wait 0", "start 1024", "wait 1024",
                                                   "start 1792", "wait 1792"));
      continue;
    }
    Contribute(5);
    EXPECT_THAT(intra_.TakeEvents(), ElementsAre("start 0"));
    for (int i : {4, 3, 2}) Contribute(i);
    EXPECT_THAT(intra_.TakeEvents(), IsEmpty());
    Contribute(1);
    EXPECT_THAT(intra_.TakeEvents(), ElementsAre("start 1024"));
    Contribute(0);
    EXPECT_THAT(intra_.TakeEvents(), ElementsAre("start 1792"));
    ASSERT_TRUE(ddp->FinishGradSync(0).ok());
    EXPECT_THAT(intra_.TakeEvents(), ElementsAre("wait 0", "wait 1024", "wait 1792"));
  }
}

TEST_F(ShardedDdpTest, GatherTraceWithoutAlignIsGoldenG6_3) {
  auto ddp = Make(kOverlap);
  Step(*ddp);
  // First step: the hooks are off and nothing is gathered.
  EXPECT_FALSE(ddp->forward_pre_hook_enabled());
  for (int i = 0; i < 6; ++i) EXPECT_THAT(Await(i), IsEmpty());
  ddp->EnableForwardPreHook();
  for (int step = 0; step < 2; ++step) {
    Step(*ddp);
    EXPECT_THAT(Await(0), ElementsAre("gather 1792", "wait gather 1792", "gather 1024"));
    EXPECT_THAT(Await(1), ElementsAre("wait gather 1024", "gather 0"));
    for (int i : {2, 3, 4}) EXPECT_THAT(Await(i), IsEmpty());
    EXPECT_THAT(Await(5), ElementsAre("wait gather 0"));
    for (int i = 0; i < 6; ++i) EXPECT_THAT(Await(i), IsEmpty());  // the second microbatch
  }
}

TEST_F(ShardedDdpTest, GatherTraceWithAlignIsGoldenG6_3) {
  auto ddp = Make(kAligned);
  Step(*ddp);
  ASSERT_TRUE(ddp->StartParamSync(0).ok());  // the hooks are off: the schedule dispatches nothing
  EXPECT_THAT(intra_.TakeEvents(), IsEmpty());
  ddp->EnableForwardPreHook();
  for (int step = 0; step < 2; ++step) {
    Step(*ddp);
    ASSERT_TRUE(ddp->StartParamSync(0).ok());
    EXPECT_THAT(intra_.TakeEvents(), ElementsAre("gather 0", "gather 1024", "gather 1792"));
    EXPECT_THAT(Await(0), ElementsAre("wait gather 1792"));
    EXPECT_THAT(Await(1), ElementsAre("wait gather 1024"));
    EXPECT_THAT(Await(2), IsEmpty());
    EXPECT_THAT(Await(5), ElementsAre("wait gather 0"));
  }
  // Where the schedule did not dispatch, the hook does; the next one is not its business.
  Step(*ddp);
  EXPECT_THAT(Await(0), ElementsAre("gather 1792", "wait gather 1792"));
}

TEST_F(ShardedDdpTest, ModuleOutOfOrderFindsItsGroupDispatched) {
  auto ddp = Make(kOverlap);
  ddp->EnableForwardPreHook();
  Step(*ddp);
  EXPECT_THAT(Await(1), ElementsAre("gather 1024", "wait gather 1024", "gather 0"));
  EXPECT_THAT(Await(0), ElementsAre("gather 1792", "wait gather 1792"));
  EXPECT_THAT(Await(5), ElementsAre("wait gather 0"));
}

TEST_F(ShardedDdpTest, SyncParamsGathersAllBucketsAtOnce) {
  DdpOptions options = kOverlap;
  options.overlap_param_gather = false;
  auto ddp = Make(options);
  Step(*ddp);
  ASSERT_TRUE(ddp->SyncParams().ok());
  EXPECT_THAT(intra_.TakeEvents(),
              ElementsAre("gather 0", "gather 1024", "gather 1792", "wait gather 0",
                          "wait gather 1024", "wait gather 1792"));
  ddp->EnableForwardPreHook();  // no overlap: no hooks
  EXPECT_FALSE(ddp->forward_pre_hook_enabled());
  EXPECT_EQ(params_[0]->gatherer, nullptr);
}

TEST_F(ShardedDdpTest, DisablingTheHooksKeepsWhatIsInFlightAndGathersTheRest) {
  auto ddp = Make(kOverlap);
  ddp->EnableForwardPreHook();
  Step(*ddp);
  EXPECT_EQ(Await(0).size(), 3u);  // 1792 is here, 1024 in flight
  ASSERT_TRUE(ddp->DisableForwardPreHook().ok());
  EXPECT_THAT(intra_.TakeEvents(), ElementsAre("gather 0", "gather 1792", "wait gather 0",
                                               "wait gather 1024", "wait gather 1792"));
  for (int i = 0; i < 6; ++i) EXPECT_THAT(Await(i), IsEmpty());
  // Evaluation over: the parameters are whole until the next update.
  ddp->EnableForwardPreHook();
  for (int i = 0; i < 6; ++i) EXPECT_THAT(Await(i), IsEmpty());
  Step(*ddp);
  EXPECT_EQ(Await(0).size(), 3u);
  // Without a sync only what is in flight is waited for.
  ASSERT_TRUE(ddp->DisableForwardPreHook(/*param_sync=*/false).ok());
  EXPECT_THAT(intra_.TakeEvents(), ElementsAre("wait gather 1024"));
}

TEST_F(ShardedDdpTest, UpdateWaitsForGathersThatNobodyAwaited) {
  auto ddp = Make(kAligned);
  ddp->EnableForwardPreHook();
  Step(*ddp);
  ASSERT_TRUE(ddp->StartParamSync(0).ok());
  Await(0);
  ddp->ZeroGradBuffer();
  Backward();
  intra_.TakeEvents();
  ASSERT_TRUE(ddp->FinishGradSync(0).ok());
  EXPECT_THAT(intra_.TakeEvents(),
              ElementsAre("wait 0", "wait 1024", "wait 1792", "wait gather 0", "wait gather 1024"));
}

TEST_F(ShardedDdpTest, SecondDispatchInFlightIsRefused) {
  auto ddp = Make(kAligned);
  ddp->EnableForwardPreHook();
  Step(*ddp);
  ASSERT_TRUE(ddp->StartParamSync(0).ok());
  const absl::Status status = ddp->StartParamSync(0);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("gathered already"));
}

TEST_F(ShardedDdpTest, HooksThatAreOnAreNotInstalledAgain) {
  auto ddp = Make(kOverlap);
  ddp->EnableForwardPreHook();
  EXPECT_DEATH(ddp->EnableForwardPreHook(), "on already");
}

TEST_F(ShardedDdpTest, ScheduleDrivesTheReductionForEver) {
  auto ddp = Make(kAligned);
  for (int step = 0; step < 3; ++step) {
    ddp->ZeroGradBuffer();
    {
      auto no_sync = ddp->no_sync();
      Backward();
      ASSERT_TRUE(ddp->StartGradSync(0).ok());
    }
    EXPECT_THAT(intra_.TakeEvents(), ElementsAre("start 0", "start 1024", "start 1792"));
    ASSERT_TRUE(ddp->FinishGradSync(0).ok());
    EXPECT_THAT(intra_.TakeEvents(), ElementsAre("wait 0", "wait 1024", "wait 1792"));
  }
}

TEST_F(ShardedDdpTest, InstancesSumTheirShardsInTheOrderOfTheReduceScatters) {
  RecordingCommunicator whole(8, "dp_cp"), whole_expert(4, "expert_dp");
  groups_ = {.dp_cp = &whole,
             .expert_dp = &whole_expert,
             .intra_dp_cp = &intra_,
             .intra_expert_dp = &expert_,
             .inter = &inter_};
  std::vector<std::string> events;
  intra_.ShareEvents(&events);
  inter_.ShareEvents(&events);
  auto ddp = Make(kOverlap);
  Step(*ddp);
  EXPECT_THAT(events, ElementsAre("intra start 0", "intra wait 0", "inter start 0", "inter wait 0",
                                  "intra start 1024", "intra wait 1024", "inter start 1024",
                                  "inter wait 1024", "intra start 1792", "intra wait 1792",
                                  "inter start 1792", "inter wait 1792"));
  events.clear();
  // Behind the backward pass: a shard's sum starts with the next bucket's reduce-scatter.
  ddp->ZeroGradBuffer();
  Contribute(5);
  EXPECT_THAT(events, ElementsAre("intra start 0"));
  for (int i : {4, 3, 2, 1}) Contribute(i);
  EXPECT_THAT(events,
              ElementsAre("intra start 0", "intra start 1024", "intra wait 0", "inter start 0"));
  events.clear();
  Contribute(0);
  ASSERT_TRUE(ddp->FinishGradSync(0).ok());
  EXPECT_THAT(events, ElementsAre("intra start 1792", "intra wait 1024", "inter start 1024",
                                  "inter wait 0", "inter wait 1024", "intra wait 1792",
                                  "inter start 1792", "inter wait 1792"));
  // Divided by all eight ranks, not by the four of the instance.
  EXPECT_TRUE(params_[5]->main_grad.narrow(0, 0, 256).eq(0.125).all().item<bool>());
  EXPECT_THAT(whole.TakeEvents(), IsEmpty());
  // A step that is thrown away leaves nothing behind.
  ddp->ZeroGradBuffer();
  Contribute(5);
  ddp->ZeroGradBuffer();
  events.clear();
  Contribute(5);
  EXPECT_THAT(events, ElementsAre("intra start 0"));
}

TEST_F(ShardedDdpTest, OwnedShardsAreGoldenG6_2) {
  for (int rank = 0; rank < 4; ++rank) {
    SCOPED_TRACE(rank);
    RecordingCommunicator member(4, "intra", rank);
    groups_.dp_cp = &member;
    params_ = GoldenModel();
    auto ddp = Make(kOverlap);
    std::vector<std::string> text;
    for (const OwnedShard& shard : ddp->shards()) {
      text.push_back(absl::StrCat(shard.parameter->name, "[", shard.in_param.begin, ",",
                                  shard.in_param.end, ")"));
      // Views into the parameter and its gradient.
      const auto part = [&](const at::Tensor& whole) {
        return whole.detach().view(-1).narrow(0, shard.in_param.begin, shard.in_param.size());
      };
      shard.data.fill_(3.5);
      EXPECT_TRUE(part(shard.parameter->data).eq(3.5).all().item<bool>());
      shard.grad.fill_(4.5);
      EXPECT_TRUE(part(shard.parameter->main_grad).eq(4.5).all().item<bool>());
      if (shard.is_whole()) {
        EXPECT_EQ(shard.data.sizes(), shard.parameter->data.sizes());
        EXPECT_EQ(shard.grad.sizes(), shard.parameter->data.sizes());
      } else {
        EXPECT_EQ(shard.data.dim(), 1);
        EXPECT_EQ(shard.grad.dim(), 1);
      }
    }
    // In registration order; parameters without a part are left out.
    const std::vector<std::vector<std::string>> expected = {
        {"emb[0,256)", "w2[0,128)", "b2[0,7)", "head[0,256)"},
        {"emb[256,512)", "b1[0,10)", "w2[128,200)", "head[256,512)"},
        {"emb[512,768)", "w1[0,192)", "head[512,768)"},
        {"emb[768,1000)", "w1[192,300)", "head[768,1000)"}};
    EXPECT_EQ(text, expected[rank]);
  }
}

TEST_F(ShardedDdpTest, LeavesKeepIdentityValuesAndHooks) {
  at::Tensor handle;
  {
    ParameterPtr w = params_[1];
    {
      at::NoGradGuard no_grad;
      w->data.copy_(at::arange(300, at::kFloat).view({30, 10}));
    }
    handle = w->data;
    auto ddp = Make(kOverlap);
    EXPECT_TRUE(handle.is_same(w->data));
    EXPECT_TRUE(w->data.is_leaf() && w->data.requires_grad());
    EXPECT_TRUE(at::equal(w->data.detach(), at::arange(300, at::kFloat).view({30, 10})));
    EXPECT_EQ(w->data.storage_offset(), 1408);
    ddp->ZeroGradBuffer();
    for (int i = 0; i < 2; ++i) (handle * 2).sum().backward();
    EXPECT_FALSE(w->data.grad().defined());
    EXPECT_TRUE(w->main_grad.eq(4).all().item<bool>());
    ddp->EnableForwardPreHook();
    EXPECT_NE(w->gatherer, nullptr);
  }
  // Without its wrapper the model goes on: same values, ordinary gradients.
  EXPECT_EQ(params_[1]->gatherer, nullptr);
  EXPECT_EQ(params_[1]->sink, nullptr);
  EXPECT_TRUE(at::equal(handle.detach(), at::arange(300, at::kFloat).view({30, 10})));
  handle.sum().backward();
  EXPECT_TRUE(handle.grad().defined());
  Make(kNoOverlap);
  EXPECT_TRUE(at::equal(handle.detach(), at::arange(300, at::kFloat).view({30, 10})));
}

TEST_F(ShardedDdpTest, BytesMovedAreTheFormulas) {
  auto ddp = Make(kNoOverlap);
  intra_.TakeBytes();
  Step(*ddp);
  EXPECT_DOUBLE_EQ(intra_.TakeBytes(), 0.75 * 2816 * 4);  // padding included
  ASSERT_TRUE(ddp->SyncParams().ok());
  EXPECT_DOUBLE_EQ(intra_.TakeBytes(), 0.75 * 2816 * 4);
  ddp.reset();
  ddp = Make({});
  Step(*ddp);
  EXPECT_DOUBLE_EQ(intra_.TakeBytes(), 1.5 * 2517 * 4);
  ASSERT_TRUE(ddp->SyncParams().ok());
  EXPECT_DOUBLE_EQ(intra_.TakeBytes(), 0);
}

TEST_F(ShardedDdpTest, LaterChunksAndExpertsHaveChainsOfTheirOwn) {
  auto a = MakeParameter("a", {128}), b = MakeParameter("b", {128}, at::kDouble);
  params_[3]->allreduce = false;  // w2
  params_[4]->allreduce = false;  // b2
  auto ddp = Make({params_, {a, b}}, kOverlap);
  EXPECT_EQ(ddp->buffers(0).size(), 2u);
  EXPECT_EQ(ddp->buffers(1).size(), 2u);
  ddp->EnableForwardPreHook();
  ddp->ZeroGradBuffer();
  Backward();
  a->AccumulateGrad(at::ones({128}));
  b->AccumulateGrad(at::ones({128}, at::kDouble));
  for (int chunk : {0, 1}) ASSERT_TRUE(ddp->FinishGradSync(chunk).ok());
  intra_.TakeEvents();
  expert_.TakeEvents();
  // Chunk 1 is one group of two buckets, in two buffers.
  a->AwaitGather();
  EXPECT_THAT(intra_.TakeEvents(),
              ElementsAre("gather 0", "gather 0", "wait gather 0", "wait gather 0"));
  // b2 closes the experts' only bucket: no dense group follows it.
  EXPECT_THAT(Await(4), IsEmpty());
  EXPECT_THAT(expert_.TakeEvents(), ElementsAre("gather 0", "wait gather 0"));
  // Dense: head [0,1024), b1 w1 emb... from 1024 on.
  EXPECT_THAT(Await(0), ElementsAre("gather 1024", "wait gather 1024", "gather 0"));
}

// Interleaved schedule without grad_sync_func: no_sync is left for the backward pass of each
// chunk's last microbatch, for all chunks together.
TEST_F(ShardedDdpTest, ChunksAreReducedByTheirLastMicrobatch) {
  auto a = MakeParameter("a", {128});
  auto ddp = Make({params_, {a}}, kOverlap);
  auto backward = [&](int chunk) {
    if (chunk == 0) return Backward();
    a->AccumulateGrad(at::ones({128}));
  };
  for (int step = 0; step < 3; ++step) {
    SCOPED_TRACE(step);
    ddp->ZeroGradBuffer();
    auto no_sync = std::make_unique<DistributedDataParallel::NoSync>(*ddp);
    std::vector<std::string> last_of_chunk[2];
    for (const auto& [chunk, is_last] :
         std::vector<std::pair<int, bool>>{{1, false}, {0, false}, {1, true}, {0, true}}) {
      if (is_last) no_sync.reset();
      backward(chunk);
      if (is_last) {
        last_of_chunk[chunk] = intra_.TakeEvents();
        no_sync = std::make_unique<DistributedDataParallel::NoSync>(*ddp);
      }
      EXPECT_THAT(intra_.TakeEvents(), IsEmpty());
    }
    no_sync.reset();
    for (int chunk : {0, 1}) ASSERT_TRUE(ddp->FinishGradSync(chunk).ok());
    intra_.TakeEvents();
    EXPECT_TRUE(a->main_grad.narrow(0, 0, 32).eq(0.5).all().item<bool>());  // two, over four ranks
    if (step == 0) continue;  // nothing is known about how often parameters fire
    EXPECT_THAT(last_of_chunk[1], ElementsAre("start 0"));
    EXPECT_THAT(last_of_chunk[0], ElementsAre("start 0", "start 1024", "start 1792"));
  }
}

TEST_F(ShardedDdpTest, BucketsFollowStageChunkAndTiedEmbedding) {
  auto sizes = [](const DistributedDataParallel& ddp, int chunk) {
    std::vector<int64_t> sizes;
    for (const GradBuffer* buffer : ddp.buffers(chunk))
      for (const GradBucket& bucket : buffer->buckets()) sizes.push_back(bucket.data.numel());
    return sizes;
  };
  EXPECT_THAT(sizes(*Make(kOverlap), 0), ElementsAre(1024, 768, 1024));
  EXPECT_THAT(sizes(*Make({GoldenModel(), params_}, kOverlap), 1), ElementsAre(2816));
  DdpOptions padded = kOverlap;
  padded.pad_buckets_for_high_nccl_busbw = true;
  EXPECT_THAT(sizes(*Make(padded), 0), ElementsAre(65536, 65536, 65536));
  params_[0]->shared_embedding = true;
  EXPECT_THAT(sizes(*Make(kNoOverlap), 0), ElementsAre(1792, 1024));
  params_[0]->shared_embedding = false;
  groups_.pp_rank = 1;
  EXPECT_THAT(sizes(*Make(kOverlap), 0), ElementsAre(2816));
}

TEST_F(ShardedDdpTest, GradientScalesTouchTheOwnShardOnly) {
  DdpOptions options = kNoOverlap;
  options.average_in_collective = true;
  auto ddp = Make(options);
  ddp->ZeroGradBuffer();
  Backward();
  ASSERT_TRUE(ddp->FinishGradSync(0).ok());  // the mean over four, the peers hold zeros
  ddp->ScaleGradients(8.0);
  for (const OwnedShard& shard : ddp->shards())
    EXPECT_TRUE(shard.grad.eq(2.0).all().item<bool>()) << shard.parameter->name;
}

TEST_F(ShardedDdpTest, NanIsFoundBeforeTheReduceScatter) {
  auto ddp = Make(kOverlap);
  Step(*ddp);
  ddp->ZeroGradBuffer();
  for (int i : {5, 4, 2, 1, 0}) Contribute(i);
  at::Tensor grad = at::ones({20, 10});
  grad[19][9] = std::numeric_limits<double>::quiet_NaN();  // in another rank's shard
  params_[3]->AccumulateGrad(grad);
  ASSERT_TRUE(ddp->FinishGradSync(0).ok());
  const absl::Status status = ddp->CheckBucketNorms();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("NaN"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("bucket 1 of chunk 0"));
}

TEST_F(ShardedDdpTest, SquaresAreKnownOnlyWhereNobodyElseAddsToTheGradient) {
  RecordingCommunicator alone(1, "intra"), pair(2, "dp_cp");
  groups_ = {.dp_cp = &alone, .expert_dp = &alone};
  auto ddp = Make(kNoOverlap);
  Step(*ddp);
  EXPECT_EQ(params_[3]->main_grad_squares, 200.0);
  ddp.reset();
  groups_ = {.dp_cp = &pair,
             .expert_dp = &pair,
             .intra_dp_cp = &alone,
             .intra_expert_dp = &alone,
             .inter = &inter_};
  DdpOptions per_token = kNoOverlap;
  per_token.calculate_per_token_loss = true;  // no scale that would hide the mistake
  ddp = Make(per_token);
  Step(*ddp);
  EXPECT_FALSE(params_[3]->main_grad_squares.has_value());
}

TEST_F(ShardedDdpTest, OptionsAndGroupsThatDoNotFitAreRefused) {
  auto message = [&](const DdpOptions& options, const DdpGroups& groups) {
    const absl::Status status =
        DistributedDataParallel::Create({params_}, groups, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message({.overlap_grad_reduce = true, .overlap_param_gather = true}, groups_),
              HasSubstr("needs parallel.use_distributed_optimizer=true"));
  EXPECT_THAT(message({.use_distributed_optimizer = true, .overlap_param_gather = true}, groups_),
              HasSubstr("needs parallel.overlap_grad_reduce=true"));
  RecordingCommunicator three(3, "intra_dp_cp");
  DdpGroups groups = groups_;
  groups.intra_dp_cp = &three;
  EXPECT_THAT(message(kOverlap, groups), HasSubstr("intra has 4 members, but 1 instances"));
  groups.intra_dp_cp = nullptr;
  groups.inter = &inter_;
  EXPECT_THAT(message(kOverlap, groups), HasSubstr("2 instances"));
}

}  // namespace
}  // namespace muster
