// The keys of one epoch of one job, and the calls that wait for a number of keys under a prefix.
// Pure: who may go on is returned, not called. A set costs O(length of the key), however many wait.
#pragma once

#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/core/types.h"

namespace muster {

struct KvLimits {
  size_t max_key = 1'024;        // bytes; also of a prefix
  size_t max_value = 1 << 20;    // bytes
  size_t max_keys = 1'000'000;   // of an epoch
  size_t max_bytes = 256 << 20;  // keys and values of an epoch
  size_t max_waiters = 100'000;
  absl::Duration max_wait = absl::Minutes(1);
};

class KvStore {
 public:
  explicit KvStore(const KvLimits& limits) : limits_(limits) {}

  // INVALID_ARGUMENT for a key that is empty or too long, RESOURCE_EXHAUSTED for too much of it.
  // Adds whoever has all its keys now to `done`.
  absl::Status Set(const std::string& key, const std::string& value, std::vector<Action>* done);

  // Answered at once when the keys are there, else by a later Set, Expire or End.
  absl::Status Wait(const WaitPrefix& wait, absl::Time now, std::vector<Action>* done);
  void Cancel(WaitToken token);
  // DEADLINE_EXCEEDED, with how many keys are there, for those whose limit has passed.
  void Expire(absl::Time now, std::vector<Action>* done);
  // `status` for all who wait; no keys are left.
  void End(const absl::Status& status, std::vector<Action>* done);

  // nullptr: there is none.
  const std::string* Find(const std::string& key) const;
  const std::map<std::string, std::string>& keys() const { return keys_; }
  size_t num_waiters() const { return waiters_.size(); }
  size_t num_keys() const { return keys_.size(); }

 private:
  struct Waiter {
    std::string prefix;
    int count = 0;
    absl::Time deadline;
  };
  struct Prefix {  // exists while somebody waits for it
    int num_keys = 0;
    std::vector<WaitToken> waiters;
  };

  KeyValues Collect(const std::string& prefix) const;
  void Remove(WaitToken token);

  const KvLimits limits_;
  std::map<std::string, std::string> keys_;
  size_t bytes_ = 0;
  std::map<WaitToken, Waiter> waiters_;
  std::set<std::pair<absl::Time, WaitToken>> deadlines_;  // of the waiters
  std::unordered_map<std::string, Prefix> prefixes_;
};

}  // namespace muster
