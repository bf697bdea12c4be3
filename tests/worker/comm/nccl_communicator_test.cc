// The NCCL communicator over a fake NCCL: what it calls, and that every failure of every call ends
// as a named error on the caller, with all communicators aborted and every handle given back.
#include "worker/comm/nccl_communicator.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/worker/comm/fake_nccl.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class NcclTest : public ::testing::Test {
 protected:
  absl::StatusOr<CommunicatorPtr> Form(int size = 4) {
    return FormNcclWorld({.rank = 1 % size,
                          .size = size,
                          .unique_id = std::string(128, 'u'),
                          .api = api,
                          .form_limit = form_limit,
                          .operation_limit = operation_limit,
                          .poll_interval = absl::Milliseconds(1)});
  }
  // The watcher runs on its own; what it does is awaited, not timed.
  template <class Condition>
  static bool Eventually(Condition condition) {
    for (int i = 0; i < 5000 && !condition(); ++i) absl::SleepFor(absl::Milliseconds(1));
    return condition();
  }
  static WorkPtr Reduce(Communicator& comm) {
    return comm.AllReduce(at::ones({8}), ReduceOp::kSum);
  }

  std::shared_ptr<FakeNccl> api = std::make_shared<FakeNccl>();
  absl::Duration form_limit = absl::Seconds(20), operation_limit = absl::Seconds(20);
};

TEST_F(NcclTest, FormsRunsAndEndsInOrder) {
  api->FailNext("InitRank", NcclResult::kInProgress);
  api->StayInProgress(5);
  {
    auto world = Form();
    ASSERT_TRUE(world.ok()) << world.status();
    EXPECT_GE(api->Count("GetAsyncError"), 6);
    const WorkPtr work = Reduce(**world);
    EXPECT_TRUE(work->Wait().ok());
    EXPECT_TRUE(Eventually([&] { return work->IsDone(); }));
    const at::Tensor all = at::zeros({32}), one = at::zeros({8});
    EXPECT_TRUE((*world)->AllGather(all, one)->Wait().ok());
    EXPECT_TRUE((*world)->ReduceScatter(one, all, ReduceOp::kSum)->Wait().ok());
    EXPECT_TRUE((*world)->AllToAll(all, all.clone(), {}, {})->Wait().ok());
    EXPECT_EQ(api->Count("Send"), 4);
    EXPECT_EQ(api->Count("Recv"), 4);
    EXPECT_TRUE((*world)->Broadcast(one, 2)->Wait().ok());
    EXPECT_TRUE((*world)->Barrier()->Wait().ok());
    EXPECT_TRUE(Eventually([&] {
      return (*world)->Describe().find("barrier done in") != std::string::npos;
    })) << (*world)->Describe();
  }
  EXPECT_EQ(api->Count("Destroy"), 1);
  EXPECT_EQ(api->Count("Abort"), 0);
  EXPECT_EQ(api->num_live(), 0);
}

TEST_F(NcclTest, SplitsTakePartWithOrWithoutAColour) {
  auto world = Form();
  ASSERT_TRUE(world.ok());
  auto pair = (*world)->Split("pair", {3, 1});
  ASSERT_TRUE(pair.ok()) << pair.status();
  EXPECT_EQ((*pair)->rank(), 1);
  EXPECT_EQ((*pair)->ranks(), (std::vector<int>{3, 1}));
  EXPECT_TRUE(Reduce(**pair)->Wait().ok());
  auto others = (*world)->Split("others", {0, 2});
  ASSERT_TRUE(others.ok());
  EXPECT_EQ(*others, nullptr);
  auto alone = (*world)->Split("alone", {1});
  ASSERT_TRUE(alone.ok());
  EXPECT_TRUE(Reduce(**alone)->Wait().ok());
  EXPECT_EQ(api->Count("Split"), 3);  // every member calls every time, or NCCL hangs
  auto same = (*world)->Split("same", {0, 1, 2, 3});
  ASSERT_TRUE(same.ok());
  EXPECT_EQ(api->Count("Split"), 3);  // but not for the same group again
  EXPECT_EQ((*same)->name(), "same");
}

// A channel is a communicator of its own: made once, when all members ask for it.
TEST_F(NcclTest, ChannelsAreOpenedTogetherAndOnce) {
  {
    auto world = Form();
    ASSERT_TRUE(world.ok());
    ASSERT_TRUE((*world)->OpenChannels().ok());
    ASSERT_TRUE((*world)->OpenChannels().ok());
    EXPECT_EQ(api->Count("Split"), 1);
    const at::Tensor a = at::ones({4}), b = at::ones({4});
    EXPECT_TRUE((*world)
                    ->SendRecv({{P2POp::Kind::kSend, a, 2, 1},
                                {P2POp::Kind::kRecv, b, 0, 0},
                                {P2POp::Kind::kRecv, b, 0, 1}})
                    ->Wait()
                    .ok());
    EXPECT_EQ(api->Count("GroupStart"), 2) << "one group call a channel";
    EXPECT_EQ(api->Count("Send"), 1);
    EXPECT_EQ(api->Count("Recv"), 2);
    EXPECT_THAT((*world)->Describe(), HasSubstr("world (channel 1)"));
  }
  EXPECT_EQ(api->Count("Destroy"), 2);
  EXPECT_EQ(api->num_live(), 0);
}

TEST_F(NcclTest, AClosedChannelIsRefused) {
  auto world = Form();
  ASSERT_TRUE(world.ok());
  const absl::Status status =
      (*world)->SendRecv({{P2POp::Kind::kSend, at::ones({4}), 2, 1}})->Wait();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("OpenChannels"));
  EXPECT_EQ(api->Count("Send"), 0);
}

TEST_F(NcclTest, AnAbortEndsBothChannels) {
  auto world = Form();
  ASSERT_TRUE(world.ok());
  ASSERT_TRUE((*world)->OpenChannels().ok());
  api->Hang();
  const at::Tensor a = at::ones({4});
  const WorkPtr work =
      (*world)->SendRecv({{P2POp::Kind::kRecv, a, 2, 1}, {P2POp::Kind::kSend, a, 2, 0}});
  EXPECT_FALSE(work->IsDone());
  (*world)->Abort("told so");
  EXPECT_EQ(work->Wait(), absl::AbortedError("told so"));
  EXPECT_TRUE(Eventually([&] { return api->Count("Abort") == 2; }));
}

TEST_F(NcclTest, AnyFailingCallIsANamedErrorAndLeaksNothing) {
  for (const char* call : {"InitRank", "CreateStream", "CreateEvent", "Allocate", "Split",
                           "AllReduce", "RecordEvent", "StreamWaitEvent", "CurrentStream",
                           "GetAsyncError", "QueryEvent", "GroupStart", "GroupEnd", "Send"}) {
    SCOPED_TRACE(call);
    api = std::make_shared<FakeNccl>();
    absl::Status first;
    {
      api->FailNext(call, NcclResult::kSystemError);
      auto world = Form();
      first.Update(world.status());
      if (world.ok()) {
        auto pair = (*world)->Split("pair", {0, 1});
        first.Update(pair.status());
        const WorkPtr work = Reduce(**world);
        first.Update(work->Wait());
        const at::Tensor t = at::ones({4});
        first.Update((*world)->SendRecv({{P2POp::Kind::kSend, t, 2}})->Wait());
        // Asynchronous ones are told by a later call.
        EXPECT_TRUE(Eventually([&] {
          first.Update((*world)->Barrier()->Wait());
          return !first.ok();
        }));
        EXPECT_TRUE(Eventually([&] { return api->Count("Abort") > 0; }));
        EXPECT_EQ((*world)->Barrier()->Wait(), first) << "the first error stays";
        EXPECT_EQ((*world)->Split("late", {0, 1}).status(), first);
      }
    }
    EXPECT_TRUE(absl::IsUnavailable(first)) << first;
    EXPECT_EQ(api->num_live(), 0);
  }
}

TEST_F(NcclTest, AnAsynchronousErrorNamesTheOldestOperationAndAborts) {
  auto world = Form();
  ASSERT_TRUE(world.ok());
  api->Hang();
  const WorkPtr work = Reduce(**world);
  EXPECT_TRUE(work->Wait().ok()) << "healthy so far";
  EXPECT_FALSE(work->IsDone());
  api->SetAsync(NcclResult::kRemoteError);
  EXPECT_TRUE(Eventually([&] { return api->Count("Abort") == 1; }));
  const absl::Status status = work->Wait();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("group world, sequence 0, all_reduce 8 float"),
                    HasSubstr("fake NCCL result 6")));
}

// The kernel never ends: until a stream waits for it, nobody else may get the memory.
TEST_F(NcclTest, TensorsAreHeldUntilTheStreamWaits) {
  auto world = Form();
  ASSERT_TRUE(world.ok());
  api->Hang();
  const at::Tensor tensor = at::ones({8});
  const WorkPtr work = (*world)->AllReduce(tensor, ReduceOp::kSum);
  EXPECT_GT(tensor.use_count(), 1);
  EXPECT_TRUE(work->Wait().ok());
  EXPECT_EQ(tensor.use_count(), 1);
  EXPECT_TRUE(work->Wait().ok());
}

TEST_F(NcclTest, AnOperationPastItsLimitIsAborted) {
  operation_limit = absl::Milliseconds(30);
  auto world = Form();
  ASSERT_TRUE(world.ok());
  api->Hang();
  const WorkPtr work = Reduce(**world);
  EXPECT_TRUE(Eventually([&] { return api->Count("Abort") == 1; }));
  const absl::Status status = work->Wait();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("sequence 0, all_reduce 8 float"));
}

TEST_F(NcclTest, FormingPastItsLimitSaysSo) {
  form_limit = absl::Milliseconds(30);
  api->FailNext("InitRank", NcclResult::kInProgress);
  api->StayInProgress(1'000'000);
  const auto world = Form();
  EXPECT_TRUE(absl::IsDeadlineExceeded(world.status())) << world.status();
  EXPECT_THAT(std::string(world.status().message()), HasSubstr("forming group world"));
  EXPECT_EQ(api->num_live(), 0);
}

TEST_F(NcclTest, AbortFreesASplitInProgressAndAllGroups) {
  auto world = Form();
  ASSERT_TRUE(world.ok());
  auto pair = (*world)->Split("pair", {0, 1});
  ASSERT_TRUE(pair.ok());
  api->FailNext("Split", NcclResult::kInProgress);
  api->StayInProgress(1'000'000);
  absl::Status seen;
  std::thread splitter([&] { seen = (*world)->Split("other", {1, 2}).status(); });
  EXPECT_TRUE(Eventually([&] { return api->Count("Split") == 2; }));
  (*pair)->Abort("the epoch is over");
  splitter.join();
  EXPECT_TRUE(absl::IsAborted(seen)) << seen;
  EXPECT_THAT(std::string(seen.message()), HasSubstr("the epoch is over"));
  // The two groups, and what the split may have made.
  EXPECT_TRUE(Eventually([&] { return api->Count("Abort") >= 2; }));
  EXPECT_TRUE(absl::IsAborted(Reduce(**pair)->Wait()));
}

TEST_F(NcclTest, BadCallsAndOptionsAreRefused) {
  auto world = Form();
  ASSERT_TRUE(world.ok());
  const absl::Status status = (*world)->AllGather(at::ones({3}), at::ones({3}))->Wait();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("group world, all_gather 3 -> 3 float"));
  EXPECT_TRUE(absl::IsInvalidArgument(
      FormNcclWorld({.size = 1, .unique_id = "short", .api = api}).status()));
  EXPECT_EQ(MakeNcclUniqueId(*api)->size(), 128);
  api->FailNext("GetUniqueId", NcclResult::kSystemError);
  EXPECT_TRUE(absl::IsUnavailable(MakeNcclUniqueId(*api).status()));
}

}  // namespace
}  // namespace muster
