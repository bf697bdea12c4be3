#include "tests/sim/sim_journal.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"

namespace muster {

DurableState SimJournal::Load(int64_t tail) const {
  DurableState state;
  for (const auto& [key, value] : records_) state.records.push_back({key, value});
  for (auto it = ledger_.begin(); it != ledger_.end();) {
    const auto [job, kind, index] = it->first;
    const auto end = ledger_.upper_bound({job, kind, INT64_MAX});
    const int64_t count = std::distance(it, end);
    std::advance(it, std::max<int64_t>(0, count - tail));
    for (; it != end; ++it) state.ledger.push_back({job, kind, std::get<2>(it->first), it->second});
  }
  return state;
}

absl::Status SimJournal::Write(const DurableChanges& changes) {
  if (full_) return absl::ResourceExhaustedError("the disk is full");
  ++num_writes_;
  std::set<std::string> keys;
  for (const DurableRecord& record : changes.records) {
    if (!keys.insert(record.key).second) {
      sim_->Wrong(absl::StrCat("record ", record.key, " is twice in one transaction"));
    }
    SetRecord(record.key, record.value);
  }
  for (const LedgerRow& row : changes.ledger) {
    const LedgerKey key{row.job, row.kind, row.index};
    if (!ledger_.emplace(key, row.value).second) {
      sim_->Wrong(absl::StrCat("ledger row ", row.index, " of kind ", static_cast<int>(row.kind),
                               " of job ", row.job, " is written twice"));
    }
    undo_.push_back({.row = key});
  }
  for (const int64_t job : changes.forgotten_jobs) Forget(job);
  if (changes.durability == Durability::kDecision) Sync();
  return absl::OkStatus();
}

void SimJournal::SetRecord(const std::string& key, const std::optional<std::string>& value) {
  const auto found = records_.find(key);
  Undo undo{.key = key};
  if (found != records_.end()) undo.before = found->second;
  undo_.push_back(std::move(undo));
  if (value.has_value()) {
    records_[key] = *value;
  } else if (found != records_.end()) {
    records_.erase(found);
  }
}

void SimJournal::Forget(int64_t job) {
  const std::string exact = absl::StrCat("job/", job), prefix = absl::StrCat(exact, "/");
  std::vector<std::string> keys;
  for (auto it = records_.lower_bound(exact); it != records_.end(); ++it) {
    if (it->first != exact && !absl::StartsWith(it->first, prefix)) {
      if (it->first > prefix) break;
      continue;
    }
    keys.push_back(it->first);
  }
  for (const std::string& key : keys) SetRecord(key, std::nullopt);
  ledger_.erase(ledger_.lower_bound({job, LedgerKind::kStep, INT64_MIN}),
                ledger_.upper_bound({job, LedgerKind::kEvent, INT64_MAX}));
}

void SimJournal::LosePower() {
  for (auto undo = undo_.rbegin(); undo != undo_.rend(); ++undo) {
    if (undo->row.has_value()) {
      ledger_.erase(*undo->row);
    } else if (undo->before.has_value()) {
      records_[undo->key] = *undo->before;
    } else {
      records_.erase(undo->key);
    }
  }
  undo_.clear();
}

}  // namespace muster
