// What the server gives at most, over real connections.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <list>

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
  for (int i = 0; i < 4; ++i) {
    Call& call = calls.emplace_back();
    SetDeadline(&call.context, absl::Seconds(60));
    ends.push_back(call.ended.get_future());
    jobs->async()->GetJob(&call.context, &request, &call.response,
                          [&call](grpc::Status status) { call.ended.set_value(status); });
  }
  const grpc::Status refused = ends.back().get();  // calls of one connection arrive in order
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), AllOf(HasSubstr("waiting calls"), HasSubstr("at most 3")));
  // Another client is not concerned.
  EXPECT_NE(Submit(Jobs().get()), "");
  for (Call& call : calls) call.context.TryCancel();
  for (size_t i = 0; i + 1 < ends.size(); ++i) ends[i].get();
  // Nor is this one, once it has let go.
  EXPECT_NE(Submit(jobs.get()), "");
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

// A client that keeps `depth` requests in flight, by asking again as soon as an answer comes.
class Flood {
 public:
  Flood(const std::string& address, int depth)
      : stub_(v1::JobService::NewStub(NewChannel(address))), calls_(depth) {
    for (Call& call : calls_) Ask(&call);
  }
  ~Flood() {
    stopping_ = true;
    MutexLock lock(&mu_);
    while (running_ > 0) ended_.Wait(&mu_);
  }
  int64_t answers() const { return answers_; }

 private:
  struct Call {
    std::unique_ptr<grpc::ClientContext> context;
    v1::ListJobsRequest request;
    v1::ListJobsResponse response;
  };
  void Ask(Call* call) {
    {
      MutexLock lock(&mu_);
      ++running_;
    }
    call->context = std::make_unique<grpc::ClientContext>();
    SetDeadline(call->context.get(), absl::Seconds(60));
    stub_->async()->ListJobs(call->context.get(), &call->request, &call->response,
                             [this, call](grpc::Status status) {
                               if (status.ok()) ++answers_;
                               if (!stopping_) Ask(call);
                               MutexLock lock(&mu_);
                               if (--running_ == 0) ended_.NotifyAll();
                             });
  }

  const std::unique_ptr<v1::JobService::Stub> stub_;
  std::vector<Call> calls_;
  std::atomic<int64_t> answers_ = 0;
  std::atomic<bool> stopping_ = false;
  Mutex mu_;
  CondVar ended_;
  int running_ ABSL_GUARDED_BY(mu_) = 0;
};

// How many answers the flood gets for each one of a client that asks one thing at a time.
int64_t AnswersOfAFloodPerOther(v1::JobService::Stub* other, Flood* flood) {
  const int kRequests = 20;
  const int64_t before = flood->answers();
  for (int i = 0; i < kRequests; ++i) {
    grpc::ClientContext context;
    SetDeadline(&context, absl::Seconds(60));
    v1::ListJobsResponse response;
    EXPECT_TRUE(other->ListJobs(&context, {}, &response).ok());
  }
  return (flood->answers() - before) / kRequests;
}

TEST_F(LimitsTest, AFloodFromOneClientSlowsNobodyElse) {
  // In one queue, each request of the other client waits behind all that the flood has in flight.
  // With turns it waits behind a few, and behind what gRPC itself has at hand: the stated factor is
  // a quarter of the flood's depth, and in fact it is far less.
  const int kDepth = 2'000;
  Start({.max_turns_per_client = 4});
  for (int i = 0; i < 20; ++i)
    Submit(Jobs().get());  // so that a request costs the engine something
  const auto other = Jobs();
  Flood flood(server_->address(), kDepth);
  const int64_t with_turns = AnswersOfAFloodPerOther(other.get(), &flood);
  EXPECT_LT(with_turns, kDepth / 4);
}

}  // namespace
}  // namespace muster
