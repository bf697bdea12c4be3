#include "common/rerun/tracker_file.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

std::string Line(const std::string& job, int rank, int64_t iteration, const std::string& status) {
  return absl::StrCat("ts=2026-01-31 10:00:00.5 node=n1 device=cuda:0 jobID=", job, " rank=", rank,
                      " iteration=", iteration, " status=", status, " result=nan message='NaN'\n");
}

TEST(TrackerFileTest, ALineHasMegatronsFieldsInItsOrder) {
  const RejectionRecord record{.node = "n1",
                               .device = "cuda:0",
                               .job_id = "job-7",
                               .rank = 3,
                               .iteration = 12,
                               .status = RejectionStatus::kFirstRerunReproducible,
                               .result = std::nan(""),
                               .message = "found NaN in rank 3's\nloss"};
  const std::string line =
      FormatRejection(record, absl::FromUnixSeconds(1800000000), absl::UTCTimeZone());
  EXPECT_EQ(line,
            "ts=2027-01-15 08:00:00.000000 node=n1 device=cuda:0 jobID=job-7 rank=3 iteration=12 "
            "status=first_rerun_reproducible result=nan message='found NaN in rank 3 s loss'");
  const auto back = ParseRejection(line);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->node, "n1");
  EXPECT_EQ(back->device, "cuda:0");
  EXPECT_EQ(back->job_id, "job-7");
  EXPECT_EQ(back->rank, 3);
  EXPECT_EQ(back->iteration, 12);
  EXPECT_EQ(back->status, RejectionStatus::kFirstRerunReproducible);
  EXPECT_TRUE(std::isnan(back->result));
  EXPECT_EQ(back->message, "found NaN in rank 3 s loss");
}

TEST(TrackerFileTest, AFieldInsideATextIsNoField) {
  const RejectionRecord record{
      .node = "n1", .device = "cpu", .iteration = 5, .message = "x rank=9 iteration=8"};
  const auto back = ParseRejection(FormatRejection(record, absl::UnixEpoch(), absl::UTCTimeZone()));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->rank, 0);
  EXPECT_EQ(back->iteration, 5);
}

TEST(TrackerFileTest, OtherLinesAreNoRecords) {
  for (const char* line :
       {"", "hello", "ts=now node=a",
        "ts=1 node=a device=b jobID=c rank=x iteration=1 status=initial_run result=1 message='m'",
        "ts=1 node=a device=b jobID=c rank=0 iteration=1 status=other result=1 message='m'"}) {
    EXPECT_FALSE(ParseRejection(line).has_value()) << line;
  }
}

TEST(TrackerFileTest, IterationsToSkip) {
  struct Row {
    const char* name;
    std::string file;
    std::vector<int64_t> expected;
  };
  const std::string twice = Line("a", 1, 7, "first_rerun_reproducible");
  const Row rows[] = {
      {"once is not enough", twice, {}},
      {"twice by the same rank", twice + Line("b", 1, 7, "first_rerun_reproducible"), {7}},
      {"Megatron's names of statuses",
       Line("a", 1, 7, "RerunValidationStatus.FIRST_RERUN_REPRODUCIBLE") +
           Line("b", 1, 7, "SECOND_RERUN_REPRODUCIBLE"),
       {7}},
      {"with reruns disabled",
       Line("a", 0, 3, "rerun_disabled") + Line("b", 0, 3, "rerun_disabled"),
       {3}},
      {"results that did not repeat do not count",
       twice + Line("b", 1, 7, "initial_run") + Line("b", 1, 7, "first_rerun_not_reproducible") +
           Line("b", 1, 7, "second_rerun_not_reproducible"),
       {}},
      {"by two ranks, one job each", twice + Line("b", 2, 7, "first_rerun_reproducible"), {}},
      {"more than one rank of a job",
       twice + Line("b", 1, 7, "first_rerun_reproducible") +
           Line("b", 2, 7, "first_rerun_reproducible"),
       {}},
      {"several iterations, in order",
       Line("a", 0, 9, "rerun_disabled") + Line("b", 0, 9, "rerun_disabled") + "noise\n" +
           Line("a", 0, 2, "rerun_disabled") + Line("b", 0, 2, "rerun_disabled"),
       {2, 9}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(IterationsToSkip(row.file), row.expected);
  }
}

}  // namespace
}  // namespace muster
