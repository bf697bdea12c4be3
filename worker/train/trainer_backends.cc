// The CPU trainer's backend: gloo.
#include "worker/train/trainer_backends.h"

#include <random>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "worker/comm/gloo_communicator.h"

namespace muster {

absl::StatusOr<std::string> MakeUniqueId(const std::string& backend) {
  // Gloo needs no ID of its own; a random name keeps the keys of two attempts apart all the same.
  std::random_device random;
  std::string bytes;
  for (int i = 0; i < 16; ++i) bytes.push_back(static_cast<char>(random() & 0xff));
  return absl::BytesToHexString(bytes);
}

absl::StatusOr<CommunicatorPtr> FormWorldOnBackend(const FormWorldOptions& options) {
  if (options.backend != "gloo") {
    return absl::FailedPreconditionError(
        absl::StrCat("parallel.distributed_backend=", options.backend,
                     ": this trainer was built without CUDA and has gloo only"));
  }
  return StartGlooWorld({.name = "world",
                         .rank = options.assignment.rank,
                         .size = options.assignment.world_size,
                         .epoch = options.assignment.epoch,
                         .store = options.store,
                         .host = options.assignment.host_address.empty()
                                     ? "127.0.0.1"
                                     : options.assignment.host_address,
                         .form_limit = options.limit,
                         .operation_limit = options.operation_limit});
}

}  // namespace muster
