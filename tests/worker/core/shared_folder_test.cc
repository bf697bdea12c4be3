#include "worker/core/shared_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using ::testing::HasSubstr;

TEST(SharedFolderTest, RolesFollowFromTheOrder) {
  struct Row {
    const char* name;
    int world_size;
    std::vector<int> ranks;  // of this agent
    int64_t epoch;
    std::optional<std::string> save;
    FolderRole role;
  };
  const Row rows[] = {
      {"all ranks are here", 2, {0, 1}, 1, "/c", FolderRole::kNone},
      {"one rank in all", 1, {0}, 1, "/c", FolderRole::kNone},
      {"nothing is saved", 4, {0, 1}, 1, std::nullopt, FolderRole::kNone},
      {"rank 0 is here", 4, {1, 0}, 1, "/c", FolderRole::kWriter},
      {"rank 0 is elsewhere", 4, {2, 3}, 1, "/c", FolderRole::kReader},
      {"a rank and a spare are here", 2, {-1, 0}, 1, "/c", FolderRole::kWriter},
      {"only spares are here", 2, {-1}, 1, "/c", FolderRole::kNone},
      {"a later attempt", 4, {2, 3}, 2, "/c", FolderRole::kNone},
  };
  for (const Row& row : rows) {
    LaunchOrder launch{.job_id = "job", .epoch = row.epoch, .world_size = row.world_size};
    for (const int rank : row.ranks) launch.assignments.push_back({.rank = rank});
    EXPECT_EQ(FolderRoleOf(launch, row.save), row.role) << row.name;
  }
}

TEST(SharedFolderTest, MarksRoundTrip) {
  const auto decoded = DecodeMark(EncodeMark({.node = "node a\n", .nonce = "abc"}));
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->node, "node a\n");
  EXPECT_EQ(decoded->nonce, "abc");
  for (const char* bad : {"", "0", "zz", "6162", "0a61"}) {
    EXPECT_FALSE(DecodeMark(bad).has_value()) << bad;
  }
  EXPECT_EQ(MarkFileName("team/job-1", 3), ".muster-shared-team_job-1-3");
}

TEST(SharedFolderTest, ALateMarkIsWaitedForAndAnotherOneIsNot) {
  const FolderMark mark{.node = "a", .nonce = "n1"};
  const absl::Duration limit = absl::Seconds(10);
  const auto at = [&](std::optional<std::string> found, int seconds) {
    return DecideMark(mark, found, absl::Seconds(seconds), limit);
  };
  EXPECT_EQ(at("n1", 0), MarkDecision::kGood);
  EXPECT_EQ(at("n1", 99), MarkDecision::kGood);
  EXPECT_EQ(at(std::nullopt, 0), MarkDecision::kLookAgain);
  EXPECT_EQ(at("", 9), MarkDecision::kLookAgain) << "it is being written";
  EXPECT_EQ(at(std::nullopt, 10), MarkDecision::kNotShared);
  EXPECT_EQ(at("n2", 10), MarkDecision::kNotShared);
  const absl::Status status = NotShared("/ckpt", "b", mark, "No such file");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("checkpoint.save=/ckpt on node b does not hold what rank 0 (node a) wrote: "
                        "it is not the same folder"));
}

}  // namespace
}  // namespace muster
