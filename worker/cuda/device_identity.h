// What a GPU is: for the check of devices.
#pragma once

#include <string>

namespace muster {

struct CudaDeviceIdentity {
  std::string name;  // "NVIDIA H200"
  std::string uuid;  // "GPU-" and 32 hex digits
};
// Of the driver's device `index`; empty where the driver does not say.
CudaDeviceIdentity IdentifyCudaDevice(int index);

}  // namespace muster
