// A whole agent in this process, with a scripted coordinator over real gRPC and a shell script for
// its trainer.
#include "worker/agent/agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/control/messages.h"
#include "tests/worker/agent/fake_coordinator.h"
#include "worker/agent/store_proxy.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Agents = std::map<std::string, FakeCoordinator::Agent>;

constexpr char kSpec[] = R"({"name": "test", "model": {"num_layers": 1, "hidden_size": 16,
  "num_attention_heads": 2, "seq_length": 16}, "data": {"dataset_provider": "mock"},
  "training": {"micro_batch_size": 1, "global_batch_size": 1, "train_iters": 10},
  "optimizer": {"lr": 0.001}, "resources": {"world_size": 1, "device": "cpu"}})";

class AgentTest : public ::testing::Test {
 protected:
  AgentTest() {
    char pattern[] = "/tmp/muster-agent-XXXXXX";
    folder_ = mkdtemp(pattern);
  }
  ~AgentTest() override {
    if (thread_.joinable()) (void)End();
    fs::remove_all(folder_);
  }

  // The trainer says hello, waits for its assignment, then does this, in the folder.
  void WriteTrainer(const std::string& script) {
    std::ofstream(folder_ + "/hello") << Encode(TrainerToAgent(HelloMessage{.pid = 1}));
    const std::string path = folder_ + "/trainer";
    std::ofstream(path) << "#!/bin/sh\n[ \"$1\" = --check-device ] && echo "
                           "'{\"kind\":\"test\",\"fingerprint\":\"f0\"}' && exit\n"
                        << "cd " << folder_ << "\ncat hello >&3\nread assignment <&3\n"
                        << script << "\n";
    ASSERT_EQ(chmod(path.c_str(), 0755), 0);
  }
  // Steps first..last as a file of messages.
  void WriteSteps(const std::string& name, int64_t first, int64_t last) {
    std::ofstream out(folder_ + "/" + name);
    for (int64_t i = first; i <= last; ++i) {
      out << Encode(TrainerToAgent(StepMessage{.epoch = 1, .iteration = i, .lm_loss = 1.0 / i}));
    }
  }
  void Touch(const std::string& name) { std::ofstream(folder_ + "/" + name) << "x"; }

  void StartAgent() {
    agent_ = std::make_unique<Agent>(Agent::Options{.coordinator = coordinator_.address(),
                                                    .name = "node",
                                                    .devices = {{"cpu", 0}},
                                                    .state_dir = folder_ + "/state",
                                                    .trainer_program = folder_ + "/trainer"});
    thread_ = std::thread([this] { result_ = agent_->Run(); });
  }
  absl::Status End() {
    agent_->Terminate();
    thread_.join();
    return result_;
  }
  void Launch() {
    v1::ConnectResponse order;
    order.mutable_launch()->set_job_id("job");
    order.mutable_launch()->set_epoch(1);
    order.mutable_launch()->set_world_size(1);
    order.mutable_launch()->set_spec_json(kSpec);
    v1::Assignment* assignment = order.mutable_launch()->add_assignments();
    assignment->set_worker("node");
    assignment->set_device("cpu");
    assignment->set_num_threads(1);
    coordinator_.Order(order);
  }
  bool AwaitConnected() {
    return coordinator_.Await(
        [](Agents& agents) { return agents.size() == 1 && agents.begin()->second.streams > 0; });
  }
  static bool HasStep(Agents& agents, int64_t iteration) {
    for (const auto& report : agents.begin()->second.reports) {
      if (report.step().iteration() == iteration) return true;
    }
    return false;
  }
  size_t SpillFiles() {
    std::error_code error;
    size_t count = 0;
    for (const auto& entry : fs::directory_iterator(folder_ + "/state/reports", error)) {
      count += entry.is_regular_file();
    }
    return count;
  }

  std::string folder_;
  FakeCoordinator coordinator_;
  std::unique_ptr<Agent> agent_;
  std::thread thread_;
  absl::Status result_;
};

TEST_F(AgentTest, CoordinatorAwayLosesNoReportAndEndsNoTrainer) {
  constexpr int64_t kSteps = 12'000;
  WriteSteps("before", 1, 100);
  WriteSteps("away", 101, kSteps);
  WriteTrainer(
      "cat before >&3; until [ -e away-now ]; do sleep 0.02; done; cat away >&3; "
      "touch all-said; cat <&3 >/dev/null");
  StartAgent();
  ASSERT_TRUE(AwaitConnected());
  Launch();
  ASSERT_TRUE(coordinator_.Await([](Agents& agents) { return HasStep(agents, 100); }));
  coordinator_.Stop();
  Touch("away-now");
  const absl::Time until = absl::Now() + absl::Seconds(30);
  while ((SpillFiles() == 0 || !fs::exists(folder_ + "/all-said")) && absl::Now() < until) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_GT(SpillFiles(), 0u) << "memory holds some 4,096 of them only";
  coordinator_.Start();
  ASSERT_TRUE(coordinator_.Await([](Agents& agents) { return HasStep(agents, kSteps); }));
  coordinator_.With([](Agents& agents) {
    EXPECT_EQ(agents.size(), 1u) << "the same incarnation went on";
    const FakeCoordinator::Agent& agent = agents.begin()->second;
    EXPECT_EQ(agent.gaps, 0);
    EXPECT_EQ(agent.streams, 2);
    int64_t next = 1;
    for (const auto& report : agent.reports) {
      EXPECT_FALSE(report.has_exited());
      if (report.has_step()) {
        EXPECT_EQ(report.step().iteration(), next++);
      }
    }
    EXPECT_EQ(next, kSteps + 1);
  });
  EXPECT_TRUE(coordinator_.Await([this](Agents&) { return SpillFiles() == 0; }));
  EXPECT_TRUE(End().ok());
}

TEST_F(AgentTest, HeartbeatsCarryProgressAndTheEndIsAGoodbye) {
  std::ofstream(folder_ + "/progress")
      << Encode(TrainerToAgent(ProgressMessage{.epoch = 1, .iteration = 41}));
  WriteTrainer("trap 'exit 0' TERM; cat progress >&3; cat <&3 >/dev/null");
  StartAgent();
  ASSERT_TRUE(AwaitConnected());
  Launch();
  ASSERT_TRUE(
      coordinator_.Await([](Agents& agents) { return !agents.begin()->second.progress.empty(); }));
  coordinator_.With([](Agents& agents) {
    const v1::TrainerProgress& progress = agents.begin()->second.progress[0];
    EXPECT_EQ(progress.job_id(), "job");
    EXPECT_EQ(progress.epoch(), 1);
    EXPECT_EQ(progress.iteration(), 41);
  });
  agent_->Terminate();
  agent_->Terminate();
  EXPECT_TRUE(End().ok());
  coordinator_.With([](Agents& agents) {
    const FakeCoordinator::Agent& agent = agents.begin()->second;
    ASSERT_FALSE(agent.reports.empty());
    EXPECT_TRUE(agent.reports.back().has_exited()) << "acknowledged before the goodbye";
    EXPECT_NE(agent.goodbye, "");
    EXPECT_EQ(agent.after_goodbye, "");
    EXPECT_EQ(agent.streams, 1);
  });
}

TEST_F(AgentTest, GivenUpIncarnationEndsItsTrainersAndRegistersAnew) {
  WriteTrainer("echo $$ >pid; cat <&3 >/dev/null");
  StartAgent();
  ASSERT_TRUE(AwaitConnected());
  Launch();
  const absl::Time until = absl::Now() + absl::Seconds(30);
  pid_t pid = 0;
  while (pid == 0 && absl::Now() < until) {
    std::ifstream(folder_ + "/pid") >> pid;
    absl::SleepFor(absl::Milliseconds(10));
  }
  ASSERT_GT(pid, 0);
  const std::string old = coordinator_.With([](Agents& agents) { return agents.begin()->first; });
  coordinator_.GiveUp(old);
  ASSERT_TRUE(coordinator_.Await([](Agents& agents) { return agents.size() == 2; }));
  ASSERT_TRUE(coordinator_.Await([&](Agents& agents) {
    for (auto& [incarnation, agent] : agents) {
      if (incarnation != old && agent.streams > 0) return true;
    }
    return false;
  }));
  while (kill(pid, 0) == 0 && absl::Now() < until) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_NE(kill(pid, 0), 0) << "the old trainer is gone";
  EXPECT_TRUE(End().ok());
}

TEST_F(AgentTest, AgentOfATakenDeviceKeepsAskingUntilItIsFree) {
  WriteTrainer("true");
  coordinator_.RefuseRegistrations(
      {3, {grpc::StatusCode::ALREADY_EXISTS, "worker node is another's: agent b, pid 7"}});
  StartAgent();
  ASSERT_TRUE(AwaitConnected());
  EXPECT_EQ(coordinator_.refusals_left(), 0u);
  EXPECT_TRUE(End().ok());
}

TEST_F(AgentTest, TerminationEndsWhileTheCoordinatorIsAway) {
  WriteTrainer("cat <&3 >/dev/null");
  StartAgent();
  ASSERT_TRUE(AwaitConnected());
  Launch();
  const absl::Time until = absl::Now() + absl::Seconds(30);
  coordinator_.Stop();
  const absl::Time start = absl::Now();
  agent_->Terminate();
  EXPECT_TRUE(End().ok()) << "the second one: now";
  EXPECT_LT(absl::Now() - start, absl::Seconds(8));
  EXPECT_LT(absl::Now(), until);
}

TEST(StoreProxyTest, RequestsOutliveARestartOfTheCoordinator) {
  FakeCoordinator coordinator;
  StoreProxy store(NewChannel(coordinator.address()));
  Mutex mu;
  CondVar changed;
  std::map<int64_t, StoreReplyMessage> replies;
  const auto ask = [&](StoreRequestMessage request) {
    store.Ask("job", request, [&](StoreReplyMessage reply) {
      MutexLock lock(&mu);
      replies[reply.request] = std::move(reply);
      changed.NotifyAll();
    });
  };
  const auto await = [&](size_t count) {
    const absl::Time until = absl::Now() + absl::Seconds(30);
    MutexLock lock(&mu);
    while (replies.size() < count && absl::Now() < until) changed.WaitFor(&mu, absl::Seconds(1));
    return replies.size() == count;
  };
  using Op = StoreRequestMessage::Op;
  ask({.request = 1, .op = Op::kWaitPrefix, .key = "a/", .count = 2, .limit_ms = 60'000});
  ask({.request = 2, .op = Op::kSet, .key = "a/1", .value = "01", .limit_ms = 60'000});
  ASSERT_TRUE(await(1));
  coordinator.Stop();
  ask({.request = 3, .op = Op::kSet, .key = "a/2", .value = "02", .limit_ms = 60'000});
  // Its own limit still holds.
  ask({.request = 4, .op = Op::kSet, .key = "a/3", .value = "03", .limit_ms = 300});
  ASSERT_TRUE(await(2));
  EXPECT_FALSE(replies[4].ok);
  EXPECT_EQ(replies[4].error_code, static_cast<int>(absl::StatusCode::kUnavailable));
  coordinator.Start();
  ASSERT_TRUE(await(4));
  EXPECT_TRUE(replies[1].ok) << replies[1].error;
  EXPECT_EQ(replies[1].entries.size(), 2u);
  EXPECT_TRUE(replies[3].ok) << replies[3].error;
}

}  // namespace
}  // namespace muster
