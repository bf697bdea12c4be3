// Coordinator's part that says what must outlive it, and takes it up again.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/schedule/from_spec.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/core/durable_json.h"

namespace muster {
namespace {

constexpr char kSelf[] = "coordinator";

struct SavedSelf {
  int64_t durable_version = kDurableVersion;
  std::string job_tag;
  int64_t next_sequence = 1;
};

template <class V, class M>
void VisitSelf(V& v, M& m) {
  v("durable_version", m.durable_version);
  v("job_tag", m.job_tag);
  v("next_sequence", m.next_sequence);
}

absl::Status Bad(const std::string& record, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(record, ": ", what));
}

std::string RerunRecord(int64_t sequence) { return absl::StrCat("job/", sequence, "/rerun"); }

bool IsMembersRecord(absl::string_view key) {
  for (const char* prefix : {"agent/", "drained/", "cordoned/", "quarantined/"}) {
    if (absl::StartsWith(key, prefix)) return true;
  }
  return false;
}

// A number as it is written in keys: digits without zeros in front.
bool ReadNumber(absl::string_view text, int64_t* number) {
  return absl::SimpleAtoi(text, number) && *number >= 0 && text == absl::StrCat(*number);
}

// The records of all jobs by what they are.
class JobRecordReader {
 public:
  absl::Status Add(const std::string& key, const std::string& value) {
    absl::string_view rest = key;
    absl::ConsumePrefix(&rest, "job/");
    int64_t sequence = 0;
    if (!ReadNumber(rest.substr(0, rest.find('/')), &sequence) || sequence < 1) {
      return Bad(key, "\"job/\" must be followed by the job's number, 1 or more");
    }
    JobRecords& job = Of(sequence);
    const size_t slash = rest.find('/');
    if (slash == absl::string_view::npos) {
      job.identity = &value;
      return absl::OkStatus();
    }
    rest = rest.substr(slash + 1);
    if (rest == "state") {
      job.state = &value;
    } else if (rest == "epoch") {
      job.epoch = &value;
    } else if (rest == "cause") {
      job.cause = &value;
    } else if (absl::ConsumePrefix(&rest, "rank/")) {
      return AddNumbered(key, rest, value, &job.ranks);
    } else if (absl::ConsumePrefix(&rest, "directive/")) {
      return AddNumbered(key, rest, value, &job.directives);
    } else if (rest == "rerun" || absl::StartsWith(rest, "rerun/")) {
      reruns_[sequence].push_back(
          {std::string(absl::StripPrefix(rest.substr(5), "/")), &key, &value});
    } else if (absl::ConsumePrefix(&rest, "key/")) {
      keys_[sequence].push_back({std::string(rest), &key, &value});
    }  // else: of a later version
    return absl::OkStatus();
  }

  JobRecords& Of(int64_t sequence) {
    JobRecords& job = jobs_[sequence];
    job.sequence = sequence;
    return job;
  }
  const std::map<int64_t, JobRecords>& jobs() const { return jobs_; }

  struct Key {
    std::string rest;  // of the record's key: hex, or what the arbiter's records are named by
    const std::string *record, *value;
  };
  const std::map<int64_t, std::vector<Key>>& keys() const { return keys_; }
  const std::map<int64_t, std::vector<Key>>& reruns() const { return reruns_; }

 private:
  static absl::Status AddNumbered(const std::string& key, absl::string_view text,
                                  const std::string& value,
                                  std::map<int64_t, const std::string*>* to) {
    int64_t number = 0;
    if (!ReadNumber(text, &number)) return Bad(key, "must end in a number");
    (*to)[number] = &value;
    return absl::OkStatus();
  }

  std::map<int64_t, JobRecords> jobs_;
  std::map<int64_t, std::vector<Key>> keys_, reruns_;
};

}  // namespace

// ---- saving

void Coordinator::SaveSelf(DurableChanges* changes) const {
  SavedSelf saved{.job_tag = job_tag_, .next_sequence = next_sequence_};
  JsonWriter writer;
  VisitSelf(writer, saved);
  changes->records.push_back({kSelf, writer.Finish()});
}

int64_t Coordinator::SequenceOf(const std::string& job_id) const {
  const auto found = job_sequence_.find(job_id);
  return found == job_sequence_.end() ? 0 : found->second;
}

DurableChanges Coordinator::TakeChanges() {
  DurableChanges changes;
  // The coordinator's own record comes with the first other one, and with each new job.
  const bool examines = std::any_of(arbiters_.begin(), arbiters_.end(),
                                    [](const auto& entry) { return entry.second.unsaved(); });
  const bool any = membership_.unsaved() || devices_.unsaved() || rendezvous_.unsaved() ||
                   examines || !unsaved_jobs_.empty() || !forgotten_jobs_.empty();
  if (!any) {
    decided_ = false;
    return changes;
  }
  if (self_unsaved_) SaveSelf(&changes);
  membership_.TakeChanges(&changes);
  devices_.TakeChanges(&changes);
  rendezvous_.TakeChanges([this](const std::string& id) { return SequenceOf(id); }, &changes);
  for (const int64_t sequence : unsaved_jobs_) jobs_.at(sequence)->TakeChanges(&changes);
  for (auto& [sequence, arbiter] : arbiters_) {
    if (arbiter.unsaved()) arbiter.TakeChanges(RerunRecord(sequence), &changes);
  }
  changes.forgotten_jobs.assign(forgotten_jobs_.begin(), forgotten_jobs_.end());
  const bool decision = decided_ || self_unsaved_ || !forgotten_jobs_.empty();
  changes.durability = decision ? Durability::kDecision : Durability::kReport;
  self_unsaved_ = decided_ = false;
  unsaved_jobs_.clear();
  forgotten_jobs_.clear();
  return changes;
}

DurableState Coordinator::SaveAll() const {
  DurableChanges all;
  SaveSelf(&all);
  membership_.SaveAll(&all);
  devices_.SaveAll(&all);
  rendezvous_.SaveAll([this](const std::string& id) { return SequenceOf(id); }, &all);
  for (const auto& [sequence, job] : jobs_) job->SaveAll(&all);
  for (const auto& [sequence, arbiter] : arbiters_) arbiter.SaveAll(RerunRecord(sequence), &all);
  DurableState state{std::move(all.records), std::move(all.ledger)};
  std::sort(state.records.begin(), state.records.end(),
            [](const DurableRecord& a, const DurableRecord& b) { return a.key < b.key; });
  return state;
}

// ---- restoring

absl::Status Coordinator::RestoreSelf(const std::string& value) {
  SavedSelf saved;
  JsonReader reader(kSelf, value);
  VisitSelf(reader, saved);
  RETURN_IF_ERROR(reader.status());
  if (saved.durable_version > kDurableVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        kSelf, ", durable_version=", saved.durable_version,
        ": was written by a newer coordinator; this one reads up to ", kDurableVersion));
  }
  reader.Check(saved.next_sequence >= 1 && saved.next_sequence < int64_t{1} << 62, "next_sequence",
               "must be 1 or more");
  reader.Check(saved.job_tag.size() <= 128, "job_tag", "may have 128 characters");
  RETURN_IF_ERROR(reader.status());
  job_tag_ = saved.job_tag;
  next_sequence_ = saved.next_sequence;
  self_unsaved_ = false;
  return absl::OkStatus();
}

absl::Status Coordinator::RestoreJob(const JobRecords& records, absl::Time now) {
  ASSIGN_OR_RETURN(std::unique_ptr<JobMachine> job,
                   JobMachine::Restore(records, options_.jobs, now));
  const std::string where = absl::StrCat("job/", records.sequence);
  const JobMachine::Identity& identity = job->identity();
  if (identity.sequence >= next_sequence_) {
    return Bad(where, absl::StrCat("is not below next_sequence=", next_sequence_, " of ", kSelf));
  }
  if (job_sequence_.contains(identity.job_id)) {
    return Bad(where, absl::StrCat("job_id \"", identity.job_id, "\" belongs to job/",
                                   job_sequence_.at(identity.job_id), " too"));
  }
  if (idempotency_.contains(identity.idempotency_key)) {
    return Bad(where, absl::StrCat("its idempotency_key belongs to ",
                                   idempotency_.at(identity.idempotency_key), " too"));
  }
  if (job->state() == JobState::kQueued) {  // others have been placed already
    RETURN_IF_ERROR(Annotate(RankTopology::Create(TopologyOf(job->spec())).status(), where));
  }
  RETURN_IF_ERROR(RestoreHeld(*job));
  if (IsActive(job->state()) && !job->aborted()) {
    std::vector<Action> nobody_waits;
    rendezvous_.Begin(identity.job_id, job->epoch(), &nobody_waits);
  }
  AddJob(std::move(job));
  return absl::OkStatus();
}

// The workers that a job holds.
absl::Status Coordinator::RestoreHeld(const JobMachine& job) {
  const std::string base = absl::StrCat("job/", job.identity().sequence);
  std::set<std::string>& agents = agents_of_job_[job.identity().sequence];
  for (const JobMachine::Held& held : job.HeldWorkers()) {
    const bool of_rank =
        held.slot >= job.ranks().data() && held.slot < job.ranks().data() + job.ranks().size();
    RETURN_IF_ERROR(Annotate(
        membership_.RestoreAssignment(held.assignment, held.slot->incarnation, held.slot->phase),
        of_rank ? absl::StrCat(base, "/rank/", held.assignment.rank)
                : absl::StrCat(base, "/epoch, extras")));
    if (!held.slot->incarnation.empty()) agents.insert(held.slot->incarnation);
  }
  if (job.released()) agents_of_job_.erase(job.identity().sequence);
  return absl::OkStatus();
}

absl::Status Coordinator::Restore(const DurableState& state, absl::Time now) {
  if (state.records.empty() && state.ledger.empty()) return absl::OkStatus();
  std::map<absl::string_view, const DurableRecord*> records;
  for (const DurableRecord& record : state.records) {
    if (!record.value.has_value()) return Bad(record.key, "has no value");
    if (!records.emplace(record.key, &record).second) return Bad(record.key, "is there twice");
  }
  const auto self = records.find(kSelf);
  if (self == records.end()) return Bad(kSelf, "is missing, and other records are there");
  RETURN_IF_ERROR(RestoreSelf(*self->second->value));
  JobRecordReader jobs;
  for (const auto& [key, record] : records) {
    if (absl::StartsWith(key, "device/")) {
      RETURN_IF_ERROR(devices_.RestoreRecord(record->key, *record->value));
    } else if (IsMembersRecord(key)) {
      RETURN_IF_ERROR(membership_.RestoreRecord(record->key, *record->value, now));
    } else if (absl::StartsWith(key, "job/")) {
      RETURN_IF_ERROR(jobs.Add(record->key, *record->value));
    }  // else: this one's own, or of a later version
  }
  for (const LedgerRow& row : state.ledger) jobs.Of(row.job).ledger.push_back(&row);
  for (const auto& [sequence, job] : jobs.jobs()) RETURN_IF_ERROR(RestoreJob(job, now));
  for (const auto& [sequence, keys] : jobs.keys()) {
    for (const auto& key : keys) {
      RETURN_IF_ERROR(rendezvous_.RestoreRecord(jobs_.at(sequence)->job_id(), key.rest, *key.record,
                                                *key.value));
    }
  }
  for (const auto& [sequence, records] : jobs.reruns()) {
    const JobMachine& job = *jobs_.at(sequence);
    RerunArbiter& arbiter = ArbiterOf(job);
    for (const auto& record : records)
      RETURN_IF_ERROR(arbiter.RestoreRecord(*record.record, record.rest, *record.value));
    arbiter.FinishRestore(job.world_size(), job.examine_json());
  }
  membership_.FinishRestore(now);
  settle_until_ = now + options_.membership.readoption_limit;
  hold_plans_until_ = now + membership_.heartbeat_timeout() + options_.membership.readoption_margin;
  return absl::OkStatus();
}

}  // namespace muster
