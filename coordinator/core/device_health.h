// Whether a device may be used, from what its checks found (common/control/device_check.h). Pure.
//
// A device is known by its serial, wherever it is; one without a serial by its worker's name. Its
// record: fingerprint and best copy bandwidth of the checks that it passed, and the version of the
// program that made them, since another version may compute by another path.
//
//   1 the check could not be carried out: nothing is known, nothing changes.
//   2 it reports an error: it fails.
//   3 its fingerprint differs from its own record of the same version: it fails.
//   4 it has no such record, and its fingerprint differs from that of the majority of its kind
//     (same kind and version, at least kMinMajority other devices that agree): it fails.
//   5 its copy bandwidth is below `min_bandwidth` of its own best: it fails. A CPU's memory is
//     shared with whatever else runs there, so that its bound is far lower.
//
// A failed check changes no record.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "common/control/device_check.h"
#include "coordinator/core/durable.h"
#include "coordinator/core/types.h"

namespace muster {

struct DeviceHealthOptions {
  double min_bandwidth = 0.5, min_cpu_bandwidth = 0.1;  // of the device's best
  size_t max_devices = 65'536;
};

struct DeviceRecord {
  std::string kind, version, fingerprint;
  double best_gb_per_s = 0;
  bool operator==(const DeviceRecord&) const = default;
};

struct DeviceVerdict {
  bool healthy = true;
  // "copy bandwidth 812 GB/s, its best was 4010 GB/s; must be at least half of that". Empty when
  // healthy.
  std::string reason;
  bool operator==(const DeviceVerdict&) const = default;
};

class DeviceHealth {
 public:
  static constexpr int kMinMajority = 2;

  explicit DeviceHealth(const DeviceHealthOptions& options = {}) : options_(options) {}

  // `version`: of the agent's program.
  DeviceVerdict Judge(const DeviceCheck& check, DeviceKind kind, const std::string& worker,
                      const std::string& version);
  // A person says that the worker's device is good: its next check makes its record anew.
  void Forget(const std::string& worker);

  const DeviceRecord* Find(const std::string& key) const;
  static std::string KeyOf(const DeviceCheck& check, const std::string& worker);

  // ---- durability: records "device/<hex of key>"
  bool unsaved() const { return !unsaved_.empty(); }
  void TakeChanges(DurableChanges* changes);
  void SaveAll(DurableChanges* changes) const;
  // INVALID_ARGUMENT names the record.
  absl::Status RestoreRecord(const std::string& key, const std::string& value);

 private:
  // The fingerprint of most other devices like it; nullopt: there is none.
  struct Majority {
    std::string fingerprint;
    int num_devices = 0, num_all = 0;
  };
  std::optional<Majority> MajorityOf(const DeviceCheck& check, const std::string& version,
                                     const std::string& key) const;
  void Save(const std::string& key, DurableChanges* changes) const;

  const DeviceHealthOptions options_;
  std::map<std::string, DeviceRecord> records_;
  std::map<std::string, std::string> key_of_worker_;  // of the last check
  std::set<std::string> unsaved_;
};

}  // namespace muster
