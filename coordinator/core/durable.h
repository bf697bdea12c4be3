// What of the core outlives its process, as plain values: outcomes, never events, so that a restart
// decides nothing again. The core keeps note of what each event has changed
// (Coordinator::TakeChanges); whoever owns it writes that as one transaction before it carries the
// event's actions out, and hands all of it to Coordinator::Restore() when it starts again.
//
// Records are a map: the last value of a key counts, so the journal is as large as the state that
// it describes and needs no replay. Ledger rows are what a job has done (steps, evaluations,
// checkpoints, events): each is written once, kept for the job's life, and only the newest ones are
// in memory.
//
// Not durable: heartbeats, streams, rendezvous waiters, log lines.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace muster {

// Raised when a record's meaning changes so that an older coordinator would misread it. A journal
// of a higher version is refused; lower ones are read.
inline constexpr int64_t kDurableVersion = 1;

struct DurableRecord {
  std::string key;                   // "job/7", "job/7/rank/12", "agent/<hex>", ...
  std::optional<std::string> value;  // one JSON value; nullopt: erased
  bool operator==(const DurableRecord&) const = default;
};

enum class LedgerKind { kStep = 1, kEvaluation = 2, kCheckpoint = 3, kEvent = 4 };
struct LedgerRow {
  int64_t job = 0;  // its sequence
  LedgerKind kind = LedgerKind::kStep;
  int64_t index = 0;  // rises within a job and kind
  std::string value;  // one JSON value
  bool operator==(const LedgerRow&) const = default;
};

// kReport: what agents hold until it is acknowledged; it may be written without waiting for the
// disk. kDecision: must be on the disk before anybody hears of it.
enum class Durability { kReport, kDecision };

struct DurableChanges {
  std::vector<DurableRecord> records;  // at most one a key
  std::vector<LedgerRow> ledger;
  std::vector<int64_t> forgotten_jobs;  // sequences whose records and ledger are to be erased
  Durability durability = Durability::kReport;
  bool empty() const { return records.empty() && ledger.empty() && forgotten_jobs.empty(); }
};

struct DurableState {
  std::vector<DurableRecord> records;  // sorted by key, each with a value
  std::vector<LedgerRow> ledger;  // the newest of each job and kind, sorted by job, kind, index
};

}  // namespace muster
