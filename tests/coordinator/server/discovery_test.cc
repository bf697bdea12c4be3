// Health checking and reflection, as a prober and grpcurl see them. Their messages are written by
// hand: Debian has no generated headers for them.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/rpc/channel.h"
#include "coordinator/server/access.h"
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

// The contents of all fields `number` of a message in which only such fields have a length.
std::vector<std::string> FieldsOf(const std::string& message, uint32_t number) {
  std::vector<std::string> fields;
  google::protobuf::io::CodedInputStream in(reinterpret_cast<const uint8_t*>(message.data()),
                                            static_cast<int>(message.size()));
  while (const uint32_t tag = in.ReadTag()) {
    uint32_t size = 0;
    std::string content;
    if ((tag & 7) != 2 || !in.ReadVarint32(&size) ||
        !in.ReadString(&content, static_cast<int>(size))) {
      break;
    }
    if (tag >> 3 == number) fields.push_back(std::move(content));
  }
  return fields;
}

// Whatever the server serves, by its own word: a service that is added later is found here.
TEST_F(DiscoveryTest, EveryRpcThatIsServedIsInTheAccessTable) {
  const std::string answer =
      Ask(server_->address(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
          std::string("\x3a\x00", 2));
  std::set<std::string> served;
  // ServerReflectionResponse.list_services_response (6) . service (1) . name (1)
  for (const std::string& list : FieldsOf(answer, 6)) {
    for (const std::string& service : FieldsOf(list, 1)) {
      for (const std::string& name : FieldsOf(service, 1)) served.insert(name);
    }
  }
  EXPECT_GE(served.size(), 5u) << absl::StrJoin(served, ", ");
  std::set<std::string> held;
  for (const RpcAccess& rpc : AccessTable()) held.insert(std::string(rpc.path));
  for (const std::string& name : served) {
    const auto* service =
        google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
    if (service == nullptr) {  // gRPC's own, of which this program holds no descriptor
      EXPECT_TRUE(name == "grpc.health.v1.Health") << name;
      continue;
    }
    for (int i = 0; i < service->method_count(); ++i) {
      const std::string path = absl::StrCat("/", name, "/", service->method(i)->name());
      EXPECT_TRUE(held.contains(path)) << path << " has no row";
    }
  }
}

}  // namespace
}  // namespace muster
