// The backends that a trainer binary is linked with: trainer_backends.cc has gloo; the CUDA build's
// muster-trainer-cuda links trainer_backends_cuda.cc instead, which has NCCL as well.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/train/device_check.h"
#include "worker/train/session.h"

namespace muster {

// Before an assignment's first tensor, whatever its world's size: kernels, memory counting and the
// current device of "cuda:N". FAILED_PRECONDITION for a device that is not there.
absl::Status UseDevice(const std::string& device);
DeviceIdentity IdentifyDevice(const std::string& device);
// On rank 0: the world's unique ID, printable. FAILED_PRECONDITION for a backend that is not there.
absl::StatusOr<std::string> MakeUniqueId(const std::string& backend,
                                         const AssignMessage& assignment);
absl::StatusOr<CommunicatorPtr> FormWorldOnBackend(const FormWorldOptions& options);

}  // namespace muster
