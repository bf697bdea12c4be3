// Process groups on NVIDIA GPUs, over NCCL directly.
//
// - Communicators are non-blocking: creating, splitting and starting poll for the answer, and an
//   abort from another thread ends the polling.
// - Each group has a stream of its own. An operation starts behind what the caller's current stream
//   holds; Work::Wait makes the caller's current stream wait, and does not block the host. So OK
//   from Wait says "started and healthy so far"; what fails later is told by every later call.
// - A watcher thread polls for asynchronous errors and for limits, and aborts all communicators of
//   the world at the first failure: kernels that wait for a lost peer end then.
// - Groups equal to their parent share it; groups of one member are no-ops.
// Thread-safety: as in communicator.h. No CUDA headers here: everything goes through NcclApi.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"
#include "worker/comm/nccl_api.h"

namespace muster {

struct NcclOptions {
  std::string name = "world";
  int rank = 0;
  int size = 1;
  std::string unique_id;  // of MakeNcclUniqueId, the same on all ranks
  std::shared_ptr<NcclApi> api;
  absl::Duration form_limit = absl::Minutes(2);
  absl::Duration operation_limit = absl::Minutes(10);
  absl::Duration poll_interval = absl::Milliseconds(10);
};

// Made by rank 0 and sent to all: opaque bytes.
absl::StatusOr<std::string> MakeNcclUniqueId(NcclApi& api);

// Blocks until all ranks have joined, also for a world of one. Errors: INVALID_ARGUMENT for
// options; UNAVAILABLE with NCCL's words; DEADLINE_EXCEEDED after form_limit.
absl::StatusOr<CommunicatorPtr> FormNcclWorld(const NcclOptions& options);

}  // namespace muster
