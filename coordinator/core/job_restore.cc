// JobMachine's part that takes up a job from its records. Whatever they hold is input: every fault
// is a Status that names the record.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/recovery/elastic_size.h"
#include "coordinator/core/job_fields.h"
#include "coordinator/core/job_machine.h"

namespace muster {
namespace {

absl::Status Bad(const std::string& record, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(record, ": ", what));
}

}  // namespace

JobMachine::JobMachine(Restored, Identity identity, JobSpec spec, int64_t train_iters,
                       const JobOptions& options, absl::Time submitted_at)
    : JobFacts(std::move(identity), std::move(spec), train_iters, options, submitted_at) {}

absl::StatusOr<std::unique_ptr<JobMachine>> JobMachine::Restore(const JobRecords& records,
                                                                const JobOptions& options,
                                                                absl::Time now) {
  const std::string base = absl::StrCat("job/", records.sequence);
  if (records.identity == nullptr) {
    return Bad(base, "is missing, and other records or ledger rows of this job are there");
  }
  SavedIdentity saved;
  JsonReader reader(base, *records.identity);
  VisitIdentity(reader, saved);
  reader.Check(!saved.job_id.empty() && saved.job_id.size() <= 256, "job_id",
               "must have 1 to 256 characters");
  RETURN_IF_ERROR(reader.status());
  ParsedSpec parsed = ParseJobSpec(saved.spec_json);
  if (!parsed.problems.empty()) {
    return Bad(base, absl::StrCat("spec_json: ", parsed.problems[0].ToString()));
  }
  auto job = std::unique_ptr<JobMachine>(
      new JobMachine(Restored{},
                     {saved.job_id, std::move(saved.spec_json), std::move(saved.idempotency_key),
                      records.sequence},
                     std::move(parsed.spec), saved.train_iters, options, saved.submitted_at));
  RETURN_IF_ERROR(job->RestoreState(records));
  RETURN_IF_ERROR(job->RestoreRanks(records));
  RETURN_IF_ERROR(job->RestoreDirectives(records));
  RETURN_IF_ERROR(job->RestoreLedger(records));
  RETURN_IF_ERROR(job->CheckRestored(base));
  // What is not saved follows from what is; a journal may be from before there were recoveries.
  if (job->data_parallel_size_ == 0 && !job->ranks_.empty()) {
    job->data_parallel_size_ =
        static_cast<int64_t>(job->ranks_.size()) / RanksOfReplica(job->spec_);
  }
  if (job->aborted_ && !job->causes_.empty() && job->causes_.newest().symptom) {
    job->seeking_cause_ = job->incident_.open = true;
  }
  job->RecountRanks();
  if (!job->history_.steps().empty() && IsActive(job->state_)) {
    const StepRecord& newest = job->history_.steps().newest().value;
    job->stepped_ = newest.epoch == job->epoch_;
    job->committed_ = job->stepped_ ? newest.step.iteration : 0;
  }
  job->clock_.Enter(job->CurrentWait(), now);
  job->clock_.Restart(now);
  job->seen_at_ = now;
  job->limits_stand_still_ = true;
  DurableChanges known;  // all of this is saved already
  job->TakeChanges(&known);
  return job;
}

absl::Status JobMachine::RestoreState(const JobRecords& records) {
  const std::string base = absl::StrCat("job/", records.sequence);
  if (records.state == nullptr) return Bad(absl::StrCat(base, "/state"), "is missing");
  JsonReader state(absl::StrCat(base, "/state"), *records.state);
  VisitState(state, *this);
  // Both are counted on.
  constexpr int64_t kTooLarge = int64_t{1} << 62;
  state.Check(version_ >= 1 && version_ < kTooLarge, "version",
              "must be 1 or more, and not that large");
  state.Check(epoch_ >= 0 && epoch_ < kTooLarge, "epoch", "must be 0 or more, and not that large");
  state.Check(iteration_ >= 0, "iteration", "must be 0 or more");
  state.Check(state_ != JobState::kSubmitted, "state", "must be a state in which a job can wait");
  std::vector<double> samples, step_lengths;
  state("phase_samples", samples);
  state("step_lengths", step_lengths);
  state.Check(clock_.limits().RestoreSteps(step_lengths), "step_lengths",
              "must be pairs of a bucket and a count");
  RETURN_IF_ERROR(state.status());
  RETURN_IF_ERROR(RestoreRecovery(absl::StrCat(base, "/state"), *records.state));
  RETURN_IF_ERROR(RestoreSamples(samples, absl::StrCat(base, "/state")));
  if (records.epoch != nullptr) {
    JsonReader epoch(absl::StrCat(base, "/epoch"), *records.epoch);
    VisitEpoch(epoch, *this);
    RestoreOldSpares(epoch);
    for (const ExtraSlot& extra : extras_) {
      epoch.Check(!extra.slot.worker.empty(), "extras", "must each have a worker");
      epoch.Check(extra.epoch >= 1 && extra.epoch <= epoch_, "extras",
                  "must be of an epoch so far");
      epoch.Check(extra.rank >= -1, "extras", "must have rank -1 or more");
    }
    RETURN_IF_ERROR(epoch.status());
  }
  if (records.cause != nullptr) {
    JsonReader cause(absl::StrCat(base, "/cause"), *records.cause);
    FailureCause first;
    std::vector<FailureCause> later;
    VisitCause(cause, first);
    cause.List("later", later, [](auto& element, auto& value) { VisitCause(element, value); });
    RETURN_IF_ERROR(cause.status());
    causes_.Restore(std::move(first), std::move(later));
  }
  return absl::OkStatus();
}

absl::Status JobMachine::RestoreRecovery(const std::string& where, const std::string& value) {
  JsonReader state(where, value);
  std::optional<Incident> incident;
  std::optional<RecoveryTotals> totals;
  std::optional<SavedBudget> budget;
  state.Nested("incident", incident, [](auto& v, auto& m) { VisitIncident(v, m); });
  state.Nested("totals", totals, [](auto& v, auto& m) { VisitTotals(v, m); });
  state.Nested("budget", budget, [](auto& v, auto& m) { VisitBudget(v, m); });
  RETURN_IF_ERROR(state.status());
  if (incident.has_value()) incident_ = *std::move(incident);
  if (totals.has_value()) totals_ = *std::move(totals);
  if (!budget.has_value()) return absl::OkStatus();
  RestartBudget::State saved{.failed_step = budget->failed_step,
                             .step_failures = budget->step_failures,
                             .trainer_failures = budget->trainer_failures,
                             .incident = budget->incident};
  for (const double seconds : budget->restarts) {
    saved.restarts.push_back(absl::UnixEpoch() + absl::Seconds(seconds));
  }
  budget_.Restore(saved);
  return absl::OkStatus();
}

// Of a journal from before spares had trainers: names of workers.
void JobMachine::RestoreOldSpares(JsonReader& epoch) {
  std::vector<std::string> spares;
  epoch("spares", spares);
  for (const std::string& worker : spares) {
    extras_.push_back({.epoch = epoch_, .slot = {.worker = worker, .held = true}});
  }
}

absl::Status JobMachine::RestoreSamples(const std::vector<double>& numbers,
                                        const std::string& where) {
  AllPhaseSamples samples;
  if (numbers.empty()) return absl::OkStatus();
  if (numbers.size() > 2 * samples.size()) {
    return Bad(where, absl::StrCat("phase_samples: has ", numbers.size(), " numbers; may have ",
                                   2 * samples.size()));
  }
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (!(numbers[i] >= 0 && numbers[i] <= 9e15)) {  // not a number is not in range
      return Bad(where, "phase_samples: must be numbers from 0 to 9e15");
    }
    const int64_t number = static_cast<int64_t>(numbers[i]);
    if (i % 2 == 0) {
      samples[i / 2].longest = absl::Nanoseconds(number);
    } else {
      samples[i / 2].count = number;
    }
  }
  clock_.limits().Restore(samples);
  return absl::OkStatus();
}

absl::Status JobMachine::RestoreRanks(const JobRecords& records) {
  const std::string base = absl::StrCat("job/", records.sequence, "/rank/");
  for (const auto& [rank, value] : records.ranks) {
    const std::string where = absl::StrCat(base, rank);
    if (rank != static_cast<int64_t>(ranks_.size())) {
      return Bad(absl::StrCat(base, ranks_.size()), "is missing, and a higher rank is there");
    }
    if (rank >= spec_.resources.world_size) {
      return Bad(where, absl::StrCat("the job has ", spec_.resources.world_size, " ranks"));
    }
    RankSlot slot;
    JsonReader reader(where, *value);
    VisitRank(reader, slot);
    reader.Check(!slot.worker.empty(), "worker", "must not be empty");
    reader.Check(slot.trainer != RankSlot::Trainer::kNone, "trainer",
                 "must be \"launched\" or \"exited\"");
    RETURN_IF_ERROR(reader.status());
    slot.held = slot.held || slot.trainer == RankSlot::Trainer::kLaunched;
    ranks_.push_back(std::move(slot));
  }
  return absl::OkStatus();
}

absl::Status JobMachine::RestoreDirectives(const JobRecords& records) {
  const std::string base = absl::StrCat("job/", records.sequence);
  std::vector<Directive> log;
  for (const auto& [number, value] : records.directives) {
    const std::string where = absl::StrCat(base, "/directive/", number);
    if (number != static_cast<int64_t>(log.size()) + 1) {
      return Bad(absl::StrCat(base, "/directive/", log.size() + 1),
                 "is missing, and a higher one is there");
    }
    Directive directive{.number = number};
    JsonReader reader(where, *value);
    VisitDirective(reader, directive);
    RETURN_IF_ERROR(reader.status());
    log.push_back(std::move(directive));
  }
  int64_t applied = 0;
  JsonReader state(absl::StrCat(base, "/state"), *records.state);
  state("directives_applied", applied);
  const int64_t last = static_cast<int64_t>(log.size());
  state.Check(applied >= 0 && applied <= last, "directives_applied",
              absl::StrCat("must be 0 to ", last, ", the job's last directive"));
  RETURN_IF_ERROR(state.status());
  if (directives_through_ < 0 || directives_through_ > applied) {
    return Bad(absl::StrCat(base, "/epoch"),
               absl::StrCat("directives_through=", directives_through_, ": must be 0 to ", applied,
                            ", the last one applied"));
  }
  directives_.Restore(std::move(log), applied);
  return absl::OkStatus();
}

absl::Status JobMachine::RestoreLedger(const JobRecords& records) {
  LedgerKind kind{};
  int64_t index = 0;
  for (const LedgerRow* row : records.ledger) {
    const std::string where = absl::StrCat("ledger of job ", records.sequence, ", kind ",
                                           static_cast<int>(row->kind), ", index ", row->index);
    if (row->kind == kind && row->index <= index) return Bad(where, "comes after a higher index");
    if (row->index < 1 || row->index >= int64_t{1} << 62) return Bad(where, "index out of range");
    kind = row->kind;
    index = row->index;
    JsonReader reader(where, row->value);
    const auto read = [&](auto value, auto restore) {
      VisitLedger(reader, value);
      RETURN_IF_ERROR(reader.status());
      restore(std::move(value));
      return absl::OkStatus();
    };
    switch (kind) {
      case LedgerKind::kStep:
        RETURN_IF_ERROR(read(StepRecord{}, [&](StepRecord record) {
          record.step.epoch = record.epoch;
          history_.RestoreStep(index, std::move(record));
        }));
        continue;
      case LedgerKind::kEvaluation:
        RETURN_IF_ERROR(read(EvaluationMessage{}, [&](const EvaluationMessage& record) {
          history_.RestoreEvaluation(index, record);
        }));
        continue;
      case LedgerKind::kCheckpoint:
        RETURN_IF_ERROR(read(CheckpointMessage{}, [&](const CheckpointMessage& record) {
          history_.RestoreCheckpoint(index, record);
        }));
        continue;
      case LedgerKind::kEvent:
        RETURN_IF_ERROR(read(
            JobEvent{}, [&](JobEvent event) { history_.RestoreEvent(index, std::move(event)); }));
        continue;
    }
    return Bad(where, "this kind is not known");
  }
  return absl::OkStatus();
}

absl::Status JobMachine::CheckRestored(const std::string& base) const {
  const std::string state = absl::StrCat(base, "/state");
  const char* name = JobStateName(state_);
  const int64_t replica = RanksOfReplica(spec_);
  const int64_t of_spec = spec_.resources.world_size;
  // Of an epoch before there were elastic jobs.
  const int64_t wanted = data_parallel_size_ > 0 ? data_parallel_size_ * replica : of_spec;
  if (IsActive(state_) && static_cast<int64_t>(ranks_.size()) != wanted) {
    return Bad(state,
               absl::StrCat("is ", name, " with ", ranks_.size(), " of ", wanted, " rank records"));
  }
  if ((epoch_ > 0) == ranks_.empty()) {
    return Bad(state, absl::StrCat("epoch=", epoch_, " with ", ranks_.size(), " rank records"));
  }
  if (state_ == JobState::kQueued && epoch_ != 0) {
    return Bad(state, absl::StrCat("is QUEUED and has epoch ", epoch_));
  }
  if (state_ == JobState::kFailed && causes_.empty()) {
    return Bad(absl::StrCat(base, "/cause"), "is missing, and the job is FAILED");
  }
  if (state_ == JobState::kRecovering && causes_.empty()) {
    return Bad(absl::StrCat(base, "/cause"), "is missing, and the job is RECOVERING");
  }
  const bool symptom = !causes_.empty() && causes_.newest().symptom;
  if (symptom && IsActive(state_) && !aborted_ && !incident_.open) {
    return Bad(absl::StrCat(base, "/epoch"), "is not aborted, and a symptom of a failure is there");
  }
  if (ended() && state_ != JobState::kCompleted && reason_.empty()) {
    return Bad(state, absl::StrCat("is ", name, " without a reason"));
  }
  if (ended() && !ranks_.empty() && !aborted_) {
    return Bad(absl::StrCat(base, "/epoch"), absl::StrCat("is open, and the job is ", name));
  }
  return absl::OkStatus();
}

void JobMachine::StartLimits(absl::Time now) {
  if (!limits_stand_still_) return;
  limits_stand_still_ = false;
  if (ended() && num_launched_ > 0) {
    release_deadline_ = now + options_.stop_grace + options_.release_limit;
  }
  if (!IsActive(state_)) return;
  clock_.Restart(now);
  if (seeking_cause_) symptom_deadline_ = now + options_.symptom_window;
  // Whoever was away has had its time already.
  if (workers_deadline_.has_value()) workers_deadline_ = std::max(*workers_deadline_, now);
  if (exit_deadline_.has_value()) exit_deadline_ = now + options_.exit_limit;
  if (change_.has_value()) change_->deadline = now + options_.yield_limit;
  if (!cancel_deadline_.has_value()) return;
  // The clock may have been set while nobody looked, and what has happened meanwhile is on its way.
  cancel_deadline_ = std::clamp(*cancel_deadline_, now + options_.symptom_window,
                                now + options_.checkpoint_and_stop_limit);
  unsaved_.state = true;
}

}  // namespace muster
