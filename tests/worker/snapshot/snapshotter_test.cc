#include "worker/snapshot/snapshotter.h"

#include <map>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/worker/parallel/thread_ranks.h"
#include "tests/worker/snapshot/memory_file.h"
#include "worker/comm/self_communicator.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A rank's state: its weights are a function of the step, so that what a snapshot holds is known.
struct Rank {
  explicit Rank(int number, int64_t numel = 5000)
      : number(number), weights(at::empty({numel})), moments(at::empty({7}, at::kDouble)) {
    SetTo(0);
  }
  void SetTo(int64_t iteration) {
    weights.fill_(static_cast<double>(100 * number + iteration));
    moments.fill_(-static_cast<double>(iteration));
  }
  SnapshotState State(int64_t iteration) const {
    return {.iteration = iteration,
            .epoch = 1,
            .tensors = {{.name = absl::StrCat("w", number), .data = weights},
                        {.name = "m",
                         .data = moments,
                         .global_shape = {70},
                         .local_shape = {70},
                         .flat_begin = 7 * number}},
            .texts = {{"common", absl::StrCat("after ", iteration)}}};
  }
  int number;
  at::Tensor weights, moments;
};

SnapshotEpoch EpochOf(const Communicator& world, int buddy = -1, int64_t number = 1) {
  return {.rank = world.rank(),
          .layout = absl::StrCat("of ", world.size()),
          .pieces = {world.rank()},
          .num_pieces = world.size(),
          .buddy = buddy,
          .number = number};
}

// One training step, as train_step.h orders it.
void Step(Snapshotter& snapshots, Rank& rank, Communicator& world, int64_t iteration) {
  at::Tensor vote = at::full({1}, -snapshots.complete_through(), at::kLong);
  WaitOrThrow(world.AllReduce(vote, ReduceOp::kMax));
  snapshots.AwaitCopied();
  rank.SetTo(iteration);
  snapshots.OnCounted(-vote.item<int64_t>());
  if (snapshots.Due(iteration)) snapshots.Begin(rank.State(iteration));
}

std::vector<int64_t> Iterations(const std::vector<HeldSnapshot>& held) {
  std::vector<int64_t> iterations;
  for (const HeldSnapshot& one : held) iterations.push_back(one.state.iteration);
  return iterations;
}

void ExpectHolds(Snapshotter& snapshots, const HeldSnapshot& held) {
  const auto contents = snapshots.Read(held.slot);
  ASSERT_TRUE(contents.ok()) << contents.status();
  Rank expected(static_cast<int>(held.slot.rank));
  expected.SetTo(held.state.iteration);
  ASSERT_EQ(contents->tensors.size(), 2u);
  EXPECT_TRUE(at::equal(contents->tensors[0].data, expected.weights));
  EXPECT_TRUE(at::equal(contents->tensors[1].data, expected.moments));
  EXPECT_EQ(contents->tensors[1].flat_begin, 7 * expected.number);
  EXPECT_EQ(contents->texts.at("common"), absl::StrCat("after ", held.state.iteration));
}

TEST(SnapshotterTest, SuccessorFindsTheStateOfTheNewestGenerations) {
  MemoryFile file;
  const CommunicatorPtr self = MakeSelfCommunicator("world", 0);
  {
    Snapshotter snapshots({.job_id = "j", .memory = file.path(), .interval = 3});
    ASSERT_TRUE(snapshots.Attach(EpochOf(*self), 0, kNoGeneration, *self).ok());
    Rank rank(0, 1 << 20);
    int64_t room = 0;
    for (int64_t i = 1; i <= 20; ++i) {
      Step(snapshots, rank, *self, i);
      snapshots.AwaitIdle();
      if (i == 12) room = snapshots.memory_bytes();
    }
    EXPECT_EQ(snapshots.memory_bytes(), room) << "slots are used again";
    EXPECT_EQ(snapshots.newest_counted(), 18);
    EXPECT_THAT(snapshots.TakeEvents(), IsEmpty());
  }
  Snapshotter successor({.job_id = "j", .memory = file.path(), .interval = 3});
  const auto held = successor.List(0);
  EXPECT_THAT(Iterations(held), ElementsAre(18, 15, 12));
  EXPECT_EQ(held[0].state.kind, HeldState::Kind::kOwnSnapshot);
  EXPECT_EQ(held[0].state.layout, "of 1");
  EXPECT_THAT(held[0].state.pieces, ElementsAre(0));
  EXPECT_EQ(held[0].state.epoch, 1);
  for (const HeldSnapshot& one : held) {
    const auto contents = successor.Read(one.slot);
    ASSERT_TRUE(contents.ok());
    Rank expected(0, 1 << 20);
    expected.SetTo(one.state.iteration);
    EXPECT_TRUE(at::equal(contents->tensors[0].data, expected.weights));
  }
  // It goes on from 15, so 18 is of a discarded future.
  ASSERT_TRUE(successor.Attach(EpochOf(*self, -1, 2), 15, 15, *self).ok());
  EXPECT_THAT(Iterations(successor.List(0)), ElementsAre(15, 12));
  EXPECT_FALSE(successor.Due(17));
  EXPECT_TRUE(successor.Due(18));
}

TEST(SnapshotterTest, CopyThatIsStillUnderWayEndsBeforeTheStateChanges) {
  MemoryFile file;
  const CommunicatorPtr self = MakeSelfCommunicator("world", 0);
  // A share so small that the copy would take minutes if nobody hurried it.
  Snapshotter snapshots({.job_id = "j", .memory = file.path(), .interval = 1, .copy_share = 1e-5});
  ASSERT_TRUE(snapshots.Attach(EpochOf(*self), 0, kNoGeneration, *self).ok());
  Rank rank(0, 6 << 20);
  for (int64_t i = 1; i <= 6; ++i) {
    Step(snapshots, rank, *self, i);  // 2, 4, 6: while the copy of the one before is under way
    if (i % 2 == 0) snapshots.AwaitIdle();  // so that 3 and 5 are begun, however late its thread is
  }
  for (const HeldSnapshot& one : snapshots.List(0)) {
    const auto contents = snapshots.Read(one.slot);
    ASSERT_TRUE(contents.ok());
    EXPECT_EQ(contents->tensors[0].data.min().item<float>(), one.state.iteration);
    EXPECT_EQ(contents->tensors[0].data.max().item<float>(), one.state.iteration);
  }
  EXPECT_GE(snapshots.List(0)[0].state.iteration, 5);
}

TEST(SnapshotterTest, BuddiesKeepCopies) {
  std::vector<MemoryFile> files(4);
  RunRanks(4, [&](CommunicatorPtr world) -> absl::Status {
    const int me = world->rank();
    Snapshotter snapshots({.job_id = "j", .memory = files[me].path(), .interval = 2});
    const absl::Status attached =
        snapshots.Attach(EpochOf(*world, (me + 2) % 4), 0, kNoGeneration, *world);
    if (!attached.ok()) return attached;
    Rank rank(me);
    for (int64_t i = 1; i <= 12; ++i) {
      Step(snapshots, rank, *world, i);
      snapshots.AwaitIdle();
    }
    EXPECT_THAT(snapshots.TakeEvents(), IsEmpty());
    EXPECT_EQ(snapshots.newest_counted(), 10);
    return absl::OkStatus();
  });
  for (int me = 0; me < 4; ++me) {
    Snapshotter successor({.job_id = "j", .memory = files[me].path()});
    const auto held = successor.List(me);
    EXPECT_THAT(Iterations(held), ElementsAre(12, 12, 10, 10, 8, 8));
    std::map<int64_t, int> ranks;
    for (const HeldSnapshot& one : held) {
      ++ranks[one.slot.rank];
      EXPECT_EQ(one.state.kind, one.slot.rank == me ? HeldState::Kind::kOwnSnapshot
                                                    : HeldState::Kind::kBuddySnapshot);
      EXPECT_THAT(one.state.pieces, ElementsAre(one.slot.rank));
      ExpectHolds(successor, one);
    }
    EXPECT_EQ(ranks[me], 3);
    EXPECT_EQ(ranks[(me + 2) % 4], 3);
  }
}

// Three ranks of one node have their copies on the one rank of the other.
TEST(SnapshotterTest, OneKeeperOfSeveral) {
  std::vector<MemoryFile> files(4);
  RunRanks(4, [&](CommunicatorPtr world) -> absl::Status {
    const int me = world->rank();
    Snapshotter snapshots({.job_id = "j", .memory = files[me].path(), .interval = 1});
    const absl::Status attached =
        snapshots.Attach(EpochOf(*world, me == 3 ? 0 : 3), 0, kNoGeneration, *world);
    if (!attached.ok()) return attached;
    Rank rank(me, 1000 << me);
    for (int64_t i = 1; i <= 3; ++i) Step(snapshots, rank, *world, i);
    snapshots.AwaitIdle();
    return absl::OkStatus();
  });
  Snapshotter keeper({.job_id = "j", .memory = files[3].path()});
  std::map<int64_t, int> ranks;
  for (const HeldSnapshot& one : keeper.List(3)) {
    ++ranks[one.slot.rank];
    EXPECT_TRUE(keeper.Read(one.slot).ok());
  }
  EXPECT_EQ(ranks.size(), 4u);
}

TEST(SnapshotterTest, FailureOnOneRankGivesTheGenerationUpForAllAndALaterOneIsTaken) {
  std::vector<MemoryFile> files(2);
  RunRanks(2, [&](CommunicatorPtr world) -> absl::Status {
    const int me = world->rank();
    Snapshotter snapshots({.job_id = "j", .memory = files[me].path(), .interval = 2});
    const absl::Status attached =
        snapshots.Attach(EpochOf(*world, 1 - me), 0, kNoGeneration, *world);
    if (!attached.ok()) return attached;
    Rank rank(me);
    for (int64_t i = 1; i <= 8; ++i) {
      Step(snapshots, rank, *world, i);
      if (i == 1 && me == 1) rank.weights = rank.weights.to(at::kComplexFloat);  // cannot be kept
      if (i == 3 && me == 1) rank.weights = at::empty({5000});
      snapshots.AwaitIdle();
      if (i == 3) {
        EXPECT_EQ(snapshots.newest_counted(), kNoGeneration);
      }
    }
    EXPECT_EQ(snapshots.newest_counted(), 6);
    const auto events = snapshots.TakeEvents();
    if (me == 1) {
      EXPECT_THAT(events, ElementsAre(AllOf(HasSubstr("rank 1: a snapshot is given up"),
                                            HasSubstr("ComplexFloat"))));
    } else {
      EXPECT_THAT(events, IsEmpty());
    }
    return absl::OkStatus();
  });
}

TEST(SnapshotterTest, NoRoomIsAnEventAndTheJobGoesOn) {
  MemoryFile file(MFD_ALLOW_SEALING);
  const CommunicatorPtr self = MakeSelfCommunicator("world", 0);
  file.Open("j");
  ASSERT_EQ(fcntl(file.fd(), F_ADD_SEALS, F_SEAL_GROW), 0);
  Snapshotter snapshots({.job_id = "j", .memory = file.path(), .interval = 2});
  ASSERT_TRUE(snapshots.Attach(EpochOf(*self), 0, kNoGeneration, *self).ok());
  Rank rank(0);
  for (int64_t i = 1; i <= 9; ++i) {
    Step(snapshots, rank, *self, i);
    snapshots.AwaitIdle();
  }
  EXPECT_EQ(snapshots.newest_counted(), kNoGeneration);
  EXPECT_THAT(snapshots.TakeEvents(), ElementsAre(AllOf(HasSubstr("given up"), HasSubstr("room"))));
}

TEST(SnapshotterTest, WithoutMemoryOnSomeRankNoneAreTaken) {
  MemoryFile file;
  RunRanks(2, [&](CommunicatorPtr world) -> absl::Status {
    const int me = world->rank();
    Snapshotter snapshots(
        {.job_id = "j", .memory = me == 0 ? file.path() : std::string(), .interval = 1});
    const absl::Status attached = snapshots.Attach(EpochOf(*world), 0, kNoGeneration, *world);
    if (!attached.ok()) return attached;
    Rank rank(me);
    for (int64_t i = 1; i <= 4; ++i) {
      EXPECT_FALSE(snapshots.Due(i));
      Step(snapshots, rank, *world, i);
    }
    EXPECT_TRUE(snapshots.List(me).empty());
    if (me == 0) {
      EXPECT_THAT(
          snapshots.TakeEvents(),
          ElementsAre("rank 0: no snapshots are taken: 1 of 2 ranks have no memory for them"));
    }
    return absl::OkStatus();
  });
}

TEST(SnapshotterTest, IntervalZeroIsOffAndTalksToNobody) {
  MemoryFile file;
  const CommunicatorPtr self = MakeSelfCommunicator("world", 0);
  Snapshotter snapshots({.job_id = "j", .memory = file.path(), .interval = 0});
  ASSERT_TRUE(snapshots.Attach(EpochOf(*self), 0, kNoGeneration, *self).ok());
  EXPECT_FALSE(snapshots.Due(100));
  EXPECT_EQ(snapshots.complete_through(), kNoGeneration);
  snapshots.OnCounted(kNoGeneration);
  snapshots.AwaitCopied();
}

TEST(SnapshotterTest, AbortFreesAnExchangeThatWaitsForADeadBuddy) {
  std::vector<MemoryFile> files(2);
  std::vector<CommunicatorPtr> worlds = MakeThreadWorld(2);
  std::vector<std::thread> threads;
  for (int me = 0; me < 2; ++me) {
    threads.emplace_back([&, me] {
      Communicator& world = *worlds[me];
      Snapshotter snapshots({.job_id = "j", .memory = files[me].path(), .interval = 1});
      ASSERT_TRUE(snapshots.Attach(EpochOf(world, 1 - me), 0, kNoGeneration, world).ok());
      Rank rank(me);
      if (me == 1) return;  // dies
      snapshots.Begin(rank.State(1));
      snapshots.AwaitCopied();
      world.Abort("rank 1 is gone");
      snapshots.Detach();
      EXPECT_THAT(snapshots.TakeEvents(), ElementsAre(HasSubstr("rank 1 is gone")));
      // Its own copy is whole all the same.
      EXPECT_THAT(Iterations(snapshots.List(0)), ElementsAre(1));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(SnapshotterTest, DamagedGenerationIsAnEventAndOfferedNoMore) {
  MemoryFile file;
  const CommunicatorPtr self = MakeSelfCommunicator("world", 0);
  Snapshotter snapshots({.job_id = "j", .memory = file.path(), .interval = 1});
  ASSERT_TRUE(snapshots.Attach(EpochOf(*self), 0, kNoGeneration, *self).ok());
  Rank rank(0);
  for (int64_t i = 1; i <= 3; ++i) {
    Step(snapshots, rank, *self, i);
    snapshots.AwaitIdle();
  }
  const auto held = snapshots.List(0);
  ASSERT_THAT(Iterations(held), ElementsAre(3, 2, 1));
  file.Open("j")->Map(held[0].slot)->content[10000] ^= 1;
  EXPECT_EQ(snapshots.Read(held[0].slot).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(snapshots.TakeEvents(), ElementsAre(HasSubstr("iteration 3 is damaged")));
  EXPECT_THAT(Iterations(snapshots.List(0)), ElementsAre(2, 1));
  EXPECT_TRUE(snapshots.Read(held[1].slot).ok());
}

// The buddy's copy is the only one left, so the next snapshot must not take its place.
TEST(SnapshotterTest, CopyOfTheCountedGenerationOutlivesTheOwnersLoss) {
  std::vector<MemoryFile> files(2);
  const auto run = [&](int64_t epoch, int64_t from, int64_t to) {
    RunRanks(2, [&, epoch, from, to](CommunicatorPtr world) -> absl::Status {
      const int me = world->rank();
      Snapshotter snapshots({.job_id = "j", .memory = files[me].path(), .interval = 2});
      if (epoch == 2) {
        const auto held = snapshots.List(me);
        EXPECT_EQ(held[0].state.iteration, 4);
        if (me == 0) {  // its own one
          const SnapshotSlot own{0, held[held[0].slot.rank == 0 ? 0 : 1].slot.slot};
          files[0].Open("j")->Map(own)->content[10000] ^= 1;
          EXPECT_FALSE(snapshots.Read(own).ok());
        }
      }
      const absl::Status attached = snapshots.Attach(EpochOf(*world, 1 - me, epoch), from,
                                                     from == 0 ? kNoGeneration : from, *world);
      if (!attached.ok()) return attached;
      Rank rank(me);
      for (int64_t i = from + 1; i <= to; ++i) {
        Step(snapshots, rank, *world, i);
        snapshots.AwaitIdle();
      }
      return absl::OkStatus();
    });
  };
  run(1, 0, 4);
  run(2, 4, 6);
  Snapshotter keeper({.job_id = "j", .memory = files[1].path()});
  int copies = 0;
  for (const HeldSnapshot& one : keeper.List(1)) {
    if (one.slot.rank != 0 || one.state.iteration != 4) continue;
    ++copies;
    ExpectHolds(keeper, one);
  }
  EXPECT_EQ(copies, 1);
  run(3, 6, 9);  // 8 counts: what is in other slots is given back
  EXPECT_THAT(Iterations(Snapshotter({.job_id = "j", .memory = files[1].path()}).List(1)),
              ElementsAre(8, 8, 6, 6, 4));
}

// The members have decided that an older generation than a new process's newest is the one that
// counts, and that a still older one is the newest that survives the loss of a node.
TEST(SnapshotterTest, ANewProcessKeepsTheOlderGenerationThatCountsAndTriesAgainAtOnce) {
  std::vector<MemoryFile> files(2);
  const auto own = [](Snapshotter& snapshots, int64_t rank) {
    std::vector<int64_t> iterations;
    for (const HeldSnapshot& held : snapshots.List(static_cast<int>(rank)))
      if (held.slot.rank == rank) iterations.push_back(held.state.iteration);
    return iterations;
  };
  const auto run = [&](int64_t epoch, const auto& body) {
    RunRanks(2, [&, epoch](CommunicatorPtr world) -> absl::Status {
      const int me = world->rank();
      Snapshotter snapshots({.job_id = "j", .memory = files[me].path(), .interval = 2});
      Rank rank(me);
      return body(snapshots, rank, *world, EpochOf(*world, 1 - me, epoch));
    });
  };
  run(1, [](Snapshotter& snapshots, Rank& rank, Communicator& world, const SnapshotEpoch& epoch) {
    absl::Status attached = snapshots.Attach(epoch, 0, kNoGeneration, world);
    for (int64_t i = 1; i <= 8; ++i) {
      Step(snapshots, rank, world, i);
      snapshots.AwaitIdle();
    }
    return attached;
  });
  run(2, [&](Snapshotter& snapshots, Rank& rank, Communicator& world, const SnapshotEpoch& epoch) {
    const int me = world.rank();
    EXPECT_THAT(own(snapshots, me), ElementsAre(8, 6, 4));
    absl::Status attached = snapshots.Attach(epoch, 8, 6, world, /*safe=*/4);
    EXPECT_EQ(snapshots.newest_counted(), 6);
    EXPECT_TRUE(snapshots.Due(8)) << "two steps after the safe one";
    rank.SetTo(8);
    snapshots.Begin(rank.State(8));
    snapshots.AwaitIdle();
    EXPECT_THAT(own(snapshots, me), testing::Contains(6)) << "nothing newer counts yet";
    Step(snapshots, rank, world, 9);
    EXPECT_EQ(snapshots.newest_counted(), 8);
    EXPECT_FALSE(snapshots.Due(9));
    EXPECT_TRUE(snapshots.Due(10));
    return attached;
  });
  // All that is known is safe: the next one is due an interval later.
  run(3, [&](Snapshotter& snapshots, Rank&, Communicator& world, const SnapshotEpoch& epoch) {
    absl::Status attached = snapshots.Attach(epoch, 9, 8, world, /*safe=*/8);
    EXPECT_FALSE(snapshots.Due(9));
    EXPECT_TRUE(snapshots.Due(10));
    return attached;
  });
}

// Rank 1 of 2 goes on alone as rank 0: what it held stays until a new generation counts.
TEST(SnapshotterTest, FormerRanksAndLayoutsAreKeptUntilANewerGenerationCounts) {
  std::vector<MemoryFile> files(2);
  RunRanks(2, [&](CommunicatorPtr world) -> absl::Status {
    const int me = world->rank();
    Snapshotter snapshots({.job_id = "j", .memory = files[me].path(), .interval = 1});
    const absl::Status attached =
        snapshots.Attach(EpochOf(*world, 1 - me), 0, kNoGeneration, *world);
    if (!attached.ok()) return attached;
    Rank rank(me);
    for (int64_t i = 1; i <= 4; ++i) {
      Step(snapshots, rank, *world, i);
      snapshots.AwaitIdle();
    }
    return absl::OkStatus();
  });
  const CommunicatorPtr self = MakeSelfCommunicator("world", 0);
  Snapshotter snapshots({.job_id = "j", .memory = files[1].path(), .interval = 2});
  ASSERT_EQ(snapshots.List(0).size(), 6u);
  ASSERT_TRUE(snapshots.Attach(EpochOf(*self, -1, 2), 4, 4, *self).ok());
  Rank rank(0);
  for (int64_t i = 5; i <= 6; ++i) {
    Step(snapshots, rank, *self, i);
    snapshots.AwaitIdle();
  }
  EXPECT_THAT(Iterations(snapshots.List(0)), ElementsAre(6, 4, 4, 3, 3, 2, 2));
  Step(snapshots, rank, *self, 7);
  EXPECT_EQ(snapshots.newest_counted(), 6);
  EXPECT_THAT(Iterations(snapshots.List(0)), ElementsAre(6));
}

}  // namespace
}  // namespace muster
