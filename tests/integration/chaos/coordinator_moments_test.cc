// The coordinator is killed at named moments of a job's life: no restart, no step lost, and what it
// had decided goes on.
#include <gtest/gtest.h>

#include <functional>

#include "absl/strings/str_cat.h"
#include "tests/integration/chaos/fault_case.h"

namespace muster {
namespace {

using nlohmann::json;

bool WaitForState(FaultCase& run, const std::string& state) {
  return Eventually([&] {
    const json status = run.Status();
    return status.is_object() && status["state"] == state;
  });
}

// `reach` submits and returns at the moment; `after`: what is to be seen at the end.
struct Moment {
  const char* name;
  std::function<void(FaultCase&)> reach;
  std::function<void(FaultCase&)> while_away = [](FaultCase&) {};
  std::function<void(FaultCase&)> when_back = [](FaultCase&) {};
  std::function<void(FaultCase&)> after = [](FaultCase&) {};
  int num_nodes = 2;
  int restarts = 0;  // at most: of those that are not the coordinator's doing
};

void PrintTo(const Moment& moment, std::ostream* out) { *out << moment.name; }

void ReachState(FaultCase& run, const std::string& state) {
  EXPECT_TRUE(WaitForState(run, state)) << Report(run.chaos(), run.job());
}

void Form(FaultCase& run) {
  run.Start();
  ReachState(run, "FORMING");
}

void FirstStep(FaultCase& run) { run.StartAndReach(1); }

void Evaluate(FaultCase& run) {
  run.StartAndReach(10);
  run.SetPace(kSlowPace);
  ReachState(run, "EVALUATING");
}

// Each step is saved.
void Save(FaultCase& run) {
  run.spec()["checkpoint"] = {{"save", run.chaos().cluster().folder() / "checkpoints"},
                              {"save_interval", 1}};
  run.StartAndReach(5);
  ReachState(run, "CHECKPOINTING");
}

void ExpectLastSaved(FaultCase& run) {
  const json checkpoints = run.Status()["checkpoints"];
  ASSERT_FALSE(checkpoints.empty());
  EXPECT_EQ(checkpoints.back()["iteration"], kTrainIters);
}

// The worker of rank 0.
void Drain(FaultCase& run) {
  run.StartAndReach(10);
  run.SetPace(kSlowPace);
  run.Command({"drain", ChaosCluster::NodeName(run.chaos().NodeOfRank(0))});
  run.WaitForEvent("change_planned");
}

void WaitForTheMove(FaultCase& run) { run.WaitForEvent("reformed"); }

void ExpectDrained(FaultCase& run) {
  EXPECT_EQ(run.Events("reformed").size(), 1u);
  EXPECT_EQ(run.Status()["steps_redone"], 0);
  for (const json& worker : run.chaos().cluster().MusterJson({"workers"})) {
    if (worker["draining"] == true) return;
  }
  ADD_FAILURE() << "no worker is drained any more";
}

// A worker computes wrongly from its 8th step on; the step is run again in place first.
void Examine(FaultCase& run) {
  run.SetFault("nan", 1, 8 * kPassesOfAStep);
  run.SetPace(kSlowPace);
  run.Start();
  run.WaitForEvent("rerun");
}

void ExpectCulpritFound(FaultCase& run) {
  const json worker = run.WorkerOf(1);
  EXPECT_FALSE(worker["quarantined"].is_null()) << worker << Report(run.chaos(), run.job());
}

void HalfWay(FaultCase& run) { run.StartAndReach(kTrainIters / 2); }

// The last step is done, and nobody is there to be told.
void WaitUntilAllAreDone(FaultCase& run) {
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(Eventually([&] {
      for (int node = 0; node < 2; ++node) {
        const std::string log =
            FileText(absl::StrCat(run.chaos().cluster().folder() / ChaosCluster::NodeName(node),
                                  "/logs/", run.job(), "/rank-0000", rank, ".log"));
        if (log.find(" done: ") != std::string::npos) return true;
      }
      return false;
    })) << "rank "
        << rank << Report(run.chaos(), run.job());
  }
}

class CoordinatorMomentTest : public ::testing::TestWithParam<Moment> {};

TEST_P(CoordinatorMomentTest, IsTakenUpWhereItWas) {
  const Moment& moment = GetParam();
  FaultCase run({"dp2", 2, json::object(), std::vector<int>(moment.num_nodes, 1)});
  moment.reach(run);
  ASSERT_FALSE(HasFailure());
  run.chaos().KillCoordinator();
  moment.while_away(run);
  run.chaos().StartCoordinator();
  moment.when_back(run);
  run.ExpectSameEnd();
  EXPECT_LE(run.Status()["restarts"], moment.restarts) << Report(run.chaos(), run.job());
  moment.after(run);
}

INSTANTIATE_TEST_SUITE_P(
    Moments, CoordinatorMomentTest,
    ::testing::Values(Moment{.name = "forming", .reach = Form},
                      Moment{.name = "first_step", .reach = FirstStep},
                      Moment{.name = "evaluation", .reach = Evaluate},
                      Moment{.name = "save", .reach = Save, .after = ExpectLastSaved},
                      Moment{.name = "drain",
                             .reach = Drain,
                             .when_back = WaitForTheMove,
                             .after = ExpectDrained,
                             .num_nodes = 3},
                      Moment{.name = "examination",
                             .reach = Examine,
                             .after = ExpectCulpritFound,
                             .num_nodes = 3,
                             .restarts = 1},
                      Moment{.name = "end", .reach = HalfWay, .while_away = WaitUntilAllAreDone}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace muster
