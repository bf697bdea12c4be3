#include "worker/cuda/device_identity.h"

#include <ATen/cuda/CUDAContextLight.h>

#include <exception>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace muster {

CudaDeviceIdentity IdentifyCudaDevice(int index) {
  try {
    const cudaDeviceProp& properties =
        *at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(index));
    const absl::string_view uuid(properties.uuid.bytes, sizeof(properties.uuid.bytes));
    return {.name = properties.name, .uuid = absl::StrCat("GPU-", absl::BytesToHexString(uuid))};
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace muster
