// A journal in memory that promises what coordinator/engine/journal.h promises, with the faults of
// a disk: full for a while, gone back to its last fsync by a loss of power. It outlives the
// coordinators that write it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/durable.h"
#include "tests/sim/sim_context.h"

namespace muster {

class SimJournal {
 public:
  explicit SimJournal(Sim* sim) : sim_(sim) {}

  // All records, and of each job and kind the newest `tail` ledger rows.
  DurableState Load(int64_t tail) const;
  // All of it or, with an error, nothing.
  absl::Status Write(const DurableChanges& changes);

  // What is written from now on survives the machine, as does all before it.
  void Sync() { undo_.clear(); }
  // The machine goes down: reports since the last fsync are forgotten. What they were: nothing that
  // anybody was promised for longer than a second.
  void LosePower();
  void set_full(bool full) { full_ = full; }
  bool full() const { return full_; }

  int64_t num_writes() const { return num_writes_; }
  using LedgerKey = std::tuple<int64_t, LedgerKind, int64_t>;  // job, kind, index
  const std::map<std::string, std::string>& records() const { return records_; }
  const std::map<LedgerKey, std::string>& ledger() const { return ledger_; }

 private:
  struct Undo {
    std::string key;
    std::optional<std::string> before;
    std::optional<LedgerKey> row;  // to be taken away; `key` says nothing then
  };
  void SetRecord(const std::string& key, const std::optional<std::string>& value);
  void Forget(int64_t job);

  Sim* const sim_;
  std::map<std::string, std::string> records_;
  std::map<LedgerKey, std::string> ledger_;
  std::vector<Undo> undo_;  // of what is not fsynced
  bool full_ = false;
  int64_t num_writes_ = 0;
};

}  // namespace muster
