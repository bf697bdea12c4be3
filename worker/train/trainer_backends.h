// The backends that a trainer binary is linked with: trainer_backends.cc has gloo; the CUDA build's
// muster-trainer-cuda links trainer_backends_cuda.cc instead, which has NCCL as well.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker/train/session.h"

namespace muster {

// On rank 0: the world's unique ID, printable. FAILED_PRECONDITION for a backend that is not there.
absl::StatusOr<std::string> MakeUniqueId(const std::string& backend,
                                         const AssignMessage& assignment);
absl::StatusOr<CommunicatorPtr> FormWorldOnBackend(const FormWorldOptions& options);

}  // namespace muster
