// The real trainer while the control plane fails or a process stands still: the numbers are those
// of a quiet run, to the last bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/integration/cluster.h"

namespace muster {
namespace {

using nlohmann::json;

class OutageTest : public ::testing::Test {
 protected:
  OutageTest() : cluster_("") {
    cluster_.StartAgent("first", 1);
    cluster_.StartAgent("second", 1);
    EXPECT_TRUE(cluster_.WaitForWorkers(2)) << cluster_.last_error;
  }

  static json Spec(int train_iters) {
    json spec = SmallSpec(2, train_iters);
    spec["model"]["hidden_size"] = 64;
    spec["model"]["seq_length"] = 64;
    spec["evaluation"] = {{"eval_interval", train_iters / 2}, {"eval_iters", 2}};
    return spec;
  }

  // What a step has computed, without what the clock has to say.
  std::vector<std::string> Numbers(const std::string& job) {
    std::vector<std::string> numbers;
    for (const json& record : JsonLines(cluster_.Muster({"metrics", job, "--json"}).out)) {
      json kept;
      for (const char* name : {"iteration", "consumed_samples", "lm_loss", "grad_norm",
                               "learning_rate", "loss_scale", "skipped", "epoch"}) {
        kept[name] = record[name];
      }
      numbers.push_back(kept.dump());
    }
    return numbers;
  }

  Cluster cluster_;
};

TEST_F(OutageTest, CoordinatorKilledTwentyTimesChangesNoNumber) {
  const int train_iters = 2500;
  const std::string quiet = cluster_.Submit(Spec(train_iters));
  ASSERT_NE(quiet, "") << cluster_.last_error;
  json status = cluster_.WaitForEnd(quiet);
  ASSERT_EQ(status["state"], "COMPLETED") << status;
  const json quiet_evaluations = status["evaluations"];
  ASSERT_TRUE(cluster_.WaitForWorkers(2));

  const std::string job = cluster_.Submit(Spec(train_iters));
  ASSERT_TRUE(cluster_.WaitForIteration(job, 1)) << cluster_.last_error;
  std::mt19937 random(20);
  for (int kill = 0; kill < 20; ++kill) {
    absl::SleepFor(absl::Milliseconds(random() % 100));
    cluster_.RestartCoordinator();
  }
  status = cluster_.WaitForEnd(job);
  ASSERT_EQ(status["state"], "COMPLETED") << status;
  EXPECT_EQ(status["restarts"], 0);
  EXPECT_EQ(status["epoch"], 1);
  EXPECT_EQ(status["evaluations"], quiet_evaluations);
  const std::vector<std::string> expected = Numbers(quiet), numbers = Numbers(job);
  ASSERT_EQ(expected.size(), static_cast<size_t>(train_iters));
  ASSERT_EQ(numbers.size(), expected.size());
  for (size_t i = 0; i < numbers.size(); ++i) ASSERT_EQ(numbers[i], expected[i]);
}

TEST_F(OutageTest, TrainerThatStandsStillIsFoundAndGetsANewProcess) {
  const std::string job = cluster_.Submit(Spec(1'000'000));
  ASSERT_TRUE(cluster_.WaitForIteration(job, 10)) << cluster_.last_error;
  const std::vector<pid_t> trainers = cluster_.TrainerPids();
  ASSERT_EQ(trainers.size(), 2u);
  kill(trainers[1], SIGSTOP);
  EXPECT_TRUE(Eventually([&] {
    const json status = cluster_.MusterJson({"status", job});
    return status.is_object() && status["restarts"] == 1 && status["state"] == "RUNNING";
  })) << cluster_.MusterJson({"status", job});
  const json status = cluster_.MusterJson({"status", job});
  EXPECT_EQ(status["cause"]["kind"], "hang") << status;
  EXPECT_TRUE(cluster_.WaitForIteration(job, status["iteration"].get<int64_t>() + 10));
  const std::vector<pid_t> after = cluster_.TrainerPids();
  ASSERT_EQ(after.size(), 2u);
  EXPECT_EQ(after[0], trainers[0]);  // the survivor kept its process
  EXPECT_NE(after[1], trainers[1]);
}

}  // namespace
}  // namespace muster
