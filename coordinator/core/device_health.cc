#include "coordinator/core/device_health.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "coordinator/core/durable_json.h"

namespace muster {
namespace {

constexpr size_t kMaxText = 256;

std::string Short(const std::string& text) { return absl::CHexEscape(text.substr(0, kMaxText)); }

template <class V, class M>
void VisitDevice(V& v, M& m) {
  v("kind", m.kind);
  v("version", m.version);
  v("fingerprint", m.fingerprint);
  v("best_gb_per_s", m.best_gb_per_s);
}

std::string RecordKey(const std::string& key) { return absl::StrCat("device/", ToHex(key)); }

}  // namespace

std::string DeviceHealth::KeyOf(const DeviceCheck& check, const std::string& worker) {
  return (check.serial.empty() ? absl::StrCat("worker ", worker) : check.serial)
      .substr(0, kMaxText);
}

std::optional<DeviceHealth::Majority> DeviceHealth::MajorityOf(const DeviceCheck& check,
                                                               const std::string& version,
                                                               const std::string& key) const {
  std::map<std::string, int> votes;
  int num_all = 0;
  for (const auto& [other, record] : records_) {
    if (other == key || record.kind != check.kind || record.version != version) continue;
    ++votes[record.fingerprint];
    ++num_all;
  }
  for (const auto& [fingerprint, num_devices] : votes) {
    if (num_devices >= kMinMajority && 2 * num_devices > num_all) {
      return Majority{fingerprint, num_devices, num_all};
    }
  }
  return std::nullopt;
}

DeviceVerdict DeviceHealth::Judge(const DeviceCheck& check, DeviceKind kind,
                                  const std::string& worker, const std::string& version) {
  if (check.not_run) return {};
  if (!check.error.empty()) {
    return {false, absl::StrCat("the check of its device failed: ", Short(check.error))};
  }
  const std::string key = KeyOf(check, worker);
  key_of_worker_[worker] = key;
  const auto found = records_.find(key);
  const bool known = found != records_.end() && found->second.kind == check.kind;
  if (known && found->second.version == version) {
    if (found->second.fingerprint != check.fingerprint) {
      return {false,
              absl::StrCat("a matrix product's fingerprint is ", Short(check.fingerprint),
                           ", and was ", found->second.fingerprint, " on this device before")};
    }
  } else if (const auto majority = MajorityOf(check, version, key);
             majority.has_value() && majority->fingerprint != check.fingerprint) {
    return {false,
            absl::StrCat("a matrix product's fingerprint is ", Short(check.fingerprint), ", and ",
                         majority->fingerprint, " on ", majority->num_devices, " of ",
                         majority->num_all, " other devices of kind ", Short(check.kind))};
  }
  const double share =
      kind == DeviceKind::kCpu ? options_.min_cpu_bandwidth : options_.min_bandwidth;
  const double best = known ? found->second.best_gb_per_s : 0;
  if (check.copy_gb_per_s < share * best) {
    return {false, absl::StrFormat("copy bandwidth %.4g GB/s, its best was %.4g GB/s; must be at "
                                   "least %.4g GB/s",
                                   check.copy_gb_per_s, best, share * best)};
  }
  if (found == records_.end() && records_.size() >= options_.max_devices) return {};
  DeviceRecord record{check.kind.substr(0, kMaxText), version.substr(0, kMaxText),
                      check.fingerprint.substr(0, kMaxText), std::max(best, check.copy_gb_per_s)};
  if (found == records_.end() || found->second != record) {
    records_[key] = std::move(record);
    unsaved_.insert(key);
  }
  return {};
}

void DeviceHealth::Forget(const std::string& worker) {
  const auto known = key_of_worker_.find(worker);
  const std::string key = known == key_of_worker_.end() ? KeyOf({}, worker) : known->second;
  if (records_.erase(key) > 0) unsaved_.insert(key);
}

const DeviceRecord* DeviceHealth::Find(const std::string& key) const {
  const auto found = records_.find(key);
  return found == records_.end() ? nullptr : &found->second;
}

void DeviceHealth::Save(const std::string& key, DurableChanges* changes) const {
  DurableRecord saved{RecordKey(key), std::nullopt};
  if (const DeviceRecord* record = Find(key)) {
    JsonWriter writer;
    VisitDevice(writer, *record);
    saved.value = writer.Finish();
  }
  changes->records.push_back(std::move(saved));
}

void DeviceHealth::TakeChanges(DurableChanges* changes) {
  for (const std::string& key : unsaved_) Save(key, changes);
  unsaved_.clear();
}

void DeviceHealth::SaveAll(DurableChanges* changes) const {
  for (const auto& [key, record] : records_) Save(key, changes);
}

absl::Status DeviceHealth::RestoreRecord(const std::string& key, const std::string& value) {
  absl::string_view rest = key;
  std::string name;
  if (!absl::ConsumePrefix(&rest, "device/") || !FromHex(rest, &name)) {
    return absl::InvalidArgumentError(absl::StrCat(key, ": must end in hex digits"));
  }
  DeviceRecord record;
  JsonReader reader(key, value);
  VisitDevice(reader, record);
  reader.Check(record.best_gb_per_s >= 0, "best_gb_per_s", "must be 0 or more");
  if (reader.status().ok()) records_[name] = std::move(record);
  return reader.status();
}

}  // namespace muster
