// Every RPC of every service, with requests made bad by a seeded mutator: as bytes that may be no
// message, as messages with extreme fields, and as streams in any order. The server must neither
// crash nor hang, must answer a good caller afterwards, and its core must be sound all the time.
//
// MUSTER_SEED (default 1) chooses the requests, MUSTER_ROUNDS (default 120) how many tens of them;
// a failure prints both. It ends after 10 s all the same, unless MUSTER_ROUNDS is set.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
#include "common/rpc/convert.h"
#include "coordinator/core/invariants.h"
#include "coordinator/server/access.h"
#include "coordinator/server/server.h"
#include "muster/v1/job.grpc.pb.h"
#include "muster/v1/rendezvous.grpc.pb.h"
#include "muster/v1/training.grpc.pb.h"
#include "tests/coordinator/core/test_spec.h"
#include "tests/coordinator/server/fake_agent.h"
#include "tests/coordinator/server/mutator.h"

namespace muster {
namespace {

using MessagePtr = std::shared_ptr<google::protobuf::Message>;
constexpr char kConnect[] = "/muster.v1.MembershipService/Connect";

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

grpc::ByteBuffer BufferOf(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return {&slice, 1};
}

template <typename Message, typename Fill>
MessagePtr Make(Fill fill) {
  auto message = std::make_shared<Message>();
  fill(message.get());
  return message;
}

// A good request of every unary RPC, about `job_id`.
std::map<std::string, MessagePtr> GoodRequests(const std::string& job_id) {
  const auto of_job = [&](auto* m) { m->set_job_id(job_id); };
  const auto page = [&](auto* m) {
    m->set_job_id(job_id);
    m->set_since(1);
    m->set_limit(10);
    m->mutable_wait()->set_nanos(1'000'000);
  };
  return {
      {"/muster.v1.MembershipService/Register", Make<v1::RegisterRequest>([](auto* m) {
         *m = FakeAgent("127.0.0.1:1", "fuzz", 2).Request();
       })},
      {"/muster.v1.MembershipService/DrainWorker",
       Make<v1::DrainWorkerRequest>([](auto* m) { m->set_worker("a/0"); })},
      {"/muster.v1.MembershipService/CordonWorker",
       Make<v1::CordonWorkerRequest>([](auto* m) { m->set_worker("a/0"); })},
      {"/muster.v1.JobService/ReplaceRank", Make<v1::ReplaceRankRequest>(of_job)},
      {"/muster.v1.MembershipService/ListWorkers", Make<v1::ListWorkersRequest>([](auto*) {})},
      {"/muster.v1.RendezvousService/SetKey", Make<v1::SetKeyRequest>([&](auto* m) {
         m->set_job_id(job_id);
         m->set_epoch(1);
         m->set_key("key");
         m->set_value("value");
       })},
      {"/muster.v1.RendezvousService/WaitPrefix", Make<v1::WaitPrefixRequest>([&](auto* m) {
         m->set_job_id(job_id);
         m->set_epoch(1);
         m->set_prefix("k");
         m->set_count(1);
         m->mutable_limit()->set_nanos(1'000'000);
       })},
      {"/muster.v1.JobService/SubmitJob", Make<v1::SubmitJobRequest>([](auto* m) {
         m->set_spec_json(TestSpec());
         m->set_idempotency_key("once");
       })},
      {"/muster.v1.JobService/CancelJob",
       Make<v1::CancelJobRequest>([](auto* m) { m->set_job_id("job-999999"); })},
      {"/muster.v1.JobService/ListJobs", Make<v1::ListJobsRequest>([](auto*) {})},
      {"/muster.v1.JobService/GetJob", Make<v1::GetJobRequest>([&](auto* m) {
         m->set_job_id(job_id);
         m->set_known_version(1);
         m->mutable_wait()->set_nanos(1'000'000);
       })},
      {"/muster.v1.JobService/GetTopology", Make<v1::GetTopologyRequest>(of_job)},
      {"/muster.v1.JobService/ReadLogs", Make<v1::ReadLogsRequest>(page)},
      {"/muster.v1.TrainingService/RequestCheckpoint", Make<v1::RequestCheckpointRequest>(of_job)},
      {"/muster.v1.TrainingService/RequestEvaluation", Make<v1::RequestEvaluationRequest>(of_job)},
      {"/muster.v1.TrainingService/RequestTrace", Make<v1::RequestTraceRequest>([&](auto* m) {
         m->set_job_id(job_id);
         m->set_iterations(2);
       })},
      {"/muster.v1.TrainingService/GetTrace", Make<v1::GetTraceRequest>(of_job)},
      {"/muster.v1.TrainingService/ReadTrace", Make<v1::ReadTraceRequest>(of_job)},
      {"/muster.v1.TrainingService/UploadTrace", Make<v1::UploadTraceRequest>([&](auto* m) {
         m->set_job_id(job_id);
         m->set_epoch(1);
         m->set_directive(1);
         m->set_data("[]");
       })},
      {"/muster.v1.TrainingService/GetMetrics", Make<v1::GetMetricsRequest>(page)},
      {"/muster.v1.TrainingService/GetEvents", Make<v1::GetEventsRequest>(page)},
  };
}

// Good messages of an agent's stream; `launch` is what that agent was told to run.
std::vector<v1::ConnectRequest> GoodMessages(const v1::Launch& launch,
                                             const std::string& incarnation) {
  std::vector<v1::ConnectRequest> messages(4);
  messages[0].mutable_hello()->set_incarnation(incarnation);
  messages[1].mutable_heartbeat()->set_sequence(7);
  auto* progress = messages[1].mutable_heartbeat()->add_progress();
  progress->set_job_id(launch.job_id());
  progress->set_epoch(launch.epoch());
  progress->set_iteration(3);
  messages[2].mutable_goodbye()->set_reason("done");
  messages[3].mutable_reports()->set_sequence(1);
  const auto report = [&](auto fill) {
    v1::TrainerReport* r = messages[3].mutable_reports()->add_reports();
    r->set_worker(launch.assignments(0).worker());
    r->set_job_id(launch.job_id());
    r->set_epoch(launch.epoch());
    r->set_rank(launch.assignments(0).rank());
    fill(r);
  };
  report([](auto* r) { r->mutable_phase()->set_phase("training"); });
  report([](auto* r) { r->mutable_unique_id()->set_id("c0ffee"); });
  report([](auto* r) {
    r->mutable_step()->set_iteration(1);
    r->mutable_step()->set_lm_loss(2);
    (*r->mutable_step()->mutable_timers_ms())["forward"] = 1;
  });
  report([](auto* r) { r->mutable_evaluation()->set_split("valid"); });
  report([](auto* r) { r->mutable_checkpoint()->set_path("/x"); });
  report([](auto* r) { r->mutable_event()->set_kind("note"); });
  report([](auto* r) { r->mutable_log()->add_lines("line"); });
  report([](auto* r) { r->mutable_failed()->set_reason("why"); });
  report([](auto* r) { r->mutable_done()->set_exit_code(0); });
  report([](auto* r) { r->mutable_exited()->set_exit_code(1); });
  return messages;
}

class FuzzTest : public testing::Test {
 protected:
  void SetUp() override {
    ServerOptions options{.listen = "127.0.0.1:0"};
    options.engine.core.membership.heartbeat_interval = absl::Minutes(2);
    options.engine.core.membership.heartbeat_timeout = absl::Minutes(5);
    auto server = CoordinatorServer::Start(options, &clock_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = NewChannel(server_->address());
    agent_ = std::make_unique<FakeAgent>(server_->address(), "a", 2);
    agent_->Join();
    v1::SubmitJobRequest request;
    request.set_spec_json(TestSpec({.save = "/tmp/muster-fuzz"}));
    v1::SubmitJobResponse response;
    ASSERT_TRUE(Submit(request, &response).ok());
    job_id_ = response.job_id();
    const v1::ConnectResponse told = agent_->Next();
    ASSERT_TRUE(told.has_launch());
    launch_ = told.launch();
  }
  grpc::Status Submit(const v1::SubmitJobRequest& request, v1::SubmitJobResponse* response) {
    grpc::ClientContext context;
    SetDeadline(&context, absl::Seconds(60));
    return v1::JobService::NewStub(channel_)->SubmitJob(&context, request, response);
  }
  bool Go(int round) const {
    return round < rounds_ && (long_run_ || clock_.Steady() - start_ < absl::Seconds(10));
  }
  // One unary call with these bytes; whatever it answers is right, as long as it answers.
  grpc::StatusCode Call(const std::string& path, const std::string& bytes) {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    SetDeadline(&context, absl::Seconds(5));
    std::promise<grpc::Status> ended;
    const grpc::ByteBuffer request = BufferOf(bytes);
    grpc::ByteBuffer response;
    stub.UnaryCall(&context, path, {}, &request, &response,
                   [&](grpc::Status status) { ended.set_value(status); });
    auto answer = ended.get_future();
    // Waits that were made long by the mutation are left early.
    if (answer.wait_for(std::chrono::milliseconds(100)) != std::future_status::ready) {
      context.TryCancel();
    }
    return answer.get().error_code();
  }
  void ExpectSound() {
    std::promise<std::vector<std::string>> wrong;
    ASSERT_TRUE(server_
                    ->Inspect([&](const absl::Status&, const Coordinator& core, absl::Time) {
                      wrong.set_value(checker_.Check(core));
                    })
                    .ok());
    EXPECT_THAT(wrong.get_future().get(), testing::IsEmpty());
  }
  // A new agent can join, and what people ask is answered.
  void ExpectServes() {
    FakeAgent late(server_->address(), "late");
    late.Join();
    for (const char* path :
         {"/muster.v1.JobService/ListJobs", "/muster.v1.MembershipService/ListWorkers"}) {
      EXPECT_EQ(Call(path, ""), grpc::StatusCode::OK) << path;
    }
    v1::GetJobRequest request;
    request.set_job_id(job_id_);
    EXPECT_EQ(Call("/muster.v1.JobService/GetJob", request.SerializeAsString()),
              grpc::StatusCode::OK);
    ExpectSound();
  }

  const int64_t seed_ = FromEnvironment("MUSTER_SEED", 1);
  const int64_t rounds_ = 10 * FromEnvironment("MUSTER_ROUNDS", 120);
  const bool long_run_ = std::getenv("MUSTER_ROUNDS") != nullptr;
  mutable RealClock clock_;
  const absl::Duration start_ = clock_.Steady();
  Mutator mutator_{static_cast<uint64_t>(seed_)};
  InvariantChecker checker_;
  std::unique_ptr<CoordinatorServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<FakeAgent> agent_;
  std::string job_id_;
  v1::Launch launch_;
};

TEST_F(FuzzTest, BadUnaryRequestsDoNoHarm) {
  SCOPED_TRACE(absl::StrCat("MUSTER_SEED=", seed_, " MUSTER_ROUNDS=", rounds_ / 10));
  const std::map<std::string, MessagePtr> good = GoodRequests(job_id_);
  // No RPC is left out: what is not here is a stream, or not Muster's own.
  std::set<std::string> covered = {kConnect};
  for (const auto& [path, request] : good) covered.insert(path);
  for (const RpcAccess& rpc : AccessTable()) {
    if (absl::StartsWith(rpc.path, "/muster.")) {
      EXPECT_TRUE(covered.contains(std::string(rpc.path))) << rpc.path;
    }
  }
  std::map<grpc::StatusCode, int> answers;
  int round = 0;
  for (; Go(round); ++round) {
    const auto& [path, request] = *std::next(good.begin(), mutator_.Below(good.size()));
    const std::unique_ptr<google::protobuf::Message> message(request->New());
    message->CopyFrom(*request);
    if (!mutator_.OneIn(3)) mutator_.MutateFields(message.get());
    std::string bytes = message->SerializeAsString();
    if (mutator_.OneIn(2)) mutator_.MutateBytes(&bytes);
    // Health checking and reflection take the same bytes.
    const bool foreign = mutator_.OneIn(20);
    ++answers[Call(foreign ? "/grpc.health.v1.Health/Check" : path, bytes)];
    if (round % 20 == 0) ExpectSound();
    if (HasFailure()) break;
  }
  RecordProperty("rounds", round);
  EXPECT_GT(answers[grpc::StatusCode::OK], 0);  // some were good still
  EXPECT_GT(answers.size(), 2u);
  ExpectServes();
}

TEST_F(FuzzTest, BadStreamsDoNoHarm) {
  SCOPED_TRACE(absl::StrCat("MUSTER_SEED=", seed_, " MUSTER_ROUNDS=", rounds_ / 10));
  grpc::GenericStub stub(channel_);
  std::map<grpc::StatusCode, int> ends;
  int round = 0;
  for (; Go(4 * round); ++round) {
    // An agent of its own with a job on its workers, so that much of what it says counts.
    const std::string node = absl::StrCat("fuzz-", round);
    FakeAgent agent(server_->address(), node, 2);
    v1::RegisterResponse registered;
    ASSERT_TRUE(agent.Register(&registered).ok());
    v1::SubmitJobRequest submit;
    submit.set_spec_json(TestSpec());
    v1::SubmitJobResponse submitted;
    ASSERT_TRUE(Submit(submit, &submitted).ok());
    v1::Launch launch = launch_;
    launch.set_job_id(submitted.job_id());
    launch.mutable_assignments(0)->set_worker(agent.Worker());
    const auto good = GoodMessages(launch, absl::StrCat("incarnation-of-", node));

    grpc::CompletionQueue queue;
    const auto next = [&queue](bool* ok) {
      void* tag = nullptr;
      return queue.Next(&tag, ok);
    };
    grpc::ClientContext context;
    SetDeadline(&context, absl::Seconds(5));
    const auto stream = stub.PrepareCall(&context, kConnect, &queue);
    bool ok = true;
    stream->StartCall(nullptr);
    next(&ok);
    const int count = mutator_.Below(8);
    int64_t sequence = 0;
    for (int i = 0; ok && i < count; ++i) {
      // Mostly hello first, or little beyond it would be tried.
      v1::ConnectRequest message =
          i == 0 && !mutator_.OneIn(5) ? good[0] : good[mutator_.Below(good.size())];
      if (message.has_reports()) message.mutable_reports()->set_sequence(++sequence);
      if (i > 0 && !mutator_.OneIn(3)) mutator_.MutateFields(&message);
      std::string bytes = message.SerializeAsString();
      if (mutator_.OneIn(6)) mutator_.MutateBytes(&bytes);
      stream->Write(BufferOf(bytes), nullptr);
      next(&ok);
    }
    if (ok && mutator_.OneIn(2)) {
      stream->WritesDone(nullptr);
      next(&ok);
    } else if (mutator_.OneIn(2)) {
      context.TryCancel();
    }
    // What it sends in between is read away, so that it is not the client that holds the end up.
    grpc::ByteBuffer answer;
    for (int i = 0; i < 50; ++i) {
      stream->Read(&answer, nullptr);
      const auto deadline = std::chrono::system_clock::now() + std::chrono::milliseconds(20);
      void* tag = nullptr;
      bool more = false;
      if (queue.AsyncNext(&tag, &more, deadline) == grpc::CompletionQueue::TIMEOUT) {
        context.TryCancel();
        queue.Next(&tag, &more);
      }
      if (!more) break;
    }
    grpc::Status status;
    stream->Finish(&status, nullptr);
    next(&ok);
    queue.Shutdown();
    while (next(&ok)) {
    }
    ++ends[status.error_code()];
    if (round % 5 == 0) ExpectSound();
    if (HasFailure()) break;
  }
  RecordProperty("rounds", round);
  EXPECT_GT(ends.size(), 1u);
  ExpectServes();
}

}  // namespace
}  // namespace muster
