// A worker dies and nobody takes its place: the job goes on with fewer replicas, and grows again
// when it is back. The global batch and its samples stay the same; only the order in which replicas
// are summed changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "tests/integration/chaos/fault_case.h"

namespace muster {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr double kTolerance = 1e-5;

// Masks of dropout are drawn in the order of a rank's microbatches, which is another one with fewer
// replicas.
json ElasticChange() {
  return {{"model", {{"attention_dropout", 0}, {"hidden_dropout", 0}}},
          {"recovery", {{"elastic", true}}}};
}

struct ElasticCase {
  const char* name;
  ChaosLayout layout;
  int shrunk;  // ranks of the job when one of its workers is away: the batch of 4 is divided evenly
};

void PrintTo(const ElasticCase& each, std::ostream* out) { *out << each.name; }

class ElasticTest : public ::testing::TestWithParam<ElasticCase> {
 protected:
  static bool WaitForWorldSize(FaultCase& run, int size) {
    return Eventually([&] {
      const json status = run.Status();
      return status.is_object() && status["world_size"] == size && status["state"] == "RUNNING";
    });
  }
};

TEST_P(ElasticTest, ShrinksGrowsAndShrinksAgain) {
  const ElasticCase& param = GetParam();
  FaultCase run(param.layout, ElasticChange());
  run.StartAndReach(10);
  run.SetPace(kSlowPace);
  const int last = run.chaos().NodeOfRank(param.layout.world_size - 1);
  ASSERT_GE(last, 0);
  run.chaos().KillNode(last);
  EXPECT_THAT(run.WaitForEvent("recovered"), HasSubstr(absl::StrCat("-> ", param.shrunk, " rank")));
  ASSERT_TRUE(WaitForWorldSize(run, param.shrunk)) << Report(run.chaos(), run.job());

  // New steps, not only those that are done again.
  const int64_t reached = run.Status()["iteration"];
  ASSERT_TRUE(run.chaos().cluster().WaitForIteration(run.job(), reached + 2));
  run.chaos().StartAgent(last);
  const std::string grown = run.WaitForEvent("reformed");
  EXPECT_EQ(NumberAfter(grown, "steps_redone="), 0) << grown;
  ASSERT_TRUE(WaitForWorldSize(run, param.layout.world_size)) << Report(run.chaos(), run.job());

  // The rank that reports, this time.
  const int first = run.chaos().NodeOfRank(0);
  ASSERT_GE(first, 0);
  run.chaos().KillNode(first);
  run.WaitForEvent("recovered", 2);
  ASSERT_TRUE(WaitForWorldSize(run, param.shrunk)) << Report(run.chaos(), run.job());
  run.chaos().StartAgent(first);
  run.ExpectSameEnd(kTolerance);
  EXPECT_EQ(run.Status()["restarts"], 2) << Report(run.chaos(), run.job());
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ElasticTest,
    ::testing::Values(
        ElasticCase{"dp2", {"dp2", 2, json::object(), {1, 1}}, 1},
        ElasticCase{"dp4", {"dp4", 4, json::object(), {1, 1, 1, 1}}, 2},
        ElasticCase{
            "dp2_sharded",
            {"dp2, distributed optimizer", 2, {{"use_distributed_optimizer", true}}, {1, 1}},
            1}),
    [](const auto& info) { return info.param.name; });

// Who comes back dies again while the job makes room for it.
TEST(ElasticCaseTest, ADeathWhileItGrows) {
  FaultCase run({"dp2", 2, json::object(), {1, 1}}, ElasticChange());
  run.StartAndReach(10);
  run.SetPace(kSlowPace);
  const int node = run.chaos().NodeOfRank(1);
  ASSERT_GE(node, 0);
  run.chaos().KillNode(node);
  run.WaitForEvent("recovered");
  run.chaos().StartAgent(node);
  run.WaitForEvent("change_planned");
  ASSERT_TRUE(Eventually([&] { return !run.chaos().TrainersOf(node).empty(); }));
  for (const pid_t pid : run.chaos().TrainersOf(node)) kill(pid, SIGKILL);
  ASSERT_TRUE(Eventually([&] {
    const json status = run.Status();
    return status.is_object() && status["world_size"] == 2 && status["state"] == "RUNNING";
  })) << Report(run.chaos(), run.job());
  run.ExpectSameEnd(kTolerance);
}

}  // namespace
}  // namespace muster
