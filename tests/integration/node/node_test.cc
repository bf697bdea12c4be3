// An agent on its node, with a stand-in for the trainer: which cores a trainer gets, and what comes
// of a checkpoint folder that the nodes do not share.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>

#include <filesystem>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/integration/cluster.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

class NodeTest : public ::testing::Test {
 protected:
  NodeTest() : cluster_(FAKE_TRAINER) {}

  // An agent with more flags than Cluster's, in a working folder of its own.
  Process& StartAgent(const std::string& name, int slots, std::vector<std::string> flags = {}) {
    const std::string home = cluster_.folder() / (name + "-home");
    fs::create_directories(home);
    std::vector<std::string> command = {"/usr/bin/env",
                                        absl::StrCat("--chdir=", home),
                                        Binary("muster-worker"),
                                        "--coordinator",
                                        cluster_.address(),
                                        "--device",
                                        "cpu",
                                        "--slots",
                                        absl::StrCat(slots),
                                        "--name",
                                        name,
                                        "--advertise",
                                        "127.0.0.1",
                                        "--trainer",
                                        FAKE_TRAINER,
                                        "--state-dir",
                                        cluster_.folder() / name};
    command.insert(command.end(), flags.begin(), flags.end());
    agents_.push_back(std::make_unique<Process>(
        cluster_.folder().path(), command,
        std::map<std::string, std::string>{{"MUSTER_TEST_FOLDER", cluster_.folder().path()}}));
    return *agents_.back();
  }

  static std::string AllowedCpus(const std::string& pid) {
    std::istringstream status(FileText(absl::StrCat("/proc/", pid, "/status")));
    for (std::string line; std::getline(status, line);) {
      if (line.rfind("Cpus_allowed_list:", 0) == 0) return line.substr(line.find('\t') + 1);
    }
    return "";
  }
  static int NumCpus() {
    cpu_set_t mask;
    return sched_getaffinity(0, sizeof(mask), &mask) == 0 ? CPU_COUNT(&mask) : 1;
  }
  // The masks of the trainers of a running job with two ranks.
  std::multiset<std::string> TrainerMasks() {
    const std::string job = cluster_.Submit(SmallSpec(2, 1'000'000));
    EXPECT_TRUE(cluster_.WaitForIteration(job, 2)) << cluster_.last_error;
    std::multiset<std::string> masks;
    for (const pid_t pid : cluster_.TrainerPids()) masks.insert(AllowedCpus(absl::StrCat(pid)));
    cluster_.Muster({"cancel", job, "--now"});
    return masks;
  }

  Cluster cluster_;
  std::vector<std::unique_ptr<Process>> agents_;
};

TEST_F(NodeTest, TrainersGetCoresOfTheirOwn) {
  if (NumCpus() < 2) GTEST_SKIP() << "one core cannot be shared out";
  StartAgent("node", 2);
  ASSERT_TRUE(cluster_.WaitForWorkers(2));
  const std::multiset<std::string> masks = TrainerMasks();
  ASSERT_EQ(masks.size(), 2u);
  EXPECT_NE(*masks.begin(), *masks.rbegin());
  EXPECT_EQ(masks.count(AllowedCpus("self")), 0u) << "neither has all";
}

TEST_F(NodeTest, BindNoneLeavesThemToTheKernel) {
  StartAgent("node", 2, {"--bind", "none"});
  ASSERT_TRUE(cluster_.WaitForWorkers(2));
  EXPECT_EQ(TrainerMasks().count(AllowedCpus("self")), 2u);
}

TEST_F(NodeTest, AFolderThatIsNotSharedFailsTheJobBeforeItsFirstStep) {
  // One path, a folder for each process that asks: what a local disk at the same path looks like.
  StartAgent("a", 1);
  StartAgent("b", 1);
  ASSERT_TRUE(cluster_.WaitForWorkers(2));
  json spec = SmallSpec(2, 1'000'000);
  spec["checkpoint"] = {{"save", "/proc/self/cwd/checkpoints"}, {"save_interval", 1000}};
  const std::string job = cluster_.Submit(spec);
  ASSERT_NE(job, "") << cluster_.last_error;
  const json status = cluster_.WaitForEnd(job);
  ASSERT_TRUE(status.is_object());
  EXPECT_EQ(status["state"], "FAILED");
  EXPECT_FALSE(fs::exists(absl::StrCat(cluster_.folder() / "b/logs/", job, "/rank-00001.log")))
      << "b's trainer was not started, so the ranks have not met";
  EXPECT_THAT(status["cause"].dump(),
              HasSubstr("checkpoint.save=/proc/self/cwd/checkpoints on node b does not hold what "
                        "rank 0 (node a) wrote: it is not the same folder"));
  EXPECT_TRUE(cluster_.NoTrainerLeft());
  EXPECT_TRUE(Eventually([&] { return fs::is_empty(cluster_.folder() / "a-home/checkpoints"); }))
      << "rank 0's mark is removed";
}

TEST_F(NodeTest, ASharedFolderIsUsedAndLeftClean) {
  StartAgent("a", 1);
  StartAgent("b", 1);
  ASSERT_TRUE(cluster_.WaitForWorkers(2));
  json spec = SmallSpec(2, 20);
  spec["checkpoint"] = {{"save", cluster_.folder() / "checkpoints"}, {"save_interval", 1000}};
  const std::string job = cluster_.Submit(spec);
  ASSERT_NE(job, "") << cluster_.last_error;
  const json status = cluster_.WaitForEnd(job);
  ASSERT_TRUE(status.is_object());
  EXPECT_EQ(status["state"], "COMPLETED") << status;
  EXPECT_TRUE(Eventually([&] { return fs::is_empty(cluster_.folder() / "checkpoints"); }));
}

TEST_F(NodeTest, MissingFileIsNamedWithItsFieldAndNode) {
  StartAgent("a", 1);
  ASSERT_TRUE(cluster_.WaitForWorkers(1));
  json spec = SmallSpec(1, 10);
  // There for whoever submits, not for the agent.
  spec["checkpoint"] = {{"pretrained_checkpoint", "/proc/self/cwd/only-here"}, {"finetune", true}};
  fs::create_directories(cluster_.folder() / "only-here");
  PutFileText(cluster_.folder() / "spec.json", spec.dump());
  const Result result =
      RunCommand(cluster_.folder().path(),
                 {"/usr/bin/env", absl::StrCat("--chdir=", cluster_.folder().path()),
                  Binary("muster"), "submit", cluster_.folder() / "spec.json", "--watch"},
                 {{"MUSTER_COORDINATOR", cluster_.address()}});
  EXPECT_EQ(result.code, 1) << result.out << result.err;
  EXPECT_THAT(result.out + result.err,
              HasSubstr("node a: checkpoint.pretrained_checkpoint=/proc/self/cwd/only-here: the "
                        "folder can't be read: No such file or directory"));
}

TEST_F(NodeTest, LogLinesAsJsonSayJobEpochRankAndWorker) {
  Process& agent = StartAgent("node", 1, {"--log-format", "json"});
  ASSERT_TRUE(cluster_.WaitForWorkers(1));
  const std::string job = cluster_.Submit(SmallSpec(1, 5));
  ASSERT_TRUE(cluster_.WaitForEnd(job).is_object());
  std::istringstream lines(agent.Stderr());
  int about_the_trainer = 0;
  for (std::string line; std::getline(lines, line);) {
    const json record = json::parse(line, nullptr, false);
    ASSERT_TRUE(record.is_object()) << line;
    if (!absl::StrContains(record["message"].get<std::string>(), "trainer")) continue;
    ++about_the_trainer;
    EXPECT_EQ(record["job"], job) << line;
    EXPECT_EQ(record["epoch"], 1) << line;
    EXPECT_EQ(record["rank"], 0) << line;
    EXPECT_EQ(record["worker"], "node") << line;
  }
  EXPECT_GE(about_the_trainer, 1);
}

TEST_F(NodeTest, TwoAgentsThatClaimOneDeviceTakeTurns) {
  Process& first = StartAgent("node", 1);
  ASSERT_TRUE(cluster_.WaitForWorkers(1));
  Process& second = StartAgent("node", 1, {"--state-dir", cluster_.folder() / "second"});
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(second.Stderr(), "refuses this agent"); }))
      << second.Stderr();
  EXPECT_TRUE(cluster_.WaitForWorkers(1)) << "the first keeps it";
  first.Signal(SIGTERM);
  EXPECT_EQ(first.Wait(), 0);
  EXPECT_TRUE(
      Eventually([&] { return absl::StrContains(second.Stderr(), "registered node=node"); }));
  EXPECT_TRUE(cluster_.WaitForWorkers(1));
}

}  // namespace
}  // namespace muster
