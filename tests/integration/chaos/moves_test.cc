// What people move while a job trains: drain, replace, cordon. Ranks change places between two
// steps, and no number is another one for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/integration/chaos/fault_case.h"

namespace muster {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

// All workers of the node.
bool IsIdle(FaultCase& run, int node) {
  const json workers = run.chaos().cluster().MusterJson({"workers"});
  return workers.is_array() && std::all_of(workers.begin(), workers.end(), [&](const json& worker) {
           return worker["node"] != ChaosCluster::NodeName(node) || worker["job_id"].is_null();
         });
}

// All ranks have gone from the node, without a step that was done twice.
void ExpectMoved(FaultCase& run, int node, int count) {
  const std::string text = run.WaitForEvent("reformed", count);
  EXPECT_EQ(NumberAfter(text, "steps_redone="), 0) << text;
  EXPECT_TRUE(Eventually([&] { return IsIdle(run, node); })) << run.WorkerOf(node);
  EXPECT_EQ(run.Status()["restarts"], 0);
}

class DrainTest : public ::testing::TestWithParam<size_t> {};

TEST_P(DrainTest, RanksMoveToSparesBetweenTwoSteps) {
  const ChaosLayout& layout = ChaosLayouts()[GetParam()];
  FaultCase run(layout);
  run.StartAndReach(10);
  run.SetPace(kSlowPace);
  const int node = run.chaos().NodeOfRank(layout.world_size - 1);
  ASSERT_GE(node, 0);
  const std::string name = ChaosCluster::NodeName(node);
  EXPECT_THAT(run.Command({"drain", name}).out, HasSubstr("takes no new rank"));
  ExpectMoved(run, node, 1);
  EXPECT_EQ(run.WorkerOf(node)["draining"], true);
  run.ExpectSameEnd();
  EXPECT_EQ(run.Status()["steps_redone"], 0);
}

// The last one has nodes of two workers: `muster drain` of a node.
INSTANTIATE_TEST_SUITE_P(
    Layouts, DrainTest, ::testing::Values<size_t>(1, 2, 4), [](const auto& info) {
      return std::string(info.param == 1 ? "sharded" : info.param == 2 ? "pp2" : "node_of_two");
    });

TEST(MovesTest, ADrainedWorkerIsNotUsedUntilItIsUncordoned) {
  FaultCase run({"dp2", 2, json::object(), {1, 1, 1}});
  run.StartAndReach(10);
  run.SetPace(kSlowPace);
  const int drained = run.chaos().NodeOfRank(0);
  ASSERT_GE(drained, 0);
  const std::string worker = run.WorkerOf(drained)["worker"];
  run.Command({"drain", worker});
  ExpectMoved(run, drained, 1);
  // Nobody else is there for a rank whose node has gone: the job waits.
  const int lost = run.chaos().NodeOfRank(1);
  ASSERT_GE(lost, 0);
  run.chaos().KillNode(lost);
  run.WaitForEvent("waiting");
  EXPECT_TRUE(IsIdle(run, drained)) << run.WorkerOf(drained);
  EXPECT_THAT(run.Command({"uncordon", worker}).out, HasSubstr("takes ranks again"));
  run.WaitForEvent("recovered");
  EXPECT_FALSE(IsIdle(run, drained));
  run.chaos().StartAgent(lost);
  run.ExpectSameEnd();
  EXPECT_EQ(run.Status()["restarts"], 1);
}

TEST(MovesTest, AReplacedRankGoesToASpareAndBackToTheWorkerThatIsNamed) {
  FaultCase run(ChaosLayouts()[1]);
  run.StartAndReach(10);
  run.SetPace(kSlowPace);
  const int node = run.chaos().NodeOfRank(0);
  ASSERT_GE(node, 0);
  const std::string worker = run.WorkerOf(node)["worker"];
  const json there = json::parse(
      run.Command({"replace", run.job(), "--rank", "0", "--reason", "it is slow", "--json"}).out);
  EXPECT_EQ(there["from"], worker) << there;
  ExpectMoved(run, node, 1);
  EXPECT_THAT(run.WaitForEvent("change_planned"), AllOf(HasSubstr(worker), HasSubstr("slow")));
  EXPECT_EQ(run.chaos().cluster().MusterJson({"workers"}).size(), 3u);

  const json back = json::parse(
      run.Command({"replace", run.job(), "--rank", "0", "--with", worker, "--json"}).out);
  EXPECT_EQ(back["to"], worker) << back;
  EXPECT_EQ(back["from"], there["to"]) << back;
  run.WaitForEvent("reformed", 2);
  EXPECT_EQ(run.chaos().NodeOfRank(0), node);
  run.ExpectSameEnd();
  EXPECT_EQ(run.Status()["restarts"], 0);
  EXPECT_EQ(run.Status()["steps_redone"], 0);
}

TEST(MovesTest, ADeadRankIsNotPutBackToACordonedWorker) {
  FaultCase run({"dp2", 2, json::object(), {1, 1, 1}});
  run.StartAndReach(10);
  run.SetPace(kSlowPace);
  const int node = run.chaos().NodeOfRank(1);
  ASSERT_GE(node, 0);
  const std::string worker = run.WorkerOf(node)["worker"];
  EXPECT_THAT(run.Command({"cordon", worker}).out, HasSubstr("cordoned"));
  // What runs there goes on.
  const int64_t iteration = run.Status()["iteration"];
  EXPECT_TRUE(run.chaos().cluster().WaitForIteration(run.job(), iteration + 3));
  EXPECT_EQ(run.chaos().NodeOfRank(1), node);
  EXPECT_TRUE(run.Events("reforming").empty());

  kill(run.chaos().TrainerOfRank(1), SIGKILL);
  run.WaitForEvent("recovered");
  EXPECT_NE(run.chaos().NodeOfRank(1), node);
  EXPECT_TRUE(Eventually([&] { return IsIdle(run, node); })) << run.WorkerOf(node);
  const std::vector<std::string> back = {"replace", run.job(), "--rank", "1", "--with", worker};
  const Result refused = run.chaos().cluster().Muster(back);
  EXPECT_NE(refused.code, 0);
  EXPECT_THAT(refused.err, HasSubstr("cordoned"));
  run.Command({"uncordon", worker});
  run.Command(back);
  run.WaitForEvent("reformed");
  EXPECT_EQ(run.chaos().NodeOfRank(1), node);
  run.ExpectSameEnd();
  EXPECT_EQ(run.Status()["restarts"], 1);
}

}  // namespace
}  // namespace muster
