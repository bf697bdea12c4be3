// Reruns with real processes: a worker that computes wrongly is found and replaced; without another
// one the job leaves as Megatron's does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/integration/cluster.h"

namespace muster {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

class RerunClusterTest : public ::testing::Test {
 protected:
  RerunClusterTest() : cluster_("") {
    cluster_.agent_options = {"--plugin-dir",
                              std::filesystem::path(FAULTY_PLUGIN).parent_path().string()};
  }
  std::map<int64_t, json> Records(const std::string& job) {
    std::map<int64_t, json> records;
    for (const json& record : JsonLines(cluster_.Muster({"metrics", job, "--json"}).out))
      records[record["iteration"]] = record;
    return records;
  }
  std::string Events(const std::string& job) {
    return cluster_.Muster({"events", job, "--json"}).out;
  }
  Cluster cluster_;
};

TEST_F(RerunClusterTest, AWorkerThatComputesWronglyIsFoundAndReplacedWithoutAStop) {
  cluster_.StartAgent("node", 3);
  ASSERT_TRUE(cluster_.WaitForWorkers(3)) << cluster_.last_error;
  json spec = SmallSpec(2, 40);
  spec["model"]["hidden_dropout"] = 0.1;
  json faulty = spec;
  faulty["plugin"] = FAULTY_PLUGIN;
  faulty["model"]["forward_step"] = "faulty";
  const std::string job = cluster_.Submit(faulty);
  ASSERT_NE(job, "") << cluster_.last_error;
  const json status = cluster_.WaitForEnd(job);
  ASSERT_TRUE(status.is_object());
  EXPECT_EQ(status["state"], "COMPLETED") << status.dump(2) << Events(job);
  EXPECT_THAT(Events(job), AllOf(HasSubstr("rerun_persistent"), HasSubstr("rerunning"),
                                 HasSubstr("worker node/1 computes wrongly")));
  EXPECT_THAT(cluster_.Muster({"workers"}).out, HasSubstr("quarantined"));
  // No step is lost, and none is another than without the fault.
  const std::string unbroken = cluster_.Submit(spec);
  ASSERT_TRUE(cluster_.WaitForEnd(unbroken).is_object());
  const auto a = Records(job), b = Records(unbroken);
  ASSERT_EQ(a.size(), 40u);
  ASSERT_EQ(b.size(), 40u);
  for (const auto& [iteration, record] : a) {
    EXPECT_EQ(record["lm_loss"], b.at(iteration)["lm_loss"]) << iteration;
    EXPECT_EQ(record["consumed_samples"], b.at(iteration)["consumed_samples"]) << iteration;
  }
}

// The coordinator is killed while the step is run again elsewhere: the next one judges it.
TEST_F(RerunClusterTest, ARestartedCoordinatorEndsTheExaminationThatWasUnderWay) {
  cluster_.StartAgent("node", 3);
  ASSERT_TRUE(cluster_.WaitForWorkers(3)) << cluster_.last_error;
  json spec = SmallSpec(2, 40);
  spec["plugin"] = FAULTY_PLUGIN;
  spec["model"]["forward_step"] = "faulty";
  const std::string job = cluster_.Submit(spec);
  ASSERT_NE(job, "") << cluster_.last_error;
  const absl::Time limit = absl::Now() + absl::Minutes(2);
  while (Events(job).find("\"rerunning\"") == std::string::npos && absl::Now() < limit) {
  }
  cluster_.RestartCoordinator();
  const json status = cluster_.WaitForEnd(job);
  ASSERT_TRUE(status.is_object());
  EXPECT_EQ(status["state"], "COMPLETED") << status.dump(2) << Events(job);
  const std::string events = Events(job);
  EXPECT_THAT(events, HasSubstr("worker node/1 computes wrongly"));
  EXPECT_EQ(events.find("unattributed"), std::string::npos) << events;
  EXPECT_EQ(Records(job).size(), 40u);
}

TEST_F(RerunClusterTest,
       WithoutAnotherWorkerTheJobLeavesWith16AndItsExaminationGoesOnAfterARestart) {
  cluster_.StartAgent("node", 1);
  ASSERT_TRUE(cluster_.WaitForWorkers(1)) << cluster_.last_error;
  json spec = SmallSpec(1, 20);
  spec["checkpoint"] = {{"save", cluster_.folder() / "checkpoints"},
                        {"load", cluster_.folder() / "checkpoints"},
                        {"save_interval", 1'000'000}};
  spec["rerun"] = {{"error_injection_rate", 1}, {"error_injection_type", "persistent_error"}};
  const std::string job = cluster_.Submit(spec);
  ASSERT_NE(job, "") << cluster_.last_error;
  json status = cluster_.WaitForEnd(job);
  ASSERT_TRUE(status.is_object());
  EXPECT_EQ(status["state"], "EXITED") << status.dump(2) << Events(job);
  EXPECT_EQ(status["exit_code"], 16);
  EXPECT_THAT(status["reason"].get<std::string>(), HasSubstr("no other device"));
  EXPECT_THAT(Events(job), HasSubstr("1: checkpoint_and_exit, iteration 2"));
  // On the same device again: nothing is known.
  const std::string again = cluster_.Submit(spec);
  status = cluster_.WaitForEnd(again);
  ASSERT_TRUE(status.is_object());
  EXPECT_EQ(status["state"], "EXITED") << status.dump(2) << Events(again);
  EXPECT_EQ(status["exit_code"], 16);
  EXPECT_THAT(status["reason"].get<std::string>(), HasSubstr("came back to the same device"));
}

}  // namespace
}  // namespace muster
