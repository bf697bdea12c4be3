// JobMachine's part that says what of a job must outlive the coordinator. The records of job n:
//   job/n              what was submitted; written once
//   job/n/state        small and changed often: state, iteration, times, cancel, incident
//   job/n/epoch        what the current epoch is: workers beside the ranks', unique ID
//   job/n/cause        the first of its failures that still count, and those after it
//   job/n/rank/r       who holds the rank, and how far its trainer has come
//   job/n/directive/d  one directive
// job_fields.h lists what is in each.
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/job_fields.h"
#include "coordinator/core/job_machine.h"

namespace muster {
namespace {

// Of each phase the longest wait in ns, then how many there were. Exact up to 2^53 ns: 104 days.
std::vector<double> Flatten(const AllPhaseSamples& samples) {
  std::vector<double> numbers;
  bool any = false;
  for (const PhaseSamples& phase : samples) {
    numbers.push_back(static_cast<double>(absl::ToInt64Nanoseconds(phase.longest)));
    numbers.push_back(static_cast<double>(phase.count));
    any = any || phase.count > 0;
  }
  return any ? numbers : std::vector<double>{};
}

// Those of a list that have not been saved yet.
template <typename T, typename Visit>
void SaveLedger(int64_t job, LedgerKind kind, const Ring<T>& ring, int64_t next, Visit visit,
                std::vector<LedgerRow>* rows) {
  for (const auto* entry : ring.Since(next, ring.size())) {
    JsonWriter writer;
    visit(writer, entry->value);
    rows->push_back({job, kind, entry->index, writer.Finish()});
  }
}

}  // namespace

void JobMachine::RankChanged(int rank) {
  if (ranks_[rank].unsaved) return;
  ranks_[rank].unsaved = true;
  unsaved_.ranks.push_back(rank);
}

void JobMachine::AllRanksChanged() {
  unsaved_.ranks.clear();
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    ranks_[rank].unsaved = false;
    RankChanged(rank);
  }
}

bool JobMachine::unsaved() const {
  return unsaved_.identity || unsaved_.state || unsaved_.epoch || unsaved_.cause ||
         !unsaved_.ranks.empty() || unsaved_.directives_saved < directives_.last() ||
         unsaved_.next_event < history_.events().next() ||
         unsaved_.next_step < history_.steps().next();
}

void JobMachine::TakeChanges(DurableChanges* changes) {
  Save(unsaved_, changes);
  for (const int rank : unsaved_.ranks) ranks_[rank].unsaved = false;
  unsaved_ = {.directives_saved = directives_.last(),
              .ranks_saved = static_cast<int64_t>(ranks_.size()),
              .next_step = history_.steps().next(),
              .next_evaluation = history_.evaluations().next(),
              .next_checkpoint = history_.checkpoints().next(),
              .next_event = history_.events().next()};
}

void JobMachine::SaveAll(DurableChanges* changes) const {
  Unsaved all{.identity = true, .state = true, .epoch = true, .cause = true};
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) all.ranks.push_back(rank);
  Save(all, changes);
}

void JobMachine::Save(const Unsaved& what, DurableChanges* changes) const {
  const int64_t job = identity_.sequence;
  const std::string base = absl::StrCat("job/", job);
  const auto put = [&](std::string key, JsonWriter* writer) {
    changes->records.push_back({std::move(key), writer->Finish()});
  };
  JsonWriter writer;
  if (what.identity) {
    SavedIdentity saved{identity_.job_id, identity_.spec_json, identity_.idempotency_key,
                        train_iters_, submitted_at_};
    VisitIdentity(writer, saved);
    put(base, &writer);
  }
  if (what.state) {
    VisitState(writer, *this);
    writer("directives_applied", directives_.applied());
    std::optional<Incident> incident;
    if (incident_.launched_at > absl::InfinitePast() || incident_.number > 0) incident = incident_;
    writer.Nested("incident", incident,
                  [](auto& inner, auto& incident) { VisitIncident(inner, incident); });
    writer.Nested("totals", std::optional<RecoveryTotals>(totals_),
                  [](auto& inner, auto& totals) { VisitTotals(inner, totals); });
    SavedBudget budget{.failed_step = budget_.state().failed_step,
                       .step_failures = budget_.state().step_failures,
                       .trainer_failures = budget_.state().trainer_failures,
                       .incident = budget_.state().incident};
    for (const absl::Time restart : budget_.state().restarts) {
      budget.restarts.push_back(absl::ToDoubleSeconds(restart - absl::UnixEpoch()));
    }
    writer.Nested("budget", std::optional<SavedBudget>(budget),
                  [](auto& inner, auto& value) { VisitBudget(inner, value); });
    writer("phase_samples", Flatten(clock_.limits().all_samples()));
    writer("step_lengths", clock_.limits().steps().Numbers());
    put(absl::StrCat(base, "/state"), &writer);
  }
  if (what.epoch && epoch_ > 0) {
    VisitEpoch(writer, *this);
    put(absl::StrCat(base, "/epoch"), &writer);
  }
  if (what.cause && !causes_.empty()) {
    VisitCause(writer, *causes_.first());
    writer.List("later", causes_.later(),
                [](auto& element, auto& cause) { VisitCause(element, cause); });
    put(absl::StrCat(base, "/cause"), &writer);
  }
  for (const int rank : what.ranks) {
    VisitRank(writer, ranks_[rank]);
    put(absl::StrCat(base, "/rank/", rank), &writer);
  }
  for (int64_t rank = static_cast<int64_t>(ranks_.size()); rank < what.ranks_saved; ++rank) {
    changes->records.push_back({absl::StrCat(base, "/rank/", rank), std::nullopt});
  }
  for (const Directive& directive : directives_.After(what.directives_saved)) {
    VisitDirective(writer, directive);
    put(absl::StrCat(base, "/directive/", directive.number), &writer);
  }
  const auto visit = [](auto& v, auto& m) { VisitLedger(v, m); };
  std::vector<LedgerRow>* rows = &changes->ledger;
  SaveLedger(job, LedgerKind::kStep, history_.steps(), what.next_step, visit, rows);
  SaveLedger(job, LedgerKind::kEvaluation, history_.evaluations(), what.next_evaluation, visit,
             rows);
  SaveLedger(job, LedgerKind::kCheckpoint, history_.checkpoints(), what.next_checkpoint, visit,
             rows);
  SaveLedger(job, LedgerKind::kEvent, history_.events(), what.next_event, visit, rows);
}

}  // namespace muster
