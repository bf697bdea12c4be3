// Commands that follow and change a cluster, against the real one (with a stand-in for the
// trainer).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "tests/integration/cluster.h"

namespace muster {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class ClusterCommandsTest : public ::testing::Test {
 protected:
  ClusterCommandsTest() : cluster_(FAKE_TRAINER) {}
  void StartTwoWorkers() {
    cluster_.StartAgent("node", 2);
    ASSERT_TRUE(cluster_.WaitForWorkers(2)) << cluster_.last_error;
  }
  std::unique_ptr<Process> Start(std::vector<std::string> words) {
    words.insert(words.begin(), Binary("muster"));
    return std::make_unique<Process>(
        cluster_.folder().path(), words,
        std::map<std::string, std::string>{{"MUSTER_COORDINATOR", cluster_.address()}});
  }
  json Spec(int train_iters, const json& env = json::object()) {
    json spec = SmallSpec(2, train_iters);
    spec["resources"]["env"] = env;
    return spec;
  }
  Cluster cluster_;
};

TEST_F(ClusterCommandsTest, FollowersOutlastAKilledCoordinator) {
  constexpr int kIterations = 400;
  StartTwoWorkers();
  const std::string job = cluster_.Submit(Spec(kIterations, {{"FAKE_STEP_MS", "10"}}));
  ASSERT_NE(job, "") << cluster_.last_error;
  const auto watch = Start({"watch", job, "--json"});
  const auto events = Start({"events", job, "-f"});
  const auto logs = Start({"logs", job, "-f"});
  const auto has_steps = [&](int count) {
    const std::string text = watch->Stdout();
    return std::count(text.begin(), text.end(), '\n') >= count;
  };
  ASSERT_TRUE(Eventually([&] { return has_steps(50); })) << watch->Stderr();
  cluster_.RestartCoordinator();  // kill -9
  ASSERT_TRUE(Eventually([&] { return has_steps(200); })) << watch->Stderr();
  EXPECT_EQ(watch->Wait(), 0) << watch->Stderr();
  EXPECT_EQ(events->Wait(), 0) << events->Stderr();
  EXPECT_EQ(logs->Wait(), 0) << logs->Stderr();
  EXPECT_THAT(watch->Stderr(), AllOf(HasSubstr("coordinator away, training goes on; retrying\n"),
                                     HasSubstr("the coordinator is back after ")));
  // Every iteration once, in order, and the status.
  int iteration = 0;
  for (const json& record : JsonLines(watch->Stdout())) {
    if (record.contains("job_id")) {
      EXPECT_EQ(record["state"], "COMPLETED");
      EXPECT_EQ(record["restarts"], 0);
    } else {
      EXPECT_EQ(record["iteration"], ++iteration);
    }
  }
  EXPECT_EQ(iteration, kIterations);
  EXPECT_THAT(events->Stdout(), AllOf(HasSubstr("submitted"), HasSubstr("completed")));
  EXPECT_THAT(logs->Stdout(),
              AllOf(HasSubstr("[0] rank 0 of 2\n"), HasSubstr("[1] rank 1 of 2\n")));
}

TEST_F(ClusterCommandsTest, AFailedJobIsRestartedWithAChange) {
  StartTwoWorkers();
  json spec = Spec(50, {{"FAKE_CRASH_RANK", "1"}, {"FAKE_CRASH_STEP", "20"}});
  spec["recovery"]["max_restarts"] = 0;
  const std::string job = cluster_.Submit(spec);
  ASSERT_NE(job, "") << cluster_.last_error;
  const Result watch = cluster_.Muster({"watch", job});
  EXPECT_EQ(watch.code, 1);
  EXPECT_THAT(watch.err,
              AllOf(StartsWith(absl::StrCat("muster: ", job, " failed: ")), HasSubstr("signal 11"),
                    HasSubstr(absl::StrCat("muster logs ", job, " --rank 1 "))));
  EXPECT_EQ(std::count(watch.err.begin(), watch.err.end(), '\n'), 1) << watch.err;
  EXPECT_THAT(cluster_.Muster({"status", job}).out,
              AllOf(HasSubstr("first cause"), HasSubstr("about to crash at step 20")));

  const Result again = cluster_.Muster({"restart", job, "--set", "resources.env={}", "--watch"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.out, AllOf(HasSubstr(absl::StrCat("(the spec of ", job, " again)")),
                               HasSubstr("COMPLETED at iteration 50")));
}

TEST_F(ClusterCommandsTest, ADrainedWorkerGetsNoJobUntilItIsUndone) {
  StartTwoWorkers();
  EXPECT_EQ(cluster_.Muster({"drain", "node/1"}).code, 0);
  const std::string job = cluster_.Submit(Spec(20));
  ASSERT_NE(job, "") << cluster_.last_error;
  EXPECT_THAT(cluster_.Muster({"list"}).out,
              AllOf(HasSubstr("QUEUED"), HasSubstr("have 1 of 2 cpu workers")));
  EXPECT_THAT(cluster_.Muster({"status", job}).out, HasSubstr("have 1 of 2 cpu workers"));
  const json topology = cluster_.MusterJson({"topology", job});
  EXPECT_TRUE(topology["ranks"][0]["node"].is_null());
  EXPECT_EQ(cluster_.Muster({"drain", "node/1", "--undo"}).code, 0);
  EXPECT_EQ(cluster_.Muster({"watch", job}).code, 0);
}

TEST_F(ClusterCommandsTest, TopologySaysWhereEachRankIs) {
  StartTwoWorkers();
  const std::string job = cluster_.Submit(Spec(100'000));
  ASSERT_TRUE(cluster_.WaitForIteration(job, 1)) << cluster_.last_error;
  const json topology = cluster_.MusterJson({"topology", job});
  for (int rank : {0, 1}) {
    EXPECT_EQ(topology["ranks"][rank]["worker"], absl::StrCat("node/", rank));
    EXPECT_TRUE(topology["ranks"][rank]["node"].is_string());
    EXPECT_EQ(topology["ranks"][rank]["device"], "cpu");
    EXPECT_EQ(topology["ranks"][rank]["dp"], rank);
  }
  EXPECT_THAT(cluster_.Muster({"topology", job}).out,
              AllOf(HasSubstr("NODE"), HasSubstr("DEVICE"), HasSubstr("node/1")));
  const Result set = cluster_.Muster({"topology", job, "--set", "model.num_layers=2"});
  EXPECT_EQ(set.code, 2);
  EXPECT_THAT(set.err, HasSubstr("--set changes a spec"));
  EXPECT_EQ(cluster_.Muster({"cancel", job, "--now"}).code, 0);
}

}  // namespace
}  // namespace muster
