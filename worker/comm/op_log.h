// The ring buffer of a group's recent operations, for hang reports: what ran, what never finished,
// and who had arrived. Recording costs a lock and a few stores, no allocation.
// Thread-safe. Invariant: records_ holds the last min(next_, capacity) sequence numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
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

  // "all_reduce 1024 float" or "reduce_scatter 1024 -> 256 float"
  std::string ToString() const;
};

class OpLog {
 public:
  // `group` heads every report. `ranks`: the members' global ranks.
  OpLog(std::string group, std::vector<int> ranks, int capacity = 64);

  // Returns the operation's sequence number: 0, 1, 2, ...
  int64_t Start(const OpShape& shape, absl::Time now);
  // Only backends that can see their peers call this. `member` is an index inside the group.
  void Arrived(int64_t sequence, int member);
  // Records that were overwritten since are ignored.
  void Finish(int64_t sequence, const absl::Status& status, absl::Time now);

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
  };
  std::string DescribeRecord(int64_t sequence, const Record& record, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Record* Find(int64_t sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string group_;
  const std::vector<int> ranks_;
  mutable Mutex mu_;
  std::vector<Record> records_ ABSL_GUARDED_BY(mu_);
  int64_t next_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace muster
