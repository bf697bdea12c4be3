// Traces of whole jobs, ranks as threads: all ranks record the same steps, and every pass, layer
// and message is there.
#include <map>
#include <set>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "tests/worker/train/train_test_util.h"

namespace muster {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

Directive TraceDirective(int64_t number, int64_t iterations) {
  return {.number = number,
          .kind = Directive::Kind::kTrace,
          .reason = "test",
          .iterations = iterations};
}

struct Part {
  json head;
  std::vector<json> events;

  std::vector<json> Of(const std::string& category) const {
    std::vector<json> found;
    for (const json& event : events) {
      if (event.value("cat", "") == category) found.push_back(event);
    }
    return found;
  }
};

Part Parse(const std::string& lines) {
  Part part;
  for (absl::string_view line : absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
    json parsed = json::parse(line.begin(), line.end());
    if (part.head.is_null()) {
      part.head = std::move(parsed);
    } else {
      part.events.push_back(std::move(parsed));
    }
  }
  return part;
}

// By rank; every one must have sent all of it.
std::vector<Part> Parts(const std::vector<RankRun>& ranks, int64_t directive) {
  std::vector<Part> parts;
  for (const RankRun& rank : ranks) {
    EXPECT_TRUE(rank.status.ok()) << rank.status;
    EXPECT_TRUE(rank.host->whole_traces.contains(directive));
    if (!rank.host->traces.contains(directive)) continue;
    parts.push_back(Parse(rank.host->traces.at(directive)));
  }
  return parts;
}

// Every span of a track lies within the one it begins in.
void ExpectNested(const Part& part) {
  std::map<int, std::vector<std::pair<double, double>>> tracks;
  for (const json& event : part.events) {
    if (event["ph"] != "X") continue;
    const double begin = event["ts"];
    tracks[event["tid"]].emplace_back(begin, begin + event["dur"].get<double>());
  }
  for (auto& [track, spans] : tracks) {
    std::sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) {
      return a.first < b.first || (a.first == b.first && a.second > b.second);
    });
    std::vector<double> open;
    for (const auto& [begin, end] : spans) {
      while (!open.empty() && open.back() <= begin + 1e-6) open.pop_back();
      if (!open.empty()) {
        EXPECT_LE(end, open.back() + 1e-3) << "track " << track;
      }
      open.push_back(end);
    }
  }
}

TEST(StepTraceTest, AllRanksOfAPipelineRecordTheSameStepsOnOneClock) {
  TrainTestRoot root;
  const auto ranks = RunJob(root.Spec({"training.train_iters=6", "resources.world_size=4",
                                       "parallel.pipeline_model_parallel_size=2",
                                       "parallel.tensor_model_parallel_size=2"}),
                            {.script = [](int rank, ScriptedHost& host) {
                              // It reaches the ranks at different steps.
                              host.deliveries[rank == 2 ? 3 : 1] = {TraceDirective(1, 2)};
                            }});
  const std::vector<Part> parts = Parts(ranks, 1);
  ASSERT_EQ(parts.size(), 4u);
  std::map<std::string, double> sent, received;  // by arrow
  for (int rank = 0; rank < 4; ++rank) {
    SCOPED_TRACE(absl::StrCat("rank ", rank));
    const Part& part = parts[rank];
    EXPECT_EQ(part.head["rank"], rank);
    EXPECT_EQ(part.head["first_iteration"], 4);
    EXPECT_EQ(part.head["iterations"], 2);
    EXPECT_EQ(part.head["dropped_events"], 0);
    EXPECT_EQ(part.head["unfinished_events"], 0);
    EXPECT_EQ(part.head["shared_clock"], true);
    ExpectNested(part);
    const int64_t layer = part.head["pp"];  // one a stage
    EXPECT_EQ(part.head["layers"], json({{layer}}));
    std::map<std::tuple<int64_t, std::string, int64_t>, int> layers;  // iteration, pass, microbatch
    for (const json& event : part.Of("layer")) {
      const json& args = event["args"];
      EXPECT_EQ(args["layer"], layer);
      ++layers[{args["iteration"], args["pass"], args["microbatch"]}];
    }
    EXPECT_EQ(layers.size(), 2u * 2 * 4);  // iterations, passes, microbatches
    for (const auto& [key, count] : layers) EXPECT_EQ(count, 1);
    EXPECT_EQ(part.Of("pass").size(), 2u * 2 * 4);
    std::set<std::string> groups;
    for (const json& event : part.Of("communication")) {
      const json& args = event["args"];
      groups.insert(args["group"]);
      EXPECT_TRUE(args["ranks"].is_array() && args.contains("sequence")) << event;
      if (event["name"] != "barrier") {
        EXPECT_GT(args["bytes"], 0) << event;
      }
    }
    EXPECT_GE(groups.size(), 3u) << json(groups);  // tp, pp, world
    for (const json& arrow : part.Of("message"))
      (arrow["ph"] == "s" ? sent : received)[arrow["id"]] = arrow["ts"];
  }
  // 2 iterations, 4 microbatches, forward and backward, in each of 2 pipelines.
  EXPECT_EQ(sent.size(), 2u * 4 * 2 * 2);
  EXPECT_EQ(received.size(), sent.size());
  for (const auto& [id, ts] : sent) {
    ASSERT_TRUE(received.contains(id));
    EXPECT_LE(ts, received[id]) << id;
  }
  // Only the pipeline's ranks wait for each other between passes.
  EXPECT_FALSE(parts[2].Of("bubble").empty());
}

TEST(StepTraceTest, RecordingChangesNoNumber) {
  TrainTestRoot root;
  const std::string spec = root.Spec(
      {"training.train_iters=5", "resources.world_size=2", "parallel.overlap_grad_reduce=true"});
  const auto traced = StepsOf(RunJob(spec, {.script = [](int, ScriptedHost& host) {
                                       host.deliveries[1] = {TraceDirective(1, 3)};
                                     }}));
  const auto plain = StepsOf(RunJob(spec));
  EXPECT_EQ(Losses(traced), Losses(plain));
  EXPECT_EQ(GradNorms(traced), GradNorms(plain));
}

TEST(StepTraceTest, ANewerRequestEndsTheTraceThatIsRecorded) {
  TrainTestRoot root;
  const auto ranks =
      RunJob(root.Spec({"training.train_iters=8"}), {.script = [](int, ScriptedHost& host) {
               host.deliveries[1] = {TraceDirective(1, 50)};
               host.deliveries[3] = {TraceDirective(2, 2)};
             }});
  const Part first = Parts(ranks, 1).at(0), second = Parts(ranks, 2).at(0);
  EXPECT_EQ(first.head["first_iteration"], 2);
  EXPECT_EQ(first.head["iterations"], 2);
  EXPECT_EQ(first.head["requested_iterations"], 50);
  EXPECT_EQ(second.head["first_iteration"], 4);
  EXPECT_EQ(second.head["iterations"], 2);
}

TEST(StepTraceTest, AJobThatEndsSendsWhatItHas) {
  TrainTestRoot root;
  const auto ranks = RunJob(
      root.Spec({"training.train_iters=4"}),
      {.script = [](int, ScriptedHost& host) { host.deliveries[2] = {TraceDirective(1, 100)}; }});
  const Part part = Parts(ranks, 1).at(0);
  EXPECT_EQ(part.head["iterations"], 2);
  EXPECT_EQ(part.Of("layer").size(), 2u * 2 * 2 * 4);  // iterations, layers, passes, microbatches
  EXPECT_EQ(ranks[0].reason, "trained 4 iterations");
}

TEST(StepTraceTest, RecomputedLayersShowTheirSecondForwardPass) {
  TrainTestRoot root;
  const auto ranks = RunJob(
      root.Spec({"training.train_iters=3", "training.recompute_granularity=full",
                 "training.recompute_method=uniform", "training.recompute_num_layers=1"}),
      {.script = [](int, ScriptedHost& host) { host.deliveries[1] = {TraceDirective(1, 1)}; }});
  const Part part = Parts(ranks, 1).at(0);
  ExpectNested(part);
  std::map<std::string, int> passes;
  for (const json& event : part.Of("layer")) ++passes[event["args"]["pass"]];
  EXPECT_EQ(passes["forward"], 2 * 2 * 4);  // twice
  EXPECT_EQ(passes["backward"], 2 * 4);
}

}  // namespace
}  // namespace muster
