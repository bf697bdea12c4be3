#include "cli/trace_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;

std::string Span(int rank, int tid, double ts, double dur, const std::string& name,
                 const std::string& category, json args = json::object()) {
  return json({{"ph", "X"},
               {"pid", rank},
               {"tid", tid},
               {"ts", ts},
               {"dur", dur},
               {"name", name},
               {"cat", category},
               {"args", std::move(args)}})
             .dump() +
         "\n";
}

// A step of 100 us: a wait of 30 for the group's sum, which lasts from `start` to 60, and a bubble
// of 10.
std::string Part(int rank, double start) {
  const json group = {
      {"group", "tp"}, {"ranks", {0, 1}}, {"sequence", 5}, {"bytes", 8}, {"iteration", 3}};
  return absl::StrCat(
      json({{"format", 1}, {"rank", rank}, {"clock_error_us", rank * 1.5}, {"dropped_events", 2}})
          .dump(),
      "\n", R"({"ph":"M","pid":0,"tid":0,"name":"process_name","args":{"name":"rank"}})", "\n",
      Span(rank, 1, 0, 100, "iteration 3", "step"),
      Span(rank, 10, start, 60 - start, "all_reduce", "communication", group),
      Span(rank, 11, 55, 10, "all_gather", "communication",
           {{"group", "dp"}, {"ranks", {0, 2}}, {"sequence", 1}}),
      Span(rank, 2, 30, 30, "all_reduce tp", "wait", group),
      Span(rank, 2, 80, 10, "send_recv pp", "wait",
           {{"group", "pp"}, {"ranks", {0, 3}}, {"sequence", 2}, {"iteration", 3}}),
      Span(rank, 3, 80, 10, "bubble", "bubble"),
      // After the step: of no iteration.
      Span(rank, 10, 120, 50, "all_reduce", "communication",
           {{"group", "tp"}, {"ranks", {0, 1}}, {"sequence", 6}}));
}

TEST(TraceFileTest, PartsBecomeOneFileAndTheTimesAddUp) {
  std::ostringstream out;
  TraceFile file(&out);
  ASSERT_TRUE(file.AddPart(Part(0, 20)).ok());
  ASSERT_TRUE(file.AddPart(Part(1, 25)).ok());
  file.Finish({{"job_id", "job-1"}});
  const json trace = json::parse(out.str());
  EXPECT_EQ(trace["traceEvents"].size(), 16u);
  EXPECT_EQ(trace["otherData"]["job_id"], "job-1");
  EXPECT_EQ(trace["otherData"]["clock_error_us"], 1.5);
  EXPECT_EQ(trace["otherData"]["dropped_events"], 4);
  ASSERT_EQ(file.ranks().size(), 2u);
  const RankTime& time = file.ranks()[0];
  EXPECT_DOUBLE_EQ(time.total_us, 100);
  EXPECT_DOUBLE_EQ(time.wait_us, 30);
  EXPECT_DOUBLE_EQ(time.bubble_us, 10);
  EXPECT_DOUBLE_EQ(time.busy_us(), 60);
  EXPECT_DOUBLE_EQ(time.communication_us, 45);  // 20 to 65
}

TEST(TraceFileTest, TheLongestWaitsNameWhoCameLast) {
  std::ostringstream out;
  TraceFile file(&out);
  ASSERT_TRUE(file.AddPart(Part(0, 20)).ok());
  ASSERT_TRUE(file.AddPart(Part(1, 25)).ok());
  const std::vector<LongWait> waits = file.LongestWaits();
  ASSERT_EQ(waits.size(), 4u);
  EXPECT_EQ(waits[0].us, 30);
  EXPECT_EQ(waits[0].op, "all_reduce");
  EXPECT_EQ(waits[0].last_rank, 1);
  EXPECT_THAT(waits[0].ranks, ElementsAre(0, 1));
  EXPECT_EQ(waits[3].op, "send_recv");
  EXPECT_EQ(waits[3].last_rank, -1);
}

TEST(TraceFileTest, WhatIsNoPartIsRefused) {
  for (const char* bad :
       {"", "{}\n", "{\"format\":2,\"rank\":0}\n", "{\"format\":1,\"rank\":0}\nx\n",
        "{\"format\":1,\"rank\":0}\n{\"ph\":\"X\"}\n"}) {
    std::ostringstream out;
    TraceFile file(&out);
    EXPECT_EQ(file.AddPart(bad).code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace muster
