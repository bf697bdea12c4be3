// The key stores of all jobs, one for each job's current epoch. What an older epoch wrote is never
// seen: a call that names another epoch gets ABORTED, and so do those that wait when an epoch ends.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/durable.h"
#include "coordinator/core/kv_store.h"

namespace muster {

class Rendezvous {
 public:
  explicit Rendezvous(const KvLimits& limits) : limits_(limits) {}

  // Epochs of a job only grow; the former one ends.
  void Begin(const std::string& job_id, int64_t epoch, std::vector<Action>* done);
  // No epoch of the job is open afterwards.
  void End(const std::string& job_id, const std::string& reason, std::vector<Action>* done);

  absl::Status Set(const SetKey& set, std::vector<Action>* done);
  absl::Status Wait(const WaitPrefix& wait, absl::Time now, std::vector<Action>* done);
  void Cancel(WaitToken token);
  void Expire(absl::Time now, std::vector<Action>* done);

  // nullptr: no epoch of the job is open.
  const KvStore* FindStore(const std::string& job_id) const {
    const auto round = rounds_.find(job_id);
    return round == rounds_.end() ? nullptr : &round->second.store;
  }
  // 0: none is open.
  int64_t epoch(const std::string& job_id) const;

  // ---- durability: records "job/n/key/<hex of key>"; waiters are not saved, they ask again.
  // `sequence_of` gives a job's n; 0: it is forgotten, and all of its records with it.
  using SequenceOf = std::function<int64_t(const std::string& job_id)>;
  bool unsaved() const { return !unsaved_.empty(); }
  void TakeChanges(const SequenceOf& sequence_of, DurableChanges* changes);
  void SaveAll(const SequenceOf& sequence_of, DurableChanges* changes) const;
  // Into a round that Begin() has opened. INVALID_ARGUMENT names the record.
  absl::Status RestoreRecord(const std::string& job_id, const std::string& hex_of_key,
                             const std::string& record, const std::string& value);

 private:
  struct Round {
    int64_t epoch = 0;
    KvStore store;
  };
  absl::StatusOr<KvStore*> Find(const std::string& job_id, int64_t epoch);

  const KvLimits limits_;
  std::map<std::string, Round> rounds_;                    // by job
  std::set<std::pair<std::string, std::string>> unsaved_;  // job, key
};

}  // namespace muster
