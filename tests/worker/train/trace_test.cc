// One clock out of several, the recorder's events, and their text: pure parts of a trace.
#include "worker/train/trace_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "tests/worker/parallel/thread_ranks.h"
#include "worker/train/trace_clock.h"
#include "worker/train/trace_recorder.h"

namespace muster {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;

constexpr int64_t kSecond = 1'000'000'000;

TEST(TraceClockTest, TheShortestExchangeCounts) {
  // The other clock is 5,000 ahead; way there and back take 100 and 700, then 20 and 30.
  const ClockEstimate estimate =
      EstimateOffset({{{1'000, 1'100 + 5'000, 1'800}, {3'000, 3'020 + 5'000, 3'050}}});
  EXPECT_EQ(estimate.at_ns, 3'025);
  EXPECT_EQ(estimate.error_ns, 25);
  EXPECT_NEAR(static_cast<double>(estimate.offset_ns), 5'000, 25);
}

TEST(TraceClockTest, DriftIsEvenBetweenTheEstimatesAndBeyond) {
  // Rank 0's clock gains 20 us a second.
  const ClockMap map({.at_ns = kSecond, .offset_ns = 7'000, .error_ns = 40},
                     {.at_ns = 3 * kSecond, .offset_ns = 47'000, .error_ns = 90});
  EXPECT_EQ(map.ToReference(kSecond), kSecond + 7'000);
  EXPECT_EQ(map.ToReference(2 * kSecond), 2 * kSecond + 27'000);
  EXPECT_EQ(map.ToReference(4 * kSecond), 4 * kSecond + 67'000);
  EXPECT_EQ(map.ToReference(0), -13'000);
  EXPECT_EQ(map.error_ns(), 90);
  EXPECT_DOUBLE_EQ(map.drift_ns_per_s(), 20'000);
  EXPECT_EQ(ClockMap().ToReference(5), 5);
}

// Four ranks on three machines, whose clocks are set differently and run at different speeds: the
// map that two comparisons give brings the true time back, within the bound that it states.
TEST(TraceClockTest, ClocksOfSeveralMachinesAreBroughtTogether) {
  struct Clock {
    std::string machine;
    int64_t offset_ns = 0;
    double speed = 1;
    int64_t operator()(int64_t true_ns) const {
      return offset_ns + static_cast<int64_t>(static_cast<double>(true_ns) * speed);
    }
  };
  const int64_t zero = SteadyNanos();
  const std::vector<Clock> clocks = {
      {"a"}, {"b", 3600 * kSecond, 1.0001}, {"a"}, {"c", -7 * kSecond, 0.9998}};
  std::vector<int64_t> sequences(clocks.size());
  RunRanks(4, [&](CommunicatorPtr world) -> absl::Status {
    const Clock& mine = clocks[world->rank()];
    const auto now = [&] { return mine(SteadyNanos() - zero); };
    const auto first = SyncClocks(*world, c10::kCPU, mine.machine, now);
    if (!first.ok()) return first.status();
    absl::Status barrier = world->Barrier()->Wait();
    const auto last = SyncClocks(*world, c10::kCPU, mine.machine, now);
    if (!last.ok()) return last.status();
    EXPECT_EQ(first->num_clocks, 3);
    EXPECT_EQ(first->shared, world->rank() % 2 == 0);
    if (first->shared) {
      EXPECT_EQ(first->estimate.error_ns, 0);
    }
    const ClockMap map(first->estimate, last->estimate);
    const auto bound = static_cast<double>(map.error_ns() + 2);
    for (const ClockEstimate& at : {first->estimate, last->estimate}) {
      const double true_ns = static_cast<double>(at.at_ns - mine.offset_ns) / mine.speed;
      EXPECT_NEAR(static_cast<double>(map.ToReference(at.at_ns)), true_ns, bound)
          << "rank " << world->rank();
    }
    // The group's numbers are the same on all ranks, also for those that had nothing to say.
    const std::string log = world->Describe();
    sequences[world->rank()] = static_cast<int64_t>(std::count(log.begin(), log.end(), '\n'));
    return barrier;
  });
  EXPECT_THAT(sequences, ::testing::Each(sequences[0]));
}

TEST(TraceTracksTest, OverlappingOperationsGetTracksOfTheirOwn) {
  EXPECT_THAT(AssignTracks({{{0, 10}, {5, 8}, {6, 20}, {8, 9}, {10, 12}}}),
              ElementsAre(0, 1, 2, 1, 0));
}

// Lines without the head.
std::vector<json> Events(const std::string& lines) {
  std::vector<json> events;
  for (absl::string_view line : absl::StrSplit(lines, '\n', absl::SkipEmpty()))
    events.push_back(json::parse(line.begin(), line.end()));
  events.erase(events.begin());
  return events;
}
std::vector<json> OfCategory(const std::vector<json>& events, const std::string& category) {
  std::vector<json> found;
  for (const json& event : events) {
    if (event.value("cat", "") == category) found.push_back(event);
  }
  return found;
}

TraceEvent Op(const char* name, int64_t start, int64_t end, int64_t sequence, int group = 0) {
  TraceEvent op{.kind = TraceKind::kOp, .name = name, .dtype = "float"};
  op.start_ns = start;
  op.end_ns = end;
  op.group = group;
  op.number = sequence;
  op.bytes_in = 64;
  op.iteration = 7;
  return op;
}

TEST(TraceLinesTest, WaitsForThePipelineBetweenPassesAreBubbles) {
  TraceData data{.groups = {{"pp", {0, 1}}, {"tp", {0, 2}}}};
  data.events = {Op("send_recv", 1'000, 5'000, 0), Op("all_reduce", 6'000, 9'000, 0, 1)};
  TraceEvent receive{.kind = TraceKind::kTransfer, .name = "message"};
  receive.group = 0;
  receive.peer = 1;
  receive.op = 0;
  receive.bytes_in = 64;
  TraceEvent wait{
      .kind = TraceKind::kWait, .name = "send_recv", .start_ns = 2'000, .end_ns = 5'500};
  wait.op = 0;
  TraceEvent other{
      .kind = TraceKind::kWait, .name = "all_reduce", .start_ns = 7'000, .end_ns = 9'000};
  other.op = 1;
  TraceEvent pass{
      .kind = TraceKind::kForward, .name = "forward", .start_ns = 5'600, .end_ns = 9'500};
  pass.chunk = 1;
  pass.microbatch = 3;
  data.events.insert(data.events.end(), {receive, wait, other, pass});
  TraceHead head{.rank = 0, .world_size = 3, .groups = {{"pp", {0, 1}}, {"tp", {0, 2}}}};
  head.origin_ns = 500;
  const std::vector<json> events = Events(TraceLines(head, data));
  EXPECT_EQ(OfCategory(events, "wait").size(), 2u);
  const std::vector<json> bubbles = OfCategory(events, "bubble");
  ASSERT_EQ(bubbles.size(), 1u);
  EXPECT_EQ(bubbles[0]["ts"], 1.5);
  EXPECT_EQ(bubbles[0]["dur"], 3.5);
  EXPECT_EQ(bubbles[0]["args"], json({{"microbatch", 3}, {"chunk", 1}, {"before", "forward"}}));
  const std::vector<json> arrows = OfCategory(events, "message");
  ASSERT_EQ(arrows.size(), 1u);
  EXPECT_EQ(arrows[0]["ph"], "f");
  EXPECT_EQ(arrows[0]["bp"], "e");
  const std::vector<json> ops = OfCategory(events, "communication");
  EXPECT_EQ(ops[1]["args"]["ranks"], json({0, 2}));
  EXPECT_EQ(ops[1]["args"]["bytes"], 64);
  EXPECT_EQ(ops[1]["args"]["group"], "tp");
  EXPECT_EQ(ops[1]["args"]["iteration"], 7);
}

TEST(TraceLinesTest, BothEndsOfAMessageHaveOneName) {
  TraceData sender{.groups = {{"pp", {4, 6}}}}, receiver = sender;
  for (TraceData* data : {&sender, &receiver}) {
    data->events = {Op("send_recv", 1'000, 2'000, 5)};
    TraceEvent message{.kind = TraceKind::kTransfer, .name = "message"};
    message.is_send = data == &sender;
    message.group = 0;
    message.peer = data == &sender ? 6 : 4;
    message.op = 0;
    message.number = 9;
    data->events.push_back(message);
  }
  const auto arrow = [](int rank, const TraceData& data) {
    return OfCategory(Events(TraceLines({.rank = rank, .world_size = 8}, data)), "message").at(0);
  };
  const json start = arrow(4, sender), end = arrow(6, receiver);
  EXPECT_EQ(start["ph"], "s");
  EXPECT_EQ(start["args"], json({{"from", 4}, {"to", 6}, {"channel", 0}, {"bytes", 0}}));
  EXPECT_EQ(end["ph"], "f");
  EXPECT_EQ(start["id"], end["id"]);
  EXPECT_NE(start["id"], arrow(5, receiver)["id"]);
}

TEST(TraceLinesTest, TimesKeepEveryNanosecondAndWhatHasNoEndIsCounted) {
  TraceData data{.groups = {{"tp", {0, 1}}}, .num_dropped = 3};
  data.events = {Op("all_reduce", 12'345'678'901, 12'345'678'912, 0), Op("barrier", 5, 0, 1)};
  const std::string lines = TraceLines({.rank = 1, .world_size = 2}, data);
  EXPECT_THAT(lines, ::testing::HasSubstr("\"ts\":12345678.901,\"dur\":0.011"));
  const json head = json::parse(lines.substr(0, lines.find('\n')));
  EXPECT_EQ(head["dropped_events"], 3);
  EXPECT_EQ(head["unfinished_events"], 1);
  EXPECT_EQ(OfCategory(Events(lines), "communication").size(), 1u);
}

TEST(TraceRecorderTest, WhatFindsNoPlaceIsCounted) {
  TraceRecorder recorder(2);
  for (int i = 0; i < 5; ++i) {
    const TraceScope scope(&recorder, TraceKind::kPart, "optimizer");
  }
  const TraceData data = recorder.Take();
  EXPECT_EQ(data.events.size(), 2u);
  EXPECT_EQ(data.num_dropped, 3);
}

TEST(TraceRecorderTest, EventsKnowTheirIterationPassAndThread) {
  TraceRecorder recorder(10);
  recorder.SetIteration(12);
  {
    const TracePass pass(&recorder, TraceKind::kBackward, 1, 4);
    std::thread([&] {
      recorder.End(recorder.Begin(TraceKind::kLayerBackward, "layer", 3));
    }).join();
  }
  const TraceScope part(&recorder, TraceKind::kPart, "optimizer");
  const TraceData data = recorder.Take();
  ASSERT_EQ(data.events.size(), 3u);
  EXPECT_EQ(data.events[1].chunk, 1);
  EXPECT_EQ(data.events[1].microbatch, 4);
  EXPECT_EQ(data.events[1].unit, 3);
  EXPECT_EQ(data.events[1].thread, 1);
  EXPECT_LE(data.events[0].start_ns, data.events[1].start_ns);
  EXPECT_GE(data.events[0].end_ns, data.events[1].end_ns);
  EXPECT_EQ(data.events[2].microbatch, -1);
  EXPECT_EQ(data.events[2].thread, 0);
  EXPECT_EQ(data.events[2].iteration, 12);
  EXPECT_EQ(data.events[2].end_ns, 0);  // under way
}

TEST(TraceRecorderTest, AWaitForWhatWasDoneIsNone) {
  TraceRecorder recorder(10);
  OpLog log("tp", {0, 1});
  log.Observe(&recorder);
  const int64_t done = log.Start({"all_reduce", "float", 4, 0, 16}, absl::Now());
  log.Finish(done, absl::OkStatus(), absl::Now());
  { const OpLog::WaitScope waiting(log, done); }
  const int64_t running = log.Start({"all_gather", "float", 4, 8, 16, 32}, absl::Now());
  {
    const OpLog::WaitScope waiting(log, running);
    log.Finish(running, absl::OkStatus(), absl::Now());
  }
  log.Observe(nullptr);
  const TraceData data = recorder.Take();
  ASSERT_EQ(data.events.size(), 3u);
  EXPECT_EQ(data.events[2].kind, TraceKind::kWait);
  EXPECT_EQ(data.events[2].op, 1);
  EXPECT_GE(data.events[2].end_ns, data.events[1].end_ns);
}

}  // namespace
}  // namespace muster
