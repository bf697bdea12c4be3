#include "worker/cuda/device_identity.h"

#include <cuda_runtime_api.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace muster {

CudaDeviceIdentity IdentifyCudaDevice(int index) {
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) return {};
  const absl::string_view uuid(properties.uuid.bytes, sizeof(properties.uuid.bytes));
  return {.name = properties.name, .uuid = absl::StrCat("GPU-", absl::BytesToHexString(uuid))};
}

}  // namespace muster
