#include "coordinator/core/rendezvous.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "coordinator/core/durable_json.h"

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
  for (const auto& [key, value] : round->second.store.keys()) unsaved_.insert({job_id, key});
  round->second.store.End(absl::AbortedError(absl::StrCat("epoch ", round->second.epoch, " of ",
                                                          job_id, " is over: ", reason)),
                          done);
  rounds_.erase(round);
}

absl::Status Rendezvous::Set(const SetKey& set, std::vector<Action>* done) {
  ASSIGN_OR_RETURN(KvStore * store, Find(set.job_id, set.epoch));
  RETURN_IF_ERROR(store->Set(set.key, set.value, done));
  unsaved_.insert({set.job_id, set.key});
  return absl::OkStatus();
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

// ---- durability

namespace {

struct SavedKey {
  int64_t epoch = 0;
  std::string value;
};

std::string RecordKey(int64_t job, const std::string& key) {
  return absl::StrCat("job/", job, "/key/", ToHex(key));
}

std::string RecordValue(int64_t epoch, const std::string& value) {
  JsonWriter writer;
  writer("epoch", epoch);
  writer.Bytes("value", value);
  return writer.Finish();
}

}  // namespace

void Rendezvous::TakeChanges(const SequenceOf& sequence_of, DurableChanges* changes) {
  for (const auto& [job_id, key] : unsaved_) {
    const int64_t job = sequence_of(job_id);
    if (job == 0) continue;
    const auto round = rounds_.find(job_id);
    const std::string* value = round == rounds_.end() ? nullptr : round->second.store.Find(key);
    DurableRecord record{RecordKey(job, key), std::nullopt};
    if (value != nullptr) record.value = RecordValue(round->second.epoch, *value);
    changes->records.push_back(std::move(record));
  }
  unsaved_.clear();
}

void Rendezvous::SaveAll(const SequenceOf& sequence_of, DurableChanges* changes) const {
  for (const auto& [job_id, round] : rounds_) {
    for (const auto& [key, value] : round.store.keys()) {
      changes->records.push_back(
          {RecordKey(sequence_of(job_id), key), RecordValue(round.epoch, value)});
    }
  }
}

absl::Status Rendezvous::RestoreRecord(const std::string& job_id, const std::string& hex_of_key,
                                       const std::string& record, const std::string& value) {
  SavedKey saved;
  JsonReader reader(record, value);
  reader("epoch", saved.epoch);
  reader.Bytes("value", saved.value);
  RETURN_IF_ERROR(reader.status());
  std::string key;
  if (!FromHex(hex_of_key, &key)) {
    return absl::InvalidArgumentError(absl::StrCat(record, ": must end in hex digits"));
  }
  if (epoch(job_id) != saved.epoch || saved.epoch == 0) {
    return absl::InvalidArgumentError(absl::StrCat(record, ": epoch=", saved.epoch,
                                                   ", but the epoch that is open is ",
                                                   epoch(job_id), " (0: none)"));
  }
  std::vector<Action> nobody_waits;
  return Annotate(rounds_.at(job_id).store.Set(key, saved.value, &nobody_waits), record);
}

}  // namespace muster
