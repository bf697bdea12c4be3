// Health checking and reflection, as a prober and grpcurl see them. Their messages are written by
// hand: Debian has no generated headers for them.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "common/rpc/channel.h"
#include "coordinator/server/server.h"

namespace muster {
namespace {

// Sends one message on a stream of `method` and returns the first answer.
std::string Ask(const std::string& address, const std::string& method, const std::string& message) {
  grpc::GenericStub stub(NewChannel(address));
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  SetDeadline(&context, absl::Seconds(60));
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  const auto stream = stub.PrepareCall(&context, method, &queue);
  stream->StartCall(nullptr);
  EXPECT_TRUE(next());
  const grpc::Slice slice(message);
  stream->Write(grpc::ByteBuffer(&slice, 1), nullptr);
  EXPECT_TRUE(next());
  grpc::ByteBuffer answer;
  stream->Read(&answer, nullptr);
  EXPECT_TRUE(next());
  std::vector<grpc::Slice> parts;
  EXPECT_TRUE(answer.Dump(&parts).ok());
  std::string text;
  for (const grpc::Slice& part : parts) {
    text.append(reinterpret_cast<const char*>(part.begin()), part.size());
  }
  context.TryCancel();
  grpc::Status status;
  stream->Finish(&status, nullptr);
  next();
  queue.Shutdown();
  while (next()) {
  }
  return text;
}

class DiscoveryTest : public testing::Test {
 protected:
  void SetUp() override {
    auto server = CoordinatorServer::Start({.listen = "127.0.0.1:0"}, &clock_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  RealClock clock_;
  std::unique_ptr<CoordinatorServer> server_;
};

TEST_F(DiscoveryTest, HealthIsServing) {
  // HealthCheckResponse{status (1): SERVING (1)}
  EXPECT_EQ(Ask(server_->address(), "/grpc.health.v1.Health/Watch", ""), "\x08\x01");
}

TEST_F(DiscoveryTest, ReflectionListsTheServices) {
  // ServerReflectionRequest{list_services (7): ""}
  const std::string request("\x3a\x00", 2);
  const std::string answer =
      Ask(server_->address(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
          request);
  for (const char* service : {"muster.v1.MembershipService", "muster.v1.RendezvousService",
                              "muster.v1.JobService", "muster.v1.TrainingService"}) {
    EXPECT_THAT(answer, testing::HasSubstr(service));
  }
}

}  // namespace
}  // namespace muster
