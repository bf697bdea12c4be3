// A small HTTP/1.1 server for probes and people: GET /healthz, /metrics (Prometheus text), else
// 404. One thread serves all connections; each gets one answer, a bounded size and a bounded time.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "common/rpc/address.h"
#include "coordinator/engine/engine.h"

namespace muster {

class HttpServer {
 public:
  // ALREADY_EXISTS when the port is taken. `engine` outlives the server.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HostPort& address, Engine* engine);
  ~HttpServer();  // stops
  void Stop();
  int port() const { return port_; }

 private:
  HttpServer(int listen_fd, int wake_fd, int port, Engine* engine);
  void Run();
  void Serve(int connection);
  std::string Answer(const std::string& request_line);

  const int listen_fd_, wake_fd_, port_;
  Engine* const engine_;
  std::thread thread_;
};

// The cluster's numbers in Prometheus' text format. Called on the engine's thread.
std::string RenderMetrics(const Coordinator& core);

}  // namespace muster
