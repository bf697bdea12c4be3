// metrics and events of a run that is longer than what memory holds, and of one before a restart.
#include <gtest/gtest.h>

#include "common/rpc/channel.h"
#include "coordinator/server/server.h"
#include "muster/v1/job.grpc.pb.h"
#include "muster/v1/training.grpc.pb.h"
#include "tests/coordinator/core/test_spec.h"
#include "tests/coordinator/server/fake_agent.h"
#include "tests/support/memory_journal.h"

namespace muster {
namespace {

class LedgerTest : public testing::Test {
 protected:
  void SetUp() override { Start(); }
  void Start() {
    server_ = nullptr;
    ServerOptions options{.listen = "127.0.0.1:0"};
    options.journal = &journal_;
    options.engine.core.jobs.history.max_steps = 4;
    options.engine.core.jobs.history.max_events = 3;  // as many as one batch of the engine brings
    options.engine.core.membership.heartbeat_interval = absl::Minutes(2);
    options.engine.core.membership.heartbeat_timeout = absl::Minutes(5);
    auto server = CoordinatorServer::Start(options, &clock_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    const auto channel = NewChannel(server_->address());
    jobs_ = v1::JobService::NewStub(channel);
    training_ = v1::TrainingService::NewStub(channel);
  }
  // All iterations, page by page.
  std::vector<int64_t> Iterations(const std::string& job, int64_t since, int page_size) {
    std::vector<int64_t> iterations;
    for (int pages = 0; pages < 100; ++pages) {
      v1::GetMetricsRequest request;
      request.set_job_id(job);
      request.set_since(since);
      request.set_limit(page_size);
      v1::GetMetricsResponse response;
      grpc::ClientContext context;
      SetDeadline(&context, absl::Seconds(60));
      const grpc::Status status = training_->GetMetrics(&context, request, &response);
      EXPECT_TRUE(status.ok()) << status.error_message();
      for (const auto& record : response.records()) {
        iterations.push_back(record.step().iteration());
      }
      EXPECT_LE(response.records_size(), page_size);
      EXPECT_LE(response.oldest(), std::max<int64_t>(since, 1)) << "nothing is missing";
      if (response.records_size() == 0) break;
      since = response.next();
    }
    return iterations;
  }
  std::vector<std::string> Events(const std::string& job) {
    v1::GetEventsRequest request;
    request.set_job_id(job);
    v1::GetEventsResponse response;
    grpc::ClientContext context;
    SetDeadline(&context, absl::Seconds(60));
    EXPECT_TRUE(training_->GetEvents(&context, request, &response).ok());
    std::vector<std::string> kinds;
    for (const auto& event : response.events()) kinds.push_back(event.kind());
    return kinds;
  }

  RealClock clock_;
  MemoryJournal journal_;
  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
  std::unique_ptr<v1::TrainingService::Stub> training_;
};

TEST_F(LedgerTest, TheWholeRunIsReadAlsoAfterARestart) {
  std::string job;
  std::vector<int64_t> all;
  {
    FakeAgent agent(server_->address(), "n1");
    agent.Join();
    v1::SubmitJobRequest request;
    request.set_spec_json(TestSpec({.world_size = 1, .train_iters = 100}));
    v1::SubmitJobResponse response;
    grpc::ClientContext context;
    ASSERT_TRUE(jobs_->SubmitJob(&context, request, &response).ok());
    job = response.job_id();
    const v1::ConnectResponse launch = agent.Next();
    ASSERT_TRUE(launch.has_launch());
    for (int64_t i = 1; i <= 25; ++i) {
      agent.Report(launch.launch(), [i](auto* r) { r->mutable_step()->set_iteration(i); });
      all.push_back(i);
    }
    // Answered when all before them were taken.
    agent.Report(launch.launch(), [](auto* r) { r->mutable_done()->set_reason("trained"); });
    ASSERT_TRUE(agent.Next().has_stop());
    for (const int page_size : {1, 4, 10, 24, 25, 1000}) {
      EXPECT_EQ(Iterations(job, 0, page_size), all) << page_size;
    }
    EXPECT_EQ(Iterations(job, 20, 3), std::vector<int64_t>({20, 21, 22, 23, 24, 25}));
    EXPECT_EQ(Events(job).front(), "submitted");
    EXPECT_EQ(Events(job).back(), "completed");
  }
  Start();
  EXPECT_EQ(server_->restored().num_jobs, 1u);
  EXPECT_EQ(Iterations(job, 0, 10), all);
  EXPECT_EQ(Events(job).front(), "submitted");
}

}  // namespace
}  // namespace muster
