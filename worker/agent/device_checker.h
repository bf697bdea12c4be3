// Runs `muster-trainer --check-device` for this node's devices: all of them at the agent's start,
// at once, and one of them in the background after its trainer crashed. A check that cannot be run
// is a result, too. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/control/device_check.h"

namespace muster {

class DeviceChecker {
 public:
  struct Options {
    std::string program;                       // muster-trainer
    absl::Duration limit = absl::Seconds(10);  // of one check
    // Between a crash and its check: the job's recovery has the machine to itself.
    absl::Duration delay = absl::Seconds(2);
  };
  explicit DeviceChecker(Options options);
  // Ends what runs; callbacks that have not run by then never do.
  ~DeviceChecker();

  // Of each of these devices, one check a name however often it is there; at most `limit` long.
  std::map<std::string, DeviceCheck> CheckNow(const std::vector<std::string>& devices);
  // `done` runs on a thread of this object's.
  void CheckLater(const std::string& device, std::function<void(DeviceCheck)> done);

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace muster
