// The CPU trainer's backend: gloo.
#include "worker/train/trainer_backends.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/train/gloo_world.h"

namespace muster {
namespace {

absl::Status CheckIsGloo(const std::string& backend) {
  if (backend == "gloo") return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("parallel.distributed_backend=", backend,
                   ": this trainer was built without CUDA and has gloo only"));
}

}  // namespace

absl::Status UseDevice(const std::string& device) {
  if (device == "cpu") return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("device=", device, ": this trainer was built without CUDA"));
}

DeviceIdentity IdentifyDevice(const std::string&) { return IdentifyCpu(); }

absl::StatusOr<std::string> MakeUniqueId(const std::string& backend, const AssignMessage&) {
  RETURN_IF_ERROR(CheckIsGloo(backend));
  return MakeGlooUniqueId();
}

absl::StatusOr<CommunicatorPtr> FormWorldOnBackend(const FormWorldOptions& options) {
  RETURN_IF_ERROR(CheckIsGloo(options.backend));
  return FormGlooWorldOf(options);
}

}  // namespace muster
