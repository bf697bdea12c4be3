// The agent's side of the membership service: registers, holds the one stream, sends heartbeats and
// batches, reconnects with back-off for as long as it lives. Two threads of its own; the callbacks
// run on them, never under a lock. Thread-safe.
//
// Streams are numbered 1, 2, ...; a batch names the stream that it is for, so that one meant for
// a broken stream can't slip into the next before that one's Welcome was heard.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "muster/v1/membership.pb.h"
#include "worker/core/agent_messages.h"

namespace grpc {
class Channel;
}

namespace muster {

class CoordinatorClient {
 public:
  struct Callbacks {
    std::function<void(int64_t stream, CoordinatorOrder order)> on_order;
    std::function<void(int64_t stream)> on_stream_lost;
    std::function<void()> on_incarnation_over;
    // It will never be accepted as it is (a bad name, another protocol): the agent should end.
    std::function<void(absl::Status)> on_refused;
  };

  // `registration` without an incarnation: this class makes one.
  CoordinatorClient(std::shared_ptr<grpc::Channel> channel, std::string address,
                    v1::RegisterRequest registration, Callbacks callbacks);
  // Ends the stream and the threads.
  ~CoordinatorClient();

  void Send(int64_t stream, std::shared_ptr<const NodeReportBatch> batch);
  // What the next heartbeats say.
  void SetProgress(std::vector<JobProgress> progress);
  // Registers anew, as another incarnation.
  void NewIncarnation();
  // Sends Goodbye behind what was given to Send, and waits until the coordinator has ended the
  // stream, at most `limit`. The client's last call; no stream is opened after it.
  void Leave(absl::string_view reason, absl::Duration limit);

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace muster
