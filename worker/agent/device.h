// Which devices a --device flag means. No CUDA here: the agent reads the driver's folders only.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

struct DeviceSlot {
  std::string device;  // "cpu" or "cuda:N"
  int index = 0;       // CUDA ordinal, or CPU slot
};

// "cpu" gives `slots` slots; "cuda:N", "cuda:all" or a list "cuda:0,cuda:2" (also "cuda:0,2") one a
// device. INVALID_ARGUMENT names what is wrong; FAILED_PRECONDITION when cuda:all finds no device.
// num_cuda_devices: what the machine has.
absl::StatusOr<std::vector<DeviceSlot>> ParseDevices(absl::string_view flag, int slots,
                                                     int num_cuda_devices);

// NVIDIA devices that the driver shows.
int CountCudaDevices();

}  // namespace muster
