#include "worker/train/pipeline_exchange.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/train_passes/recording_pipeline.h"
#include "tests/worker/train_passes/toy_pipeline.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using Kind = ScheduleOp::Kind;

class PipelineExchangeTest : public ::testing::Test {
 protected:
  PipelineExchange::Options Options(bool overlap = false) {
    return {.pp = &pp, .hidden_shape = {2, 3}, .hidden_dtype = at::kDouble, .overlap = overlap};
  }
  static ScheduleOp Op(Kind kind, int microbatch) { return {kind, 0, microbatch, microbatch}; }

  LatePipeline pp{1, 3};
};

TEST_F(PipelineExchangeTest, ABufferIsUsedAgainOnceNobodyReadsIt) {
  PipelineExchange exchange(Options());
  const auto receive = [&](int microbatch) {
    EXPECT_TRUE(exchange.Post({Op(Kind::kRecvForward, microbatch)}).ok());
    return *exchange.Take(Kind::kRecvForward, 0, microbatch);
  };
  at::Tensor first = receive(0);
  const void* const memory = first.data_ptr();
  exchange.Recycle(std::move(first));
  at::Tensor second = receive(1);
  EXPECT_EQ(second.data_ptr(), memory);
  const at::Tensor reader = second.detach();
  exchange.Recycle(std::move(second));
  const at::Tensor third = receive(2);
  EXPECT_NE(third.data_ptr(), memory);
}

TEST_F(PipelineExchangeTest, AMessageOfAnotherShapeIsRefused) {
  PipelineExchange exchange(Options());
  const absl::Status status =
      exchange.Put(Kind::kSendForward, 0, 4, at::zeros({2, 4}, at::kDouble));
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("send_forward of chunk 0, microbatch 4: the model made (2, 4) of Double"));
  EXPECT_FALSE(exchange.Put(Kind::kSendForward, 0, 4, at::zeros({2, 3}, at::kFloat)).ok());
}

TEST_F(PipelineExchangeTest, WhatTheListDoesNotProvideIsNamed) {
  PipelineExchange exchange(Options());
  EXPECT_TRUE(absl::IsFailedPrecondition(exchange.Post({Op(Kind::kSendBackward, 1)})));
  EXPECT_TRUE(absl::IsFailedPrecondition(exchange.Take(Kind::kRecvBackward, 0, 1).status()));
  PipelineExchange alone({.hidden_shape = {1}});
  EXPECT_TRUE(absl::IsInvalidArgument(alone.Post({Op(Kind::kRecvForward, 0)})));
}

TEST_F(PipelineExchangeTest, SendsLeftUnfinishedAreBounded) {
  PipelineExchange exchange(Options(/*overlap=*/true));
  for (int i = 0; i < 10; ++i) {
    for (const Kind kind : {Kind::kSendForward, Kind::kSendBackward}) {
      ASSERT_TRUE(exchange.Put(kind, 0, i, at::zeros({2, 3}, at::kDouble)).ok());
      ASSERT_TRUE(exchange.Post({Op(kind, i)}).ok());
    }
  }
  EXPECT_EQ(pp.most_pending, 2 * static_cast<int>(PipelineExchange::kMaxPendingExchanges));
  EXPECT_TRUE(exchange.Finish().ok());
  EXPECT_EQ(pp.num_pending, 0);
}

}  // namespace
}  // namespace muster
