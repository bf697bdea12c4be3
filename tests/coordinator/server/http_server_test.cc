#include "coordinator/server/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/time.h>

#include <cerrno>
#include <mutex>
#include <vector>

#include "tests/coordinator/server/http_client.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class HttpServerTest : public testing::Test {
 protected:
  void Start(HttpHandler handler, const HttpLimits& limits = {}) {
    auto server = HttpServer::Start({"127.0.0.1", 0}, std::move(handler), limits);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  static void Echo(const HttpRequest& request, const HttpRespond& respond) {
    respond({.body = "path " + request.path + " auth " + request.authorization});
  }
  std::string Ask(const std::string& request) { return AskHttp(server_->port(), request); }

  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, GetAndHeadAreAnsweredOnce) {
  Start(Echo);
  const std::string got =
      Ask("GET /a?b=c HTTP/1.1\r\nHost: x\r\nauthorization:  Bearer t \r\n\r\n");
  EXPECT_THAT(got, AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("Connection: close\r\n"),
                         EndsWith("\r\n\r\npath /a auth Bearer t")));
  const std::string head = Ask("HEAD /a HTTP/1.0\r\n\r\n");
  EXPECT_THAT(head, AllOf(HasSubstr("Content-Length: 13\r\n"), EndsWith("\r\n\r\n")));
  // What follows the first request is not one.
  EXPECT_THAT(Ask("GET /1 HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n\r\n"), Not(HasSubstr("/2")));
}

TEST_F(HttpServerTest, WhatIsNoRequestIsRefused) {
  Start(Echo, {.max_header = 1'000});
  const struct {
    std::string request, answer;
  } rows[] = {
      {"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 405"},
      {"get / HTTP/1.1\r\n\r\n", "HTTP/1.1 405"},
      {"GET /\r\n\r\n", "HTTP/1.1 400"},
      {"GET / SMTP\r\n\r\n", "HTTP/1.1 400"},
      {"GET x HTTP/1.1\r\n\r\n", "HTTP/1.1 400"},
      {"GET / HTTP/1.1\r\nno colon\r\n\r\n", "HTTP/1.1 400"},
      {"\r\n\r\n", "HTTP/1.1 400"},
      {"GET /" + std::string(2'000, 'a') + " HTTP/1.1\r\n\r\n", "HTTP/1.1 431"},
      {std::string(100'000, 'x'), "HTTP/1.1 431"},
      {"GET / HTTP/1.1", ""},  // cut off
      {std::string("\0\xff\r\n\r\n", 6), "HTTP/1.1 400"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.request.substr(0, 40));
    const std::string answer = Ask(row.request);
    if (row.answer.empty()) {
      EXPECT_EQ(answer, "");
    } else {
      EXPECT_THAT(answer, StartsWith(row.answer));
    }
  }
  EXPECT_THAT(Ask("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, SlowClientsAreClosedAndHoldNobodyUp) {
  Start(Echo, {.request_limit = absl::Milliseconds(200)});
  const int slow = ConnectTo(server_->port());
  SendAll(slow, "GET / HT");
  EXPECT_THAT(Ask("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  // It goes on sending, a byte each 10 ms: that does not prolong its life.
  const timeval pause{.tv_sec = 0, .tv_usec = 10'000};
  setsockopt(slow, SOL_SOCKET, SO_RCVTIMEO, &pause, sizeof(pause));
  char byte;
  int sent = 0;
  do {
    SendAll(slow, "x");
    ++sent;
  } while (recv(slow, &byte, 1, 0) < 0 && errno == EAGAIN);
  EXPECT_LT(sent, 5'000);  // the server has ended it, not the header's limit
  CloseSocket(slow);
}

TEST_F(HttpServerTest, WhoHasNotAskedMakesRoomForWhoDoes) {
  Start(Echo, {.max_connections = 4, .request_limit = absl::Minutes(10)});
  std::vector<int> idle;
  for (int i = 0; i < 20; ++i) idle.push_back(ConnectTo(server_->port()));
  EXPECT_THAT(Ask("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(ReadAll(idle[0]), "");  // closed
  for (size_t i = 1; i < idle.size(); ++i) CloseSocket(idle[i]);
}

TEST_F(HttpServerTest, AHandlerThatDoesNotRespondCostsA503) {
  std::mutex mu;
  std::vector<HttpRespond> late;
  Start(
      [&](const HttpRequest& request, HttpRespond respond) {
        const std::lock_guard<std::mutex> lock(mu);
        late.push_back(std::move(respond));
      },
      {.answer_limit = absl::Milliseconds(50)});
  EXPECT_THAT(Ask("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 503"));
  server_.reset();
  const std::lock_guard<std::mutex> lock(mu);
  for (const HttpRespond& respond : late) respond({});  // the server has gone: of no effect
}

TEST_F(HttpServerTest, ATakenPortIsAnError) {
  Start(Echo);
  const auto second = HttpServer::Start({"127.0.0.1", server_->port()}, Echo);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace muster
