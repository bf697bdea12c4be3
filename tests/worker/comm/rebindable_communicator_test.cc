// Handles that outlive their groups, and what follows their operations.

#include "worker/comm/rebindable_communicator.h"

#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/comm/thread_communicator.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

class RebindableTest : public testing::Test {
 protected:
  using Handle = std::shared_ptr<RebindableCommunicator>;

  RebindableTest() {
    for (CommunicatorPtr& world : MakeThreadWorld(2)) {
      progress.push_back(std::make_shared<OpProgress>());
      ranks.push_back(std::make_shared<RebindableCommunicator>(world, progress.back()));
    }
  }
  // Both ranks add 1; what rank 0 gets.
  absl::StatusOr<double> Sum() {
    at::Tensor a = at::ones({1}), b = at::ones({1});
    const WorkPtr first = ranks[0]->AllReduce(a, ReduceOp::kSum);
    const WorkPtr second = ranks[1]->AllReduce(b, ReduceOp::kSum);
    if (absl::Status status = first->Wait(); !status.ok()) return status;
    if (absl::Status status = second->Wait(); !status.ok()) return status;
    return a.item<double>();
  }
  void Rebind() {
    const std::vector<CommunicatorPtr> worlds = MakeThreadWorld(2);
    for (int rank = 0; rank < 2; ++rank) {
      progress[rank]->Forget();
      ranks[rank]->Bind(worlds[rank]);
    }
  }

  std::vector<std::shared_ptr<OpProgress>> progress;
  std::vector<Handle> ranks;
};

TEST_F(RebindableTest, TheHandleGoesOnInANewGroupAfterAnAbort) {
  EXPECT_EQ(Sum().value(), 2);
  ranks[0]->Abort("a test");
  EXPECT_FALSE(Sum().ok());
  Rebind();
  EXPECT_EQ(Sum().value(), 2);
}

TEST_F(RebindableTest, TheNewestOperationIsKnownWhetherDoneOrNot) {
  ASSERT_TRUE(Sum().ok());
  at::Tensor a = at::ones({3});
  const WorkPtr waits = ranks[0]->AllReduce(a, ReduceOp::kMax);
  const auto newest = progress[0]->NewestOperations();
  ASSERT_THAT(newest, SizeIs(1));
  EXPECT_EQ(newest[0].group, "world");
  EXPECT_THAT(newest[0].ranks, ElementsAre(0, 1));
  EXPECT_EQ(newest[0].sequence, 2);
  EXPECT_EQ(newest[0].operation, "all_reduce 3 float");
  EXPECT_FALSE(newest[0].done);
  const auto peer = progress[1]->NewestOperations();
  ASSERT_THAT(peer, SizeIs(1));
  EXPECT_EQ(peer[0].sequence, 1);
  EXPECT_TRUE(peer[0].done);

  Rebind();
  EXPECT_TRUE(progress[0]->NewestOperations().empty());
  ASSERT_TRUE(Sum().ok());
  EXPECT_EQ(progress[0]->NewestOperations()[0].sequence, 1);
}

TEST_F(RebindableTest, AnObserverListensBehindTheProgressAndThroughARebind) {
  struct Counter final : OpObserver {
    int64_t OpStarted(const Start&) override { return started++; }
    void OpFinished(int64_t) override { ++finished; }
    void OpWaited(int64_t, int64_t) override {}
    int64_t started = 0, finished = 0;
  } counter;
  ASSERT_TRUE(Sum().ok());
  ranks[0]->Observe(&counter);
  ASSERT_TRUE(Sum().ok());
  Rebind();
  ASSERT_TRUE(Sum().ok());
  ranks[0]->Observe(nullptr);
  ASSERT_TRUE(Sum().ok());
  EXPECT_EQ(counter.started, 2);
  EXPECT_EQ(counter.finished, 2);
  EXPECT_THAT(progress[0]->NewestOperations(), SizeIs(1));
}

TEST(UnboundCommunicatorTest, PeersSayWhatThisRankSays) {
  const CommunicatorPtr world = MakeUnboundCommunicator("world", {0, 1, 2, 3}, 2);
  const CommunicatorPtr group = world->Split("dp", {2, 3}).value();
  EXPECT_EQ(group->rank(), 0);
  EXPECT_THAT(group->ranks(), ElementsAre(2, 3));
  EXPECT_EQ(world->Split("other", {0, 1}).value(), nullptr);
  at::Tensor mine = at::arange(2), all = at::zeros({4}, at::kLong);
  ASSERT_TRUE(group->AllGather(all, mine)->Wait().ok());
  EXPECT_TRUE(at::equal(all, at::cat({mine, mine})));
  ASSERT_TRUE(group->AllReduce(mine, ReduceOp::kSum)->Wait().ok());
  EXPECT_TRUE(at::equal(mine, at::arange(2)));
  EXPECT_FALSE(group->SendRecv({{.tensor = mine, .peer = 1}})->Wait().ok());
}

}  // namespace
}  // namespace muster
