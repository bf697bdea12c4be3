#include "worker/core/snapshot_memory_book.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::Duration kNow = absl::Seconds(100);

class SnapshotMemoryBookTest : public ::testing::Test {
 protected:
  SnapshotMemoryBook book_{{}};
};

TEST_F(SnapshotMemoryBookTest, ASuccessorOnTheSameWorkerFindsTheSameMemory) {
  const int64_t first = book_.Assign("w0", "job", 0);
  EXPECT_NE(book_.Assign("w1", "job", 1), first);
  book_.End("w0", kNow);
  EXPECT_EQ(book_.Assign("w0", "job", 0), first);
  EXPECT_EQ(book_.Assign("w0", "job", 0), first) << "a survivor that is told the next epoch";
  EXPECT_THAT(book_.TakeFreed(), IsEmpty());
}

TEST_F(SnapshotMemoryBookTest, AnotherRankOfTheJobOnTheWorkerKeepsWhatIsThere) {
  const int64_t first = book_.Assign("w0", "job", 1);
  EXPECT_EQ(book_.Assign("w0", "job", 0), first) << "renumbered by a shrink";
}

TEST_F(SnapshotMemoryBookTest, ARankThatMovesTakesItsMemoryAlong) {
  const int64_t first = book_.Assign("w0", "job", 0);
  book_.End("w0", kNow);
  EXPECT_EQ(book_.Assign("w2", "job", 0), first);
  EXPECT_NE(book_.Assign("w0", "job", 1), first) << "what moved is not here any more";
}

TEST_F(SnapshotMemoryBookTest, AMemoryInUseIsNotHandedOver) {
  const int64_t first = book_.Assign("w0", "job", 0);
  EXPECT_NE(book_.Assign("w2", "job", 0), first) << "w0's trainer lives";
}

TEST_F(SnapshotMemoryBookTest, AWorkerWithAMemoryOfTheJobKeepsItsOwn) {
  const int64_t first = book_.Assign("w0", "job", 0);
  const int64_t second = book_.Assign("w1", "job", 1);
  book_.End("w0", kNow);
  EXPECT_EQ(book_.Assign("w1", "job", 0), second);
  EXPECT_EQ(book_.Assign("w0", "job", 1), first);
}

TEST_F(SnapshotMemoryBookTest, ARankOfAnotherJobIsAnother) {
  const int64_t first = book_.Assign("w0", "job", 0);
  book_.End("w0", kNow);
  EXPECT_NE(book_.Assign("w1", "other", 0), first);
  EXPECT_THAT(book_.TakeFreed(), IsEmpty());
  book_.Assign("w0", "other", 1);
  EXPECT_THAT(book_.TakeFreed(), ElementsAre(first)) << "another job came to its worker";
}

TEST_F(SnapshotMemoryBookTest, AForgottenJobsMemoriesAreFreedAtOnce) {
  const int64_t first = book_.Assign("w0", "job", 0);
  const int64_t second = book_.Assign("w1", "job", 1);
  book_.Assign("w2", "other", 0);
  book_.End("w1", kNow);
  book_.ForgetJob("job");
  EXPECT_THAT(book_.TakeFreed(), ElementsAre(first, second));
  EXPECT_THAT(book_.TakeFreed(), IsEmpty());
  EXPECT_EQ(book_.NextExpiry(), std::nullopt);
  EXPECT_GT(book_.Assign("w0", "job", 0), second) << "never the same number again";
}

TEST_F(SnapshotMemoryBookTest, AMemoryWithoutATrainerIsFreedAfterAWhile) {
  const int64_t first = book_.Assign("w0", "job", 0);
  book_.Assign("w1", "job", 1);
  EXPECT_EQ(book_.NextExpiry(), std::nullopt);
  book_.End("w0", kNow);
  EXPECT_EQ(book_.NextExpiry(), kNow + absl::Minutes(10));
  book_.Expire(kNow + absl::Minutes(10) - absl::Nanoseconds(1));
  EXPECT_THAT(book_.TakeFreed(), IsEmpty());
  book_.Expire(kNow + absl::Minutes(10));
  EXPECT_THAT(book_.TakeFreed(), ElementsAre(first));
  EXPECT_EQ(book_.NextExpiry(), std::nullopt);
}

TEST_F(SnapshotMemoryBookTest, AnEndOfAWorkerWithoutOneChangesNothing) {
  book_.End("w9", kNow);
  EXPECT_EQ(book_.NextExpiry(), std::nullopt);
}

}  // namespace
}  // namespace muster
