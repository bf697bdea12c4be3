#include "coordinator/core/rerun_machine.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/rerun/rerun_json.h"

namespace muster {

const char* RerunVerdictName(RerunVerdict verdict) {
  switch (verdict) {
    case RerunVerdict::kTransient:
      return "transient";
    case RerunVerdict::kPersistent:
      return "persistent";
    case RerunVerdict::kUnattributed:
      return "unattributed";
    case RerunVerdict::kCorrect:
      return "correct";
  }
  return "";
}

absl::StatusOr<std::optional<RerunOutcome>> RerunArbiter::OnReport(int rank,
                                                                   const std::string& worker,
                                                                   absl::string_view json) {
  ASSIGN_OR_RETURN(ExamineReport report, DecodeExamineReport(json));
  report.run.worker = worker;
  if (report.stage != ExamineReport::Stage::kTransient) {
    state_ = report.stage == ExamineReport::Stage::kInPlace ? State::kInPlace : State::kElsewhere;
    reports_[rank] = std::move(report);
    return std::optional<RerunOutcome>();
  }
  if (!report.followed || noted_transient_ == report.iteration)
    return std::optional<RerunOutcome>();
  noted_transient_ = report.iteration;
  RerunOutcome outcome{
      .verdict = RerunVerdict::kTransient, .iteration = report.iteration, .rank = rank};
  outcome.text = absl::StrCat("iteration ", report.iteration, ": ", report.finding, " on ", worker,
                              "; run again in place it was ", report.result,
                              ": a transient error, and training went on with the second result");
  return std::optional<RerunOutcome>(std::move(outcome));
}

void RerunArbiter::SetEpoch(int64_t epoch) {
  if (epoch != epoch_) reports_.clear();
  epoch_ = epoch;
}

void RerunArbiter::Forget() {
  Forget(/*reports=*/true);
  state_ = State::kIdle;
}

void RerunArbiter::Forget(bool reports) {
  if (reports) reports_.clear();
  first_.clear();
  suspects_.reset();
  runs_ = 0;
}

RerunRuling RerunArbiter::Rule(const Places& places) {
  const int64_t iteration = reports_.empty() ? -1 : reports_.begin()->second.iteration;
  if (iteration != ruled_iteration_) rulings_ = 0;
  ruled_iteration_ = iteration;
  const bool whole = reports_.size() == places.workers.size();
  RerunRuling ruling = !whole ? Repeat("the reports about a held step are not complete")
                       : state_ == State::kInPlace ? SendElsewhere(places)
                                                   : Judge(places);
  ruling.order.iteration = iteration;
  if (ruling.order.kind == ExamineOrder::Kind::kRerun) {
    first_ = std::exchange(reports_, {});
    return ruling;
  }
  // Whatever was ruled did not help.
  if (ruling.order.kind == ExamineOrder::Kind::kRepeat && ++rulings_ > kMaxRulings) {
    const std::optional<RerunOutcome> outcome = ruling.outcome;
    ruling = Leave(kExitFailedOnResultValidation,
                   absl::StrCat("iteration ", iteration, " was examined ", rulings_,
                                " times and is still rejected"));
    ruling.order.iteration = iteration;
    ruling.outcome = outcome;
  }
  Forget();
  return ruling;
}

RerunRuling RerunArbiter::Repeat(const std::string& reason) {
  return {.order = {.kind = ExamineOrder::Kind::kRepeat, .reason = reason}};
}

RerunRuling RerunArbiter::Leave(int exit_code, const std::string& reason) {
  RerunRuling ruling{
      .order = {.kind = ExamineOrder::Kind::kLeave, .exit_code = exit_code, .reason = reason}};
  for (const auto& [rank, report] : reports_) {
    ruling.order.common_json = report.common_json;
    ruling.order.rank_jsons.push_back(report.rank_json);
  }
  return ruling;
}

int RerunArbiter::ObserverOf(const std::map<int, ExamineReport>& reports) {
  for (const auto& [rank, report] : reports) {
    if (report.followed) return rank;
  }
  return -1;
}

RerunRuling RerunArbiter::SendElsewhere(const Places& places) {
  const int observer = std::max(0, ObserverOf(reports_));
  const ExamineReport& seen = reports_.at(observer);
  if (state_ == State::kInPlace) {
    Forget(/*reports=*/false);
    rerun_ = {.kind = ExamineOrder::Kind::kRerun,
              .reason = absl::StrCat("iteration ", seen.iteration, ": ", seen.finding,
                                     " repeats in place")};
    for (const auto& [rank, report] : reports_) {
      rerun_.common_json = report.common_json;
      rerun_.rank_jsons.push_back(report.rank_json);
    }
  }
  const std::vector<int> moving = Movers(places, observer);
  if (moving.size() == 1 && places.spares.empty()) {
    return Leave(
        kExitResumeToDisambiguate,
        absl::StrCat("iteration ", seen.iteration, ": result validation failed: ", seen.finding,
                     "; run again in place it is the same, and there is no other device "
                     "here that could tell whether it is right"));
  }
  RerunRuling ruling{.order = rerun_};
  for (size_t i = 0; i < moving.size(); ++i) {
    const bool last = i + 1 == moving.size();
    const int next = moving[last ? 0 : i + 1];
    const std::string& to = last && !places.spares.empty()
                                ? places.spares.front()
                                : places.workers[static_cast<size_t>(next)];
    ruling.moves.push_back({moving[i], places.workers[static_cast<size_t>(moving[i])], to});
  }
  ++runs_;
  return ruling;
}

// The observer's replica; without a spare others join it, as a cycle of three tells more.
std::vector<int> RerunArbiter::Movers(const Places& places, int observer) {
  std::vector<int> moving, others;
  for (size_t rank = 0; rank < places.workers.size(); ++rank) {
    const bool same = places.replicas[rank] == places.replicas[static_cast<size_t>(observer)];
    (same ? moving : others).push_back(static_cast<int>(rank));
  }
  for (const int rank : others) {
    if (moving.size() < 3 && places.spares.empty()) moving.push_back(rank);
  }
  return moving;
}

std::vector<RunRecord> RerunArbiter::RunsOf(const std::map<int, ExamineReport>& reports) const {
  std::vector<RunRecord> runs;
  for (const auto& [rank, report] : reports) runs.push_back(report.run);
  return runs;
}

// The difference that convicts a worker; nullopt: none does.
std::optional<Difference> RerunArbiter::Guilty(const Comparison& comparison, int observer,
                                               const ExamineReport& observed, std::string* worker) {
  const std::vector<Difference>& convicted = comparison.convicted;
  if (convicted.empty()) return std::nullopt;
  const Difference* difference = nullptr;
  if (!observed.rejected_again) {
    // The second run is right, so it is a worker of the first one.
    for (const Difference& candidate : convicted) {
      if (candidate.rank == observer || convicted.size() == 1) difference = &candidate;
    }
    if (difference != nullptr) {
      *worker = first_.at(difference->rank).run.worker;
      return *difference;
    }
  }
  const std::set<std::string> now = Suspects(comparison, RunsOf(first_), RunsOf(reports_));
  if (!suspects_.has_value()) {
    suspects_ = now;
  } else {
    std::erase_if(*suspects_, [&](const std::string& name) { return now.count(name) == 0; });
  }
  if (suspects_->size() != 1) return std::nullopt;
  *worker = *suspects_->begin();
  return convicted.front();
}

// More than one worker is suspected, and they can stand in yet another way: two workers alone have
// but two.
bool RerunArbiter::MoreCanBeLearned(const Places& places) const {
  if (!suspects_.has_value() || suspects_->size() < 2 || runs_ >= kMaxRuns) return false;
  return places.workers.size() > 2 || !places.spares.empty() ||
         std::any_of(suspects_->begin(), suspects_->end(), [&](const std::string& name) {
           return std::count(places.workers.begin(), places.workers.end(), name) == 0;
         });
}

RerunRuling RerunArbiter::Judge(const Places& places) {
  const int observer = std::max(0, ObserverOf(reports_));
  const ExamineReport& seen = reports_.at(observer);
  const std::string head = absl::StrCat("iteration ", seen.iteration, ": ", seen.finding);
  if (first_.size() != reports_.size()) {
    // From a checkpoint of a job that has left: what was seen then is known by its result only.
    const auto common = DecodeRerunCommon(seen.common_json);
    const bool again = common.ok() && common->state == RerunState::kRerunningAgainFromCheckpoint;
    return Leave(
        again ? kExitResumeToDisambiguate : kExitFailedOnResultValidation,
        absl::StrCat(head, again ? "; the job came back to the same device"
                           : seen.differs
                               ? "; on another device it is another one: a persistent error of "
                                 "the first one is likely"
                               : "; on another device it is the same: the data or the model is "
                                 "to blame"));
  }
  const std::vector<RunRecord> first = RunsOf(first_), second = RunsOf(reports_);
  const Comparison comparison = CompareRuns(first, second);
  RerunOutcome outcome{.iteration = seen.iteration};
  if (comparison.equal && !seen.differs && runs_ == 1) {
    outcome.verdict = RerunVerdict::kCorrect;
    outcome.text = absl::StrCat(head,
                                " is the same on other workers, and so is all that every rank "
                                "gave to the others: the data or the model is to blame");
    RerunRuling ruling = continue_on_correct_
                             ? RerunRuling{.order = {.kind = ExamineOrder::Kind::kAccept}}
                             : Leave(kExitFailedOnResultValidation, outcome.text);
    ruling.order.reason = outcome.text;
    ruling.outcome = std::move(outcome);
    return ruling;
  }
  std::string guilty;
  const std::optional<Difference> difference = Guilty(comparison, observer, seen, &guilty);
  if (!difference.has_value()) {
    if (MoreCanBeLearned(places)) return SendElsewhere(places);
    outcome.verdict = RerunVerdict::kUnattributed;
    outcome.text =
        absl::StrCat(head, " is ", seen.result, " on other workers, but no rank alone explains it",
                     comparison.comparable ? "" : " (the two runs did different operations)",
                     comparison.earliest.has_value()
                         ? absl::StrCat("; rank ", comparison.earliest->rank, " differs first at ",
                                        comparison.earliest->operation)
                         : "");
    RerunRuling ruling = Repeat(outcome.text);
    ruling.outcome = std::move(outcome);
    return ruling;
  }
  outcome.verdict = RerunVerdict::kPersistent;
  outcome.rank = difference->rank;
  outcome.worker = guilty;
  const auto rank = static_cast<size_t>(difference->rank);
  outcome.text = absl::StrCat(
      head, ": rank ", rank, " gave ", absl::StrFormat("%016x", difference->first), " to ",
      difference->operation, " on ", first[rank].worker, " (", first[rank].serial, ") and ",
      absl::StrFormat("%016x", difference->second), " on ", second[rank].worker, " (",
      second[rank].serial, "), with equal inputs: worker ", guilty, " computes wrongly");
  RerunRuling ruling = Repeat(outcome.text);
  const auto holder = std::find(places.workers.begin(), places.workers.end(), guilty);
  if (holder != places.workers.end()) {
    const int held = static_cast<int>(holder - places.workers.begin());
    const auto spare = std::find_if(places.spares.begin(), places.spares.end(),
                                    [&](const std::string& name) { return name != guilty; });
    if (spare != places.spares.end()) {
      ruling.moves.push_back({held, guilty, *spare});
    } else {
      ruling.condemned = held;
    }
  }
  ruling.outcome = std::move(outcome);
  return ruling;
}

}  // namespace muster
