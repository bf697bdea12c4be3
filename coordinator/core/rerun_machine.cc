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
    const State state =
        report.stage == ExamineReport::Stage::kInPlace ? State::kInPlace : State::kElsewhere;
    state_unsaved_ = state_unsaved_ || state != state_;
    state_ = state;
    reports_[rank] = std::move(report);
    KeepReport(rank);
    return std::optional<RerunOutcome>();
  }
  if (!report.followed || noted_transient_ == report.iteration)
    return std::optional<RerunOutcome>();
  noted_transient_ = report.iteration;
  state_unsaved_ = true;
  RerunOutcome outcome{
      .verdict = RerunVerdict::kTransient, .iteration = report.iteration, .rank = rank};
  outcome.text = absl::StrCat("iteration ", report.iteration, ": ", report.finding, " on ", worker,
                              "; run again in place it was ", report.result,
                              ": a transient error, and training went on with the second result");
  return std::optional<RerunOutcome>(std::move(outcome));
}

void RerunArbiter::SetEpoch(int64_t epoch) {
  if (epoch == epoch_) return;
  DropReports(&reports_, run_);
  epoch_ = epoch;
  state_unsaved_ = true;
}

void RerunArbiter::Forget() {
  if (state_ == State::kIdle) return;
  Forget(/*reports=*/true);
  state_ = State::kIdle;
}

void RerunArbiter::Forget(bool reports) {
  if (reports) DropReports(&reports_, run_);
  DropReports(&first_, run_ - 1);
  num_first_ = 0;
  rerun_ = {};
  suspects_.clear();
  evidence_.reset();
  runs_ = 0;
  state_unsaved_ = true;
}

RerunRuling RerunArbiter::Rule(const Places& places) {
  state_unsaved_ = true;
  const int64_t iteration = reports_.empty() ? -1 : reports_.begin()->second.iteration;
  if (iteration != ruled_iteration_) rulings_ = 0;
  ruled_iteration_ = iteration;
  RerunRuling ruling;
  if (left_.has_value() && left_->iteration == iteration) {
    // A rank has failed on the way out. What was decided is not taken back.
    ruling = Leave(left_->exit_code, left_->reason);
  } else if (reports_.size() != places.workers.size()) {
    ruling = Repeat("the reports about a held step are not complete");
  } else {
    ruling = state_ == State::kInPlace ? Begin(places) : Judge(places);
  }
  ruling.order.iteration = iteration;
  const ExamineOrder::Kind kind = ruling.order.kind;
  if (!ruling.leave.has_value() && kind == ExamineOrder::Kind::kRerun) {
    DropReports(&first_, run_ - 1);
    first_ = std::exchange(reports_, {});
    num_first_ = static_cast<int64_t>(first_.size());
    ++run_;
    return ruling;
  }
  // Whatever was ruled did not help.
  if (!ruling.leave.has_value() && kind == ExamineOrder::Kind::kRepeat &&
      ++rulings_ > kMaxRulings) {
    std::optional<RerunOutcome> outcome = std::move(ruling.outcome);
    ruling = Leave(kExitFailedOnResultValidation,
                   absl::StrCat("iteration ", iteration, " was examined ", rulings_,
                                " times and is still rejected"));
    ruling.outcome = std::move(outcome);
  }
  if (ruling.leave.has_value()) {
    ruling.leave->iteration = iteration;
    left_ = ruling.leave;
  }
  Forget();
  return ruling;
}

RerunRuling RerunArbiter::Repeat(const std::string& reason) {
  return {.order = {.kind = ExamineOrder::Kind::kRepeat, .reason = reason}};
}

RerunRuling RerunArbiter::Leave(int exit_code, const std::string& reason) {
  return {.leave = LeaveRuling{.exit_code = exit_code, .reason = reason}};
}

int RerunArbiter::ObserverOf(const std::map<int, ExamineReport>& reports) {
  for (const auto& [rank, report] : reports) {
    if (report.followed) return rank;
  }
  return 0;
}

std::vector<RunRecord> RerunArbiter::RunsOf(const std::map<int, ExamineReport>& reports) {
  std::vector<RunRecord> runs;
  for (const auto& [rank, report] : reports) runs.push_back(report.run);
  return runs;
}

RerunRuling RerunArbiter::Begin(const Places& places) {
  Forget(/*reports=*/false);
  const int observer = ObserverOf(reports_);
  const ExamineReport& seen = reports_.at(observer);
  rerun_ = {.kind = ExamineOrder::Kind::kRerun,
            .reason = absl::StrCat("iteration ", seen.iteration, ": ", seen.finding,
                                   " repeats in place")};
  for (const auto& [rank, report] : reports_) {
    rerun_.common_json = report.common_json;
    rerun_.rank_jsons.push_back(report.rank_json);
    if (places.replicas[static_cast<size_t>(rank)] ==
        places.replicas[static_cast<size_t>(observer)]) {
      suspects_.insert(places.workers[static_cast<size_t>(rank)]);
    }
  }
  std::optional<RerunRuling> elsewhere = SendElsewhere(places);
  if (elsewhere.has_value()) return *std::move(elsewhere);
  return Leave(
      kExitResumeToDisambiguate,
      absl::StrCat("iteration ", seen.iteration, ": result validation failed: ", seen.finding,
                   "; run again in place it is the same, and there is no other device "
                   "here that could tell whether it is right"));
}

std::optional<RerunRuling> RerunArbiter::SendElsewhere(const Places& places) {
  RerunRuling ruling{.order = rerun_, .moves = NextPlaces(places)};
  if (ruling.moves.empty() || runs_ >= kMaxRuns || rerun_.rank_jsons.empty()) return std::nullopt;
  ++runs_;
  return ruling;
}

std::vector<RankMove> RerunArbiter::NextPlaces(const Places& places) const {
  const auto worker = [&](int rank) { return places.workers[static_cast<size_t>(rank)]; };
  const int size = static_cast<int>(places.workers.size());
  std::vector<int> suspected;
  std::set<int> replicas;
  for (int rank = 0; rank < size; ++rank) {
    if (!suspects_.contains(worker(rank))) continue;
    suspected.push_back(rank);
    replicas.insert(places.replicas[static_cast<size_t>(rank)]);
  }
  if (evidence_.has_value()) {
    // One of two workers. Where it showed, it shows whether the one that is there now is it.
    if (!suspects_.contains(worker(evidence_->rank))) return {};
    suspected = {evidence_->rank};
  }
  std::vector<std::string> spares;
  for (const std::string& spare : places.spares) {
    if (spares.size() < suspected.size() && !suspects_.contains(spare)) spares.push_back(spare);
  }
  // Ranks of workers that are not suspected, those of other replicas first.
  std::vector<int> others;
  for (const bool same : {false, true}) {
    for (int rank = 0; rank < size; ++rank) {
      const bool here = replicas.contains(places.replicas[static_cast<size_t>(rank)]);
      if (here == same && !suspects_.contains(worker(rank))) others.push_back(rank);
    }
  }
  std::vector<RankMove> moves;
  const auto move = [&](int rank, const std::string& to) {
    moves.push_back({rank, worker(rank), to});
  };
  if (spares.size() + others.size() >= suspected.size()) {
    // Its peer in another replica, where there is one.
    std::rotate(
        others.begin(),
        others.begin() + static_cast<std::ptrdiff_t>(std::min(spares.size(), others.size())),
        others.end());
    for (size_t i = 0; i < suspected.size(); ++i) {
      const int rank = suspected[i];
      if (i < spares.size()) {
        move(rank, spares[i]);
        continue;
      }
      const int other = others[i - spares.size()];
      move(rank, worker(other));
      move(other, worker(rank));
    }
    return moves;
  }
  // Each suspect judges another one: in a cycle, over a spare where there is one.
  if (suspected.size() + spares.size() < 2) return {};
  for (size_t i = 0; i + 1 < suspected.size(); ++i) move(suspected[i], worker(suspected[i + 1]));
  move(suspected.back(), spares.empty() ? worker(suspected.front()) : spares.front());
  return moves;
}

bool RerunArbiter::Learn(const Comparison& comparison, const Places& places, int observer) {
  const ExamineReport& seen = reports_.at(observer);
  const std::vector<RunRecord> first = RunsOf(first_), second = RunsOf(reports_);
  const bool same_result = seen.differs == (runs_ > 1 && first_.at(observer).differs);
  if (comparison.equal && same_result) {
    // Whoever has another rank now than before did its work as the one before it; whoever has left
    // is not missed.
    for (size_t rank = 0; rank < first.size(); ++rank) {
      if (first[rank].worker != second[rank].worker) suspects_.erase(first[rank].worker);
    }
    return true;
  }
  if (comparison.convicted.empty()) return false;
  const std::set<std::string> now = Suspects(comparison, first, second);
  std::erase_if(suspects_, [&](const std::string& name) { return !now.contains(name); });
  if (seen.rejected_again) {
    std::set<std::string> here;
    for (size_t rank = 0; rank < second.size(); ++rank) {
      if (places.replicas[rank] == places.replicas[static_cast<size_t>(observer)])
        here.insert(second[rank].worker);
    }
    std::erase_if(suspects_, [&](const std::string& name) { return !here.contains(name); });
  }
  if (evidence_.has_value()) {
    // A third worker's word about that rank must agree with one of the two. (Where its inputs are
    // others now, what else has changed tells.)
    return std::none_of(comparison.convicted.begin(), comparison.convicted.end(),
                        [&](const Difference& difference) {
                          return difference.rank == evidence_->rank &&
                                 difference.second != evidence_->first;
                        });
  }
  // Of several ranks that show it, one where a suspect is now: it is asked there.
  const Difference* shows = &comparison.convicted.front();
  for (const Difference& difference : comparison.convicted) {
    if (suspects_.contains(second[static_cast<size_t>(difference.rank)].worker)) {
      shows = &difference;
      break;
    }
  }
  const RunRecord& a = first[static_cast<size_t>(shows->rank)];
  const RunRecord& b = second[static_cast<size_t>(shows->rank)];
  evidence_ = Evidence{
      .rank = shows->rank,
      .first = shows->first,
      .text = absl::StrCat("rank ", shows->rank, " gave ", absl::StrFormat("%016x", shows->first),
                           " to ", shows->operation, " on ", a.worker, " (", a.serial, ") and ",
                           absl::StrFormat("%016x", shows->second), " on ", b.worker, " (",
                           b.serial, "), with equal inputs")};
  return true;
}

// What is left where no run could tell more: two workers alone that have changed places. Empty:
// nobody.
std::string RerunArbiter::LastResort(const Comparison& comparison, const Places& places,
                                     int observer) const {
  std::vector<std::string> failed;
  for (const std::string& name : suspects_) {
    if (places.failed.contains(name)) failed.push_back(name);
  }
  if (failed.size() == 1) return failed.front();
  // The bad result is gone, so it was made where it was before.
  const bool was_bad = runs_ == 1 || first_.at(observer).rejected_again;
  if (!was_bad || reports_.at(observer).rejected_again) return "";
  for (const Difference& difference : comparison.convicted) {
    if (difference.rank != observer && comparison.convicted.size() > 1) continue;
    const std::string& name = first_.at(difference.rank).run.worker;
    return suspects_.contains(name) ? name : "";
  }
  return "";
}

RerunRuling RerunArbiter::Judge(const Places& places) {
  const int observer = ObserverOf(reports_);
  const ExamineReport& seen = reports_.at(observer);
  const std::string head = absl::StrCat("iteration ", seen.iteration, ": ", seen.finding);
  if (runs_ == 0) {
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
  if (static_cast<int64_t>(first_.size()) != num_first_ || first_.size() != reports_.size())
    return Repeat("what the run before has shown is not known any more");
  const Comparison comparison = CompareRuns(RunsOf(first_), RunsOf(reports_));
  const bool explained = Learn(comparison, places, observer);
  if (explained && suspects_.empty() && !evidence_.has_value()) {
    RerunOutcome outcome{.verdict = RerunVerdict::kCorrect, .iteration = seen.iteration};
    outcome.text = absl::StrCat(head,
                                " is the same on other workers, and so is all that every rank "
                                "gave to the others: the data or the model is to blame");
    RerunRuling ruling =
        continue_on_correct_
            ? RerunRuling{.order = {.kind = ExamineOrder::Kind::kAccept, .reason = outcome.text}}
            : Leave(kExitFailedOnResultValidation, outcome.text);
    ruling.outcome = std::move(outcome);
    return ruling;
  }
  if (explained && evidence_.has_value() && suspects_.size() == 1)
    return Convict(places, head, *suspects_.begin());
  if (explained && !suspects_.empty()) {
    std::optional<RerunRuling> next = SendElsewhere(places);
    if (next.has_value()) return *std::move(next);
    const std::string guilty =
        evidence_.has_value() ? LastResort(comparison, places, observer) : "";
    if (!guilty.empty()) return Convict(places, head, guilty);
  }
  RerunOutcome outcome{.verdict = RerunVerdict::kUnattributed, .iteration = seen.iteration};
  outcome.text = absl::StrCat(
      head, " is ", seen.result, " on other workers, but no rank alone explains it",
      comparison.comparable ? "" : " (the two runs did different operations)",
      suspects_.size() > 1 && evidence_.has_value()
          ? absl::StrCat("; ", evidence_->text, ": one of ", absl::StrJoin(suspects_, ", "),
                         ", and no third worker is here to tell which")
      : comparison.earliest.has_value()
          ? absl::StrCat("; rank ", comparison.earliest->rank, " differs first at ",
                         comparison.earliest->operation)
          : "");
  RerunRuling ruling = Repeat(outcome.text);
  ruling.outcome = std::move(outcome);
  return ruling;
}

RerunRuling RerunArbiter::Convict(const Places& places, const std::string& head,
                                  const std::string& guilty) const {
  RerunOutcome outcome{.verdict = RerunVerdict::kPersistent,
                       .iteration = reports_.begin()->second.iteration,
                       .rank = evidence_->rank,
                       .worker = guilty};
  outcome.text =
      absl::StrCat(head, ": ", evidence_->text, ": worker ", guilty, " computes wrongly");
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
