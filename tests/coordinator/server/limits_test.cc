// What the server gives at most, over real connections.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <list>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"

#include "common/rpc/channel.h"
#include "common/rpc/convert.h"
#include "coordinator/server/server.h"
#include "muster/v1/job.grpc.pb.h"
#include "tests/coordinator/core/test_spec.h"
#include "tests/coordinator/server/fake_agent.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class LimitsTest : public testing::Test {
 protected:
  void Start(const ServerLimits& limits, Clock* clock = nullptr) {
    ServerOptions options{.listen = "127.0.0.1:0", .limits = limits};
    options.engine.core.membership.heartbeat_interval = absl::Minutes(2);
    options.engine.core.membership.heartbeat_timeout = absl::Minutes(5);
    auto server = CoordinatorServer::Start(options, clock != nullptr ? clock : &clock_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::unique_ptr<v1::JobService::Stub> Jobs() {
    return v1::JobService::NewStub(NewChannel(server_->address()));
  }
  static std::string Submit(v1::JobService::Stub* jobs) {
    grpc::ClientContext context;
    SetDeadline(&context, absl::Seconds(60));
    v1::SubmitJobRequest request;
    request.set_spec_json(TestSpec());
    v1::SubmitJobResponse response;
    EXPECT_TRUE(jobs->SubmitJob(&context, request, &response).ok());
    return response.job_id();
  }

  RealClock clock_;
  std::unique_ptr<CoordinatorServer> server_;
};

TEST_F(LimitsTest, StreamsOfOneAddressAreBounded) {
  Start({.max_streams_per_address = 2});
  FakeAgent a(server_->address(), "a"), b(server_->address(), "b"), c(server_->address(), "c");
  a.Join();
  b.Join();
  c.Connect();
  EXPECT_FALSE(c.Next().has_welcome());
  const grpc::Status refused = c.Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), AllOf(HasSubstr("127.0.0.1"), HasSubstr("at most 2")));
}

TEST_F(LimitsTest, AStreamThatNeverSaysHelloIsClosed) {
  FakeClock clock;
  Start({.hello_limit = absl::Seconds(10)}, &clock);
  FakeAgent greeted(server_->address(), "greeted");
  greeted.Join();
  const auto stub = v1::MembershipService::NewStub(NewChannel(server_->address()));
  grpc::ClientContext context;
  SetDeadline(&context, absl::Seconds(60));
  const auto silent = stub->Connect(&context);
  auto ended = std::async(std::launch::async, [&] { return silent->Finish(); });
  // The server may see the stream only after some of these steps; the limit counts from then on.
  while (ended.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    clock.Advance(absl::Seconds(1));
  }
  const grpc::Status status = ended.get();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(), HasSubstr("no hello within 10s"));
  server_.reset();  // before its clock
}

TEST_F(LimitsTest, MoreHeartbeatsThanATickHoldsAreReadLater) {
  Start({.max_heartbeats_per_tick = 1});
  FakeAgent a(server_->address(), "a", 2);
  a.Join();
  for (int i = 0; i < 5; ++i) a.Beat();
  // Behind all of them comes a report: it gets through, so none of them stops the stream for good.
  const auto jobs = Jobs();
  const std::string job_id = Submit(jobs.get());
  const v1::ConnectResponse launch = a.Next();
  ASSERT_TRUE(launch.has_launch());
  a.Report(launch.launch(), [](auto* r) { r->mutable_unique_id()->set_id("c0ffee"); });
  EXPECT_EQ(a.Next().unique_id().id(), "c0ffee");
}

TEST_F(LimitsTest, WaitingCallsOfAClientAreBounded) {
  Start({.max_waits_per_client = 3});
  const auto jobs = Jobs();
  const std::string job_id = Submit(jobs.get());
  v1::GetJobRequest request;
  request.set_job_id(job_id);
  request.set_known_version(1'000);
  *request.mutable_wait() = ToProto(absl::Seconds(50));
  struct Call {
    grpc::ClientContext context;
    v1::GetJobResponse response;
    std::promise<grpc::Status> ended;
  };
  std::list<Call> calls;
  std::vector<std::future<grpc::Status>> ends;
  // One of the four is refused at once, whichever the server's threads counted last; the others
  // wait.
  std::promise<grpc::Status> first;
  std::atomic<bool> is_first = true;
  for (int i = 0; i < 4; ++i) {
    Call& call = calls.emplace_back();
    SetDeadline(&call.context, absl::Seconds(60));
    ends.push_back(call.ended.get_future());
    jobs->async()->GetJob(&call.context, &request, &call.response,
                          [&call, &first, &is_first](grpc::Status status) {
                            if (is_first.exchange(false)) first.set_value(status);
                            call.ended.set_value(status);
                          });
  }
  const grpc::Status refused = first.get_future().get();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), AllOf(HasSubstr("waiting calls"), HasSubstr("at most 3")));
  // Another client is not concerned.
  EXPECT_NE(Submit(Jobs().get()), "");
  for (Call& call : calls) call.context.TryCancel();
  for (std::future<grpc::Status>& end : ends) end.get();
  // Nor is this one, once it has let go.
  EXPECT_NE(Submit(jobs.get()), "");
}

TEST_F(LimitsTest, ALongReasonIsCutAtACharacter) {
  Start({});
  const auto jobs = Jobs();
  grpc::ClientContext context;
  SetDeadline(&context, absl::Seconds(60));
  v1::CancelJobRequest request;
  request.set_job_id(Submit(jobs.get()));
  for (int i = 0; i < 100'000; ++i) request.mutable_reason()->append("\u20ac");
  v1::CancelJobResponse response;
  const grpc::Status status = jobs->CancelJob(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(response.job().reason(), HasSubstr("\u20ac\u20ac"));
  EXPECT_LT(response.job().reason().size(), 1'200u);
}

TEST_F(LimitsTest, TooLargeAMessageIsRefusedWithItsLimit) {
  Start({});
  grpc::ClientContext context;
  SetDeadline(&context, absl::Seconds(60));
  v1::SubmitJobRequest request;
  request.set_spec_json(std::string(kMaxMessageBytes + 1, ' '));
  v1::SubmitJobResponse response;
  grpc::ChannelArguments unlimited;
  const auto stub = v1::JobService::NewStub(
      grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(), unlimited));
  const grpc::Status status = stub->SubmitJob(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr(absl::StrCat(kMaxMessageBytes)));
  EXPECT_NE(Submit(Jobs().get()), "");
}

// Holds the engine's thread, once, until it is told to go on.
class HeldJournal final : public Journal {
 public:
  absl::StatusOr<DurableState> Load(int64_t tail) override { return DurableState{}; }
  absl::Status Write(const DurableChanges& changes) override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<LedgerRow>> ReadLedger(int64_t job, LedgerKind kind, int64_t since,
                                                    int64_t limit) override {
    return std::vector<LedgerRow>();
  }
  absl::Status Maintain() override {
    if (!std::exchange(held_, true)) {
      reached_.set_value();
      go_on_.get_future().wait();
    }
    return absl::OkStatus();
  }
  void AwaitHeld() { reached_.get_future().wait(); }
  void GoOn() { go_on_.set_value(); }

 private:
  bool held_ = false;
  std::promise<void> reached_, go_on_;
};

// A client that sends submissions without waiting for answers.
class Submitter {
 public:
  explicit Submitter(const std::string& address)
      : stub_(v1::JobService::NewStub(NewChannel(address))) {}
  std::shared_future<grpc::Status> Send() {
    Call& call = calls_.emplace_back();
    SetDeadline(&call.context, absl::Seconds(60));
    call.request.set_spec_json(TestSpec());
    stub_->async()->SubmitJob(&call.context, &call.request, &call.response,
                              [&call](grpc::Status status) { call.ended.set_value(status); });
    return call.ended.get_future();
  }
  const std::string& JobId(size_t call) const {
    return std::next(calls_.begin(), call)->response.job_id();
  }

 private:
  struct Call {
    grpc::ClientContext context;
    v1::SubmitJobRequest request;
    v1::SubmitJobResponse response;
    std::promise<grpc::Status> ended;
  };
  const std::unique_ptr<v1::JobService::Stub> stub_;
  std::list<Call> calls_;
};

// Jobs are numbered in the order in which the engine handles their submissions, so the number that
// another client gets tells how much of the flood was handled before it.
TEST_F(LimitsTest, AFloodFromOneClientDelaysOthersByAtMostItsTurns) {
  const int kFlood = 400, kTurns = 4;
  HeldJournal journal;
  ServerOptions options{.listen = "127.0.0.1:0",
                        .limits = {.max_calls = kFlood + 1,
                                   .max_calls_per_client = kFlood,
                                   .max_turns_per_client = kTurns},
                        .journal = &journal};
  options.engine.maintain_every = absl::Milliseconds(1);
  auto server = CoordinatorServer::Start(options, &clock_);
  ASSERT_TRUE(server.ok()) << server.status();
  Submitter flood((*server)->address()), other((*server)->address());
  journal.AwaitHeld();  // from here on the engine handles nothing

  // One more than may be in progress: when that is refused, all others have arrived.
  std::vector<std::shared_future<grpc::Status>> answers;
  for (int i = 0; i < kFlood + 1; ++i) answers.push_back(flood.Send());
  const auto ready = [](const std::shared_future<grpc::Status>& answer) {
    return answer.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  const auto await_any = [&](const auto& of) {
    while (std::none_of(of.begin(), of.end(), ready))
      of.back().wait_for(std::chrono::milliseconds(5));
  };
  await_any(answers);
  // The same for the other client, by the limit of all.
  const std::vector<std::shared_future<grpc::Status>> others = {other.Send(), other.Send()};
  await_any(others);
  const size_t accepted = ready(others[0]) ? 1 : 0;
  EXPECT_EQ(others[1 - accepted].get().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);

  journal.GoOn();
  EXPECT_TRUE(others[accepted].get().ok());
  int refused = 0;
  for (const auto& answer : answers) refused += answer.get().ok() ? 0 : 1;
  EXPECT_EQ(refused, 1);
  int number = 0;
  ASSERT_TRUE(absl::SimpleAtoi(absl::StripPrefix(other.JobId(accepted), "job-"), &number))
      << other.JobId(accepted);
  EXPECT_LE(number, kTurns + 1);
}

}  // namespace
}  // namespace muster
