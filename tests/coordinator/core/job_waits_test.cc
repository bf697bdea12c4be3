#include "coordinator/core/job_waits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

using testing::HasSubstr;
using testing::Not;

const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);

// Ranks of a cluster with `slots` workers a node; the strings live here.
struct Cluster {
  Cluster(int num_ranks, int slots) {
    for (int rank = 0; rank < num_ranks; ++rank) {
      nodes.push_back(absl::StrCat("n", rank / slots));
      workers.push_back(absl::StrCat("n", rank / slots, "/", rank % slots));
    }
    for (int rank = 0; rank < num_ranks; ++rank) {
      missing.push_back({.rank = rank,
                         .worker = workers[rank],
                         .node = nodes[rank],
                         .phase = "loading",
                         .stage = 2,
                         .last_sign = kNow - absl::Seconds(1)});
    }
  }
  std::string Text() { return DescribeMissing(missing, kNow, absl::Seconds(3)).text; }
  std::vector<std::string> nodes, workers;
  std::vector<MissingRank> missing;
};

TEST(DescribeMissingTest, GroupsByNodeAndPhase) {
  Cluster cluster(5, 2);
  cluster.missing[4].phase = "forming";
  cluster.missing[4].stage = 1;
  cluster.missing[4].last_sign = absl::InfinitePast();
  EXPECT_EQ(cluster.Text(),
            "rank 4 (node n2, worker n2/0): forming, no sign of life yet; "
            "ranks 0-1 (node n0, workers n0/0-1): loading, last sign of life 1s ago; "
            "ranks 2-3 (node n1, workers n1/0-1): loading, last sign of life 1s ago");
}

TEST(DescribeMissingTest, NobodyIsMissing) {
  EXPECT_EQ(DescribeMissing({}, kNow, absl::Seconds(3)).text, "");
  EXPECT_EQ(DescribeMissing({}, kNow, absl::Seconds(3)).first_rank, -1);
}

TEST(DescribeMissingTest, TheSilentComeFirstThenThoseBehind) {
  Cluster cluster(4, 1);
  cluster.missing[1].stage = 0;
  cluster.missing[1].phase = "launched";
  cluster.missing[2].last_sign = kNow - absl::Seconds(45);
  cluster.missing[3].last_sign = kNow - absl::Seconds(90);
  const MissingReport report = DescribeMissing(cluster.missing, kNow, absl::Seconds(3));
  EXPECT_EQ(report.first_rank, 3);
  const auto at = [&](const char* text) { return report.text.find(text); };
  EXPECT_LT(at("rank 3 "), at("rank 2 "));
  EXPECT_LT(at("rank 2 "), at("rank 1 "));
  EXPECT_LT(at("rank 1 "), at("rank 0 "));
  EXPECT_THAT(report.text, HasSubstr("last sign of life 1m30s ago"));
}

TEST(DescribeMissingTest, ADetailIsSaidWhenTheGroupSharesIt) {
  Cluster cluster(2, 2);
  cluster.missing[0].detail = cluster.missing[1].detail = "shard 3 of 8";
  EXPECT_THAT(cluster.Text(), HasSubstr("loading, shard 3 of 8, last sign"));
  cluster.missing[1].detail = "shard 4 of 8";
  EXPECT_THAT(cluster.Text(), Not(HasSubstr("shard")));
}

TEST(DescribeMissingTest, ThousandsOfRanksAreAllCountedInAShortText) {
  Cluster cluster(4096, 8);
  EXPECT_THAT(cluster.Text(), HasSubstr("and 4032 more ranks (64-4095)"));
  // The worst case: every rank alone in its group, with a long name.
  Cluster scattered(4096, 1);
  for (int rank = 0; rank < 4096; ++rank) {
    scattered.nodes[rank] = absl::StrCat(std::string(100, 'x'), rank);
    scattered.missing[rank].node = scattered.nodes[rank];
  }
  for (size_t i = 0; i < scattered.missing.size(); ++i) {
    scattered.missing.erase(scattered.missing.begin() + static_cast<int64_t>(i));
  }
  EXPECT_LT(scattered.Text().size(), 2500u);
  EXPECT_THAT(scattered.Text(), HasSubstr("and 2040 more ranks (17,19,21,"));
}

TEST(CompressNamesTest, Table) {
  using Names = std::vector<absl::string_view>;
  EXPECT_EQ(CompressNames({}), "");
  EXPECT_EQ(CompressNames(Names{"b/0"}), "b/0");
  EXPECT_EQ(CompressNames(Names{"b/0", "b/1", "b/2", "b/7"}), "b/0-2,7");
  EXPECT_EQ(CompressNames(Names{"b/0", "c/1"}), "b/0, c/1");
  EXPECT_EQ(CompressNames(Names{"b", "c", "d", "e", "f"}), "b, c, d, e, ...");
  EXPECT_EQ(CompressNames(Names{"b/01", "b/02"}), "b/01, b/02");  // not numbers but names
  EXPECT_EQ(CompressNames(Names{"b/99999999999", "b/1"}), "b/99999999999, b/1");
}

TEST(ShortDurationTest, Table) {
  EXPECT_EQ(ShortDuration(absl::Milliseconds(1234)), "1.2s");
  EXPECT_EQ(ShortDuration(absl::Milliseconds(12'345)), "12s");
  EXPECT_EQ(ShortDuration(absl::Seconds(200)), "3m20s");
  EXPECT_EQ(ShortDuration(-absl::Seconds(1)), "0");
}

}  // namespace
}  // namespace muster
