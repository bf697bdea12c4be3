#include "coordinator/server/server.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <future>

#include "common/rpc/channel.h"
#include "common/rpc/convert.h"
#include "muster/v1/job.grpc.pb.h"
#include "muster/v1/rendezvous.grpc.pb.h"
#include "muster/v1/training.grpc.pb.h"
#include "tests/coordinator/core/test_spec.h"
#include "tests/coordinator/server/fake_agent.h"

namespace muster {
namespace {

using testing::HasSubstr;

class ServerTest : public testing::Test {
 protected:
  void SetUp() override { Start({.listen = "127.0.0.1:0"}); }
  void Start(ServerOptions options, Clock* clock = nullptr) {
    // A fake agent sends no heartbeats: on the real clock they are not missed.
    if (clock == nullptr) {
      options.engine.core.membership.heartbeat_interval = absl::Minutes(2);
      options.engine.core.membership.heartbeat_timeout = absl::Minutes(5);
    }
    auto server = CoordinatorServer::Start(options, clock == nullptr ? &clock_ : clock);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    const auto channel = NewChannel(server_->address());
    jobs_ = v1::JobService::NewStub(channel);
    training_ = v1::TrainingService::NewStub(channel);
    rendezvous_ = v1::RendezvousService::NewStub(channel);
    membership_ = v1::MembershipService::NewStub(channel);
  }
  template <typename Stub, typename Request, typename Response>
  grpc::Status Call(const std::unique_ptr<Stub>& stub,
                    grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response) {
    grpc::ClientContext context;
    SetDeadline(&context, absl::Seconds(60));
    return ((*stub).*method)(&context, request, response);
  }
  v1::SubmitJobResponse Submit(const std::string& spec) {
    v1::SubmitJobRequest request;
    request.set_spec_json(spec);
    v1::SubmitJobResponse response;
    EXPECT_TRUE(Call(jobs_, &v1::JobService::Stub::SubmitJob, request, &response).ok());
    return response;
  }
  v1::JobStatus Get(const std::string& job_id, int64_t known_version = 0,
                    absl::Duration wait = absl::ZeroDuration()) {
    v1::GetJobRequest request;
    request.set_job_id(job_id);
    request.set_known_version(known_version);
    *request.mutable_wait() = ToProto(wait);
    v1::GetJobResponse response;
    const grpc::Status status = Call(jobs_, &v1::JobService::Stub::GetJob, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.job();
  }
  // Follows the job as `watch` does.
  template <typename Reached>
  v1::JobStatus WatchUntil(const std::string& job_id, Reached reached) {
    v1::JobStatus job = Get(job_id);
    while (!reached(job)) {
      const int64_t before = job.version();
      job = Get(job_id, before, absl::Seconds(30));
      if (job.version() == before) {
        ADD_FAILURE() << "no news of " << job.ShortDebugString();
        break;
      }
    }
    return job;
  }
  static v1::Launch LaunchOf(FakeAgent* agent) {
    const v1::ConnectResponse response = agent->Next();
    EXPECT_TRUE(response.has_launch()) << response.ShortDebugString();
    return response.launch();
  }

  RealClock clock_;
  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
  std::unique_ptr<v1::TrainingService::Stub> training_;
  std::unique_ptr<v1::RendezvousService::Stub> rendezvous_;
  std::unique_ptr<v1::MembershipService::Stub> membership_;
};

TEST_F(ServerTest, ABadSpecReturnsAllItsProblems) {
  const auto response = Submit(R"({"model": {"hiden_size": 64}, "optimizer": {"lr": "x"}})");
  EXPECT_EQ(response.job_id(), "");
  std::vector<std::string> fields;
  for (const auto& problem : response.problems()) fields.push_back(problem.field());
  EXPECT_THAT(fields, testing::IsSupersetOf({"model.hiden_size", "optimizer.lr"}));
  v1::ListJobsResponse list;
  ASSERT_TRUE(Call(jobs_, &v1::JobService::Stub::ListJobs, v1::ListJobsRequest(), &list).ok());
  EXPECT_EQ(list.jobs_size(), 0);
}

TEST_F(ServerTest, TwoAgentsTrainAJobToItsEnd) {
  FakeAgent a(server_->address(), "a"), b(server_->address(), "b");
  const std::string job_id = Submit(TestSpec()).job_id();
  ASSERT_NE(job_id, "");
  EXPECT_THAT(Get(job_id).reason(), HasSubstr("have 0 of 2 cpu workers; waiting for 2 more"));
  a.Join();
  b.Join();
  const v1::Launch launch_a = LaunchOf(&a), launch_b = LaunchOf(&b);
  EXPECT_EQ(launch_a.epoch(), 1);
  EXPECT_EQ(launch_a.assignments(0).host_address(), "127.0.0.1");

  // The first line that anybody makes is the unique ID of rank 0.
  FakeAgent& zero = launch_a.assignments(0).rank() == 0 ? a : b;
  const v1::Launch& launch_zero = &zero == &a ? launch_a : launch_b;
  FakeAgent& one = &zero == &a ? b : a;
  const v1::Launch& launch_one = &zero == &a ? launch_b : launch_a;
  zero.Report(launch_zero, [](auto* r) { r->mutable_unique_id()->set_id("c0ffee"); });
  EXPECT_EQ(zero.Next().unique_id().id(), "c0ffee");
  EXPECT_EQ(one.Next().unique_id().id(), "c0ffee");

  for (int i = 1; i <= 10; ++i) {
    one.Report(launch_one, [i](auto* r) {
      r->mutable_step()->set_iteration(i);
      r->mutable_step()->set_lm_loss(5.0 / i);
      r->mutable_step()->set_consumed_samples(2 * i);
    });
  }
  zero.Report(launch_zero, [](auto* r) {
    r->mutable_evaluation()->set_iteration(10);
    r->mutable_evaluation()->set_split("valid");
    r->mutable_evaluation()->set_lm_loss(0.5);
  });
  zero.Report(launch_zero, [](auto* r) {
    r->mutable_log()->add_lines("hello");
    r->mutable_log()->add_lines("world");
  });
  for (auto& [agent, launch] : {std::pair(&zero, &launch_zero), std::pair(&one, &launch_one)}) {
    agent->Report(*launch, [](auto* r) { r->mutable_done()->set_reason("trained 10 iterations"); });
  }
  const v1::JobStatus done = WatchUntil(job_id, [](const auto& job) { return job.ended(); });
  EXPECT_EQ(done.state(), v1::JOB_STATE_COMPLETED);
  EXPECT_EQ(done.exit_code(), 0);
  EXPECT_EQ(done.iteration(), 10);
  EXPECT_EQ(done.consumed_samples(), 20);
  EXPECT_EQ(done.last().step().lm_loss(), 0.5);
  EXPECT_EQ(done.evaluations_size(), 1);
  EXPECT_TRUE(zero.Next().has_stop());
  EXPECT_TRUE(one.Next().has_stop());
  zero.Report(launch_zero, [](auto* r) { r->mutable_exited()->set_exit_code(0); });
  one.Report(launch_one, [](auto* r) { r->mutable_exited()->set_exit_code(0); });
  WatchUntil(job_id, [](const auto& job) { return job.workers_released(); });

  v1::GetMetricsRequest metrics;
  metrics.set_job_id(job_id);
  metrics.set_since(9);
  v1::GetMetricsResponse page;
  ASSERT_TRUE(Call(training_, &v1::TrainingService::Stub::GetMetrics, metrics, &page).ok());
  ASSERT_EQ(page.records_size(), 2);
  EXPECT_EQ(page.records(0).step().iteration(), 9);
  EXPECT_EQ(page.next(), 11);
  EXPECT_TRUE(page.job_ended());

  v1::ReadLogsRequest logs;
  logs.set_job_id(job_id);
  logs.set_rank(0);
  v1::ReadLogsResponse lines;
  ASSERT_TRUE(Call(jobs_, &v1::JobService::Stub::ReadLogs, logs, &lines).ok());
  ASSERT_EQ(lines.lines_size(), 2);
  EXPECT_EQ(lines.lines(1).text(), "world");
  logs.set_rank(2);
  EXPECT_EQ(Call(jobs_, &v1::JobService::Stub::ReadLogs, logs, &lines).error_code(),
            grpc::StatusCode::NOT_FOUND);

  v1::GetTopologyRequest where;
  where.set_job_id(job_id);
  v1::GetTopologyResponse topology;
  ASSERT_TRUE(Call(jobs_, &v1::JobService::Stub::GetTopology, where, &topology).ok());
  EXPECT_EQ(topology.ranks(1).dp(), 1);
  EXPECT_EQ(topology.ranks(1).worker(), launch_one.assignments(0).worker());
}

TEST_F(ServerTest, ATrainerThatDiesFailsTheJobWithItsLastWords) {
  FakeAgent a(server_->address(), "a", 2);
  a.Join();
  const std::string job_id = Submit(TestSpec()).job_id();
  const v1::Launch launch = LaunchOf(&a);
  a.Report(
      launch,
      [](auto* r) {
        r->mutable_exited()->set_signal(9);
        r->mutable_exited()->add_last_log_lines("out of memory");
      },
      1);
  EXPECT_TRUE(a.Next().has_abort());
  const v1::ConnectResponse stop = a.Next();
  ASSERT_TRUE(stop.has_stop());
  EXPECT_EQ(stop.stop().worker(), launch.assignments(0).worker());
  const v1::JobStatus job = Get(job_id);
  EXPECT_EQ(job.state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(job.exit_code(), 1);
  EXPECT_EQ(job.cause().rank(), 1);
  EXPECT_EQ(job.cause().signal(), 9);
  EXPECT_EQ(job.cause().node(), "a");
  EXPECT_EQ(job.cause().last_log_lines(0), "out of memory");
  a.Report(launch, [](auto* r) { r->mutable_exited()->set_exit_code(1); });
  WatchUntil(job_id, [](const auto& j) { return j.workers_released(); });
  v1::ListWorkersResponse workers;
  ASSERT_TRUE(Call(membership_, &v1::MembershipService::Stub::ListWorkers, v1::ListWorkersRequest(),
                   &workers)
                  .ok());
  ASSERT_EQ(workers.workers_size(), 2);
  for (const auto& worker : workers.workers()) EXPECT_EQ(worker.job_id(), "");
}

TEST_F(ServerTest, AStreamThatIsLostFailsTheJob) {
  server_.reset();
  FakeClock clock;
  Start({.listen = "127.0.0.1:0"}, &clock);
  FakeAgent a(server_->address(), "a", 2);
  a.Join();
  const std::string job_id = Submit(TestSpec()).job_id();
  LaunchOf(&a);
  a.Vanish();
  int beats =
      0;  // of the limit's 15 tenths of a second, at most twice: the break counts as a sign of life
  v1::JobStatus job = Get(job_id);
  for (; !job.ended() && beats < 40; ++beats) {
    clock.Advance(absl::Milliseconds(100));
    job = Get(job_id);
  }
  EXPECT_GE(beats, 15);
  EXPECT_EQ(job.state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(job.reason(), HasSubstr("was lost"));
  EXPECT_TRUE(job.workers_released());
  server_.reset();  // before its clock
}

TEST_F(ServerTest, AStaleEpochIsRefusedAndAWaitEndsWithItsEpoch) {
  FakeAgent a(server_->address(), "a", 2);
  a.Join();
  const std::string job_id = Submit(TestSpec()).job_id();
  LaunchOf(&a);
  v1::SetKeyRequest set;
  set.set_job_id(job_id);
  set.set_epoch(2);
  set.set_key("k");
  v1::SetKeyResponse set_response;
  EXPECT_EQ(
      Call(rendezvous_, &v1::RendezvousService::Stub::SetKey, set, &set_response).error_code(),
      grpc::StatusCode::ABORTED);
  set.set_epoch(1);
  EXPECT_TRUE(Call(rendezvous_, &v1::RendezvousService::Stub::SetKey, set, &set_response).ok());

  v1::WaitPrefixRequest wait;
  wait.set_job_id(job_id);
  wait.set_epoch(1);
  wait.set_prefix("k");
  wait.set_count(1);
  *wait.mutable_limit() = ToProto(absl::Seconds(30));
  v1::WaitPrefixResponse found;
  ASSERT_TRUE(Call(rendezvous_, &v1::RendezvousService::Stub::WaitPrefix, wait, &found).ok());
  ASSERT_EQ(found.entries_size(), 1);
  EXPECT_EQ(found.entries(0).key(), "k");

  wait.set_count(2);
  auto waiting = std::async(std::launch::async, [&] {
    v1::WaitPrefixResponse response;
    return Call(rendezvous_, &v1::RendezvousService::Stub::WaitPrefix, wait, &response);
  });
  v1::CancelJobRequest cancel;
  cancel.set_job_id(job_id);
  v1::CancelJobResponse cancelled;
  ASSERT_TRUE(Call(jobs_, &v1::JobService::Stub::CancelJob, cancel, &cancelled).ok());
  EXPECT_EQ(cancelled.job().state(), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(waiting.get().error_code(), grpc::StatusCode::ABORTED);
}

TEST_F(ServerTest, AWaitThatIsNotMetSaysHowManyAreThere) {
  FakeAgent a(server_->address(), "a", 2);
  a.Join();
  v1::WaitPrefixRequest wait;
  wait.set_job_id(Submit(TestSpec()).job_id());
  LaunchOf(&a);
  wait.set_epoch(1);
  wait.set_prefix("k");
  wait.set_count(3);
  *wait.mutable_limit() = ToProto(absl::Milliseconds(1));
  v1::WaitPrefixResponse response;
  const grpc::Status status =
      Call(rendezvous_, &v1::RendezvousService::Stub::WaitPrefix, wait, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(), HasSubstr("0 of 3"));
}

TEST_F(ServerTest, StreamsThatAreOutOfPlaceAreRefused) {
  FakeAgent unknown(server_->address(), "unknown");
  unknown.Connect();
  EXPECT_FALSE(unknown.Next().has_welcome());
  EXPECT_EQ(unknown.Finish().error_code(), grpc::StatusCode::ABORTED);

  FakeAgent a(server_->address(), "a");
  a.Join();
  FakeAgent twin(server_->address(), "a");  // the same incarnation again
  twin.Join();
  EXPECT_EQ(a.Next().message_case(), v1::ConnectResponse::MESSAGE_NOT_SET);
  EXPECT_EQ(a.Finish().error_code(), grpc::StatusCode::ABORTED);

  FakeAgent b(server_->address(), "b");
  v1::RegisterResponse response;
  ASSERT_TRUE(b.Register(&response).ok());
  EXPECT_EQ(response.observed_address(), "127.0.0.1");
  grpc::ClientContext context;
  const auto stream = membership_->Connect(&context);
  v1::ConnectRequest request;
  request.mutable_heartbeat()->set_sequence(1);
  stream->Write(request);
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ServerTest, RequestsReachEveryTrainerOnce) {
  FakeAgent a(server_->address(), "a", 2);
  a.Join();
  const std::string job_id = Submit(TestSpec({.save = "/tmp/muster-test"})).job_id();
  LaunchOf(&a);
  v1::RequestCheckpointRequest request;
  request.set_job_id(job_id);
  v1::RequestCheckpointResponse response;
  ASSERT_TRUE(
      Call(training_, &v1::TrainingService::Stub::RequestCheckpoint, request, &response).ok());
  EXPECT_EQ(response.directive(), 1);
  const v1::ConnectResponse directive = a.Next();
  EXPECT_EQ(directive.directive().number(), 1);
  EXPECT_EQ(directive.directive().kind(), v1::DIRECTIVE_KIND_CHECKPOINT);
  request.set_job_id("job-99");
  EXPECT_EQ(Call(training_, &v1::TrainingService::Stub::RequestCheckpoint, request, &response)
                .error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(ServerTest, StopEndsStreamsAndWatchesWithinTwoSeconds) {
  FakeAgent a(server_->address(), "a", 2);
  a.Join();
  const std::string job_id = Submit(TestSpec()).job_id();
  LaunchOf(&a);
  const int64_t version = Get(job_id).version();
  auto watching = std::async(std::launch::async, [&] {
    v1::GetJobRequest request;
    request.set_job_id(job_id);
    request.set_known_version(version);
    *request.mutable_wait() = ToProto(absl::Seconds(50));
    v1::GetJobResponse response;
    return Call(jobs_, &v1::JobService::Stub::GetJob, request, &response);
  });
  const absl::Duration start = clock_.Steady();
  server_->Stop();
  EXPECT_LT(clock_.Steady() - start, absl::Seconds(2));
  watching.get();  // it returns at all
  EXPECT_EQ(a.Next().message_case(), v1::ConnectResponse::MESSAGE_NOT_SET);
  EXPECT_EQ(a.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(ServerTest, ATakenPortSaysWhoHoldsIt) {
  const auto second = CoordinatorServer::Start({.listen = server_->address()}, &clock_);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(
      std::string(second.status().message()),
      testing::AllOf(HasSubstr(server_->address()), HasSubstr(absl::StrCat("process ", getpid()))));
}

TEST_F(ServerTest, OtherMachinesAreNotServedWithoutAToken) {
  for (const char* listen : {"0.0.0.0:0", "10.1.2.3:7700"}) {
    const auto server = CoordinatorServer::Start({.listen = listen}, &clock_);
    EXPECT_EQ(server.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(server.status().message()), HasSubstr("--token-file FILE"));
  }
  const auto server =
      CoordinatorServer::Start({.listen = "127.0.0.1:0", .http = "0.0.0.0:0"}, &clock_);
  EXPECT_EQ(server.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(server.status().message()), HasSubstr("http=0.0.0.0:0"));
}

}  // namespace
}  // namespace muster
