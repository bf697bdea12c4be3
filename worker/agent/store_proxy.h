// Carries the trainers' rendezvous requests, and the pieces of their traces, to the coordinator and
// the answers back. Asynchronous: no thread waits on a request. While the coordinator is away a
// request is tried again until its limit. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/control/messages.h"

namespace grpc {
class Channel;
}

namespace muster {

class StoreProxy {
 public:
  explicit StoreProxy(std::shared_ptr<grpc::Channel> channel);
  // Cancels what is pending and waits for its callbacks.
  ~StoreProxy();

  // `reply` runs once, on a gRPC thread.
  void Ask(const std::string& job_id, const StoreRequestMessage& request,
           std::function<void(StoreReplyMessage)> reply);
  void Ask(const std::string& job_id, int rank, const TracePieceMessage& piece,
           std::function<void(StoreReplyMessage)> reply);

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace muster
