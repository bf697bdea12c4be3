#include "worker/core/report_buffer.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

const AssignmentKey kKey = {"w0", "job", 1};

NodeReport Step(int64_t iteration) {
  return {.assignment = kKey, .report = StepMessage{.epoch = 1, .iteration = iteration}};
}
NodeReport Log(std::vector<std::string> lines) {
  return {.assignment = kKey, .report = NodeLogLines{std::move(lines)}};
}
NodeReport Exit() { return {.assignment = kKey, .report = TrainerExited{}}; }

std::vector<int64_t> Sequences(const std::vector<std::shared_ptr<const NodeReportBatch>>& batches) {
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
  const Row rows[] = {{"less than nothing", -1, false, {}},
                      {"acknowledged, gone here", 0, true, {1, 2, 3, 4}},
                      {"acknowledged, still kept", 1, true, {2, 3, 4}},
                      {"as acknowledged", 2, true, {3, 4}},
                      {"an acknowledgement was lost", 3, true, {4}},
                      {"all known", 4, true, {}},
                      {"more than was ever sent", 5, false, {}}};
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    ReportBuffer buffer({.max_batch_reports = 1, .keep_acknowledged = 1});
    for (int i = 1; i <= 4; ++i) buffer.Add(Step(i), absl::ZeroDuration());
    buffer.TakeDue(absl::Seconds(1));
    buffer.Acknowledge(2);
    const auto again = buffer.Resume(row.through);
    ASSERT_EQ(again.has_value(), row.accepted);
    if (again) {
      EXPECT_EQ(Sequences(*again), row.again);
      for (const auto& batch : *again) {
        EXPECT_EQ(batch->reports.size(), batch->sequence == 1 ? 0u : 1u) << batch->sequence;
      }
    }
  }
}

TEST(ReportBufferTest, FloodOfLogLinesIsBoundedAndSaysSo) {
  ReportBuffer buffer({.max_waiting_log_lines = 10});
  for (int i = 0; i < 25; ++i) buffer.Add(Log({absl::StrCat(i)}), absl::ZeroDuration());
  const auto first = buffer.TakeDue(absl::Seconds(1));
  ASSERT_EQ(first.size(), 1u);
  ASSERT_EQ(first[0]->reports.size(), 1u);
  EXPECT_EQ(std::get<NodeLogLines>(first[0]->reports[0].report).lines.size(), 10u);
  buffer.Add(Log({"next"}), absl::Seconds(1));
  const auto second = buffer.TakeDue(absl::Seconds(2));
  ASSERT_EQ(second.size(), 1u);
  EXPECT_THAT(std::get<NodeLogLines>(second[0]->reports[0].report).lines,
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
    for (const NodeReport& report : batch->reports) {
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

// A spill in memory, which can be full.
class FakeSpill final : public ReportSpill {
 public:
  absl::Status Append(const std::deque<NodeReport>& reports) override {
    if (full) return absl::ResourceExhaustedError("no space left on device");
    chunks.push_back({{reports.begin(), reports.end()}, reports.front().assignment});
    return absl::OkStatus();
  }
  Taken TakeOldest() override {
    Taken taken = std::move(chunks.front());
    chunks.pop_front();
    return taken;
  }
  bool empty() const override { return chunks.empty(); }
  void Clear() override { chunks.clear(); }

  std::deque<Taken> chunks;
  bool full = false;
};

// Takes, and acknowledges, until nothing is left; the iterations of its steps.
std::vector<int64_t> Drain(ReportBuffer& buffer, int64_t* next_sequence) {
  std::vector<int64_t> iterations;
  const auto take = [&](const std::vector<std::shared_ptr<const NodeReportBatch>>& batches) {
    for (const auto& batch : batches) {
      EXPECT_EQ(batch->sequence, (*next_sequence)++);
      for (const NodeReport& report : batch->reports) {
        if (const auto* step = std::get_if<StepMessage>(&report.report)) {
          iterations.push_back(step->iteration);
        }
      }
    }
    buffer.Acknowledge(*next_sequence - 1);
  };
  take(*buffer.Resume(*next_sequence - 1));
  while (!buffer.empty()) take(buffer.TakeDue(absl::Hours(1)));
  return iterations;
}

TEST(ReportBufferTest, WhatMemoryDoesNotHoldIsSpilledAndComesBackInOrder) {
  FakeSpill spill;
  ReportBuffer buffer({.max_batch_reports = 7, .max_waiting = 50, .spill_at = 10, .spill = &spill});
  int64_t next_sequence = 1;
  for (int i = 1; i <= 25; ++i) buffer.Add(Step(i), absl::ZeroDuration());
  EXPECT_EQ(spill.chunks.size(), 2u);
  EXPECT_EQ(Drain(buffer, &next_sequence).size(), 25u);
  // Away again, for long.
  buffer.Disconnect();
  std::vector<int64_t> expected;
  for (int i = 26; i <= 1000; ++i) {
    buffer.Add(Step(i), absl::ZeroDuration());
    expected.push_back(i);
  }
  EXPECT_EQ(Drain(buffer, &next_sequence), expected);
  EXPECT_TRUE(spill.empty());
  // While connected nothing is spilled.
  for (int i = 1; i <= 20; ++i) buffer.Add(Step(i), absl::ZeroDuration());
  EXPECT_TRUE(spill.empty());
}

TEST(ReportBufferTest, FullSpillFallsBackToMemoryAndSaysSoOnce) {
  FakeSpill spill;
  ReportBuffer buffer(
      {.max_batch_reports = 1000, .max_waiting = 100, .spill_at = 10, .spill = &spill});
  for (int i = 1; i <= 25; ++i) buffer.Add(Step(i), absl::ZeroDuration());
  spill.full = true;
  for (int i = 26; i <= 110; ++i) buffer.Add(Step(i), absl::ZeroDuration());
  size_t notes = 0;
  std::vector<int64_t> iterations;
  buffer.Resume(0);
  for (const auto& batch : buffer.TakeDue(absl::Seconds(1))) {
    for (const NodeReport& report : batch->reports) {
      if (const auto* event = std::get_if<EventMessage>(&report.report)) {
        ++notes;
        EXPECT_EQ(event->kind, "spill_failed");
        EXPECT_THAT(event->text, ::testing::HasSubstr("no space left on device"));
      } else {
        iterations.push_back(std::get<StepMessage>(report.report).iteration);
      }
    }
  }
  EXPECT_EQ(notes, 1u);
  ASSERT_EQ(iterations.size(), 110u) << "nothing is lost before the bound of the memory";
  EXPECT_TRUE(std::is_sorted(iterations.begin(), iterations.end()));
}

// A coordinator whose journal's disk is full keeps its streams and acknowledges nothing.
TEST(ReportBufferTest, WithoutAcknowledgementsReportsAreSpilledToo) {
  FakeSpill spill;
  ReportBuffer buffer({.max_batch_reports = 5,
                       .max_batches_in_flight = 2,
                       .max_waiting = 50,
                       .spill_at = 10,
                       .spill = &spill});
  buffer.Resume(0);
  std::vector<int64_t> expected;
  for (int i = 1; i <= 500; ++i) {
    buffer.Add(Step(i), absl::ZeroDuration());
    buffer.TakeDue(absl::Seconds(1));
    expected.push_back(i);
  }
  EXPECT_FALSE(spill.empty());
  int64_t next_sequence = 1;
  EXPECT_EQ(Drain(buffer, &next_sequence), expected);
}

TEST(ReportBufferTest, SpillIsUsedAgainOnceThereIsRoom) {
  FakeSpill spill;
  ReportBuffer buffer({.spill_at = 10, .spill = &spill});
  spill.full = true;
  for (int i = 1; i <= 15; ++i) buffer.Add(Step(i), absl::ZeroDuration());
  spill.full = false;
  for (int i = 16; i <= 40; ++i) buffer.Add(Step(i), absl::ZeroDuration());
  EXPECT_FALSE(spill.empty());
  int64_t next_sequence = 1;
  const std::vector<int64_t> iterations = Drain(buffer, &next_sequence);
  EXPECT_EQ(iterations.size(), 40u);
  EXPECT_TRUE(std::is_sorted(iterations.begin(), iterations.end()));
}

TEST(ReportBufferTest, LostPartsOfTheSpillAreSaid) {
  FakeSpill spill;
  ReportBuffer buffer({.spill_at = 2, .spill = &spill});
  buffer.Add(Step(1), absl::ZeroDuration());
  buffer.Add(Step(2), absl::ZeroDuration());
  ASSERT_EQ(spill.chunks.size(), 1u);
  spill.chunks[0].reports.clear();
  spill.chunks[0].unreadable = 2;
  spill.chunks[0].log_lines_left_out = 7;
  buffer.Resume(0);
  const auto batches = buffer.TakeDue(absl::Seconds(1));
  ASSERT_EQ(batches.size(), 1u);
  ASSERT_EQ(batches[0]->reports.size(), 2u);
  EXPECT_THAT(std::get<EventMessage>(batches[0]->reports[0].report).text,
              ::testing::HasSubstr("2 reports"));
  EXPECT_THAT(std::get<NodeLogLines>(batches[0]->reports[1].report).lines,
              ::testing::ElementsAre(::testing::HasSubstr("7 lines are left out")));
}

}  // namespace
}  // namespace muster
