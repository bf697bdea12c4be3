// A gRPC server on a port of loopback that the system picks: it can go away, as if killed, and come
// back on the same port.
#pragma once

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"

namespace muster {

// Not thread-safe.
class LoopbackServer {
 public:
  ~LoopbackServer() { Stop(); }

  // The services outlive it.
  void Start(const std::vector<grpc::Service*>& services) {
    grpc::ServerBuilder builder;
    SetServerLimits(&builder);
    builder.AddListeningPort(address(), grpc::InsecureServerCredentials(), &port_);
    for (grpc::Service* service : services) builder.RegisterService(service);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }
  // Every call ends at once.
  void Stop() {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  int port_ = 0;  // 0 before the first Start
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace muster
