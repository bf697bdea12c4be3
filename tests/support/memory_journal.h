// A journal in memory, and one that fails or "crashes" at a chosen write, for tests.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/engine/journal.h"

namespace muster {

// Copying it is what a restart finds.
class MemoryJournal : public Journal {
 public:
  int num_syncs = 0;
  absl::Status condition;  // what Maintain says

  absl::Status Sync() override {
    ++num_syncs;
    return absl::OkStatus();
  }
  absl::Status Maintain() override { return condition; }
  absl::StatusOr<DurableState> Load(int64_t tail) override {
    DurableState state;
    for (const auto& [key, value] : records_) state.records.push_back({key, value});
    std::map<std::pair<int64_t, int>, int64_t> left;
    for (auto it = ledger_.rbegin(); it != ledger_.rend(); ++it) {
      const auto& [job, kind, index] = it->first;
      if (left.try_emplace({job, kind}, tail).first->second-- <= 0) continue;
      state.ledger.push_back({job, static_cast<LedgerKind>(kind), index, it->second});
    }
    std::reverse(state.ledger.begin(), state.ledger.end());
    return state;
  }
  absl::Status Write(const DurableChanges& changes) override {
    for (const DurableRecord& record : changes.records) {
      if (record.value.has_value()) {
        records_[record.key] = *record.value;
      } else {
        records_.erase(record.key);
      }
    }
    for (const LedgerRow& row : changes.ledger) {
      ledger_[{row.job, static_cast<int>(row.kind), row.index}] = row.value;
    }
    for (const int64_t job : changes.forgotten_jobs) {
      const std::string own = absl::StrCat("job/", job);
      std::erase_if(records_, [&](const auto& record) {
        return record.first == own || absl::StartsWith(record.first, own + "/");
      });
      std::erase_if(ledger_, [&](const auto& row) { return std::get<0>(row.first) == job; });
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<LedgerRow>> ReadLedger(int64_t job, LedgerKind kind, int64_t since,
                                                    int64_t limit) override {
    std::vector<LedgerRow> rows;
    for (auto it = ledger_.lower_bound({job, static_cast<int>(kind), since});
         it != ledger_.end() && static_cast<int64_t>(rows.size()) < limit; ++it) {
      const auto& [row_job, row_kind, index] = it->first;
      if (row_job != job || row_kind != static_cast<int>(kind)) break;
      rows.push_back({job, kind, index, it->second});
    }
    return rows;
  }

 private:
  std::map<std::string, std::string> records_;
  std::map<std::tuple<int64_t, int, int64_t>, std::string> ledger_;
};

// Hands on to another journal. Writes count from 0. Not thread-safe: set it up before its user
// starts, or from within the user's thread.
class FaultyJournal : public Journal {
 public:
  explicit FaultyJournal(Journal* journal) : journal_(journal) {}

  // Writes first .. first + count - 1 fail and change nothing.
  void Fail(int64_t first, int64_t count, absl::Status status) {
    fail_first_ = first;
    fail_end_ = first + count;
    status_ = std::move(status);
  }
  enum class Moment { kBefore, kAfter };
  // At write n the process dies, before or after the commit: nobody hears of its outcome, and
  // nothing is written any more.
  void CrashAt(int64_t n, Moment moment) {
    crash_at_ = n;
    moment_ = moment;
  }
  bool crashed() const { return crashed_; }
  int64_t num_writes() const { return num_writes_; }
  const std::vector<DurableChanges>& written() const { return written_; }

  absl::StatusOr<DurableState> Load(int64_t tail) override { return journal_->Load(tail); }
  absl::Status Write(const DurableChanges& changes) override {
    if (crashed_) return Dead();
    const int64_t n = num_writes_++;
    if (n >= fail_first_ && n < fail_end_) return status_;
    crashed_ = n == crash_at_;
    if (crashed_ && moment_ == Moment::kBefore) return Dead();
    const absl::Status status = journal_->Write(changes);
    if (crashed_) return Dead();
    if (status.ok()) written_.push_back(changes);
    return status;
  }
  absl::StatusOr<std::vector<LedgerRow>> ReadLedger(int64_t job, LedgerKind kind, int64_t since,
                                                    int64_t limit) override {
    return journal_->ReadLedger(job, kind, since, limit);
  }
  absl::Status Sync() override { return crashed_ ? Dead() : journal_->Sync(); }
  absl::Status Maintain() override { return crashed_ ? Dead() : journal_->Maintain(); }

 private:
  static absl::Status Dead() { return absl::UnavailableError("the process is dead"); }

  Journal* const journal_;
  int64_t fail_first_ = 0, fail_end_ = 0, crash_at_ = -1, num_writes_ = 0;
  absl::Status status_;
  Moment moment_ = Moment::kBefore;
  bool crashed_ = false;
  std::vector<DurableChanges> written_;
};

}  // namespace muster
