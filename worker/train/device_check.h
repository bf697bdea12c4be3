// Is a device sound? A matrix product of fixed numbers, whose bytes are the same on every device of
// a kind, and the rate of copies in its memory. One process, one thread, under a second.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "common/control/device_check.h"

namespace muster {

struct DeviceIdentity {
  std::string kind;    // what devices of one kind share: "NVIDIA H200", a CPU's model name
  std::string serial;  // of this one, where it has one
};

// The device must be in use already (UseDevice). Never fails: what went wrong is in `error`.
DeviceCheck CheckDevice(const std::string& device, const DeviceIdentity& identity);

// "model name" of /proc/cpuinfo's text; without one (other architectures), what the file says
// instead.
std::string CpuModelName(absl::string_view cpuinfo);
DeviceIdentity IdentifyCpu();

}  // namespace muster
