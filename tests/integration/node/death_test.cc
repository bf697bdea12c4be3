// A trainer that dies, seen from outside: how soon it is known, and what its successor finds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/integration/cluster.h"

namespace muster {
namespace {

using nlohmann::json;

class DeathTest : public ::testing::Test {
 protected:
  DeathTest() : cluster_(FAKE_TRAINER) {}

  // The time of the job's first event of this kind; none: within no limit.
  std::optional<absl::Time> TimeOf(const std::string& job, const std::string& kind) {
    std::optional<absl::Time> found;
    Eventually([&] {
      const Result result = cluster_.Muster({"events", job, "--json"});
      for (const json& event : JsonLines(result.out)) {
        if (event["kind"] != kind) continue;
        absl::Time time;
        std::string error;
        if (absl::ParseTime(absl::RFC3339_full, event["time"].get<std::string>(), &time, &error)) {
          found = time;
        }
        return true;
      }
      return false;
    });
    return found;
  }

  Cluster cluster_;
};

TEST_F(DeathTest, ASuccessorFindsTheSnapshotOfAKilledTrainer) {
  cluster_.StartAgent("node", 2);
  ASSERT_TRUE(cluster_.WaitForWorkers(2));
  const std::string job = cluster_.Submit(SmallSpec(2, 1'000'000));
  ASSERT_TRUE(cluster_.WaitForIteration(job, 5)) << cluster_.last_error;
  const std::vector<pid_t> before = cluster_.TrainerPids();
  ASSERT_EQ(before.size(), 2u);
  ASSERT_EQ(kill(before[1], SIGKILL), 0);
  ASSERT_TRUE(TimeOf(job, "recovered").has_value());
  ASSERT_TRUE(Eventually([&] { return cluster_.TrainerPids().size() == 2; }));
  EXPECT_EQ(cluster_.TrainerPids()[0], before[0]) << "the survivor's process goes on";
  EXPECT_NE(cluster_.TrainerPids()[1], before[1]);
  const std::string log =
      FileText(cluster_.folder() / absl::StrCat("node/logs/", job, "/rank-00001.log"));
  EXPECT_TRUE(absl::StrContains(log, "empty snapshot memory\n")) << log;
  EXPECT_TRUE(absl::StrContains(log, "\nsnapshot of step ")) << log;
  cluster_.Muster({"cancel", job, "--now"});
  EXPECT_TRUE(cluster_.WaitForEnd(job).is_object());
}

// The coordinator plans a recovery that one agent does not hear of, and dies: the next one tells
// it, and that agent's trainer, still of the old epoch, is taken for the survivor that it is.
TEST_F(DeathTest, ASurvivorOutlivesACoordinatorThatDiesInTheRecovery) {
  Process& deaf = cluster_.StartAgent("a", 1);
  cluster_.StartAgent("b", 1);
  ASSERT_TRUE(cluster_.WaitForWorkers(2));
  const std::string job = cluster_.Submit(SmallSpec(2, 1'000'000));
  ASSERT_TRUE(cluster_.WaitForIteration(job, 5)) << cluster_.last_error;
  // Ranks follow the agents' names; a process's parent is its agent.
  pid_t survivor = 0, victim = 0;
  for (const pid_t pid : cluster_.TrainerPids()) {
    const bool is_deaf = absl::StrContains(FileText(absl::StrCat("/proc/", pid, "/status")),
                                           absl::StrCat("PPid:\t", deaf.pid(), "\n"));
    (is_deaf ? survivor : victim) = pid;
  }
  ASSERT_NE(survivor, 0);
  ASSERT_NE(victim, 0);
  deaf.Signal(SIGSTOP);
  ASSERT_EQ(kill(victim, SIGKILL), 0);
  ASSERT_TRUE(TimeOf(job, "restarting").has_value());
  cluster_.RestartCoordinator();
  deaf.Signal(SIGCONT);
  ASSERT_TRUE(TimeOf(job, "recovered").has_value()) << cluster_.Muster({"events", job}).out;
  const json status = cluster_.MusterJson({"status", job});
  EXPECT_TRUE(cluster_.WaitForIteration(job, status["iteration"].get<int64_t>() + 5));
  const std::vector<pid_t> after = cluster_.TrainerPids();
  EXPECT_NE(std::find(after.begin(), after.end(), survivor), after.end())
      << "its process, and the state in it, is still there";
  cluster_.Muster({"cancel", job, "--now"});
  EXPECT_TRUE(cluster_.WaitForEnd(job).is_object());
}

// From the SIGKILL to the coordinator's event, by one clock. Aim: 99 % in 50 ms on an idle machine
// (measured there: 1.3 ms in the middle); the bound here only catches a timer on the way.
TEST_F(DeathTest, AKilledTrainerIsKnownInMilliseconds) {
  constexpr int kKills = 20;
  cluster_.StartAgent("node", kKills);
  ASSERT_TRUE(cluster_.WaitForWorkers(kKills));
  json spec = SmallSpec(1, 1'000'000);
  spec["recovery"]["max_restarts"] = 0;
  spec["resources"]["env"] = {{"FAKE_STEP_MS", "100"}};
  std::vector<double> delays_ms;
  std::vector<pid_t> seen;
  for (int i = 0; i < kKills; ++i) {
    const std::string job = cluster_.Submit(spec);
    ASSERT_TRUE(cluster_.WaitForIteration(job, 1)) << cluster_.last_error;
    const std::vector<pid_t> pids = cluster_.TrainerPids();
    ASSERT_EQ(pids.size(), 1u);
    const absl::Time start = absl::Now();
    ASSERT_EQ(kill(pids[0], SIGKILL), 0);
    const std::optional<absl::Time> known = TimeOf(job, "trainer_exited");
    ASSERT_TRUE(known.has_value());
    delays_ms.push_back(absl::ToDoubleMilliseconds(*known - start));
    ASSERT_TRUE(Eventually([&] { return cluster_.TrainerPids().empty(); }));
  }
  std::sort(delays_ms.begin(), delays_ms.end());
  printf("killed trainers known after %.1f ms in the middle, %.1f ms at most\n",
         delays_ms[kKills / 2], delays_ms.back());
  EXPECT_LT(delays_ms[kKills / 2], 50);
}

}  // namespace
}  // namespace muster
