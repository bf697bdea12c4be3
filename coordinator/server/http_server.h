// A small HTTP/1.1 server for probes and people: GET and HEAD only, one answer a connection. One
// thread serves all connections; none of them can hold it up: header, time and number are bounded,
// and when all places are taken, whoever has been sending its request for longest makes room.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/address.h"

namespace muster {

struct HttpRequest {
  std::string path;           // without the query
  std::string authorization;  // the header's value; empty: none
};
struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  std::string extra_headers;  // whole lines, each with its \r\n
};
// Called on the server's thread, must not block. `respond`: once, from any thread, also when the
// client or the server has gone.
using HttpRespond = std::function<void(HttpResponse)>;
using HttpHandler = std::function<void(const HttpRequest& request, HttpRespond respond)>;

struct HttpLimits {
  size_t max_connections = 128;
  size_t max_header = 8 << 10;                      // bytes
  absl::Duration request_limit = absl::Seconds(5);  // until the header is whole
  absl::Duration answer_limit = absl::Seconds(2);   // then 503
  absl::Duration write_limit = absl::Seconds(10);   // until the client has taken the answer
};

class HttpLoop;

class HttpServer {
 public:
  // ALREADY_EXISTS when the port is taken.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HostPort& address,
                                                           HttpHandler handler,
                                                           const HttpLimits& limits = {});
  ~HttpServer();  // stops
  void Stop();
  int port() const { return port_; }

 private:
  HttpServer(int listen_fd, int port, HttpHandler handler, const HttpLimits& limits);

  const int port_;
  const std::unique_ptr<HttpLoop> loop_;
  std::thread thread_;
};

}  // namespace muster
