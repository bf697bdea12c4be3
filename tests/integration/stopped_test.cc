// Processes that stand still (SIGSTOP) for longer than the heartbeat's limit and go on: nothing is
// restarted, nothing is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/integration/cluster.h"

namespace muster {
namespace {

using nlohmann::json;

class StoppedTest : public ::testing::Test {
 protected:
  StoppedTest() : cluster_(FAKE_TRAINER) {}

  std::string StartJob() {
    cluster_.StartAgent("first", 1);
    cluster_.StartAgent("second", 1);
    EXPECT_TRUE(cluster_.WaitForWorkers(2)) << cluster_.last_error;
    json spec = SmallSpec(2, 1'000'000);
    spec["resources"]["env"]["FAKE_STEP_MS"] = "20";
    const std::string job = cluster_.Submit(spec);
    EXPECT_NE(job, "") << cluster_.last_error;
    EXPECT_TRUE(cluster_.WaitForIteration(job, 10));
    return job;
  }

  void ExpectItGoesOn(const std::string& job) {
    const json now = cluster_.MusterJson({"status", job});
    ASSERT_TRUE(now.is_object()) << cluster_.last_error;
    EXPECT_TRUE(cluster_.WaitForIteration(job, now["iteration"].get<int64_t>() + 50));
    const json after = cluster_.MusterJson({"status", job});
    EXPECT_EQ(after["state"], "RUNNING") << after;
    EXPECT_EQ(after["restarts"], 0);
    EXPECT_EQ(after["epoch"], 1);
  }

  // Three times the heartbeat's limit.
  static void StandStill(Process& process) {
    process.Signal(SIGSTOP);
    absl::SleepFor(absl::Milliseconds(4500));
    process.Signal(SIGCONT);
  }

  Cluster cluster_;
};

TEST_F(StoppedTest, CoordinatorThatStoodStillLosesNobody) {
  const std::string job = StartJob();
  StandStill(cluster_.coordinator());
  ExpectItGoesOn(job);
}

TEST_F(StoppedTest, AgentThatStoodStillKeepsItsTrainer) {
  const std::string job = StartJob();
  const std::vector<pid_t> before = cluster_.TrainerPids();
  StandStill(cluster_.agent(1));
  ExpectItGoesOn(job);
  EXPECT_EQ(cluster_.TrainerPids(), before);
}

TEST_F(StoppedTest, AgentThatReportsTheStepsAndStoodStillDeliversThem) {
  const std::string job = StartJob();
  StandStill(cluster_.agent(0));
  ExpectItGoesOn(job);
}

}  // namespace
}  // namespace muster
