// The whole path with the real trainer: a small GPT on mock data, data parallel over two processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/integration/cluster.h"

namespace muster {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::map<int64_t, json> RecordsByIteration(const std::string& lines) {
  std::map<int64_t, json> records;
  for (const json& record : JsonLines(lines)) records[record["iteration"]] = record;
  return records;
}

class TrainingTest : public ::testing::Test {
 protected:
  TrainingTest() : cluster_("") {
    cluster_.StartAgent("node", 2);
    EXPECT_TRUE(cluster_.WaitForWorkers(2)) << cluster_.last_error;
  }
  json SpecThatSaves(int train_iters) {
    json spec = SmallSpec(2, train_iters);
    spec["checkpoint"] = {{"save", cluster_.folder() / "checkpoints"},
                          {"save_interval", 1'000'000}};
    return spec;
  }
  bool CheckpointsAreThere() {
    return std::filesystem::exists(cluster_.folder() /
                                   "checkpoints/latest_checkpointed_iteration.txt");
  }
  Cluster cluster_;
};

TEST_F(TrainingTest, JobTrainsEvaluatesAndEnds) {
  json spec = SmallSpec(2, 8);
  spec["evaluation"]["eval_interval"] = 4;
  const std::string job = cluster_.Submit(spec);
  ASSERT_NE(job, "") << cluster_.last_error;
  const json status = cluster_.WaitForEnd(job);
  ASSERT_TRUE(status.is_object());
  EXPECT_EQ(status["state"], "COMPLETED") << status.dump(2);
  EXPECT_EQ(status["consumed_samples"], 16);
  const auto records = RecordsByIteration(cluster_.Muster({"metrics", job, "--json"}).out);
  ASSERT_EQ(records.size(), 8u);
  for (const auto& [iteration, record] : records) {
    // A fresh model over 257 tokens, padded to 384, is near the uniform guess.
    EXPECT_NEAR(record["lm_loss"].get<double>(), std::log(384.0), 1.0) << record;
    EXPECT_GT(record["grad_norm"].get<double>(), 0) << record;
  }
  EXPECT_GE(status["evaluations"].size(), 1u) << status.dump(2);
  EXPECT_TRUE(cluster_.WaitForWorkers(2));
  EXPECT_TRUE(cluster_.NoTrainerLeft());
}

TEST_F(TrainingTest, WithoutRestartsAKilledTrainerFailsTheJobAndFreesTheWorkers) {
  json spec = SmallSpec(2, 1'000'000);
  spec["recovery"]["max_restarts"] = 0;
  const std::string job = cluster_.Submit(spec);
  ASSERT_TRUE(cluster_.WaitForIteration(job, 2)) << cluster_.last_error;
  const std::vector<pid_t> pids = cluster_.TrainerPids();
  ASSERT_EQ(pids.size(), 2u);
  kill(pids[0], SIGKILL);
  const json status = cluster_.WaitForEnd(job);
  ASSERT_TRUE(status.is_object());
  EXPECT_EQ(status["state"], "FAILED");
  EXPECT_EQ(status["exit_code"], 1);
  EXPECT_EQ(status["cause"]["signal"], SIGKILL) << status.dump(2);
  EXPECT_EQ(status["cause"]["node"], "node");
  EXPECT_TRUE(cluster_.WaitForWorkers(2));
  EXPECT_TRUE(cluster_.NoTrainerLeft());
}

TEST_F(TrainingTest, CheckpointOnRequestThenCancelWithSave) {
  const std::string job = cluster_.Submit(SpecThatSaves(1'000'000));
  ASSERT_TRUE(cluster_.WaitForIteration(job, 2)) << cluster_.last_error;
  EXPECT_EQ(cluster_.Muster({"checkpoint", job}).code, 0);
  EXPECT_TRUE(Eventually([&] {
    return cluster_.MusterJson({"status", job})["checkpoints"].size() == 1;
  }));
  EXPECT_TRUE(CheckpointsAreThere());
  EXPECT_EQ(cluster_.Muster({"cancel", job, "--save"}).code, 0);
  const json status = cluster_.WaitForEnd(job);
  ASSERT_TRUE(status.is_object());
  EXPECT_EQ(status["state"], "CANCELLED");
  ASSERT_EQ(status["checkpoints"].size(), 2u) << status.dump(2);
  EXPECT_EQ(status["checkpoints"][1]["iteration"], status["iteration"]);
  EXPECT_TRUE(cluster_.NoTrainerLeft());
}

TEST_F(TrainingTest, TrainedModelGenerates) {
  json spec = SpecThatSaves(3);
  const std::string job = cluster_.Submit(spec);
  ASSERT_NE(job, "") << cluster_.last_error;
  ASSERT_EQ(cluster_.WaitForEnd(job)["state"], "COMPLETED");
  const std::vector<std::string> words = {
      "generate", "--checkpoint",     cluster_.folder() / "checkpoints",
      "--prompt", "In the beginning", "--max-new-tokens",
      "8",        "--seed",           "7"};
  const Result result = cluster_.Muster(words);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("In the beginning"));
  EXPECT_EQ(result.out, cluster_.Muster(words).out) << "the same seed, the same text";
}

TEST_F(TrainingTest, TerminatedAgentSavesACheckpointFirst) {
  const std::string job = cluster_.Submit(SpecThatSaves(1'000'000));
  ASSERT_TRUE(cluster_.WaitForIteration(job, 2)) << cluster_.last_error;
  cluster_.agent(0).Signal(SIGTERM);
  EXPECT_EQ(cluster_.agent(0).Wait(), 0) << cluster_.agent(0).Stderr();
  EXPECT_TRUE(CheckpointsAreThere());
  EXPECT_TRUE(cluster_.NoTrainerLeft());
  EXPECT_EQ(cluster_.WaitForEnd(job)["checkpoints"].size(), 1u);
}

TEST_F(TrainingTest, KilledAgentLeavesNoTrainer) {
  json spec = SmallSpec(2, 1'000'000);
  spec["recovery"]["max_restarts"] = 0;
  const std::string job = cluster_.Submit(spec);
  ASSERT_TRUE(cluster_.WaitForIteration(job, 1)) << cluster_.last_error;
  cluster_.agent(0).Signal(SIGKILL);
  EXPECT_TRUE(cluster_.NoTrainerLeft());
  EXPECT_EQ(cluster_.WaitForEnd(job)["state"], "FAILED");
}

TEST(LocalTrainingTest, InterruptSavesThenARestartGoesOn) {
  TempFolder folder;
  const std::map<std::string, std::string> env = {{"MUSTER_TEST_FOLDER", folder.path()}};
  json spec = SmallSpec(2, 1'000'000);
  spec["checkpoint"] = {{"save", folder / "checkpoints"},
                        {"load", folder / "checkpoints"},
                        {"save_interval", 1'000'000}};
  // The schedules' lengths are part of the checkpoint and follow from train_iters, which changes.
  spec["schedule"]["override_opt_param_scheduler"] = true;
  PutFileText(folder / "spec.json", spec.dump());
  const std::vector<std::string> command = {Binary("muster"),  "local",      folder / "spec.json",
                                            "--state-dir",     folder / "s", "--metrics",
                                            folder / "m.jsonl"};
  int64_t stopped_at = 0;
  {
    Process process(folder.path(), command, env);
    ASSERT_TRUE(Eventually([&] {
      return FileText(folder / "m.jsonl").find("\"iteration\":3,") != std::string::npos;
    })) << process.Stderr()
        << process.Stdout();
    process.Signal(SIGINT);
    EXPECT_EQ(process.Wait(), 130) << process.Stderr() << process.Stdout();
    stopped_at = RecordsByIteration(FileText(folder / "m.jsonl")).rbegin()->first;
  }
  std::vector<std::string> again = command;
  again.insert(again.end(), {"--set", absl::StrCat("training.train_iters=", stopped_at + 2)});
  const Result result = RunCommand(folder.path(), again, env);
  EXPECT_EQ(result.code, 0) << result.err << result.out;
  const auto records = RecordsByIteration(FileText(folder / "m.jsonl"));
  EXPECT_EQ(records.rbegin()->first, stopped_at + 2);
  EXPECT_EQ(records.at(stopped_at + 2)["consumed_samples"], 2 * (stopped_at + 2))
      << "it went on at the consumed sample";
  EXPECT_TRUE(
      Eventually([&] { return ProcessesNaming(folder.path()).empty(); }, absl::Seconds(20)));
}

}  // namespace
}  // namespace muster
