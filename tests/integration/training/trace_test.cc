// muster trace against real processes: directive, recording, the files' way back, the file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <map>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "tests/integration/cluster.h"

namespace muster {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class TraceTest : public ::testing::Test {
 protected:
  TraceTest() : cluster_("") {
    cluster_.StartAgent("node", 2);
    EXPECT_TRUE(cluster_.WaitForWorkers(2)) << cluster_.last_error;
  }
  // Two stages, or two tensor-parallel ranks; it trains until it is stopped.
  std::string Start(const char* dimension) {
    json spec = SmallSpec(2, 1'000'000);
    spec["parallel"][dimension] = 2;
    spec["model"]["num_layers"] = kNumLayers;
    const std::string job = cluster_.Submit(spec);
    EXPECT_NE(job, "") << cluster_.last_error;
    EXPECT_TRUE(cluster_.WaitForIteration(job, 1)) << cluster_.last_error;
    return job;
  }
  json Load() { return json::parse(std::ifstream(file_)); }

  Cluster cluster_;
  const std::string file_ = cluster_.folder() / "trace.json";
  static constexpr int kNumLayers = 2;
};

TEST_F(TraceTest, TheFileHoldsEveryPassLayerAndMessageOfAllRanks) {
  const std::string job = Start("pipeline_model_parallel_size");
  const json summary = cluster_.MusterJson({"trace", job, "--iterations", "2", "--output", file_});
  ASSERT_TRUE(summary.is_object()) << cluster_.last_error;
  EXPECT_EQ(summary["iterations"], 2);
  EXPECT_EQ(summary["ranks"].size(), 2u);
  for (const json& rank : summary["ranks"]) {
    EXPECT_NEAR(rank["total_ms"].get<double>(),
                rank["busy_ms"].get<double>() + rank["wait_ms"].get<double>() +
                    rank["bubble_ms"].get<double>(),
                1e-6);
    EXPECT_GT(rank["busy_ms"], 0) << rank;
  }
  EXPECT_FALSE(summary["longest_waits"].empty());
  const json trace = Load();
  const int64_t first = summary["first_iteration"];
  std::set<std::tuple<int64_t, int64_t, std::string>> layers;  // iteration, layer, pass
  std::map<std::string, std::pair<int, double>> sent, received;
  std::set<int> processes;
  for (const json& event : trace["traceEvents"]) {
    processes.insert(event["pid"].get<int>());
    const std::string category = event.value("cat", "");
    if (category == "layer") {
      const json& args = event["args"];
      layers.emplace(args["iteration"].get<int64_t>(), args["layer"].get<int64_t>(),
                     args["pass"].get<std::string>());
    } else if (category == "message") {
      (event["ph"] == "s" ? sent : received)[event["id"]] =
          std::make_pair(event["pid"].get<int>(), event["ts"].get<double>());
    } else if (category == "communication") {
      EXPECT_EQ(event["args"]["ranks"].size(), 2u) << event;
      EXPECT_TRUE(event["args"]["group"].is_string()) << event;
      if (event["name"] != "barrier") {
        EXPECT_GT(event["args"]["bytes"], 0) << event;
      }
    }
  }
  EXPECT_EQ(processes, std::set<int>({0, 1}));
  for (const int64_t iteration : {first, first + 1}) {
    for (int64_t layer = 0; layer < kNumLayers; ++layer) {
      for (const char* pass : {"forward", "backward"})
        EXPECT_TRUE(layers.contains({iteration, layer, pass})) << iteration << " " << layer;
    }
  }
  EXPECT_EQ(layers.size(), 2u * 2 * kNumLayers);
  ASSERT_FALSE(sent.empty());
  EXPECT_EQ(sent.size(), received.size());
  const double bound = trace["otherData"]["clock_error_us"];
  for (const auto& [id, send] : sent) {
    ASSERT_TRUE(received.contains(id));
    EXPECT_NE(send.first, received[id].first);
    EXPECT_LE(send.second, received[id].second + bound);
  }
  // The same trace again, for people.
  const Result again = cluster_.Muster({"trace", job, "--last", "--output", file_ + "2"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("longest waits"));
}

TEST_F(TraceTest, BadRequestsAreRefusedWithTheReason) {
  const auto expect = [&](std::vector<std::string> words, int code, const std::string& text) {
    words.insert(words.begin(), "trace");
    words.insert(words.end(), {"--output", file_});
    const Result result = cluster_.Muster(words);
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(text));
    EXPECT_FALSE(std::ifstream(file_).good());
  };
  expect({"job-none"}, 2, "not known");
  const std::string job = Start("tensor_model_parallel_size");
  expect({job, "--iterations", "0"}, 2, "--iterations=0");
  expect({job, "--iterations", "101"}, 2, "at most 100");
  expect({job, "--last"}, 2, "no trace of");
  cluster_.Muster({"cancel", job});
  ASSERT_TRUE(cluster_.WaitForEnd(job).is_object());
  expect({job}, 1, "does not train now");
}

TEST_F(TraceTest, ARankThatDiesWhileItIsTracedEndsTheWait) {
  const std::string job = Start("tensor_model_parallel_size");
  const std::vector<pid_t> pids = cluster_.TrainerPids();
  ASSERT_EQ(pids.size(), 2u);
  kill(pids[1], SIGSTOP);  // no step ends any more
  const Result late = cluster_.Muster({"trace", job, "--timeout", "1", "--output", file_});
  EXPECT_EQ(late.code, 1);
  EXPECT_THAT(late.err, HasSubstr("0 of 2 ranks have sent"));
  EXPECT_THAT(late.err, HasSubstr("--last"));
  kill(pids[1], SIGKILL);
  const Result dead = cluster_.Muster({"trace", job, "--last", "--output", file_});
  EXPECT_EQ(dead.code, 1);
  EXPECT_THAT(dead.err, HasSubstr("there will be no trace"));
  EXPECT_THAT(dead.err, HasSubstr("(epoch 1) is over"));
}

}  // namespace
}  // namespace muster
