#include "coordinator/server/access.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/rpc/channel.h"
#include "coordinator/server/server.h"
#include "muster/v1/job.grpc.pb.h"
#include "muster/v1/membership.grpc.pb.h"
#include "muster/v1/rendezvous.grpc.pb.h"
#include "muster/v1/training.grpc.pb.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Token TokenOf(absl::string_view text) {
  const auto token = Token::FromText(text);
  EXPECT_TRUE(token.ok()) << token.status();
  return token.ok() ? *token : Token();
}
const char kRight[] = "right-token-0123456789", kWrong[] = "wrong-token-0123456789";

std::set<std::string> PathsOf(const google::protobuf::FileDescriptor* file) {
  std::set<std::string> paths;
  for (int s = 0; s < file->service_count(); ++s) {
    const auto* service = file->service(s);
    for (int m = 0; m < service->method_count(); ++m) {
      paths.insert(absl::StrCat("/", service->full_name(), "/", service->method(m)->name()));
    }
  }
  return paths;
}

TEST(AccessTableTest, HoldsEveryRpcOfTheFourServicesOnceAndNoOther) {
  std::set<std::string> expected;
  for (const auto* file :
       {v1::RegisterRequest::descriptor()->file(), v1::SetKeyRequest::descriptor()->file(),
        v1::SubmitJobRequest::descriptor()->file(), v1::GetMetricsRequest::descriptor()->file()}) {
    const std::set<std::string> paths = PathsOf(file);
    EXPECT_FALSE(paths.empty()) << file->name();
    expected.insert(paths.begin(), paths.end());
  }
  std::set<std::string> held;
  for (const RpcAccess& rpc : AccessTable()) {
    EXPECT_TRUE(rpc.agent || rpc.user) << rpc.path << " belongs to nobody";
    if (!absl::StartsWith(rpc.path, "/muster.v1.")) continue;
    EXPECT_TRUE(held.insert(std::string(rpc.path)).second) << rpc.path << " is there twice";
  }
  EXPECT_EQ(held, expected);
}

TEST(AccessTableTest, AgentsSubmitNothingAndUsersAreNoAgents) {
  for (const RpcAccess& rpc : AccessTable()) {
    const bool of_jobs = absl::StartsWith(rpc.path, "/muster.v1.JobService/");
    const bool of_rendezvous = absl::StartsWith(rpc.path, "/muster.v1.RendezvousService/");
    EXPECT_FALSE(of_jobs && rpc.agent) << rpc.path;
    EXPECT_FALSE(of_rendezvous && rpc.user) << rpc.path;
  }
}

TEST(CheckAccessTest, TheTokenThenTheTable) {
  const Token token = TokenOf(kRight);
  const std::string right_value = token.AuthorizationValue();
  const absl::string_view right = right_value, wrong = "Bearer x";
  const absl::string_view path = "/muster.v1.JobService/ListJobs";
  EXPECT_TRUE(CheckAccess(token, path, &right).ok());
  EXPECT_TRUE(absl::IsUnauthenticated(CheckAccess(token, path, &wrong)));
  EXPECT_TRUE(absl::IsUnauthenticated(CheckAccess(token, path, nullptr)));
  // Who brings no token does not learn which RPCs there are.
  EXPECT_TRUE(absl::IsUnauthenticated(CheckAccess(token, "/x.Y/Z", nullptr)));
  EXPECT_TRUE(absl::IsUnimplemented(CheckAccess(token, "/x.Y/Z", &right)));
  EXPECT_TRUE(absl::IsUnimplemented(CheckAccess(token, "", &right)));
}

// A server on every address of this machine, which the tests call by loopback.
class AccessTest : public testing::Test {
 protected:
  void SetUp() override {
    auto server =
        CoordinatorServer::Start({.listen = "0.0.0.0:0", .token = TokenOf(kRight)}, &clock_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    address_ = absl::StrReplaceAll(server_->address(), {{"0.0.0.0", "127.0.0.1"}});
  }
  grpc::Status Submit(const Token& token) {
    const auto stub = v1::JobService::NewStub(NewChannel(address_, token));
    grpc::ClientContext context;
    SetDeadline(&context, absl::Seconds(60));
    v1::SubmitJobRequest request;
    request.set_spec_json("{}");
    v1::SubmitJobResponse response;
    return stub->SubmitJob(&context, request, &response);
  }
  // How a stream of an agent that never registered ends.
  grpc::Status Connect(const Token& token) {
    const auto stub = v1::MembershipService::NewStub(NewChannel(address_, token));
    grpc::ClientContext context;
    SetDeadline(&context, absl::Seconds(60));
    const auto stream = stub->Connect(&context);
    v1::ConnectRequest hello;
    hello.mutable_hello()->set_incarnation("nobody-registered-this");
    stream->Write(hello);
    v1::ConnectResponse response;
    while (stream->Read(&response)) {
    }
    return stream->Finish();
  }
  // The status of a call by its name alone, without a message.
  grpc::Status CallNamed(const Token& token, const std::string& path) {
    grpc::GenericStub stub(NewChannel(address_, token));
    grpc::CompletionQueue queue;
    grpc::ClientContext context;
    SetDeadline(&context, absl::Seconds(60));
    const grpc::Slice empty("");
    const grpc::ByteBuffer nothing(&empty, 1);
    const auto call = stub.PrepareUnaryCall(&context, path, nothing, &queue);
    call->StartCall();
    grpc::ByteBuffer response;
    grpc::Status status;
    call->Finish(&response, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    queue.Shutdown();
    return status;
  }

  RealClock clock_;
  std::unique_ptr<CoordinatorServer> server_;
  std::string address_;
};

TEST_F(AccessTest, AUnaryCallNeedsTheRightToken) {
  const grpc::Status missing = Submit(Token());
  EXPECT_EQ(missing.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(missing.error_message(), HasSubstr("brings none: give --token-file FILE"));
  const grpc::Status wrong = Submit(TokenOf(kWrong));
  EXPECT_EQ(wrong.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(wrong.error_message(), AllOf(HasSubstr("is not the coordinator's"),
                                           Not(HasSubstr(kWrong)), Not(HasSubstr(kRight))));
  const grpc::Status right = Submit(TokenOf(kRight));
  EXPECT_TRUE(right.ok()) << right.error_message();
}

TEST_F(AccessTest, AStreamNeedsTheRightToken) {
  EXPECT_EQ(Connect(Token()).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Connect(TokenOf(kWrong)).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  // With it the service itself answers: it knows no such agent.
  const grpc::Status right = Connect(TokenOf(kRight));
  EXPECT_NE(right.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_FALSE(right.ok());
}

TEST_F(AccessTest, NoRpcOfAnyServiceAnswersWithoutTheToken) {
  for (const RpcAccess& rpc : AccessTable()) {
    const std::string path(rpc.path);
    EXPECT_EQ(CallNamed(Token(), path).error_code(), grpc::StatusCode::UNAUTHENTICATED) << path;
    EXPECT_EQ(CallNamed(TokenOf(kWrong), path).error_code(), grpc::StatusCode::UNAUTHENTICATED)
        << path;
  }
  EXPECT_EQ(CallNamed(Token(), "/x.Y/Z").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(CallNamed(TokenOf(kRight), "/x.Y/Z").error_code(), grpc::StatusCode::UNIMPLEMENTED);
  // Health checking: an empty request asks for the whole server.
  const grpc::Status health = CallNamed(TokenOf(kRight), "/grpc.health.v1.Health/Check");
  EXPECT_TRUE(health.ok()) << health.error_message();
}

TEST_F(AccessTest, ATokenGivenInVainDoesNoHarm) {
  const auto open = CoordinatorServer::Start({.listen = "127.0.0.1:0"}, &clock_);
  ASSERT_TRUE(open.ok()) << open.status();
  address_ = (*open)->address();
  EXPECT_TRUE(Submit(TokenOf(kRight)).ok());
}

}  // namespace
}  // namespace muster
