// The gradient life cycle of reference 6.4 on one rank, against a group that records.
#include "worker/parallel/ddp.h"

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/parallel/recording_communicator.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ParameterPtr MakeParameter(const std::string& name, std::vector<int64_t> sizes,
                           at::ScalarType dtype = at::kFloat) {
  auto p = std::make_shared<Parameter>();
  p->name = name;
  p->data = at::ones(sizes, dtype).set_requires_grad(true);
  return p;
}

// The model of goldens G6.1 and G6.3: three buckets of plain layout with bucket_size 500, at
// offsets 0 (head), 1000 (middle) and 1517 (emb).
class DdpTest : public ::testing::Test {
 protected:
  DdpTest() {
    const std::vector<std::pair<std::string, int64_t>> sizes = {
        {"emb", 1000}, {"w1", 300}, {"b1", 10}, {"w2", 200}, {"b2", 7}, {"head", 1000}};
    for (const auto& [name, numel] : sizes) {
      params_.push_back(MakeParameter(name, {numel}));
      by_name_[name] = params_.back();
    }
  }

  std::unique_ptr<DistributedDataParallel> Make(DdpOptions options) {
    if (!options.num_buckets) options.bucket_size = 500;
    auto ddp = DistributedDataParallel::Create(
        {params_}, {.dp_cp = &dp_cp_, .expert_dp = &expert_dp_}, options);
    EXPECT_TRUE(ddp.ok()) << ddp.status();
    return *std::move(ddp);
  }

  void Contribute(const std::string& name, double value = 1.0) {
    Parameter& p = *by_name_.at(name);
    p.AccumulateGrad(at::full(p.data.sizes(), value));
  }
  // A backward pass: gradients come in reverse order of registration.
  void Backward() {
    for (const char* name : {"head", "b2", "w2", "b1", "w1", "emb"}) Contribute(name);
  }
  void FirstStep(DistributedDataParallel& ddp) {
    ddp.ZeroGradBuffer();
    Backward();
    EXPECT_TRUE(ddp.FinishGradSync(0).ok());
    dp_cp_.TakeEvents();
  }

  RecordingCommunicator dp_cp_{2};
  RecordingCommunicator expert_dp_{1, "expert_dp"};
  std::vector<ParameterPtr> params_;
  std::map<std::string, ParameterPtr> by_name_;
};

TEST_F(DdpTest, OverlapTraceIsGoldenG6_3) {
  auto ddp = Make({.overlap_grad_reduce = true});
  for (int step = 1; step <= 3; ++step) {
    SCOPED_TRACE(step);
    ddp->ZeroGradBuffer();
    {
      auto no_sync = ddp->no_sync();
      Backward();
    }
    EXPECT_THAT(dp_cp_.TakeEvents(), IsEmpty());
    if (step == 1) {
      Backward();
      EXPECT_THAT(dp_cp_.TakeEvents(), IsEmpty());
      ASSERT_TRUE(ddp->FinishGradSync(0).ok());
      EXPECT_THAT(dp_cp_.TakeEvents(), ElementsAre("start 0", "wait 0", "start 1000", "wait 1000",
                                                   "start 1517", "wait 1517"));
      continue;
    }
    Contribute("head");
    EXPECT_THAT(dp_cp_.TakeEvents(), ElementsAre("start 0"));
    Contribute("w2");
    Contribute("b2");
    Contribute("b1");
    EXPECT_THAT(dp_cp_.TakeEvents(), IsEmpty());
    Contribute("w1");
    EXPECT_THAT(dp_cp_.TakeEvents(), ElementsAre("start 1000"));
    Contribute("emb");
    EXPECT_THAT(dp_cp_.TakeEvents(), ElementsAre("start 1517"));
    ASSERT_TRUE(ddp->FinishGradSync(0).ok());
    EXPECT_THAT(dp_cp_.TakeEvents(), ElementsAre("wait 0", "wait 1000", "wait 1517"));
  }
}

TEST_F(DdpTest, WithoutOverlapOneBucketIsReducedInFinish) {
  auto ddp = Make({});
  for (int step = 0; step < 2; ++step) {
    ddp->ZeroGradBuffer();
    Backward();
    Backward();
    EXPECT_THAT(dp_cp_.TakeEvents(), IsEmpty());
    ASSERT_TRUE(ddp->FinishGradSync(0).ok());
    ASSERT_TRUE(ddp->FinishGradSync(0).ok());  // idempotent
    EXPECT_THAT(dp_cp_.TakeEvents(), ElementsAre("start 0", "wait 0"));
    // Two contributions of 1, halved: the mean over the two ranks (the peer holds zeros).
    for (const ParameterPtr& p : params_) EXPECT_TRUE(p->main_grad.eq(1.0).all().item<bool>());
  }
}

TEST_F(DdpTest, ScheduleDrivesTheReductionInsideNoSync) {
  auto ddp = Make({.overlap_grad_reduce = true});
  for (int step = 0; step < 3; ++step) {
    ddp->ZeroGradBuffer();
    {
      auto no_sync = ddp->no_sync();
      Backward();
      ASSERT_TRUE(ddp->StartGradSync(0).ok());
    }
    EXPECT_THAT(dp_cp_.TakeEvents(), ElementsAre("start 0", "start 1000", "start 1517"));
    ASSERT_TRUE(ddp->FinishGradSync(0).ok());
    EXPECT_THAT(dp_cp_.TakeEvents(), ElementsAre("wait 0", "wait 1000", "wait 1517"));
  }
}

TEST_F(DdpTest, SecondStartAfterTheFirstBatchIsRefused) {
  auto ddp = Make({.overlap_grad_reduce = true});
  FirstStep(*ddp);
  ddp->ZeroGradBuffer();
  Backward();
  const absl::Status status = ddp->StartGradSync(0);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("started twice"));
}

TEST_F(DdpTest, MissingGradientIsCounted) {
  for (bool in_first_step : {true, false}) {
    SCOPED_TRACE(in_first_step);
    auto ddp = Make({.overlap_grad_reduce = true});
    if (!in_first_step) FirstStep(*ddp);
    ddp->ZeroGradBuffer();
    for (const char* name : {"head", "b2", "w2", "w1", "emb"}) Contribute(name);
    const absl::Status status = ddp->FinishGradSync(0);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("bucket 1: 3 of 4 parameters"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("b1"));
  }
}

TEST_F(DdpTest, GradientAfterTheStartIsRefused) {
  auto ddp = Make({.overlap_grad_reduce = true});
  FirstStep(*ddp);
  ddp->ZeroGradBuffer();
  Contribute("head");
  EXPECT_THROW(Contribute("head"), CollectiveError);
}

TEST_F(DdpTest, TiedWeightFiresTwice) {
  auto ddp = Make({.overlap_grad_reduce = true});
  ddp->ZeroGradBuffer();
  Contribute("emb");
  Backward();
  ASSERT_TRUE(ddp->FinishGradSync(0).ok());
  dp_cp_.TakeEvents();
  ddp->ZeroGradBuffer();
  Contribute("emb");
  EXPECT_THAT(dp_cp_.TakeEvents(), IsEmpty());
  Contribute("emb");
  EXPECT_THAT(dp_cp_.TakeEvents(), ElementsAre("start 1517"));
}

TEST_F(DdpTest, BrokenOffFirstStepDoesNotBecomeGolden) {
  auto ddp = Make({.overlap_grad_reduce = true});
  ddp->ZeroGradBuffer();
  Contribute("b2");  // then the step is thrown away
  ddp->ZeroGradBuffer();
  Contribute("b2");
  EXPECT_THAT(dp_cp_.TakeEvents(), IsEmpty());
}

TEST_F(DdpTest, UntouchedParameterHasZeroGradient) {
  auto ddp = Make({});
  FirstStep(*ddp);
  ddp->ZeroGradBuffer();
  Contribute("head", 4.0);
  ASSERT_TRUE(ddp->FinishGradSync(0).ok());
  EXPECT_TRUE(by_name_["head"]->main_grad.eq(2.0).all().item<bool>());
  EXPECT_TRUE(by_name_["w1"]->main_grad.eq(0.0).all().item<bool>());
}

TEST_F(DdpTest, NanIsFoundAndTheReductionGoesOn) {
  for (double bad : {std::numeric_limits<double>::quiet_NaN(), 1.0 / 0.0}) {
    auto ddp = Make({.overlap_grad_reduce = true});
    FirstStep(*ddp);
    EXPECT_TRUE(ddp->CheckBucketNorms().ok());
    EXPECT_EQ(ddp->bucket_norms().size(), 3u);
    EXPECT_FLOAT_EQ(ddp->bucket_norms()[1].bucket.norm, std::sqrt(517.0));  // before scaling
    ddp->ZeroGradBuffer();
    for (const char* name : {"head", "b2", "b1", "w1", "emb"}) Contribute(name);
    at::Tensor grad = at::ones({200});
    grad[17] = bad;
    by_name_["w2"]->AccumulateGrad(grad);
    ASSERT_TRUE(ddp->FinishGradSync(0).ok());
    EXPECT_EQ(dp_cp_.TakeEvents().size(), 6u);
    const absl::Status status = ddp->CheckBucketNorms();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()), HasSubstr("bucket 1 of chunk 0"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::isnan(bad) ? "NaN" : "Inf"));
  }
}

TEST_F(DdpTest, SquaresAreKnownOnlyWhileGradientsAreFinal) {
  DdpOptions options;
  auto with_peers = Make(options);
  with_peers->ZeroGradBuffer();
  Backward();
  ASSERT_TRUE(with_peers->FinishGradSync(0).ok());
  EXPECT_FALSE(by_name_["w2"]->main_grad_squares.has_value());
  with_peers.reset();

  auto alone = DistributedDataParallel::Create(
      {params_}, {.dp_cp = &expert_dp_, .expert_dp = &expert_dp_}, options);
  ASSERT_TRUE(alone.ok());
  (*alone)->ZeroGradBuffer();
  Backward();
  Backward();
  EXPECT_FALSE(by_name_["w2"]->main_grad_squares.has_value());
  ASSERT_TRUE((*alone)->FinishGradSync(0).ok());
  EXPECT_EQ(by_name_["w2"]->main_grad_squares, 4.0 * 200);
  EXPECT_DOUBLE_EQ((*alone)->bucket_norms()[0].bucket.norm, std::sqrt(4.0 * 2517));
  (*alone)->ScaleGradients(0.5);
  EXPECT_FALSE(by_name_["w2"]->main_grad_squares.has_value());
  (*alone)->ZeroGradBuffer();
  EXPECT_FALSE(by_name_["w2"]->main_grad_squares.has_value());
}

TEST_F(DdpTest, ExpertsReduceOverTheirGroup) {
  by_name_["w2"]->allreduce = false;
  auto ddp = Make({});
  ddp->ZeroGradBuffer();
  Backward();
  ASSERT_TRUE(ddp->FinishGradSync(0).ok());
  EXPECT_THAT(expert_dp_.TakeEvents(), ElementsAre("start 0", "wait 0"));
  EXPECT_THAT(dp_cp_.TakeEvents(), ElementsAre("start 0", "wait 0"));
  EXPECT_TRUE(by_name_["w2"]->main_grad.eq(0.5).all().item<bool>());
}

TEST_F(DdpTest, GradientsInFp32ForBf16Parameters) {
  auto weight = MakeParameter("bf16", {3, 5}, at::kBFloat16);
  auto ddp = DistributedDataParallel::Create(
      {{weight}}, {.dp_cp = &dp_cp_, .expert_dp = &expert_dp_}, {.grad_reduce_in_fp32 = true});
  ASSERT_TRUE(ddp.ok());
  EXPECT_EQ(weight->main_grad.scalar_type(), at::kFloat);
  EXPECT_EQ(weight->main_grad.sizes(), weight->data.sizes());
  (*ddp)->ZeroGradBuffer();
  for (int i = 0; i < 2; ++i) (weight->data * 1.5).sum().backward();
  EXPECT_FALSE(weight->data.grad().defined());
  EXPECT_TRUE(weight->main_grad.eq(3.0).all().item<bool>());
  ddp->reset();
  EXPECT_FALSE(weight->main_grad.defined());
  EXPECT_EQ(weight->sink, nullptr);
  weight->data.sum().backward();  // the hook is gone
  EXPECT_TRUE(weight->data.grad().defined());
}

TEST_F(DdpTest, LaterChunksAreOneGroupOverAllBuffers) {
  auto a = MakeParameter("a", {4}), b = MakeParameter("b", {4}, at::kDouble);
  auto ddp = DistributedDataParallel::Create({params_, {a, b}},
                                             {.dp_cp = &dp_cp_, .expert_dp = &expert_dp_},
                                             {.overlap_grad_reduce = true, .bucket_size = 1});
  ASSERT_TRUE(ddp.ok());
  EXPECT_EQ((*ddp)->buffers(1).size(), 2u);
  for (int step = 0; step < 2; ++step) {
    (*ddp)->ZeroGradBuffer();
    a->AccumulateGrad(at::ones({4}));
    EXPECT_THAT(dp_cp_.TakeEvents(), IsEmpty());
    b->AccumulateGrad(at::ones({4}, at::kDouble));
    if (step == 1) {
      EXPECT_THAT(dp_cp_.TakeEvents(), ElementsAre("start 0", "start 0"));
    }
    ASSERT_TRUE((*ddp)->FinishGradSync(1).ok());
    dp_cp_.TakeEvents();
  }
}

TEST_F(DdpTest, BadOptionsAreRefused) {
  const DdpGroups groups{.dp_cp = &dp_cp_, .expert_dp = &expert_dp_};
  auto code = [&](std::vector<ParameterPtr> params, const DdpOptions& options) {
    return DistributedDataParallel::Create({params}, groups, options).status().code();
  };
  EXPECT_EQ(code({params_[0], params_[0]}, {}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(params_, {.bucket_size = 1, .num_buckets = 1}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(params_, {.average_in_collective = true, .calculate_per_token_loss = true}),
            absl::StatusCode::kInvalidArgument);
  const auto first = Make({});
  EXPECT_EQ(code(params_, {}), absl::StatusCode::kFailedPrecondition);
}

TEST(GradScalingTest, GoldenG6_4) {
  const DdpOptions sum, avg{.average_in_collective = true};
  EXPECT_EQ(ComputeGradScaling(sum, false, 8, 2).before, 0.125);
  EXPECT_EQ(ComputeGradScaling(sum, true, 8, 2).before, 0.125);
  EXPECT_EQ(ComputeGradScaling(avg, false, 8, 2).before, 1.0);
  EXPECT_EQ(ComputeGradScaling(avg, false, 8, 2).after, 0.125);
  EXPECT_EQ(ComputeGradScaling(avg, true, 8, 2).before, 0.25);
  EXPECT_EQ(ComputeGradScaling(avg, true, 8, 2).after, 0.5);
  const DdpOptions per_token{.calculate_per_token_loss = true};
  for (bool expert : {false, true}) {
    EXPECT_EQ(ComputeGradScaling(per_token, expert, 8, 2).before, 1.0);
    EXPECT_EQ(ComputeGradScaling(per_token, expert, 8, 2).after, 1.0);
  }
}

}  // namespace
}  // namespace muster
