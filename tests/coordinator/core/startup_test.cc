// What the start of a job costs each agent: two messages, whatever the world's size, and in them
// only what is its own.
#include "tests/coordinator/core/core_cluster.h"

namespace muster {
namespace {

size_t BytesOf(const LaunchMessage& launch) {
  size_t bytes = launch.job_id.size() + launch.spec_json.size() + sizeof(launch);
  for (const auto& assignment : launch.assignments) {
    bytes += sizeof(assignment) + assignment.worker.size() + assignment.host_address.size() +
             assignment.device.size();
  }
  return bytes;
}

TEST(StartupTest, TwoMessagesAnAgentWhateverTheSizeOfTheWorld) {
  size_t bytes_of_one = 0;
  for (const int num_nodes : {1, 2, 3, 4, 7, 8, 16, 31, 64, 128, 256}) {
    SCOPED_TRACE(num_nodes);
    CoreCluster cluster;
    for (int node = 1; node <= num_nodes; ++node) cluster.Join(node);
    const std::string job = cluster.Submit({.world_size = num_nodes});
    cluster.Phase(job, "forming");
    cluster.Report(job, 0, PublishUniqueIdMessage{.id = "abcd"});
    cluster.Phase(job, "loading");
    cluster.Phase(job, "training");
    ASSERT_EQ(cluster.Job(job).state(), JobState::kRunning);
    std::set<int> ranks;
    for (int node = 1; node <= num_nodes; ++node) {
      size_t others = 0;  // all but the answers to its own reports
      for (const AgentMessage& message : cluster.AllSent(node)) {
        others += !std::holds_alternative<AckMessage>(message) &&
                  !std::holds_alternative<WelcomeMessage>(message);
      }
      EXPECT_EQ(others, 2u);
      ASSERT_EQ(cluster.Sent<LaunchMessage>(node).size(), 1u);
      EXPECT_EQ(cluster.Sent<UniqueIdBroadcast>(node).size(), 1u);
      const LaunchMessage launch = cluster.Sent<LaunchMessage>(node)[0];
      ASSERT_EQ(launch.assignments.size(), 1u);
      EXPECT_EQ(launch.assignments[0].worker, CoreCluster::WorkerName(node, 0));
      EXPECT_EQ(launch.world_size, num_nodes);
      ranks.insert(launch.assignments[0].rank);
      if (bytes_of_one == 0) bytes_of_one = BytesOf(launch);
      // Names and numbers get a digit or two longer, and no more.
      EXPECT_LE(BytesOf(launch), bytes_of_one + 16);
    }
    EXPECT_EQ(ranks.size(), static_cast<size_t>(num_nodes));
  }
}

TEST(StartupTest, ANodeOfManyRanksStillGetsTwo) {
  CoreCluster cluster;
  for (int node = 1; node <= 8; ++node) cluster.Join(node, 8);
  const std::string job = cluster.Submit({.world_size = 64});
  cluster.Report(job, 0, PublishUniqueIdMessage{.id = "abcd"});
  for (int node = 1; node <= 8; ++node) {
    ASSERT_EQ(cluster.Sent<LaunchMessage>(node).size(), 1u);
    EXPECT_EQ(cluster.Sent<LaunchMessage>(node)[0].assignments.size(), 8u);
    EXPECT_EQ(cluster.Sent<UniqueIdBroadcast>(node).size(), 1u);
  }
}

TEST(StartupTest, ADirectiveIsOneMessageAnAgent) {
  CoreCluster cluster;
  for (int node = 1; node <= 4; ++node) cluster.Join(node, 4);
  const std::string job = cluster.Submit({.world_size = 16, .save = "/ckpt"});
  cluster.Phase(job, "training");
  ASSERT_TRUE(cluster.Handle(RequestDirective{.job_id = job}).status.ok());
  for (int node = 1; node <= 4; ++node) {
    EXPECT_EQ(cluster.Sent<DirectiveBroadcast>(node).size(), 1u);
  }
}

TEST(StartupTest, TheAnswerToARegistrationHoldsItsOwnWorkersOnly) {
  CoreCluster cluster;
  for (int node = 1; node <= 20; ++node) cluster.Join(node, 2);
  const Outcome out =
      cluster.Handle(RegisterAgent{.incarnation = "incarnation-21",
                                   .node = "n21",
                                   .workers = {{"n21/0", "cpu", DeviceKind::kCpu, 0}}});
  EXPECT_THAT(std::get<RegisterReply>(out.reply).workers, testing::ElementsAre("n21/0"));
}

}  // namespace
}  // namespace muster
