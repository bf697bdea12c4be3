#include "coordinator/core/rendezvous.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace muster {

void Rendezvous::Begin(const std::string& job_id, int64_t epoch, std::vector<Action>* done) {
  MUSTER_CHECK(epoch > this->epoch(job_id));
  End(job_id, absl::StrCat("epoch ", epoch, " has begun"), done);
  rounds_.emplace(job_id, Round{epoch, KvStore(limits_)});
}

void Rendezvous::End(const std::string& job_id, const std::string& reason,
                     std::vector<Action>* done) {
  const auto round = rounds_.find(job_id);
  if (round == rounds_.end()) return;
  round->second.store.End(absl::AbortedError(absl::StrCat("epoch ", round->second.epoch, " of ",
                                                          job_id, " is over: ", reason)),
                          done);
  rounds_.erase(round);
}

absl::Status Rendezvous::Set(const SetKey& set, std::vector<Action>* done) {
  ASSIGN_OR_RETURN(KvStore * store, Find(set.job_id, set.epoch));
  return store->Set(set.key, set.value, done);
}

absl::Status Rendezvous::Wait(const WaitPrefix& wait, absl::Time now, std::vector<Action>* done) {
  ASSIGN_OR_RETURN(KvStore * store, Find(wait.job_id, wait.epoch));
  return store->Wait(wait, now, done);
}

void Rendezvous::Cancel(WaitToken token) {
  for (auto& [job_id, round] : rounds_) round.store.Cancel(token);
}

void Rendezvous::Expire(absl::Time now, std::vector<Action>* done) {
  for (auto& [job_id, round] : rounds_) round.store.Expire(now, done);
}

int64_t Rendezvous::epoch(const std::string& job_id) const {
  const auto round = rounds_.find(job_id);
  return round == rounds_.end() ? 0 : round->second.epoch;
}

absl::StatusOr<KvStore*> Rendezvous::Find(const std::string& job_id, int64_t epoch) {
  const auto round = rounds_.find(job_id);
  if (round == rounds_.end()) {
    return absl::AbortedError(
        absl::StrCat("epoch ", epoch, " of ", job_id, " is stale: no epoch of that job is open"));
  }
  if (round->second.epoch != epoch) {
    return absl::AbortedError(absl::StrCat("epoch ", epoch, " of ", job_id,
                                           " is stale: the current one is ", round->second.epoch));
  }
  return &round->second.store;
}

}  // namespace muster
