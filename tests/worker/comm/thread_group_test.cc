// The threads backend's core, without torch: parts are vectors of int64.
#include "worker/comm/thread_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Numbers final : ThreadPart {
  explicit Numbers(std::vector<int64_t> v) : values(std::move(v)) {}
  std::vector<int64_t> values;
};

absl::Status Sum(const std::vector<ThreadPartPtr>& parts) {
  std::vector<int64_t> sum(static_cast<Numbers&>(*parts[0]).values.size());
  for (const ThreadPartPtr& part : parts) {
    const auto& values = static_cast<Numbers&>(*part).values;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  for (const ThreadPartPtr& part : parts) static_cast<Numbers&>(*part).values = sum;
  return absl::OkStatus();
}

absl::Status MoveNumbers(ThreadPart& received, const ThreadPart& sent) {
  static_cast<Numbers&>(received).values = static_cast<const Numbers&>(sent).values;
  return absl::OkStatus();
}

class ThreadGroupTest : public ::testing::Test {
 protected:
  void Make(int size, ThreadWorldOptions options = {}) {
    std::vector<int> ranks(size);
    std::iota(ranks.begin(), ranks.end(), 0);
    group = std::make_unique<ThreadGroup>("g", ranks, state, options, MoveNumbers);
  }
  ThreadGroup::OpPtr Reduce(int member, const std::shared_ptr<Numbers>& part) {
    return group->PostCollective(member, {{"all_reduce", "int64", 1}, "all_reduce", part, Sum});
  }
  ThreadGroup::OpPtr Send(int member, int peer, int64_t value) {
    return group->PostBatch(
        member, {{true, peer, "n", std::make_shared<Numbers>(std::vector<int64_t>{value})}});
  }
  ThreadGroup::OpPtr Receive(int member, int peer, const std::shared_ptr<Numbers>& into) {
    return group->PostBatch(member, {{false, peer, "n", into}});
  }
  template <class Body>
  void OnAll(Body body) {
    std::vector<std::thread> threads;
    for (int i = 0; i < group->size(); ++i) threads.emplace_back([&, i] { body(i); });
    for (std::thread& thread : threads) thread.join();
  }

  std::shared_ptr<AbortState> state = std::make_shared<AbortState>();
  std::unique_ptr<ThreadGroup> group;
};

std::shared_ptr<Numbers> MakeNumbers(int64_t value) {
  return std::make_shared<Numbers>(std::vector<int64_t>{value});
}

TEST_F(ThreadGroupTest, ManyPendingCollectivesAllEndRight) {
  Make(4);
  std::atomic<int> wrong{0};
  OnAll([&](int member) {
    for (int round = 0; round < 50; ++round) {
      std::vector<std::shared_ptr<Numbers>> parts;
      std::vector<ThreadGroup::OpPtr> ops;
      for (int i = 0; i < 8; ++i) {
        parts.push_back(MakeNumbers(member + i));
        ops.push_back(Reduce(member, parts.back()));
      }
      for (int i = 7; i >= 0; --i) {
        if (!group->Wait(ops[i]).ok() || parts[i]->values[0] != 6 + 4 * i) ++wrong;
      }
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST_F(ThreadGroupTest, NumbersTravelInOrderBetweenAllPairs) {
  Make(3);
  std::atomic<int> wrong{0};
  OnAll([&](int member) {
    for (int64_t i = 0; i < 100; ++i) {
      std::vector<ThreadGroup::Transfer> batch;
      std::vector<std::shared_ptr<Numbers>> received;
      for (int peer = 0; peer < 3; ++peer) {
        batch.push_back({true, peer, "n", MakeNumbers(1000 * member + i)});
        received.push_back(MakeNumbers(-1));
        batch.push_back({false, peer, "n", received.back()});
      }
      if (!group->Wait(group->PostBatch(member, batch)).ok()) ++wrong;
      for (int peer = 0; peer < 3; ++peer) wrong += received[peer]->values[0] != 1000 * peer + i;
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST_F(ThreadGroupTest, MismatchIsAnErrorOnAll) {
  Make(3);
  std::vector<absl::Status> seen(3);
  OnAll([&](int member) {
    auto op = group->PostCollective(member, {{"all_reduce", "int64", 1},
                                             member == 1 ? "all_reduce 2" : "all_reduce 1",
                                             MakeNumbers(0),
                                             Sum});
    seen[member] = group->Wait(op);
  });
  for (const absl::Status& status : seen) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("all_reduce 1"), HasSubstr("all_reduce 2"), HasSubstr("group g")));
  }
}

TEST_F(ThreadGroupTest, FirstCauseWinsAndFreesAll) {
  Make(8);
  std::vector<absl::Status> seen(8);
  std::atomic<int> waiting{0};
  std::thread aborter([&] {
    while (waiting < 7) std::this_thread::yield();
    state->Fail(absl::AbortedError("first"));
    state->Fail(absl::AbortedError("second"));
  });
  OnAll([&](int member) {
    if (member == 7) return;  // never comes
    auto op = Reduce(member, MakeNumbers(1));
    ++waiting;
    seen[member] = group->Wait(op);
  });
  aborter.join();
  for (int i = 0; i < 7; ++i) EXPECT_EQ(seen[i], absl::AbortedError("first"));
  EXPECT_EQ(group->Wait(Reduce(7, MakeNumbers(1))), absl::AbortedError("first"));
}

// No wake-up may be lost wherever the abort falls between post and wait.
TEST_F(ThreadGroupTest, AbortAtAnyMomentFreesTheWaiter) {
  for (int round = 0; round < 300; ++round) {
    state = std::make_shared<AbortState>();
    Make(2);
    std::thread aborter([&] { state->Fail(absl::AbortedError("now")); });
    EXPECT_EQ(group->Wait(Reduce(0, MakeNumbers(1))), absl::AbortedError("now"));
    aborter.join();
  }
}

TEST_F(ThreadGroupTest, LimitNamesOperationAndMissingRanks) {
  Make(4, {.operation_limit = absl::Milliseconds(20)});
  Reduce(2, MakeNumbers(1));
  const absl::Status status = group->Wait(Reduce(0, MakeNumbers(1)));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("group g, sequence 0, all_reduce 1 int64"),
                    HasSubstr("missing: ranks 1, 3")));
  EXPECT_THAT(group->Describe(0), HasSubstr("arrived: ranks 0, 2; missing: ranks 1, 3"));
}

TEST_F(ThreadGroupTest, BufferedSendsFinishAtOnce) {
  Make(2);
  EXPECT_TRUE(group->IsDone(Send(0, 1, 5)));
  auto into = MakeNumbers(0);
  EXPECT_TRUE(group->Wait(Receive(1, 0, into)).ok());
  EXPECT_EQ(into->values[0], 5);
}

// Both send first, then receive: hidden by buffers, a deadlock on NCCL.
TEST_F(ThreadGroupTest, BlockingSendsExposeADeadlock) {
  for (const bool blocking : {false, true}) {
    state = std::make_shared<AbortState>();
    Make(2, {.blocking_sends = blocking,
             .operation_limit = blocking ? absl::Milliseconds(50) : absl::Minutes(1)});
    std::vector<absl::Status> seen(2);
    OnAll([&](int member) {
      Send(member, 1 - member, member);
      seen[member] = group->Wait(Receive(member, 1 - member, MakeNumbers(0)));
    });
    for (const absl::Status& status : seen) {
      EXPECT_EQ(status.code(),
                blocking ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kOk);
    }
  }
}

TEST_F(ThreadGroupTest, BlockingSendsOfAGoodScheduleFinish) {
  Make(2, {.blocking_sends = true});
  std::atomic<int> wrong{0};
  OnAll([&](int member) {
    for (int64_t i = 0; i < 50; ++i) {
      auto into = MakeNumbers(0);
      auto first = member == 0 ? Send(0, 1, i) : Receive(1, 0, into);
      auto second = member == 0 ? Receive(0, 1, into) : Send(1, 0, i);
      if (!group->Wait(second).ok() || !group->Wait(first).ok() || into->values[0] != i) ++wrong;
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST_F(ThreadGroupTest, AnExceptionWhileCombiningFailsAll) {
  Make(2);
  std::vector<absl::Status> seen(2);
  OnAll([&](int member) {
    seen[member] = group->Wait(group->PostCollective(
        member,
        {{"all_reduce", "int64", 1}, "all_reduce", MakeNumbers(0), [](const auto&) -> absl::Status {
           throw std::runtime_error("boom");
         }}));
  });
  for (const absl::Status& status : seen) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()), HasSubstr("boom"));
  }
}

}  // namespace
}  // namespace muster
