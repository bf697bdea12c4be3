// The CUDA trainer's backends: NCCL, and gloo for CPU jobs.
#include <c10/cuda/CUDAFunctions.h>

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/comm/nccl_communicator.h"
#include "worker/cuda/device_identity.h"
#include "worker/cuda/device_memory.h"
#include "worker/cuda/row_ops.h"
#include "worker/train/gloo_world.h"
#include "worker/train/trainer_backends.h"

namespace muster {
namespace {

// N of "cuda:N", now the thread's current device: NCCL and the default streams follow it.
absl::StatusOr<int> SelectDevice(const std::string& device) {
  int index = 0;
  if (device.rfind("cuda:", 0) != 0 || !absl::SimpleAtoi(device.substr(5), &index)) {
    return absl::InvalidArgumentError(absl::StrCat("device=", device, ": NCCL needs cuda:N"));
  }
  const int count = c10::cuda::device_count();
  if (index >= count) {
    return absl::FailedPreconditionError(
        absl::StrCat("device=", device, ": this node's driver shows ", count, " CUDA devices"));
  }
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(index));
  return index;
}

}  // namespace

absl::Status UseDevice(const std::string& device) {
  if (device.rfind("cuda:", 0) != 0) return absl::OkStatus();
  UseCudaRowOps();
  CountCudaMemory();
  return SelectDevice(device).status();
}

DeviceIdentity IdentifyDevice(const std::string& device) {
  if (device.rfind("cuda:", 0) != 0) return IdentifyCpu();
  const absl::StatusOr<int> index = SelectDevice(device);
  if (!index.ok()) return {};
  CudaDeviceIdentity identity = IdentifyCudaDevice(*index);
  return {.kind = std::move(identity.name), .serial = std::move(identity.uuid)};
}

absl::StatusOr<std::string> MakeUniqueId(const std::string& backend,
                                         const AssignMessage& assignment) {
  if (backend != "nccl") return MakeGlooUniqueId();
  ASSIGN_OR_RETURN(const int device, SelectDevice(assignment.device));
  const std::shared_ptr<NcclApi> api = MakeCudaNcclApi(device);
  ASSIGN_OR_RETURN(const std::string bytes, MakeNcclUniqueId(*api));
  return absl::BytesToHexString(bytes);
}

absl::StatusOr<CommunicatorPtr> FormWorldOnBackend(const FormWorldOptions& options) {
  if (options.backend != "nccl") return FormGlooWorldOf(options);
  ASSIGN_OR_RETURN(const int device, SelectDevice(options.assignment.device));
  return FormNcclWorld({.name = "world",
                        .rank = options.assignment.rank,
                        .size = options.assignment.world_size + options.assignment.num_helpers,
                        .unique_id = absl::HexStringToBytes(options.unique_id),
                        .api = MakeCudaNcclApi(device),
                        .form_limit = options.limit,
                        .operation_limit = options.operation_limit});
}

}  // namespace muster
