// Single faults and their combinations at chosen moments. Whatever is hit, the run's numbers are
// those of the unbroken one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/integration/chaos/fault_case.h"

namespace muster {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

TEST(FaultCaseTest, KilledTrainerIsReplacedInPlaceAndTheSurvivorKeepsItsProcess) {
  FaultCase run({"dp2", 2, json::object(), {1, 1}});
  run.SetPace(kBriskPace);
  run.StartAndReach(30);
  const pid_t survivor = run.chaos().TrainerOfRank(0), hit = run.chaos().TrainerOfRank(1);
  ASSERT_GT(survivor, 0);
  ASSERT_GT(hit, 0);
  kill(hit, SIGKILL);
  ASSERT_TRUE(Eventually([&] { return run.Status()["restarts"] == 1; })) << run.Status();
  EXPECT_TRUE(Eventually([&] {
    const pid_t now = run.chaos().TrainerOfRank(1);
    return now > 0 && now != hit;
  }));
  EXPECT_EQ(run.chaos().TrainerOfRank(0), survivor);
  run.ExpectSameEnd();
  const json status = run.Status();
  EXPECT_EQ(status["restarts"], 1);
  EXPECT_EQ(status["epoch"], 2);
  EXPECT_EQ(status["cause"]["rank"], 1) << status;
  EXPECT_EQ(status["cause"]["signal"], SIGKILL) << status;
  EXPECT_EQ(run.Events("recovered").size(), 1u);
}

TEST(FaultCaseTest, FirstRankIsReplacedLikeAnyOther) {
  FaultCase run({"dp2", 2, json::object(), {1, 1}});
  run.SetPace(kBriskPace);
  run.StartAndReach(30);
  kill(run.chaos().TrainerOfRank(0), SIGKILL);
  run.ExpectSameEnd();
  EXPECT_EQ(run.Status()["restarts"], 1);
}

// The agent comes back only when the spare has taken over, so that nothing else can have.
TEST(FaultCaseTest, SpareOnAnotherNodeTakesOverForAKilledAgent) {
  FaultCase run({"dp2", 2, json::object(), {1, 1, 1}});
  run.SetPace(kBriskPace);
  run.StartAndReach(30);
  const int node = run.chaos().NodeOfRank(1);
  ASSERT_GE(node, 0);
  run.chaos().KillAgent(node);
  ASSERT_TRUE(Eventually([&] {
    const int now = run.chaos().NodeOfRank(1);
    return now >= 0 && now != node && run.Status()["state"] == "RUNNING";
  })) << Report(run.chaos(), run.job());
  run.chaos().StartAgent(node);
  run.ExpectSameEnd();
  EXPECT_EQ(run.Status()["restarts"], 1);
}

TEST(FaultCaseTest, ANodeWithAllItsWorkersIsReplacedAtOnce) {
  FaultCase run({"dp2 x pp2", 4, {{"pipeline_model_parallel_size", 2}}, {2, 2, 2}});
  run.SetPace(kBriskPace);
  run.StartAndReach(30);
  const int node = run.chaos().NodeOfRank(3);
  ASSERT_GE(node, 0);
  run.chaos().KillNode(node);
  ASSERT_TRUE(Eventually([&] {
    const int now = run.chaos().NodeOfRank(3);
    return now >= 0 && now != node && run.Status()["state"] == "RUNNING";
  })) << Report(run.chaos(), run.job());
  run.chaos().StartAgent(node);
  run.ExpectSameEnd();
  EXPECT_EQ(run.Status()["restarts"], 1) << "two workers of one node are one failure";
}

TEST(FaultCaseTest, CoordinatorKilledWhileARecoveryGoesOn) {
  FaultCase run({"dp2, distributed optimizer", 2, {{"use_distributed_optimizer", true}}, {1, 1}});
  run.SetPace(kBriskPace);
  run.StartAndReach(20);
  for (const int after_ms : {0, 20, 60, 150}) {
    const std::vector<pid_t> trainers = run.chaos().Trainers();
    ASSERT_FALSE(trainers.empty());
    kill(trainers.back(), SIGKILL);
    absl::SleepFor(absl::Milliseconds(after_ms));  // somewhere in the recovery
    run.chaos().KillCoordinator();
    run.chaos().StartCoordinator();
    const json status = run.Status();
    ASSERT_TRUE(status.is_object()) << run.chaos().cluster().last_error;
    ASSERT_TRUE(run.chaos().cluster().WaitForIteration(
        run.job(), std::min<int64_t>(kTrainIters, status["iteration"].get<int64_t>() + 10)))
        << Report(run.chaos(), run.job());
  }
  run.ExpectSameEnd();
}

TEST(FaultCaseTest, ASecondTrainerDiesWhileTheFirstIsReplaced) {
  FaultCase run({"dp2 x pp2", 4, {{"pipeline_model_parallel_size", 2}}, {2, 2}});
  run.SetPace(kBriskPace);
  run.StartAndReach(20);
  for (const int after_ms : {0, 10, 40, 120}) {
    std::vector<pid_t> trainers = run.chaos().Trainers();
    ASSERT_GE(trainers.size(), 2u);
    kill(trainers[0], SIGKILL);
    absl::SleepFor(absl::Milliseconds(after_ms));
    trainers = run.chaos().Trainers();
    ASSERT_FALSE(trainers.empty());
    kill(trainers.back(), SIGKILL);
    const json status = run.Status();
    ASSERT_TRUE(run.chaos().cluster().WaitForIteration(
        run.job(), std::min<int64_t>(kTrainIters, status["iteration"].get<int64_t>() + 10)))
        << Report(run.chaos(), run.job());
  }
  run.ExpectSameEnd();
}

// Nobody has live state: the snapshots in the agents' memory are what is left.
TEST(FaultCaseTest, AllTrainersAtOnceGoOnFromTheirSnapshots) {
  FaultCase run({"pp2", 2, {{"pipeline_model_parallel_size", 2}}, {1, 1}});
  run.spec()["recovery"]["snapshot_interval"] = 5;
  run.SetPace(kBriskPace);
  run.StartAndReach(30);
  const int64_t reached = run.Status()["iteration"];
  for (const pid_t pid : run.chaos().Trainers()) kill(pid, SIGKILL);
  run.ExpectSameEnd();
  EXPECT_EQ(run.Status()["restarts"], 1);
  // At most the interval, and the step under way, and what was done until the copies were complete.
  const std::string recovered = run.WaitForEvent("recovered");
  EXPECT_GE(NumberAfter(recovered, "steps_redone="), 0) << "reached " << reached;
  EXPECT_LE(NumberAfter(recovered, "steps_redone="), 2 * 5 + 1) << "reached " << reached;
}

TEST(FaultCaseTest, EverythingInOneRun) {
  FaultCase run({"dp2", 2, json::object(), {1, 1, 1}});
  run.SetPace(kBriskPace);
  run.StartAndReach(20);
  run.chaos().Inject({.kind = Fault::Kind::kKillTrainer});
  run.chaos().Inject({.kind = Fault::Kind::kKillCoordinator, .lasts = absl::Milliseconds(300)});
  run.chaos().Inject({.kind = Fault::Kind::kStopAgent, .target = 1, .lasts = absl::Seconds(1)});
  run.chaos().Inject(
      {.kind = Fault::Kind::kKillNode, .target = 2, .lasts = absl::Milliseconds(500)});
  run.chaos().Inject({.kind = Fault::Kind::kKillAgent, .target = 0, .lasts = absl::Seconds(1)});
  run.ExpectSameEnd();
}

TEST(FaultCaseTest, AJobThatAlwaysDiesFailsWithItsFirstCauseAndDoesNotLoop) {
  ChaosCluster chaos({1, 1});
  json spec = ChaosSpec(ChaosLayouts()[0], 1'000'000);
  spec["recovery"] = {{"max_restarts", 2}};
  PutFileText(chaos.cluster().folder() / "always.json", spec.dump());
  Process watch(chaos.cluster().folder().path(),
                {Binary("muster"), "submit", chaos.cluster().folder() / "always.json", "--watch"},
                {{"MUSTER_COORDINATOR", chaos.cluster().address()}});
  std::set<pid_t> killed;
  int code = -1;
  // Whoever trains is killed, each time when some steps of its attempt are done.
  int64_t epoch = 0, begun_at = 0;
  ASSERT_TRUE(Eventually([&] {
    // Asked for first: a process that is there before the status is known is no later attempt's.
    const pid_t pid = chaos.TrainerOfRank(1);
    const json jobs = chaos.cluster().MusterJson({"list"});
    if (jobs.is_array() && !jobs.empty() && jobs[0]["state"] == "RUNNING") {
      const json status =
          chaos.cluster().MusterJson({"status", jobs[0]["job_id"].get<std::string>()});
      if (!status.is_object()) return false;
      if (status["epoch"] != epoch) {
        epoch = status["epoch"];
        begun_at = status["iteration"];
      }
      const bool stepped = status["iteration"] > begun_at + 3;
      if (stepped && pid > 0 && killed.insert(pid).second) kill(pid, SIGKILL);
    }
    code = watch.Wait(absl::ZeroDuration());
    return code != -1;
  })) << watch.Stdout();
  EXPECT_EQ(code, 1) << watch.Stdout() << watch.Stderr();
  EXPECT_EQ(killed.size(), 3u) << "two restarts, then the end";
  EXPECT_THAT(watch.Stdout() + watch.Stderr(), HasSubstr("SIGKILL"));
  EXPECT_THAT(watch.Stdout() + watch.Stderr(), HasSubstr("max_restarts"));
  const json job = chaos.cluster().MusterJson({"list"})[0];
  const json status = chaos.cluster().MusterJson({"status", job["job_id"].get<std::string>()});
  EXPECT_EQ(status["state"], "FAILED") << status;
  EXPECT_EQ(status["cause"]["rank"], 1) << status;
  EXPECT_EQ(status["cause"]["signal"], SIGKILL) << status;
  EXPECT_TRUE(chaos.cluster().WaitForWorkers(2));
  EXPECT_TRUE(chaos.cluster().NoTrainerLeft());
}

TEST(FaultCaseTest, InterruptDuringARecoveryEndsTheRunInOrder) {
  TempFolder folder;
  json spec = ChaosSpec(ChaosLayouts()[0], 1'000'000);
  PutFileText(folder / "spec.json", spec.dump());
  Process local(folder.path(),
                {Binary("muster"), "local", folder / "spec.json", "--state-dir", folder / "s",
                 "--metrics", folder / "m.jsonl"},
                {{"MUSTER_TEST_FOLDER", folder.path()}});
  ASSERT_TRUE(Eventually([&] {
    return FileText(folder / "m.jsonl").find("\"iteration\":20,") != std::string::npos;
  })) << local.Stdout()
      << local.Stderr();
  for (const pid_t pid : ProcessesNaming(folder.path())) {
    const std::string command = FileText(absl::StrCat("/proc/", pid, "/cmdline"));
    if (command.find("muster-trainer") == std::string::npos) continue;
    kill(pid, SIGKILL);
    break;
  }
  local.Signal(SIGINT);
  EXPECT_EQ(local.Wait(absl::Seconds(30)), 130) << local.Stdout() << local.Stderr();
  EXPECT_TRUE(
      Eventually([&] { return ProcessesNaming(folder.path()).empty(); }, absl::Seconds(20)));
}

}  // namespace
}  // namespace muster
