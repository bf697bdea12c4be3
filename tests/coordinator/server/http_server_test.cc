#include "coordinator/server/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

namespace muster {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class NoSink final : public ActionSink {
 public:
  void Send(StreamId, const AgentMessage&) override {}
  void End(StreamId, const absl::Status&) override {}
  void Answer(const WaitDone&) override {}
};

class HttpServerTest : public testing::Test {
 protected:
  void SetUp() override {
    engine_.Start();
    auto server = HttpServer::Start({"127.0.0.1", 0}, &engine_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::string Ask(const std::string& request) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(server_->port()));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    EXPECT_EQ(send(fd, request.data(), request.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(request.size()));
    shutdown(fd, SHUT_WR);
    std::string answer;
    char buffer[4096];
    for (ssize_t size; (size = recv(fd, buffer, sizeof(buffer), 0)) > 0;) {
      answer.append(buffer, size);
    }
    close(fd);
    return answer;
  }

  RealClock clock_;
  NoSink sink_;
  Engine engine_{{}, &clock_, &sink_};
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, HealthFollowsTheEngine) {
  EXPECT_THAT(Ask("GET /healthz HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200 OK"));
  engine_.Stop();
  EXPECT_THAT(Ask("GET /healthz HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 503"));
}

TEST_F(HttpServerTest, MetricsArePrometheusText) {
  const std::string answer = Ask("GET /metrics HTTP/1.1\r\n\r\n");
  EXPECT_THAT(answer, HasSubstr("muster_workers{state=\"alive\"} 0\n"));
  EXPECT_THAT(answer, HasSubstr("# TYPE muster_workers gauge\n"));
}

TEST_F(HttpServerTest, AnythingElseIsRefused) {
  EXPECT_THAT(Ask("GET /etc/passwd HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Ask("POST /healthz HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405"));
  EXPECT_EQ(Ask("GET /healthz"), "");  // cut off
  EXPECT_EQ(Ask(std::string(20'000, 'x')), "");
  EXPECT_THAT(Ask("GET /healthz HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, ATakenPortIsAnError) {
  const auto second = HttpServer::Start({"127.0.0.1", server_->port()}, &engine_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace muster
