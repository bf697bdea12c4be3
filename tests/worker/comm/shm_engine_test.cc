// The core of shared memory without torch: ranks are threads of this process, over one mapping of
// each arena, so that ThreadSanitizer sees every access. Sleeps have no end of their own here: a
// lost ring would show as a passed limit.
#include "worker/comm/shm_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>

#include "absl/strings/str_cat.h"
#include "worker/comm/shm_collectives.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using Numbers = std::vector<int64_t>;

struct Rank {
  std::shared_ptr<AbortState> state = std::make_shared<AbortState>();
  std::shared_ptr<ShmEngine> engine;
  int rank = 0, size = 0;

  // By the ranks' numbers on the node, which are the global ones.
  ShmGroup* Group(const std::vector<int>& ranks) const {
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i] == rank) {
        return engine->FindOrMake(absl::StrCat("g", ranks.size()), ranks, static_cast<int>(i),
                                  ranks);
      }
    }
    return nullptr;
  }
  ShmGroup* World() const {
    std::vector<int> all(size);
    std::iota(all.begin(), all.end(), 0);
    return Group(all);
  }
  ShmOpPtr Start(ShmGroup* group, const char* name, ShmCollectivePtr collective) const {
    auto op = std::make_shared<ShmOp>();
    op->shape = {name, "int64", 1};
    op->signature = name;
    op->collective = std::move(collective);
    engine->Start(group, op);
    return op;
  }
  ShmOpPtr AllReduce(ShmGroup* group, Numbers* numbers, const char* name = "all_reduce") const {
    return Start(
        group, name,
        MakeShmAllReduce(group->rank(), group->size(), reinterpret_cast<char*>(numbers->data()),
                         {FindShmReduce(ShmDtype::kInt64, ShmReduceOp::kSum), 8,
                          static_cast<int64_t>(numbers->size())}));
  }
  ShmOpPtr Transfer(ShmGroup* group, std::vector<ShmTransfer> transfers) const {
    auto op = std::make_shared<ShmOp>();
    op->shape = {"send_recv"};
    op->transfers = std::move(transfers);
    engine->Start(group, op);
    return op;
  }
};

ShmTransfer Send(int peer, Numbers& numbers, int channel = 0) {
  return {true, peer, channel, reinterpret_cast<char*>(numbers.data()),
          static_cast<int64_t>(8 * numbers.size())};
}
ShmTransfer Receive(int peer, Numbers& numbers, int channel = 0) {
  return {false, peer, channel, reinterpret_cast<char*>(numbers.data()),
          static_cast<int64_t>(8 * numbers.size())};
}

class ShmEngineTest : public ::testing::Test {
 protected:
  void Make(int size, absl::Duration limit = absl::Seconds(20), bool crowded = true) {
    std::vector<std::shared_ptr<ShmArena>> arenas;
    for (int rank = 0; rank < size; ++rank) {
      auto arena = ShmArena::Create(rank);
      ASSERT_TRUE(arena.ok()) << arena.status();
      arenas.push_back(*std::move(arena));
    }
    ranks = std::vector<Rank>(size);
    for (int rank = 0; rank < size; ++rank) {
      ranks[rank].rank = rank;
      ranks[rank].size = size;
      ranks[rank].engine = ShmEngine::Make({.node_rank = rank,
                                            .arenas = arenas,
                                            .state = ranks[rank].state,
                                            .operation_limit = limit,
                                            .crowded = crowded,
                                            .longest_sleep = absl::InfiniteDuration()});
    }
  }
  template <class Body>
  void OnAll(Body body) {
    std::vector<std::thread> threads;
    for (Rank& rank : ranks) threads.emplace_back([&] { body(rank); });
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<Rank> ranks;
};

// Sizes below and above what is exchanged at once, and of several rounds.
TEST_F(ShmEngineTest, ManyPendingCollectivesAllEndRight) {
  for (const bool crowded : {true, false}) {
    Make(4, absl::Seconds(60), crowded);
    std::atomic<int> wrong{0};
    OnAll([&](Rank& me) {
      for (int round = 0; round < 10; ++round) {
        std::vector<Numbers> numbers;
        std::vector<ShmOpPtr> ops;
        for (int i = 0; i < 8; ++i) {
          numbers.emplace_back(i % 4 == 3 ? 150'000 : 1 + 4'000 * (i % 4), me.rank + i);
        }
        for (Numbers& one : numbers) ops.push_back(me.AllReduce(me.World(), &one));
        for (int i = 7; i >= 0; --i) {
          if (!me.engine->Wait(ops[i]).ok()) ++wrong;
          for (int64_t value : numbers[i]) wrong += value != 6 + 4 * i;
        }
      }
    });
    EXPECT_EQ(wrong, 0);
  }
}

// Several rounds each, all pending at a time.
TEST_F(ShmEngineTest, EveryKindOfCollectiveMovesWhatItShould) {
  Make(3);
  std::atomic<int> wrong{0};
  constexpr int64_t kCount = 100'000;
  const auto bytes = [](Numbers& numbers) { return reinterpret_cast<char*>(numbers.data()); };
  OnAll([&](Rank& me) {
    ShmGroup* const world = me.World();
    Numbers mine(kCount, 10 + me.rank), gathered(3 * kCount), shared(kCount, me.rank);
    Numbers scattered(kCount), out(3 * kCount);
    // To rank r go r x kCount numbers: 100 x own rank + r.
    Numbers to_all, from_all(3 * me.rank * kCount);
    for (int peer = 0; peer < 3; ++peer)
      to_all.resize(to_all.size() + peer * kCount, 100 * me.rank + peer);
    for (int64_t i = 0; i < 3 * kCount; ++i) out[i] = i / kCount + me.rank;
    const ShmReduction sum{FindShmReduce(ShmDtype::kInt64, ShmReduceOp::kSum), 8, kCount};
    const std::vector<ShmOpPtr> ops = {
        me.Start(world, "all_gather",
                 MakeShmAllGather(me.rank, 3, bytes(gathered), bytes(mine), 8 * kCount)),
        me.Start(world, "broadcast", MakeShmBroadcast(me.rank, 3, bytes(shared), 8 * kCount, 1)),
        me.Start(world, "all_to_all",
                 MakeShmAllToAll(me.rank, 3, bytes(from_all), bytes(to_all),
                                 std::vector<int64_t>(3, 8 * me.rank * kCount),
                                 {0, 8 * kCount, 16 * kCount})),
        me.Start(world, "reduce_scatter",
                 MakeShmReduceScatter(me.rank, 3, bytes(scattered), bytes(out), sum)),
        me.Start(world, "barrier", MakeShmBarrier(me.rank, 3))};
    for (const ShmOpPtr& op : ops) wrong += !me.engine->Wait(op).ok();
    for (int64_t i = 0; i < 3 * kCount; ++i) wrong += gathered[i] != 10 + i / kCount;
    wrong += shared != Numbers(kCount, 1);
    wrong += scattered != Numbers(kCount, 3 * me.rank + 3);
    for (int64_t i = 0; i < 3 * me.rank * kCount; ++i) {
      wrong += from_all[i] != 100 * (i / (me.rank * kCount)) + me.rank;
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST_F(ShmEngineTest, GroupsDoNotHoldEachOtherUp) {
  Make(4);
  std::atomic<int> wrong{0};
  OnAll([&](Rank& me) {
    ShmGroup* const pair = me.Group(me.rank < 2 ? std::vector<int>{0, 1} : std::vector<int>{3, 2});
    for (int round = 0; round < 50; ++round) {
      // The world's operation cannot end before rank 3 starts it, which does so last.
      Numbers world(3000, 1), small(10, me.rank);
      ShmOpPtr first;
      if (me.rank != 3) first = me.AllReduce(me.World(), &world);
      if (!me.engine->Wait(me.AllReduce(pair, &small)).ok()) ++wrong;
      wrong += small[9] != (me.rank < 2 ? 1 : 5);
      if (me.rank == 3) first = me.AllReduce(me.World(), &world);
      if (!me.engine->Wait(first).ok()) ++wrong;
      wrong += world[2999] != 4;
    }
  });
  EXPECT_EQ(wrong, 0);
}

// What nobody waits for goes on, also after its last user has gone.
TEST_F(ShmEngineTest, OperationsFinishWithoutAWait) {
  Make(2);
  Numbers sent(400'000, 7), received(400'000, 0);
  Rank& left = ranks[0];
  auto op = left.Transfer(left.World(), {Send(1, sent)});
  EXPECT_FALSE(left.engine->IsDone(op)) << "more than a pipe holds";
  left.engine.reset();
  Rank& right = ranks[1];
  EXPECT_TRUE(right.engine->Wait(right.Transfer(right.World(), {Receive(0, received)})).ok());
  EXPECT_EQ(received, sent);
}

TEST_F(ShmEngineTest, MessagesTravelInOrderOnBothChannels) {
  Make(3);
  std::atomic<int> wrong{0};
  OnAll([&](Rank& me) {
    for (int64_t i = 0; i < 30; ++i) {
      const size_t size = i % 7 == 0 ? 100'000 : 5;
      std::vector<Numbers> sent, received;
      std::vector<ShmTransfer> batch;
      for (int peer = 0; peer < 3; ++peer) {
        for (int channel = 0; channel < 2; ++channel) {
          sent.emplace_back(size, 1000 * me.rank + 10 * i + channel);
          received.emplace_back(size, -1);
        }
      }
      for (int k = 5; k >= 0; --k) {
        if (k / 2 == me.rank) continue;
        batch.push_back(Send(k / 2, sent[k], k % 2));
        batch.push_back(Receive(k / 2, received[k], k % 2));
      }
      if (!me.engine->Wait(me.Transfer(me.World(), batch)).ok()) ++wrong;
      for (int k = 0; k < 6; ++k) {
        if (k / 2 != me.rank) wrong += received[k].back() != 1000 * (k / 2) + 10 * i + k % 2;
      }
    }
  });
  EXPECT_EQ(wrong, 0);
}

// No ring may be lost wherever the abort falls between start and sleep.
TEST_F(ShmEngineTest, AbortAtAnyMomentFreesTheWaiter) {
  for (int round = 0; round < 100; ++round) {
    Make(2);
    std::thread aborter([&] { ranks[0].state->Fail(absl::AbortedError("now")); });
    Numbers numbers(10, 1);
    Rank& me = ranks[0];
    EXPECT_EQ(me.engine->Wait(me.AllReduce(me.World(), &numbers)), absl::AbortedError("now"));
    aborter.join();
    EXPECT_EQ(me.engine->Wait(me.AllReduce(me.World(), &numbers)), absl::AbortedError("now"));
  }
}

TEST_F(ShmEngineTest, APeerThatIsGoneFreesWhoWaitsForIt) {
  Make(3);
  Numbers numbers(10, 1), received(10, 0);
  Rank& me = ranks[0];
  const ShmOpPtr op = me.AllReduce(me.World(), &numbers);
  std::thread teller([&] { me.engine->PeerGone(2); });
  const absl::Status status = me.engine->Wait(op);
  teller.join();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("group g3, sequence 0, all_reduce 1 int64 (rank 0): rank 2 is gone"));
}

// A rank may leave as soon as its own part is done.
TEST_F(ShmEngineTest, WhatAPeerWroteBeforeItLeftIsStillRead) {
  Make(2);
  Numbers mine(10, 1), theirs(10, 2), sent(10, 3), received(10, 0);
  const ShmOpPtr op = ranks[1].AllReduce(ranks[1].World(), &theirs);
  ranks[1].Transfer(ranks[1].World(), {Send(0, sent)});
  Rank& me = ranks[0];
  me.engine->PeerGone(1);
  EXPECT_TRUE(me.engine->Wait(me.AllReduce(me.World(), &mine)).ok());
  EXPECT_TRUE(me.engine->Wait(me.Transfer(me.World(), {Receive(1, received)})).ok());
  EXPECT_EQ(mine, Numbers(10, 3));
  EXPECT_EQ(received, sent);
  EXPECT_TRUE(ranks[1].engine->Wait(op).ok());
  // What it did not write will not come.
  EXPECT_TRUE(absl::IsUnavailable(me.engine->Wait(me.AllReduce(me.World(), &mine))));
}

TEST_F(ShmEngineTest, LimitNamesOperationAndMissingRanks) {
  Make(4, absl::Milliseconds(30));
  Numbers numbers(10, 1);
  ranks[2].AllReduce(ranks[2].World(), &numbers);
  Rank& me = ranks[0];
  Numbers mine(10, 1);
  const ShmOpPtr op = me.AllReduce(me.World(), &mine);
  EXPECT_THAT(me.engine->Describe(me.World()),
              HasSubstr("arrived: ranks 0, 2; missing: ranks 1, 3"));
  const absl::Status status = me.engine->Wait(op);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("waiting for ranks 1, 3"));
  EXPECT_THAT(me.engine->Describe(me.World()), HasSubstr("failed after"));
}

// The limit holds too where nobody waits.
TEST_F(ShmEngineTest, LimitPassesWithoutAWait) {
  Make(2, absl::Milliseconds(20));
  Numbers numbers(10, 1);
  Rank& me = ranks[0];
  me.AllReduce(me.World(), &numbers);
  CondVar never;
  MutexLock lock(&me.state->mu);
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      me.state->Wait(&never, AbortState::SteadyNow() + absl::Seconds(20), [] { return false; })));
  EXPECT_FALSE(me.state->failure_locked().ok());
}

TEST_F(ShmEngineTest, MismatchIsAnErrorWhoeverReadsIt) {
  Make(3);
  std::vector<absl::Status> seen(3);
  OnAll([&](Rank& me) {
    Numbers numbers(10, 1);
    seen[me.rank] = me.engine->Wait(
        me.AllReduce(me.World(), &numbers, me.rank == 1 ? "all_reduce 2" : "all_reduce 1"));
  });
  for (const absl::Status& status : seen) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("all_reduce 2"));
  }
}

TEST_F(ShmEngineTest, AMessageOfAnotherSizeIsRefused) {
  Make(2);
  Numbers sent(10, 1), received(11, 0);
  ranks[1].Transfer(ranks[1].World(), {Send(0, sent)});
  Rank& me = ranks[0];
  const absl::Status status = me.engine->Wait(me.Transfer(me.World(), {Receive(1, received)}));
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("sends 80 bytes but rank 0 receives 88"));
}

}  // namespace
}  // namespace muster
