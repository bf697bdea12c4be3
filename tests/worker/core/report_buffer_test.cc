#include "worker/core/report_buffer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

const AssignmentKey kKey = {"w0", "job", 1};

TrainerReport Step(int64_t iteration) {
  return {.assignment = kKey, .report = StepMessage{.epoch = 1, .iteration = iteration}};
}
TrainerReport Log(std::vector<std::string> lines) {
  return {.assignment = kKey, .report = LogLines{std::move(lines)}};
}
TrainerReport Exit() { return {.assignment = kKey, .report = TrainerExited{}}; }

std::vector<int64_t> Sequences(const std::vector<std::shared_ptr<const ReportBatch>>& batches) {
  std::vector<int64_t> result;
  for (const auto& batch : batches) result.push_back(batch->sequence);
  return result;
}

TEST(ReportBufferTest, WindowBoundsWhatIsInFlight) {
  ReportBuffer buffer({.max_batch_reports = 2, .max_batches_in_flight = 3});
  for (int i = 1; i <= 10; ++i) buffer.Add(Step(i), absl::ZeroDuration());
  EXPECT_THAT(Sequences(buffer.TakeDue(absl::Seconds(1))), ::testing::ElementsAre(1, 2, 3));
  EXPECT_TRUE(buffer.TakeDue(absl::Seconds(2)).empty());
  EXPECT_EQ(buffer.NextDue(), std::nullopt);
  buffer.Acknowledge(2);
  EXPECT_THAT(Sequences(buffer.TakeDue(absl::Seconds(3))), ::testing::ElementsAre(4, 5));
  buffer.Acknowledge(5);
  EXPECT_TRUE(buffer.empty());
}

TEST(ReportBufferTest, ResumeRefusesAGapOnEitherSide) {
  struct Row {
    const char* name;
    int64_t through;
    bool accepted;
    std::vector<int64_t> again;
  };
  // Batches 1 to 4 were sent, 2 acknowledged.
  const Row rows[] = {{"what was acknowledged is gone here", 1, false, {}},
                      {"as acknowledged", 2, true, {3, 4}},
                      {"an acknowledgement was lost", 3, true, {4}},
                      {"all known", 4, true, {}},
                      {"more than was ever sent", 5, false, {}}};
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    ReportBuffer buffer({.max_batch_reports = 1});
    for (int i = 1; i <= 4; ++i) buffer.Add(Step(i), absl::ZeroDuration());
    buffer.TakeDue(absl::Seconds(1));
    buffer.Acknowledge(2);
    const auto again = buffer.Resume(row.through);
    ASSERT_EQ(again.has_value(), row.accepted);
    if (again) {
      EXPECT_EQ(Sequences(*again), row.again);
    }
  }
}

TEST(ReportBufferTest, FloodOfLogLinesIsBoundedAndSaysSo) {
  ReportBuffer buffer({.max_waiting_log_lines = 10});
  for (int i = 0; i < 25; ++i) buffer.Add(Log({absl::StrCat(i)}), absl::ZeroDuration());
  const auto first = buffer.TakeDue(absl::Seconds(1));
  ASSERT_EQ(first.size(), 1u);
  ASSERT_EQ(first[0]->reports.size(), 1u);
  EXPECT_EQ(std::get<LogLines>(first[0]->reports[0].report).lines.size(), 10u);
  buffer.Add(Log({"next"}), absl::Seconds(1));
  const auto second = buffer.TakeDue(absl::Seconds(2));
  ASSERT_EQ(second.size(), 1u);
  EXPECT_THAT(std::get<LogLines>(second[0]->reports[0].report).lines,
              ::testing::ElementsAre("(15 lines are left out here; the worker's log file has them)",
                                     "next"));
}

TEST(ReportBufferTest, OutcomesOutliveAFlood) {
  ReportBuffer buffer({.max_batch_reports = 1000, .max_waiting = 100});
  buffer.Add(Step(0), absl::ZeroDuration());
  buffer.Add(Exit(), absl::ZeroDuration());
  for (int i = 1; i <= 1000; ++i) buffer.Add(Step(i), absl::ZeroDuration());
  size_t reports = 0, exits = 0, notes = 0;
  int64_t last_iteration = 0;
  for (const auto& batch : buffer.TakeDue(absl::Seconds(1))) {
    for (const TrainerReport& report : batch->reports) {
      ++reports;
      exits += std::holds_alternative<TrainerExited>(report.report);
      notes += std::holds_alternative<EventMessage>(report.report);
      if (const auto* step = std::get_if<StepMessage>(&report.report)) {
        EXPECT_GT(step->iteration, last_iteration) << "the order is kept, the oldest are dropped";
        last_iteration = step->iteration;
      }
    }
  }
  EXPECT_LE(reports, 102u);
  EXPECT_EQ(exits, 1u);
  EXPECT_GE(notes, 1u);
  EXPECT_EQ(last_iteration, 1000);
}

}  // namespace
}  // namespace muster
