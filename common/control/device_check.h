// What `muster-trainer --check-device` found out about a device: one JSON line on its standard
// output, which the agent reads and reports. Pure: encode and decode only.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

struct DeviceCheck {
  std::string device;  // as the trainer is told: "cpu", "cuda:N"
  // "NVIDIA H200", or the CPU's model name; devices of one kind give the same fingerprint.
  std::string kind;
  std::string serial;        // of a CUDA device (its UUID); of a CPU empty
  std::string fingerprint;   // hex, of a matrix product's bytes; empty when there is an error
  double copy_gb_per_s = 0;  // 1e9 bytes read and written; of a CUDA device, inside its memory
  double elapsed_ms = 0;
  // Not empty: the device could not be used. `not_run`: the check itself could not be carried out
  // (no program, a time-out of its start), which says nothing about the device.
  std::string error;
  bool not_run = false;
  bool operator==(const DeviceCheck&) const = default;
};

// One line without a '\n'.
std::string Encode(const DeviceCheck& check);
// INVALID_ARGUMENT names what is wrong; unknown fields are ignored.
absl::StatusOr<DeviceCheck> DecodeDeviceCheck(absl::string_view line);

}  // namespace muster
