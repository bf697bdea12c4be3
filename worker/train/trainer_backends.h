// The backends that a trainer binary is linked with: trainer_backends.cc has gloo; the CUDA build's
// binary links trainer_backends_cuda.cc instead, which has NCCL as well.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker/train/session.h"

namespace muster {

absl::StatusOr<std::string> MakeUniqueId(const std::string& backend);
absl::StatusOr<CommunicatorPtr> FormWorldOnBackend(const FormWorldOptions& options);

}  // namespace muster
