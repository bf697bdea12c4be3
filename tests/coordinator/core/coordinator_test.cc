#include "coordinator/core/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/core/invariants.h"
#include "tests/coordinator/core/test_spec.h"

namespace muster {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class CoordinatorTest : public testing::Test {
 protected:
  Outcome Handle(const Event& event) {
    Outcome out = core_->Handle(event, now_);
    Keep(out.actions);
    EXPECT_THAT(checker_.Check(*core_), IsEmpty());
    return out;
  }
  void Keep(const std::vector<Action>& actions) {
    for (const Action& action : actions) {
      if (const auto* send = std::get_if<SendToAgent>(&action)) {
        sent_[send->stream].push_back(send->message);
      } else if (const auto* end = std::get_if<EndStream>(&action)) {
        closed_[end->stream] = end->status;
      } else if (const auto* wait = std::get_if<WaitDone>(&action)) {
        waits_[wait->token] = wait->status;
      }
    }
  }
  // Heartbeats of the open streams go on.
  void Advance(absl::Duration by) {
    for (const absl::Time end = now_ + by; now_ < end;) {
      now_ += absl::Milliseconds(100);
      for (const StreamId stream : beating_) Handle(Heartbeat{.stream = stream});
      Keep(core_->Tick(now_));
      EXPECT_THAT(checker_.Check(*core_), IsEmpty());
    }
  }
  // One node with `slots` CPU workers; its stream has the node's number.
  void Join(int node, int slots = 1, int life = 1) {
    const std::string name = absl::StrCat("n", node);
    RegisterAgent agent{.incarnation = absl::StrCat("incarnation-", node, "-", life),
                        .node = name,
                        .address = absl::StrCat("10.0.0.", node),
                        .num_cpus = 4};
    for (int i = 0; i < slots; ++i) {
      agent.workers.push_back({absl::StrCat(name, "/", i), "cpu", DeviceKind::kCpu, i});
    }
    ASSERT_TRUE(Handle(agent).status.ok());
    Connect(node, life, node + 100 * (life - 1));
  }
  void Connect(int node, int life, StreamId stream) {
    ASSERT_TRUE(
        Handle(OpenStream{absl::StrCat("incarnation-", node, "-", life), stream}).status.ok());
    beating_.insert(stream);
  }
  std::string Submit(const TestSpecOptions& spec = {}) {
    const Outcome out = Handle(SubmitJob{.spec_json = TestSpec(spec)});
    const auto& reply = std::get<SubmitReply>(out.reply);
    for (const SpecProblem& problem : reply.problems) ADD_FAILURE() << problem.ToString();
    return reply.job_id;
  }
  absl::Status Report(StreamId stream, int64_t sequence, const AssignmentRef& from,
                      const ReportBody& body) {
    return Handle(ReportBatch{stream, sequence, {{from, body}}}).status;
  }
  template <typename Message>
  std::vector<Message> Sent(StreamId stream) {
    std::vector<Message> found;
    for (const AgentMessage& message : sent_[stream]) {
      if (const auto* m = std::get_if<Message>(&message)) found.push_back(*m);
    }
    return found;
  }
  void UseLimits(const CoordinatorOptions& options) {
    core_ = std::make_unique<Coordinator>(options);
  }
  const JobMachine& Job(const std::string& id) { return *core_->FindJob(id); }

  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  std::unique_ptr<Coordinator> core_ = std::make_unique<Coordinator>(CoordinatorOptions{});
  InvariantChecker checker_;
  std::map<StreamId, std::vector<AgentMessage>> sent_;
  std::map<StreamId, absl::Status> closed_;
  std::map<WaitToken, absl::Status> waits_;
  std::set<StreamId> beating_;
};

TEST_F(CoordinatorTest, AnEndIsTakenWithoutARankFromAnAgentThatNeverSawTheLaunch) {
  Join(1, 2);
  const std::string job = Submit();
  ASSERT_TRUE(Handle(CancelJob{.job_id = job, .mode = CancelMode::kKill}).status.ok());
  // All that the agent's core knows by then is the order to stop, which names no rank.
  for (int slot = 0; slot < 2; ++slot) {
    const AssignmentRef from{absl::StrCat("n1/", slot), job, 1, 0};
    ASSERT_TRUE(Report(1, 1 + slot, from, ExitedReport{.launch_error = "never came"}).ok());
  }
  EXPECT_TRUE(Job(job).released());
}

TEST_F(CoordinatorTest, AJobRunsFromSubmitToCompleted) {
  Join(1);
  const std::string job = Submit();
  EXPECT_EQ(Job(job).state(), JobState::kQueued);
  EXPECT_THAT(Job(job).reason(), HasSubstr("have 1 of 2 cpu workers; waiting for 1 more"));
  Join(2);
  EXPECT_EQ(Job(job).state(), JobState::kForming);
  const auto launch = Sent<LaunchMessage>(2);
  ASSERT_EQ(launch.size(), 1u);
  EXPECT_EQ(launch[0].epoch, 1);
  ASSERT_EQ(launch[0].assignments.size(), 1u);
  EXPECT_EQ(launch[0].assignments[0].rank, 1);
  EXPECT_EQ(launch[0].assignments[0].host_address, "10.0.0.2");
  EXPECT_EQ(launch[0].assignments[0].num_threads, 4);

  const AssignmentRef rank0{"n1/0", job, 1, 0}, rank1{"n2/0", job, 1, 1};
  ASSERT_TRUE(Report(1, 1, rank0, PublishUniqueIdMessage{1, "abcd"}).ok());
  EXPECT_EQ(Sent<UniqueIdBroadcast>(1).size(), 1u);
  EXPECT_EQ(Sent<UniqueIdBroadcast>(2).at(0).id, "abcd");
  StepMessage step;
  step.iteration = 10;
  ASSERT_TRUE(Report(2, 1, rank1, step).ok());
  EXPECT_EQ(Job(job).state(), JobState::kRunning);
  ASSERT_TRUE(Report(1, 2, rank0, DoneMessage{1, 0, "trained 10 iterations"}).ok());
  ASSERT_TRUE(Report(2, 2, rank1, DoneMessage{1, 0, "trained 10 iterations"}).ok());
  EXPECT_EQ(Job(job).state(), JobState::kCompleted);
  EXPECT_EQ(Job(job).reason(), "trained 10 iterations");
  EXPECT_EQ(Sent<StopTrainerMessage>(1).size(), 1u);
  ASSERT_TRUE(Report(1, 3, rank0, ExitedReport{.exit_code = 0}).ok());
  ASSERT_TRUE(Report(2, 3, rank1, ExitedReport{.exit_code = 0}).ok());
  EXPECT_TRUE(Job(job).released());
  EXPECT_EQ(Sent<AckMessage>(1).back().through, 3);
  const std::string next = Submit();
  EXPECT_EQ(Job(next).state(), JobState::kForming);
}

TEST_F(CoordinatorTest, RanksOfANodeShareOneLaunch) {
  Join(1, 2);
  Submit();
  ASSERT_EQ(Sent<LaunchMessage>(1).size(), 1u);
  EXPECT_EQ(Sent<LaunchMessage>(1)[0].assignments.size(), 2u);
  EXPECT_EQ(Sent<LaunchMessage>(1)[0].assignments[0].num_threads, 2);
}

TEST_F(CoordinatorTest, ABadSpecStartsNothingAndSaysAll) {
  Join(1, 2);
  const Outcome out = Handle(SubmitJob{.spec_json = R"({"model": {"hiden_size": 3}})"});
  EXPECT_TRUE(out.status.ok());
  EXPECT_EQ(std::get<SubmitReply>(out.reply).job_id, "");
  EXPECT_GT(std::get<SubmitReply>(out.reply).problems.size(), 2u);
  EXPECT_TRUE(core_->jobs().empty());
}

TEST_F(CoordinatorTest, SubmittingAgainWithTheSameKeyIsTheSameJob) {
  const SubmitJob submit{.spec_json = TestSpec(), .idempotency_key = "key"};
  const auto first = std::get<SubmitReply>(Handle(submit).reply).job_id;
  EXPECT_EQ(std::get<SubmitReply>(Handle(submit).reply).job_id, first);
  EXPECT_EQ(core_->jobs().size(), 1u);
  EXPECT_EQ(Handle(SubmitJob{TestSpec({.world_size = 4}), "key"}).status.code(),
            absl::StatusCode::kAlreadyExists);
}

TEST_F(CoordinatorTest, ALostAgentFailsItsJobAndFreesTheOthers) {
  Join(1);
  Join(2);
  const std::string job = Submit();
  Handle(CloseStream{2});
  beating_.erase(2);
  Advance(absl::Milliseconds(1000));
  EXPECT_EQ(Job(job).state(), JobState::kForming);
  Advance(absl::Milliseconds(800));
  EXPECT_EQ(Job(job).state(), JobState::kFailed);
  EXPECT_THAT(Job(job).reason(), HasSubstr("worker n2/0 was lost"));
  EXPECT_EQ(Sent<AbortBroadcast>(1).size(), 1u);
  ASSERT_EQ(Sent<StopTrainerMessage>(1).size(), 1u);
  EXPECT_EQ(Sent<StopTrainerMessage>(1)[0].worker, "n1/0");
  ASSERT_TRUE(Report(1, 1, {"n1/0", job, 1, 0}, ExitedReport{.signal = 15}).ok());
  EXPECT_TRUE(Job(job).released());
  EXPECT_TRUE(core_->membership().IsIdle(*core_->membership().FindWorker("n1/0")));
}

TEST_F(CoordinatorTest, AnAgentStartedAgainFailsItsJobAtOnce) {
  Join(1, 2);
  const std::string job = Submit();
  Handle(CloseStream{1});
  Join(1, 2, 2);
  EXPECT_EQ(Job(job).state(), JobState::kFailed);
  EXPECT_THAT(Job(job).reason(), HasSubstr("started again"));
  EXPECT_TRUE(Job(job).released());
  EXPECT_EQ(Job(Submit()).state(), JobState::kForming);
}

TEST_F(CoordinatorTest, StaleReportsChangeNothing) {
  Join(1);
  Join(2);
  const std::string job = Submit();
  const int64_t version = Job(job).version();
  const AssignmentRef stale[] = {
      {"n2/0", job, 2, 1},       // another epoch
      {"n2/0", job, 1, 0},       // another rank
      {"n1/0", job, 1, 0},       // another agent's worker
      {"n9/0", job, 1, 1},       // no worker
      {"n2/0", "job-99", 1, 1},  // no job
  };
  int64_t sequence = 0;
  for (const AssignmentRef& from : stale) {
    ASSERT_TRUE(Report(2, ++sequence, from, DoneMessage{.epoch = from.epoch}).ok());
  }
  EXPECT_EQ(Job(job).version(), version);
  EXPECT_EQ(core_->num_stale_reports(), 5);
}

// A survivor that is stopped before it has heard of its new epoch knows the rank of the last one.
TEST_F(CoordinatorTest, ATrainersEndCountsWhateverRankItSays) {
  Join(1);
  Join(2);
  const std::string job = Submit();
  ASSERT_TRUE(Report(2, 1, {"n2/0", job, 1, 0}, ExitedReport{.signal = 9}).ok());
  EXPECT_EQ(core_->num_stale_reports(), 0);
  EXPECT_EQ(Job(job).ranks()[1].trainer, RankSlot::Trainer::kExited);
}

TEST_F(CoordinatorTest, ARepeatedBatchCountsOnce) {
  Join(1, 2);
  const std::string job = Submit();
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(Report(1, 1, {"n1/0", job, 1, 0}, LogLines{{"hello"}}).ok());
  }
  EXPECT_EQ(Job(job).history().Logs(-1, 0, 10).size(), 1u);
  EXPECT_EQ(Sent<AckMessage>(1).size(), 2u);
  EXPECT_EQ(Report(1, 5, {"n1/0", job, 1, 0}, LogLines{{"gap"}}).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(CoordinatorTest, AReconnectedAgentIsToldAllThatCounts) {
  Join(1, 2);
  const std::string job = Submit({.save = "/ckpt"});
  ASSERT_TRUE(Report(1, 1, {"n1/0", job, 1, 0}, PublishUniqueIdMessage{1, "abcd"}).ok());
  ASSERT_TRUE(Handle(RequestDirective{.job_id = job}).status.ok());
  Handle(CloseStream{1});
  beating_.erase(1);
  ASSERT_TRUE(Handle(RequestDirective{.job_id = job}).status.ok());  // while it is away
  Connect(1, 1, 50);
  const auto welcome = Sent<WelcomeMessage>(50);
  ASSERT_EQ(welcome.size(), 1u);
  EXPECT_EQ(welcome[0].reports_through, 1);
  EXPECT_EQ(welcome[0].running.size(), 2u);
  EXPECT_EQ(Sent<LaunchMessage>(50).at(0).assignments.size(), 2u);
  EXPECT_EQ(Sent<UniqueIdBroadcast>(50).at(0).id, "abcd");
  const auto directives = Sent<DirectiveBroadcast>(50);
  ASSERT_EQ(directives.size(), 2u);
  EXPECT_EQ(directives[0].directive.number, 1);
  EXPECT_EQ(directives[1].directive.number, 2);
}

TEST_F(CoordinatorTest, AnAgentThatWasAwayAtTheEndIsToldToStop) {
  Join(1, 2);
  const std::string job = Submit();
  Handle(CloseStream{1});
  beating_.erase(1);
  ASSERT_TRUE(Handle(CancelJob{.job_id = job, .mode = CancelMode::kKill}).status.ok());
  EXPECT_FALSE(Job(job).released());
  Connect(1, 1, 50);
  EXPECT_EQ(Sent<AbortBroadcast>(50).size(), 1u);
  EXPECT_EQ(Sent<StopTrainerMessage>(50).size(), 2u);
  EXPECT_TRUE(Sent<LaunchMessage>(50).empty());
}

TEST_F(CoordinatorTest, TheEndOfAnEpochFreesWaitingCalls) {
  Join(1, 2);
  const std::string job = Submit();
  const WaitPrefix wait{
      .token = 7, .job_id = job, .epoch = 1, .prefix = "g", .count = 2, .limit = absl::Seconds(30)};
  ASSERT_TRUE(Handle(wait).status.ok());
  EXPECT_TRUE(waits_.empty());
  Handle(CancelJob{.job_id = job});
  EXPECT_EQ(waits_.at(7).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Handle(SetKey{.job_id = job, .epoch = 1, .key = "g"}).status.code(),
            absl::StatusCode::kAborted);
}

TEST_F(CoordinatorTest, DrainedWorkersGetNoNewJobs) {
  Join(1);
  Join(2);
  ASSERT_TRUE(Handle(DrainWorker{.worker = "n2/0"}).status.ok());
  const std::string job = Submit();
  EXPECT_EQ(Job(job).state(), JobState::kQueued);
  ASSERT_TRUE(Handle(DrainWorker{.worker = "n2/0", .undo = true}).status.ok());
  EXPECT_EQ(Job(job).state(), JobState::kForming);
}

TEST_F(CoordinatorTest, SparesAreHeldWithATrainerUntilThatHasEnded) {
  Join(1, 3);
  const std::string job = Submit({.spares = 1});
  ASSERT_EQ(Job(job).num_spares(), 1);
  const std::string spare = Job(job).extras()[0].slot.worker;
  const auto launches = Sent<LaunchMessage>(1);
  ASSERT_EQ(launches.size(), 1u);
  ASSERT_EQ(launches[0].assignments.size(), 3u);
  EXPECT_EQ(launches[0].assignments[2].worker, spare);
  EXPECT_EQ(launches[0].assignments[2].rank, -1);
  Handle(CancelJob{.job_id = job, .mode = CancelMode::kKill});
  EXPECT_FALSE(core_->membership().IsIdle(*core_->membership().FindWorker(spare)));
  Handle(ReportBatch{1, 1, {{{spare, job, 1, -1}, ExitedReport{.signal = 9}}}});
  EXPECT_TRUE(core_->membership().IsIdle(*core_->membership().FindWorker(spare)));
}

TEST_F(CoordinatorTest, UnknownNamesAreNotFound) {
  EXPECT_EQ(Handle(CancelJob{.job_id = "x"}).status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Handle(RequestDirective{.job_id = "x"}).status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Handle(DrainWorker{.worker = "x"}).status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Handle(OpenStream{"incarnation-x", 9}).status.code(), absl::StatusCode::kAborted);
}

TEST_F(CoordinatorTest, TheQueueAndTheJobsHeldAreBounded) {
  UseLimits({.max_waiting_jobs = 2, .max_jobs = 3});
  const std::string first = Submit();
  const std::string second = Submit();
  EXPECT_EQ(Handle(SubmitJob{.spec_json = TestSpec()}).status.code(),
            absl::StatusCode::kResourceExhausted);
  Handle(CancelJob{.job_id = first});
  Submit();
  Handle(CancelJob{.job_id = second});
  Submit();  // the oldest ended job makes room
  EXPECT_EQ(core_->FindJob(first), nullptr);
  EXPECT_EQ(core_->jobs().size(), 3u);
}

}  // namespace
}  // namespace muster
