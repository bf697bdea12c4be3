// The coordinator dies and comes back, again and again, and for long; its disk is full for a while.
// Training never notices, and nothing is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/integration/cluster.h"

namespace muster {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class RestartTest : public ::testing::Test {
 protected:
  RestartTest() : cluster_(FAKE_TRAINER) {}
  // Two agents with a worker each.
  std::string StartJob(int train_iters, int step_ms) {
    cluster_.StartAgent("first", 1);
    cluster_.StartAgent("second", 1);
    EXPECT_TRUE(cluster_.WaitForWorkers(2)) << cluster_.last_error;
    json spec = SmallSpec(2, train_iters);
    spec["resources"]["env"]["FAKE_STEP_MS"] = absl::StrCat(step_ms);
    const std::string job = cluster_.Submit(spec);
    EXPECT_NE(job, "") << cluster_.last_error;
    EXPECT_TRUE(cluster_.WaitForIteration(job, 5)) << cluster_.last_error;
    return job;
  }
  int64_t Iteration(const std::string& job) {
    const json status = cluster_.MusterJson({"status", job});
    return status.is_object() ? status["iteration"].get<int64_t>() : -1;
  }
  // Every step once, in order, none missing.
  void ExpectEveryStepOnce(const std::string& job, int64_t last) {
    const Result metrics = cluster_.Muster({"metrics", job, "--json"});
    ASSERT_EQ(metrics.code, 0) << metrics.err;
    int64_t next = 1;
    for (const json& record : JsonLines(metrics.out)) ASSERT_EQ(record["iteration"], next++);
    EXPECT_EQ(next - 1, last);
  }
  void ExpectUndisturbed(const json& status) {
    EXPECT_EQ(status["restarts"], 0);
    EXPECT_EQ(status["epoch"], 1);
  }
  Cluster cluster_;
};

TEST_F(RestartTest, KilledTwentyTimesInOneJob) {
  const std::string job = StartJob(1'000'000, 5);
  const std::vector<pid_t> trainers = cluster_.TrainerPids();
  ASSERT_EQ(trainers.size(), 2u);
  std::mt19937 random(4);
  for (int kill = 1; kill <= 20; ++kill) {
    // Anywhere: while agents are coming back, or long after.
    absl::SleepFor(absl::Milliseconds(random() % 400));
    cluster_.RestartCoordinator();
    if (kill % 5 == 0) {
      ASSERT_TRUE(cluster_.WaitForIteration(job, Iteration(job) + 10)) << cluster_.last_error;
    }
  }
  EXPECT_THAT(cluster_.coordinator().Stdout(),
              HasSubstr("restored 1 jobs (1 not ended) and 2 agents"));
  EXPECT_THAT(cluster_.coordinator().Stderr(), Not(HasSubstr("agent registered")))
      << "the incarnations are the same";
  EXPECT_EQ(cluster_.TrainerPids(), trainers);
  EXPECT_EQ(cluster_.Muster({"cancel", job}).code, 0);
  const json status = cluster_.WaitForEnd(job);
  ASSERT_TRUE(status.is_object()) << cluster_.last_error;
  EXPECT_EQ(status["state"], "CANCELLED") << status;
  ExpectUndisturbed(status);
  ExpectEveryStepOnce(job, status["iteration"].get<int64_t>());
  EXPECT_TRUE(cluster_.NoTrainerLeft());
}

TEST_F(RestartTest, AJobThatEndsWhileItIsAwayHasEndedWhenItIsBack) {
  const std::string job = StartJob(400, 5);
  cluster_.coordinator().Signal(SIGKILL);
  cluster_.coordinator().Wait();
  // Longer than the heartbeat's limit, and than the 2 s that are left of the job.
  absl::SleepFor(absl::Seconds(5));
  cluster_.RestartCoordinator();
  const json status = cluster_.WaitForEnd(job);
  ASSERT_TRUE(status.is_object()) << cluster_.last_error;
  EXPECT_EQ(status["state"], "COMPLETED") << status;
  EXPECT_EQ(status["iteration"], 400);
  ExpectUndisturbed(status);
  ExpectEveryStepOnce(job, 400);
  EXPECT_TRUE(cluster_.WaitForWorkers(2)) << "they are idle again";
}

TEST_F(RestartTest, StoppedInOrderItGoesOnAsWell) {
  const std::string job = StartJob(1'000'000, 5);
  cluster_.coordinator().Signal(SIGTERM);
  EXPECT_EQ(cluster_.coordinator().Wait(), 0) << cluster_.coordinator().Stderr();
  cluster_.RestartCoordinator();
  EXPECT_TRUE(cluster_.WaitForIteration(job, Iteration(job) + 10));
  // The next job's number goes on.
  PutFileText(cluster_.folder() / "next.json", SmallSpec(2, 5).dump());
  const json next = cluster_.MusterJson({"submit", cluster_.folder() / "next.json"});
  ASSERT_TRUE(next.is_object()) << cluster_.last_error;
  EXPECT_NE(next["job_id"], job);
  EXPECT_EQ(cluster_.Muster({"cancel", job, "--now"}).code, 0);
  EXPECT_EQ(cluster_.WaitForEnd(next["job_id"])["state"], "COMPLETED");
}

TEST_F(RestartTest, AFullDiskPausesAndLosesNothing) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can mount a small disk";
  // Its state on a disk of its own.
  const std::string disk = cluster_.folder() / "coordinator", filler = disk + "/filler";
  cluster_.coordinator().Signal(SIGKILL);
  cluster_.coordinator().Wait();
  if (mount("none", disk.c_str(), "tmpfs", 0, "size=48m") != 0) {
    GTEST_SKIP() << "this container may not mount a disk";
  }
  cluster_.RestartCoordinator();
  const std::string job = StartJob(1'000'000, 5);
  const auto fill = [&] {
    std::ofstream out(filler, std::ios::app);
    const std::string block(4096, 'x');
    while (out.write(block.data(), 4096).flush()) {
    }
  };
  const auto trouble = [&] {
    const json status = cluster_.MusterJson({"status", job});
    return status.is_object() && status["storage_trouble"].is_string()
               ? status["storage_trouble"].get<std::string>()
               : "";
  };
  ASSERT_EQ(trouble(), "");
  // Full again and again: what the reserve gives is used up, too.
  EXPECT_TRUE(Eventually(
      [&] {
        fill();
        return access((disk + "/journal.sqlite.reserve").c_str(), F_OK) != 0 && trouble() != "";
      },
      absl::Seconds(20)));
  EXPECT_THAT(trouble(), HasSubstr("full"));
  PutFileText(cluster_.folder() / "next.json", SmallSpec(2, 5).dump());
  const Result refused = cluster_.Muster({"submit", cluster_.folder() / "next.json"});
  EXPECT_NE(refused.code, 0);
  EXPECT_THAT(refused.err, HasSubstr("full"));
  EXPECT_EQ(cluster_.coordinator().Wait(absl::ZeroDuration()), -1) << "it goes on";

  ASSERT_EQ(unlink(filler.c_str()), 0);
  EXPECT_TRUE(Eventually([&] { return trouble().empty(); }, absl::Seconds(20))) << trouble();
  EXPECT_TRUE(cluster_.WaitForIteration(job, Iteration(job) + 50)) << cluster_.last_error;
  EXPECT_EQ(cluster_.Muster({"cancel", job}).code, 0);
  const json status = cluster_.WaitForEnd(job);
  ASSERT_TRUE(status.is_object()) << cluster_.last_error;
  ExpectUndisturbed(status);
  ExpectEveryStepOnce(job, status["iteration"].get<int64_t>());
  cluster_.coordinator().Signal(SIGTERM);
  cluster_.coordinator().Wait();
  umount2(disk.c_str(), MNT_DETACH);
}

TEST(CoordinatorStateTest, FoldersThatCannotBeUsedAreNamed) {
  TempFolder folder;
  const auto start = [&](const std::string& state_dir) {
    return RunCommand(folder.path(), {Binary("muster-coordinator"), "--listen", "127.0.0.1:0",
                                      "--state-dir", state_dir});
  };
  PutFileText(folder / "file", "x");
  const Result no_folder = start(folder / "file/state");
  EXPECT_EQ(no_folder.code, 2);
  EXPECT_THAT(no_folder.err, AllOf(HasSubstr("--state-dir"), HasSubstr("file/state")));
  mkdir((folder / "damaged").c_str(), 0755);
  PutFileText(folder / "damaged/journal.sqlite", std::string(5'000, 'x'));
  const Result damaged = start(folder / "damaged");
  EXPECT_EQ(damaged.code, 1);
  EXPECT_THAT(damaged.err, AllOf(HasSubstr("damaged/journal.sqlite"), HasSubstr("backup")));
}

TEST(CoordinatorStateTest, ASecondCoordinatorIsToldWhoHasTheFolder) {
  Cluster cluster(FAKE_TRAINER);
  const Result second =
      RunCommand(cluster.folder().path(), {Binary("muster-coordinator"), "--listen", "127.0.0.1:0",
                                           "--state-dir", cluster.folder() / "coordinator"});
  EXPECT_EQ(second.code, 1);
  EXPECT_THAT(second.err, HasSubstr(absl::StrCat("pid ", cluster.coordinator().pid())));
}

}  // namespace
}  // namespace muster
