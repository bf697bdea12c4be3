#include "coordinator/server/trace_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

class TraceStoreTest : public ::testing::Test {
 protected:
  TraceStoreTest() {
    std::string name = ::testing::TempDir() + "/traces-XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~TraceStoreTest() override { std::filesystem::remove_all(folder_); }
  TraceStore::Options Options() { return {.folder = folder_}; }
  static TraceStore::Wanted Wanted(const std::string& job, int64_t directive) {
    return {.job_id = job, .directive = directive, .epoch = 1, .iterations = 2, .world_size = 2};
  }
  static TraceStore::Piece Piece(int rank, int64_t offset, absl::string_view data, bool last) {
    return {.job_id = "job-1",
            .directive = 3,
            .epoch = 1,
            .rank = rank,
            .offset = offset,
            .data = data,
            .last = last};
  }
  std::string folder_;
};

TEST_F(TraceStoreTest, PartsComeInPiecesAndAreReadBack) {
  TraceStore store(Options());
  ASSERT_TRUE(store.Expect(Wanted("job-1", 3)).ok());
  EXPECT_TRUE(store.Add(Piece(0, 0, "head\n", false)).ok());
  EXPECT_TRUE(store.Add(Piece(0, 5, "one\n", true)).ok());
  EXPECT_FALSE(store.Find("job-1", 3)->complete());
  EXPECT_EQ(store.Read("job-1", 3, 1, 0).status().code(), Code::kNotFound);
  EXPECT_TRUE(store.Add(Piece(1, 0, "other", true)).ok());
  const auto info = store.Find("job-1", 0);
  ASSERT_TRUE(info.ok());
  EXPECT_TRUE(info->complete());
  EXPECT_THAT(info->whole, ElementsAre(0, 1));
  EXPECT_EQ(info->bytes, 14);
  EXPECT_EQ(store.Read("job-1", 3, 0, 0)->data, "head\none\n");
  EXPECT_EQ(store.Read("job-1", 3, 0, 5)->data, "one\n");
  EXPECT_TRUE(store.Read("job-1", 3, 0, 5)->end);
  EXPECT_EQ(store.Read("job-1", 3, 0, 99).status().code(), Code::kOutOfRange);
}

TEST_F(TraceStoreTest, APieceThatComesTwiceIsThereOnceAndAGapIsRefused) {
  TraceStore store(Options());
  ASSERT_TRUE(store.Expect(Wanted("job-1", 3)).ok());
  EXPECT_TRUE(store.Add(Piece(0, 0, "abc", false)).ok());
  EXPECT_TRUE(store.Add(Piece(0, 0, "abc", false)).ok());
  EXPECT_EQ(store.Add(Piece(0, 9, "z", false)).code(), Code::kFailedPrecondition);
  EXPECT_TRUE(store.Add(Piece(0, 3, "d", true)).ok());
  EXPECT_TRUE(store.Add(Piece(0, 3, "d", true)).ok());
  EXPECT_EQ(store.Read("job-1", 3, 0, 0)->data, "abcd");
  EXPECT_EQ(store.Add(Piece(2, 0, "x", true)).code(), Code::kInvalidArgument);
}

TEST_F(TraceStoreTest, TheNewestTraceOfAJobTakesThePlaceOfTheOlder) {
  TraceStore store(Options());
  ASSERT_TRUE(store.Expect(Wanted("job-1", 3)).ok());
  ASSERT_TRUE(store.Add(Piece(0, 0, "abc", true)).ok());
  ASSERT_TRUE(store.Expect(Wanted("job-1", 4)).ok());
  EXPECT_EQ(store.Add(Piece(1, 0, "late", true)).code(), Code::kAborted);
  const auto gone = store.Find("job-1", 3);
  EXPECT_EQ(gone.status().code(), Code::kNotFound);
  EXPECT_THAT(std::string(gone.status().message()), HasSubstr("directive 4"));
  EXPECT_EQ(store.Find("job-1", 0)->wanted.directive, 4);
  EXPECT_EQ(store.Find("job-2", 0).status().code(), Code::kNotFound);
}

TEST_F(TraceStoreTest, AnotherAttemptsPartIsRefused) {
  TraceStore store(Options());
  ASSERT_TRUE(store.Expect(Wanted("job-1", 3)).ok());
  TraceStore::Piece piece = Piece(0, 0, "abc", true);
  piece.epoch = 2;
  EXPECT_EQ(store.Add(piece).code(), Code::kAborted);
}

TEST_F(TraceStoreTest, AStoreThatIsOpenedAgainGoesOn) {
  {
    TraceStore store(Options());
    ASSERT_TRUE(store.Expect(Wanted("job-1", 3)).ok());
    ASSERT_TRUE(store.Add(Piece(0, 0, "abc", true)).ok());
    ASSERT_TRUE(store.Add(Piece(1, 0, "de", false)).ok());
  }
  TraceStore store(Options());
  EXPECT_THAT(store.Find("job-1", 3)->whole, ElementsAre(0));
  EXPECT_TRUE(store.Add(Piece(1, 2, "f", true)).ok());
  EXPECT_TRUE(store.Find("job-1", 3)->complete());
  EXPECT_EQ(store.Read("job-1", 3, 1, 0)->data, "def");
  EXPECT_EQ(store.Find("job-1", 3)->wanted.iterations, 2);
}

TEST_F(TraceStoreTest, ATraceThatIsTooLargeHasFailed) {
  TraceStore::Options options = Options();
  options.max_trace_bytes = 4;
  TraceStore store(options);
  ASSERT_TRUE(store.Expect(Wanted("job-1", 3)).ok());
  EXPECT_EQ(store.Add(Piece(0, 0, "too large", true)).code(), Code::kResourceExhausted);
  EXPECT_THAT(store.Find("job-1", 3)->failure, HasSubstr("fewer iterations"));
}

TEST_F(TraceStoreTest, TheOldestTracesMakeRoom) {
  TraceStore::Options options = Options();
  options.max_total_bytes = 8;
  TraceStore store(options);
  for (const char* job : {"job-1", "job-2"}) {
    ASSERT_TRUE(store.Expect(Wanted(job, 3)).ok());
    TraceStore::Piece piece = Piece(0, 0, "sixsix", true);
    piece.job_id = job;
    ASSERT_TRUE(store.Add(piece).ok());
  }
  EXPECT_EQ(store.Find("job-1", 0).status().code(), Code::kNotFound);
  EXPECT_TRUE(store.Find("job-2", 0).ok());
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/job-1"));
}

TEST_F(TraceStoreTest, WithoutAFolderThereAreNoTraces) {
  TraceStore store({});
  EXPECT_EQ(store.Expect(Wanted("job-1", 3)).code(), Code::kFailedPrecondition);
}

}  // namespace
}  // namespace muster
