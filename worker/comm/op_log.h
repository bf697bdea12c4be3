// The ring buffer of a group's recent operations, for hang reports: what ran, what never finished,
// and who had arrived. Recording costs a lock and a few stores, no allocation. Whoever traces a
// step observes the same places (OpObserver). Thread-safe. Invariant: records_ holds the last
// min(next_, capacity) sequence numbers.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/runtime/mutex.h"

namespace muster {

// "2, 5-7": the set ranks, ranges compressed. Empty text for none.
std::string FormatRanks(const std::vector<int>& sorted_ranks);

// What an operation works on. The strings must be literals (they are kept by pointer).
struct OpShape {
  const char* op = "";     // "all_reduce"
  const char* dtype = "";  // "float"; empty where there is no tensor
  int64_t num_elements_in = 0;
  int64_t num_elements_out = 0;  // 0: same tensor, or none
  int64_t bytes_in = 0, bytes_out = 0;

  // "all_reduce 1024 float" or "reduce_scatter 1024 -> 256 float"
  std::string ToString() const;
};

// One message of a send_recv.
struct OpTransfer {
  bool is_send = false;
  int peer = 0;  // member of the group
  int channel = 0;
  int64_t bytes = 0;
};

// Follows a group's operations while somebody traces. Called under the log's lock: it must not
// block, and not call the group.
class OpObserver {
 public:
  struct Start {
    const std::string& group;
    const std::vector<int>& ranks;  // global, in group order; lives as long as the log
    const OpShape& shape;
    int64_t sequence = 0;
    absl::Span<const OpTransfer> transfers;  // of a send_recv
  };
  virtual ~OpObserver() = default;
  // The operation's number, for the calls below; -1: not followed.
  virtual int64_t OpStarted(const Start& start) = 0;
  // From any thread.
  virtual void OpFinished(int64_t op) = 0;
  // The calling thread waited for it, from SteadyNanos() = `begin_ns` until now.
  virtual void OpWaited(int64_t op, int64_t begin_ns) = 0;
};

// CLOCK_MONOTONIC.
int64_t SteadyNanos();

class OpLog {
 public:
  // `group` heads every report. `ranks`: the members' global ranks.
  OpLog(std::string group, std::vector<int> ranks, int capacity = 64);

  // Returns the operation's sequence number: 0, 1, 2, ...
  int64_t Start(const OpShape& shape, absl::Time now, absl::Span<const OpTransfer> transfers = {});
  // Only backends that can see their peers call this. `member` is an index inside the group.
  void Arrived(int64_t sequence, int member);
  // Records that were overwritten since are ignored.
  void Finish(int64_t sequence, const absl::Status& status, absl::Time now);

  // From the next operation on; null: nobody. Once it returns, the observer before is not called
  // any more.
  void Observe(OpObserver* observer);
  bool observed() const { return observed_.load(std::memory_order_relaxed); }

  // Stands around a wait for an operation that may block. Without an observer: one branch.
  class WaitScope {
   public:
    WaitScope(OpLog& log, int64_t sequence)
        : log_(log), sequence_(sequence), begin_ns_(log.observed() ? SteadyNanos() : 0) {}
    ~WaitScope() {
      if (begin_ns_ != 0) log_.Waited(sequence_, begin_ns_);
    }
    WaitScope(const WaitScope&) = delete;
    WaitScope& operator=(const WaitScope&) = delete;

   private:
    OpLog& log_;
    const int64_t sequence_, begin_ns_;
  };

  // "group dp, sequence 12, all_reduce 1024 float": how error messages name an operation.
  std::string Name(int64_t sequence) const;
  // One line an operation, oldest first.
  std::string Describe(absl::Time now) const;

 private:
  enum class State { kStarted, kDone, kFailed };
  struct Record {
    OpShape shape;
    State state = State::kStarted;
    absl::Time started, finished;
    bool arrivals_known = false;
    std::vector<bool> arrived;  // by member
    int64_t observed_as = -1;   // the observer's number
  };
  void Waited(int64_t sequence, int64_t begin_ns);
  std::string DescribeRecord(int64_t sequence, const Record& record, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Record* Find(int64_t sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string group_;
  const std::vector<int> ranks_;
  mutable Mutex mu_;
  std::vector<Record> records_ ABSL_GUARDED_BY(mu_);
  OpObserver* observer_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::atomic<bool> observed_ = false;  // observer_ != nullptr
  int64_t next_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace muster
