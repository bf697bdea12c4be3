// The life of a trainer process: it says hello, then runs assignments until a shutdown. A failed
// attempt leaves the process alive for the next assignment. One thread beside the control client's
// two.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "common/runtime/clock.h"
#include "worker/comm/communicator.h"
#include "worker/train/control_client.h"

namespace muster {

// What forming the world's communicator needs.
struct FormWorldOptions {
  const AssignMessage& assignment;
  std::string backend;  // "gloo" | "nccl"
  std::string unique_id;
  std::shared_ptr<RendezvousStore> store;
  absl::Duration limit;            // for forming
  absl::Duration operation_limit;  // for each collective
  bool shared_memory = true;       // between the CPU ranks of a node
};

struct SessionOptions {
  ControlClient& client;
  Clock& clock;
  // Makes the assignment's device ready for this thread, before anything lies on it.
  std::function<absl::Status(const std::string& device)> use_device;
  // Rank 0 makes the world's unique ID (ncclGetUniqueId; on gloo a random name). Backends come from
  // main: gloo always, NCCL in the CUDA build.
  std::function<absl::StatusOr<std::string>(const std::string& backend, const AssignMessage&)>
      make_unique_id;
  // form_world may return before the members are connected: the first operation then waits for
  // that.
  std::function<absl::StatusOr<CommunicatorPtr>(const FormWorldOptions&)> form_world;
};

// Returns the process's exit code once a shutdown came.
int RunSession(const SessionOptions& options);

}  // namespace muster
