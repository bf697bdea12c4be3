// Membership's part that holds workers back from new ranks: cordons, drains, quarantines.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "coordinator/core/durable_json.h"
#include "coordinator/core/membership.h"

namespace muster {
namespace {

constexpr char kDrained[] = "drained/", kCordoned[] = "cordoned/", kQuarantined[] = "quarantined/";
constexpr size_t kMaxEvidence = 2'048;  // bytes

}  // namespace

std::string WorkerHold::Text() const {
  if (!quarantined.empty()) return absl::StrCat("quarantined: ", quarantined);
  if (draining) return "draining";
  return cordoned ? "cordoned" : "";
}

absl::StatusOr<std::vector<std::string>> Membership::WorkersNamed(const std::string& name) const {
  // One that is held back may be away for now.
  if (workers_.contains(name) || holds_.contains(name)) return std::vector<std::string>{name};
  std::vector<std::string> names;
  for (const auto& [worker, entry] : workers_) {
    if (agents_.at(entry.incarnation).node == name) names.push_back(worker);
  }
  if (names.empty()) {
    return absl::NotFoundError(absl::StrCat(
        "\"", name, "\" is no worker or node that is known; `muster workers` lists all"));
  }
  return names;
}

WorkerHold Membership::HoldOf(const std::string& worker) const {
  const auto known = holds_.find(worker);
  return known == holds_.end() ? WorkerHold{} : known->second;
}

void Membership::SetHold(const std::string& worker, const WorkerHold& hold) {
  const WorkerHold before = HoldOf(worker);
  if (hold == before) return;
  if (hold.draining != before.draining) unsaved_holds_.insert(absl::StrCat(kDrained, worker));
  if (hold.cordoned != before.cordoned) unsaved_holds_.insert(absl::StrCat(kCordoned, worker));
  if (hold.quarantined != before.quarantined) {
    unsaved_holds_.insert(absl::StrCat(kQuarantined, worker));
  }
  if (hold.any()) {
    holds_[worker] = hold;
  } else {
    holds_.erase(worker);
  }
  ++generation_;
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return;
  found->second.hold = hold;
  Recount(&found->second);
}

absl::Status Membership::Drain(const std::string& name, bool undo) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, WorkersNamed(name));
  for (const std::string& worker : names) {
    WorkerHold hold = HoldOf(worker);
    hold.draining = !undo;
    SetHold(worker, hold);
  }
  return absl::OkStatus();
}

absl::Status Membership::Cordon(const std::string& name) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, WorkersNamed(name));
  for (const std::string& worker : names) {
    WorkerHold hold = HoldOf(worker);
    hold.cordoned = true;
    SetHold(worker, hold);
  }
  return absl::OkStatus();
}

absl::Status Membership::Uncordon(const std::string& name) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, WorkersNamed(name));
  for (const std::string& worker : names) SetHold(worker, {});
  return absl::OkStatus();
}

bool Membership::Quarantine(const std::string& worker, const std::string& evidence) {
  const auto found = workers_.find(worker);
  if (found == workers_.end() || !found->second.hold.quarantined.empty()) return false;
  WorkerHold hold = found->second.hold;
  hold.quarantined = evidence.empty() ? "without a reason" : evidence.substr(0, kMaxEvidence);
  SetHold(worker, hold);
  return true;
}

// ---- durability

void Membership::SaveHold(const std::string& key, DurableChanges* changes) const {
  absl::string_view rest = key;
  DurableRecord record{key, std::nullopt};
  const bool drained = absl::ConsumePrefix(&rest, kDrained);
  const bool cordoned = !drained && absl::ConsumePrefix(&rest, kCordoned);
  if (!drained && !cordoned) absl::ConsumePrefix(&rest, kQuarantined);
  if (const auto hold = holds_.find(std::string(rest)); hold != holds_.end()) {
    const WorkerHold& held = hold->second;
    if (drained || cordoned) {
      if (drained ? held.draining : held.cordoned) record.value = "{}";
    } else if (!held.quarantined.empty()) {
      JsonWriter writer;
      writer("evidence", held.quarantined);
      record.value = writer.Finish();
    }
  }
  changes->records.push_back(std::move(record));
}

absl::Status Membership::RestoreHold(const std::string& key, const std::string& value) {
  absl::string_view rest = key;
  JsonReader reader(key, value);
  WorkerHold hold;
  if (absl::ConsumePrefix(&rest, kDrained)) {
    hold = HoldOf(std::string(rest));
    hold.draining = true;
  } else if (absl::ConsumePrefix(&rest, kCordoned)) {
    hold = HoldOf(std::string(rest));
    hold.cordoned = true;
  } else if (absl::ConsumePrefix(&rest, kQuarantined)) {
    hold = HoldOf(std::string(rest));
    hold.quarantined = "without a reason";
    reader("evidence", hold.quarantined);
  }
  RETURN_IF_ERROR(reader.status());
  SetHold(std::string(rest), hold);
  unsaved_holds_.clear();  // it is what was saved
  return absl::OkStatus();
}

}  // namespace muster
