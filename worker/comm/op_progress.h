// The newest operation of every group of a rank, and how long its thread has waited for operations:
// what a probe asks and what a report on slow ranks needs. Follows the groups as an OpObserver
// does, and lets another observer (a trace) listen behind it. An operation costs two locks and no
// allocation. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/runtime/mutex.h"
#include "worker/comm/op_log.h"

namespace muster {

class OpProgress final : public OpObserver {
 public:
  struct Newest {
    std::string group;
    std::vector<int> ranks;  // global, in group order
    int64_t sequence = 0;    // from 1 on
    std::string operation;   // "all_reduce 1024 float"
    bool done = true;
    absl::Duration age;  // since it was started
  };

  // By group; those that have had an operation.
  std::vector<Newest> NewestOperations() const;
  // Of the threads that waited, so far.
  absl::Duration waited() const { return absl::Nanoseconds(waited_ns_.load()); }

  // Hears of all operations, too, from the next one on; null: nobody. Once it returns, the one
  // before is not called any more.
  void Listen(OpObserver* behind);
  // The groups of an epoch are gone: their operations are forgotten.
  void Forget();

  int64_t OpStarted(const Start& start) override;
  void OpFinished(int64_t op) override;
  void OpWaited(int64_t op, int64_t begin_ns) override;

 private:
  // Operations of all groups that can be told apart; older ones are forgotten.
  static constexpr int64_t kCapacity = 512;
  struct Group {
    std::vector<int> ranks;
    OpShape shape;
    int64_t sequence = -1;  // of the newest operation
    int64_t number = -1;    // of it, among all groups'
    int64_t started_ns = 0;
    bool done = true;
  };
  struct Record {
    int64_t number = -1;
    Group* group = nullptr;
    int64_t behind = -1;  // the other observer's number
  };
  Record* Find(int64_t op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  OpObserver* behind_ ABSL_GUARDED_BY(mu_) = nullptr;
  int64_t next_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<Record> records_ ABSL_GUARDED_BY(mu_) = std::vector<Record>(kCapacity);
  std::map<std::string, Group> groups_ ABSL_GUARDED_BY(mu_);
  std::atomic<int64_t> waited_ns_ = 0;
};

}  // namespace muster
