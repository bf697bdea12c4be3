// A journal that measures how long another one's writes take. Used like that one; its numbers may
// be read from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "common/runtime/clock.h"
#include "coordinator/engine/journal.h"

namespace muster {

class TimedJournal final : public Journal {
 public:
  // Both outlive it.
  TimedJournal(Journal* journal, Clock* clock) : journal_(journal), clock_(clock) {}

  absl::StatusOr<DurableState> Load(int64_t tail) override { return journal_->Load(tail); }
  absl::Status Write(const DurableChanges& changes) override {
    return Measured([&] { return journal_->Write(changes); });
  }
  absl::StatusOr<std::vector<LedgerRow>> ReadLedger(int64_t job, LedgerKind kind, int64_t since,
                                                    int64_t limit) override {
    return journal_->ReadLedger(job, kind, since, limit);
  }
  absl::Status Sync() override {
    return Measured([&] { return journal_->Sync(); });
  }
  absl::Status Maintain() override { return journal_->Maintain(); }
  std::string Name() const override { return journal_->Name(); }

  int64_t num_writes() const { return writes_.load(std::memory_order_relaxed); }
  int64_t num_failures() const { return failures_.load(std::memory_order_relaxed); }
  absl::Duration total() const {
    return absl::Nanoseconds(nanoseconds_.load(std::memory_order_relaxed));
  }
  absl::Duration longest() const {
    return absl::Nanoseconds(longest_.load(std::memory_order_relaxed));
  }

 private:
  template <typename Operation>
  absl::Status Measured(Operation operation) {
    const absl::Duration start = clock_->Steady();
    const absl::Status status = operation();
    const int64_t took = absl::ToInt64Nanoseconds(clock_->Steady() - start);
    writes_.fetch_add(1, std::memory_order_relaxed);
    if (!status.ok()) failures_.fetch_add(1, std::memory_order_relaxed);
    nanoseconds_.fetch_add(took, std::memory_order_relaxed);
    // The engine's thread is the only one that writes.
    if (took > longest_.load(std::memory_order_relaxed)) longest_ = took;
    return status;
  }

  Journal* const journal_;
  Clock* const clock_;
  std::atomic<int64_t> writes_ = 0, failures_ = 0, nanoseconds_ = 0, longest_ = 0;
};

}  // namespace muster
