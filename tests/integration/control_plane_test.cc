// Coordinator, agents and command line as real processes, with a stand-in for the trainer: what
// needs no mathematics, in milliseconds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "tests/integration/cluster.h"

namespace muster {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json FakeSpec(int world_size, int train_iters, const json& env = json::object()) {
  json spec = SmallSpec(world_size, train_iters);
  spec["resources"]["env"] = env;
  return spec;
}

class ControlPlaneTest : public ::testing::Test {
 protected:
  ControlPlaneTest() : cluster_(FAKE_TRAINER) {}
  // One agent with two workers, ready.
  void StartTwoWorkers() {
    cluster_.StartAgent("node", 2);
    ASSERT_TRUE(cluster_.WaitForWorkers(2)) << cluster_.last_error;
  }
  Cluster cluster_;
};

TEST_F(ControlPlaneTest, SubmittedJobRunsToItsEndAndFreesTheWorkers) {
  StartTwoWorkers();
  const std::string job = cluster_.Submit(FakeSpec(2, 20));
  ASSERT_NE(job, "") << cluster_.last_error;
  const json status = cluster_.WaitForEnd(job);
  ASSERT_TRUE(status.is_object());
  EXPECT_EQ(status["state"], "COMPLETED") << status;
  EXPECT_EQ(status["exit_code"], 0);
  EXPECT_EQ(status["iteration"], 20);
  EXPECT_TRUE(cluster_.WaitForWorkers(2));
  EXPECT_TRUE(cluster_.NoTrainerLeft());

  // Every iteration once, all digits.
  const Result metrics = cluster_.Muster({"metrics", job, "--json"});
  EXPECT_EQ(metrics.code, 0) << metrics.err;
  const std::vector<json> records = JsonLines(metrics.out);
  ASSERT_EQ(records.size(), 20u);
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i]["iteration"], i + 1);
    EXPECT_EQ(records[i]["grad_norm"].get<double>(), 1.0 / 3.0);
    EXPECT_EQ(records[i]["load_balancing_loss"].get<double>(), 4.0 / 3.0);
    EXPECT_FALSE(records[i].contains("z_loss"));
  }
  EXPECT_THAT(cluster_.Muster({"logs", job}).out, HasSubstr("[1] rank 1 of 2"));
  EXPECT_THAT(cluster_.Muster({"logs", job, "--rank", "0"}).out, HasSubstr("rank 0 of 2"));
  EXPECT_THAT(cluster_.Muster({"events", job}).out, HasSubstr("submitted"));
  EXPECT_THAT(cluster_.Muster({"list"}).out, HasSubstr("COMPLETED"));
  const json topology = cluster_.MusterJson({"topology", job});
  EXPECT_EQ(topology["world_size"], 2);
  EXPECT_EQ(topology["groups"]["dp"], json::parse("[[0,1]]"));
}

TEST_F(ControlPlaneTest, WatchExitsWithTheJobsCode) {
  StartTwoWorkers();
  PutFileText(cluster_.folder() / "spec.json", FakeSpec(2, 30).dump());
  const Result result = cluster_.Muster({"submit", cluster_.folder() / "spec.json", "--watch"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("iteration 30/30"));
  EXPECT_THAT(result.out, HasSubstr("COMPLETED at iteration 30"));
}

TEST_F(ControlPlaneTest, CrashedTrainerFailsTheJobAtOnceWithTheCause) {
  StartTwoWorkers();
  json spec = FakeSpec(2, 100'000, {{"FAKE_CRASH_RANK", "1"}, {"FAKE_CRASH_STEP", "5"}});
  spec["recovery"]["max_restarts"] = 0;
  const std::string job = cluster_.Submit(spec);
  const json status = cluster_.WaitForEnd(job);
  ASSERT_TRUE(status.is_object());
  EXPECT_EQ(status["state"], "FAILED");
  EXPECT_EQ(status["exit_code"], 1);
  EXPECT_EQ(status["cause"]["rank"], 1) << status;
  EXPECT_EQ(status["cause"]["signal"], SIGSEGV);
  EXPECT_EQ(status["cause"]["node"], "node");
  EXPECT_THAT(status["cause"]["last_log_lines"].dump(), HasSubstr("about to crash at step 5"));
  EXPECT_TRUE(cluster_.WaitForWorkers(2)) << "the workers are idle again";
  EXPECT_TRUE(cluster_.NoTrainerLeft());
}

TEST_F(ControlPlaneTest, KilledAgentFailsTheJobAndItsTrainersEnd) {
  Process& first = cluster_.StartAgent("first", 1);
  cluster_.StartAgent("second", 1);
  ASSERT_TRUE(cluster_.WaitForWorkers(2));
  // Without its peer a real trainer would commit no step.
  json spec = FakeSpec(2, 100'000, {{"FAKE_PROGRESS", "0"}});
  spec["recovery"]["max_restarts"] = 0;
  const std::string job = cluster_.Submit(spec);
  ASSERT_TRUE(cluster_.WaitForIteration(job, 3)) << cluster_.last_error;
  first.Signal(SIGKILL);
  const json status = cluster_.WaitForEnd(job);
  ASSERT_TRUE(status.is_object());
  EXPECT_EQ(status["state"], "FAILED");
  EXPECT_THAT(status["reason"].get<std::string>() + status["cause"].dump(), HasSubstr("first"));
  EXPECT_TRUE(cluster_.NoTrainerLeft());
  EXPECT_TRUE(cluster_.WaitForWorkers(1)) << "the other one is idle again";
}

TEST_F(ControlPlaneTest, CancelStopsAtAStepAndTrainersThatStayAreKilled) {
  StartTwoWorkers();
  const std::string job = cluster_.Submit(FakeSpec(2, 100'000));
  ASSERT_TRUE(cluster_.WaitForIteration(job, 3));
  EXPECT_EQ(cluster_.Muster({"cancel", job}).code, 0);
  json status = cluster_.WaitForEnd(job);
  ASSERT_TRUE(status.is_object());
  EXPECT_EQ(status["state"], "CANCELLED");
  EXPECT_EQ(status["exit_code"], 130);
  EXPECT_TRUE(cluster_.WaitForWorkers(2));
  EXPECT_TRUE(cluster_.NoTrainerLeft());
}

TEST_F(ControlPlaneTest, CheckpointAndEvaluateReachTheTrainer) {
  StartTwoWorkers();
  json spec = FakeSpec(2, 100'000);
  spec["checkpoint"] = {{"save", cluster_.folder() / "checkpoints"}, {"save_interval", 1'000'000}};
  const std::string job = cluster_.Submit(spec);
  ASSERT_NE(job, "") << cluster_.last_error;
  ASSERT_TRUE(cluster_.WaitForIteration(job, 2)) << cluster_.last_error;
  EXPECT_EQ(cluster_.Muster({"checkpoint", job}).code, 0);
  EXPECT_EQ(cluster_.Muster({"evaluate", job}).code, 0);
  EXPECT_TRUE(Eventually([&] {
    const json status = cluster_.MusterJson({"status", job});
    return status["checkpoints"].size() == 1 && status["evaluations"].size() == 1;
  }));
  const json status = cluster_.MusterJson({"status", job});
  EXPECT_EQ(status["evaluations"][0]["split"], "valid");
  EXPECT_EQ(status["checkpoints"][0]["path"], "/fake/checkpoint");
  cluster_.Muster({"cancel", job, "--now"});
  EXPECT_EQ(cluster_.WaitForEnd(job)["state"], "CANCELLED");
}

TEST_F(ControlPlaneTest, TerminatedAgentLeavesNoTrainer) {
  Process& agent = cluster_.StartAgent("node", 2);
  ASSERT_TRUE(cluster_.WaitForWorkers(2));
  const std::string job = cluster_.Submit(FakeSpec(2, 100'000));
  ASSERT_TRUE(cluster_.WaitForIteration(job, 2));
  agent.Signal(SIGTERM);
  EXPECT_EQ(agent.Wait(), 0);
  EXPECT_TRUE(cluster_.NoTrainerLeft());
  EXPECT_TRUE(cluster_.WaitForEnd(job).is_object());
}

TEST_F(ControlPlaneTest, MissingDataOnTheWorkerFailsTheLaunchWithTheFile) {
  StartTwoWorkers();
  json spec = FakeSpec(2, 5);
  const std::string folder = cluster_.folder() / "data";
  mkdir(folder.c_str(), 0755);
  PutFileText(folder + "/text.idx", "x");
  PutFileText(folder + "/text.bin", "x");
  spec["data"] = {{"dataset_provider", "gpt"}, {"data_path", {folder + "/text"}}};
  // Gone between submit's own check and the launch: held back by a queue of one job before it.
  const std::string before = cluster_.Submit(FakeSpec(2, 100'000));
  ASSERT_TRUE(cluster_.WaitForIteration(before, 1));
  const std::string job = cluster_.Submit(spec);
  ASSERT_NE(job, "") << cluster_.last_error;
  unlink((folder + "/text.bin").c_str());
  cluster_.Muster({"cancel", before, "--now"});
  const json status = cluster_.WaitForEnd(job);
  ASSERT_TRUE(status.is_object());
  EXPECT_EQ(status["state"], "FAILED");
  EXPECT_THAT(status.dump(), HasSubstr("data.data_path"));
  EXPECT_THAT(status.dump(), HasSubstr("text.bin"));
}

TEST_F(ControlPlaneTest, RelativePathsMeanTheFolderOfWhoeverSubmits) {
  StartTwoWorkers();  // they work in another folder, and check the data before they launch
  const std::string home = cluster_.folder() / "home";
  mkdir(home.c_str(), 0755);
  for (const char* file : {"/text.idx", "/text.bin"}) PutFileText(home + file, "x");
  json spec = FakeSpec(2, 5);
  spec["data"] = {{"dataset_provider", "gpt"}, {"data_path", {"text"}}};
  PutFileText(home + "/spec.json", spec.dump());
  const std::string submit =
      absl::StrCat("cd ", home, " && exec ", Binary("muster"), " submit --watch spec.json");
  const Result result = RunCommand(cluster_.folder().path(), {"/bin/sh", "-c", submit},
                                   {{"MUSTER_COORDINATOR", cluster_.address()}});
  EXPECT_EQ(result.code, 0) << result.err << result.out;
  EXPECT_THAT(result.out, HasSubstr("COMPLETED at iteration 5"));
}

TEST_F(ControlPlaneTest, BadSpecStartsNothingAndNamesEveryFault) {
  StartTwoWorkers();
  json spec = FakeSpec(2, 5);
  spec["model"]["hidden_sise"] = 8;
  spec["training"]["micro_batch_size"] = -1;
  PutFileText(cluster_.folder() / "bad.json", spec.dump());
  const Result result = cluster_.Muster({"submit", cluster_.folder() / "bad.json"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("model.hidden_sise"));
  EXPECT_THAT(result.err, HasSubstr("training.micro_batch_size"));
  EXPECT_EQ(cluster_.MusterJson({"list"}).size(), 0u);
}

TEST_F(ControlPlaneTest, DrainedWorkerTakesNoJob) {
  StartTwoWorkers();
  EXPECT_EQ(cluster_.Muster({"drain", "node/1"}).code, 0);
  const std::string job = cluster_.Submit(FakeSpec(2, 5));
  const json status = cluster_.MusterJson({"status", job});
  EXPECT_EQ(status["state"], "QUEUED") << status;
  EXPECT_EQ(cluster_.Muster({"drain", "node/1", "--undo"}).code, 0);
  EXPECT_EQ(cluster_.WaitForEnd(job)["state"], "COMPLETED");
}

TEST_F(ControlPlaneTest, AgentsReturnToARestartedCoordinator) {
  StartTwoWorkers();
  const std::string before = cluster_.Submit(FakeSpec(2, 5));
  ASSERT_EQ(cluster_.WaitForEnd(before)["state"], "COMPLETED");
  cluster_.RestartCoordinator();
  EXPECT_TRUE(cluster_.WaitForWorkers(2)) << cluster_.last_error;
  const std::string job = cluster_.Submit(FakeSpec(2, 5));
  EXPECT_EQ(cluster_.WaitForEnd(job)["state"], "COMPLETED");
}

// ---- muster local

class LocalTest : public ::testing::Test {
 protected:
  std::vector<std::string> Command(const json& spec, std::vector<std::string> more = {}) {
    PutFileText(folder_ / "spec.json", spec.dump());
    std::vector<std::string> words = {
        Binary("muster"), "local",           folder_ / "spec.json",
        "--state-dir",    folder_ / "state", "--trainer",
        FAKE_TRAINER,     "--metrics",       folder_ / "metrics.jsonl"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  bool WaitForMetrics(int64_t iteration) {
    return Eventually([&] {
      return FileText(folder_ / "metrics.jsonl")
                 .find(absl::StrCat("\"iteration\":", iteration, ",")) != std::string::npos;
    });
  }
  bool NothingLeft() {
    return Eventually([&] { return ProcessesNaming(folder_.path()).empty(); }, absl::Seconds(20));
  }
  TempFolder folder_;
  // Marks every process of this test, trainers too.
  const std::map<std::string, std::string> env_ = {{"MUSTER_TEST_FOLDER", folder_.path()}};
};

TEST_F(LocalTest, RunsAJobWithAWholeClusterAndLeavesNothing) {
  const Result result = RunCommand(folder_.path(), Command(FakeSpec(2, 20)), env_);
  EXPECT_EQ(result.code, 0) << result.err << result.out;
  EXPECT_THAT(result.out, HasSubstr("COMPLETED at iteration 20"));
  EXPECT_TRUE(WaitForMetrics(20));
  EXPECT_EQ(json::parse(FileText(folder_ / "state/status.json"))["iteration"], 20);
  const json description = json::parse(FileText(folder_ / "state/cluster.json"));
  EXPECT_TRUE(description["pids"]["coordinator"].is_number());
  EXPECT_THAT(description["address"].get<std::string>(), HasSubstr("127.0.0.1:"));
  EXPECT_TRUE(NothingLeft());
}

TEST_F(LocalTest, FailedJobGivesItsCodeAndTheCause) {
  const Result result =
      RunCommand(folder_.path(), Command(FakeSpec(2, 100'000, {{"FAKE_CRASH_RANK", "0"}})), env_);
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, HasSubstr("about to crash at step 3"));
  EXPECT_THAT(result.out, HasSubstr("signal 11"));
  EXPECT_TRUE(NothingLeft());
}

TEST_F(LocalTest, InterruptIsOrderlyWithACheckpoint) {
  json spec = FakeSpec(2, 100'000);
  spec["checkpoint"] = {{"save", folder_ / "checkpoints"}, {"save_interval", 1'000'000}};
  Process process(folder_.path(), Command(spec), env_);
  ASSERT_TRUE(WaitForMetrics(3)) << process.Stderr() << process.Stdout();
  process.Signal(SIGINT);
  EXPECT_EQ(process.Wait(), 130) << process.Stderr() << process.Stdout();
  EXPECT_THAT(process.Stdout(), HasSubstr("/fake/checkpoint"));
  EXPECT_THAT(process.Stdout(), HasSubstr("CANCELLED"));
  EXPECT_TRUE(NothingLeft());
}

TEST_F(LocalTest, SecondInterruptStopsAtOnce) {
  // A step of an hour: the orderly way would never end.
  Process process(folder_.path(), Command(FakeSpec(1, 100, {{"FAKE_STEP_MS", "3600000"}})), env_);
  ASSERT_TRUE(Eventually([&] { return process.Stdout().find("RUNNING") != std::string::npos; }))
      << process.Stdout();
  process.Signal(SIGINT);
  ASSERT_TRUE(
      Eventually([&] { return process.Stdout().find("ctrl-C again") != std::string::npos; }));
  process.Signal(SIGINT);
  EXPECT_EQ(process.Wait(absl::Seconds(20)), 130);
  EXPECT_TRUE(NothingLeft());
}

TEST_F(LocalTest, KilledCommandTakesItsClusterAlong) {
  Process process(folder_.path(), Command(FakeSpec(2, 100'000)), env_);
  ASSERT_TRUE(WaitForMetrics(2)) << process.Stderr() << process.Stdout();
  process.Signal(SIGKILL);
  process.Wait();
  EXPECT_TRUE(NothingLeft());
}

TEST_F(LocalTest, BadSpecStartsNothing) {
  json spec = FakeSpec(2, 5);
  spec["model"]["num_layers"] = 0;
  spec["data"] = {{"data_path", {folder_ / "nowhere"}}};
  const Result result = RunCommand(folder_.path(), Command(spec), env_);
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("model.num_layers"));
  EXPECT_THAT(result.err, HasSubstr("nowhere.idx"));
  EXPECT_NE(access((folder_ / "state").c_str(), F_OK), 0);
}

}  // namespace
}  // namespace muster
