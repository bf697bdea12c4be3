// JobMachine's part that knows how far the ranks have come, what the job waits for, and for how
// long it may. Costs of a report do not grow with the number of ranks: ranks are kept in sets by
// phase and counted by stage.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "coordinator/core/job_machine.h"

namespace muster {
void JobMachine::Place(int rank, const std::string& phase, RankStage stage) {
  RankSlot& slot = ranks_[rank];
  if (slot.phase != phase) {
    const auto left = by_phase_.find(slot.phase);
    if (left != by_phase_.end()) {
      left->second.Remove(rank);
      if (left->second.empty()) by_phase_.erase(left);
    }
    by_phase_[phase].Add(rank);
    slot.phase = phase;
  }
  --num_in_stage_[static_cast<int>(slot.stage)];
  ++num_in_stage_[static_cast<int>(stage)];
  slot.stage = stage;
}

void JobMachine::RecountRanks() {
  by_phase_.clear();
  num_in_stage_.fill(0);
  num_launched_ = num_done_ = num_held_ = 0;
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    RankSlot& slot = ranks_[rank];
    if (slot.trainer == RankSlot::Trainer::kExited || slot.phase == "failed") {
      slot.stage = RankStage::kGone;
    } else if (slot.done.has_value()) {
      slot.stage = RankStage::kDone;
    } else {
      slot.stage = StageOfPhase(slot.phase);
    }
    by_phase_[slot.phase].Add(rank);
    ++num_in_stage_[static_cast<int>(slot.stage)];
    num_launched_ += slot.trainer == RankSlot::Trainer::kLaunched;
    num_held_ += slot.held;
    num_done_ += slot.done.has_value();
  }
  for (const ExtraSlot& extra : extras_) {
    num_launched_ += extra.slot.trainer == RankSlot::Trainer::kLaunched;
    num_held_ += extra.slot.held;
  }
}

std::optional<WaitPhase> JobMachine::CurrentWait() const {
  if (!IsActive(state_) || aborted_) return std::nullopt;
  // All wait for those that are furthest behind. A committed step is one of all ranks, whatever
  // the last news of some of them are.
  if (!stepped_) {
    for (const RankStage stage : {RankStage::kStart, RankStage::kForming, RankStage::kLoad}) {
      if (NumIn(stage) > 0) return WaitPhaseOf(stage);
    }
  }
  if (NumIn(RankStage::kSave) > 0) return WaitPhase::kSave;
  if (NumIn(RankStage::kEvaluation) > 0) return WaitPhase::kEvaluation;
  if (NumIn(RankStage::kStep) + num_early() > 0) return WaitPhase::kStep;
  // No other epoch is to come: they are told to save the step that they hold, and to leave.
  if (NumIn(RankStage::kYielded) > 0 && !change_.has_value()) return WaitPhase::kSave;
  return std::nullopt;
}

void JobMachine::UpdateWait(absl::Time now) {
  seen_at_ = std::max(seen_at_, now);
  const std::optional<WaitPhase> wait = CurrentWait();
  if (wait == clock_.phase()) return;
  if (wait.has_value()) NoteResumed(now);
  clock_.Enter(wait, now);
  unsaved_.state = true;
}

void JobMachine::NoteProgress(absl::Time now, std::optional<absl::Duration> measured) {
  seen_at_ = std::max(seen_at_, now);
  if (!clock_.phase().has_value()) return;
  NoteResumed(now);
  clock_.Progress(now, measured);
}

void JobMachine::NoteResumed(absl::Time now) {
  if (!clock_.overdue()) return;
  AddEvent(now, "resumed",
           absl::StrCat("phase ", WaitPhaseName(*clock_.phase()), ": progress again after ",
                        ShortDuration(clock_.Elapsed(now))));
  Changed();
}

void JobMachine::OnProgress(const std::string& incarnation, const TrainerProgress& progress,
                            absl::Time now) {
  if (progress.job_id != job_id() || progress.epoch != epoch_ || !IsActive(state_) || aborted_) {
    return;
  }
  int64_t& known = agent_iteration_[incarnation];
  known = std::max(known, progress.iteration);
  if (progress.iteration > committed_) OnCommitted(progress.iteration, std::nullopt, now);
}

void JobMachine::OnCommitted(int64_t iteration, std::optional<absl::Duration> measured,
                             absl::Time now) {
  committed_ = std::max(committed_, iteration);
  stepped_ = true;
  budget_.OnCommitted(iteration);
  NoteParts(now);
  if (incident_.open && !aborted_) EndIncident(now);
  if ((IsForming() || state_ == JobState::kRerunning) && !aborted_)
    SetState(JobState::kRunning, now);
  UpdateWait(now);
  if (measured.has_value()) clock_.Observe(WaitPhase::kStep, *measured);
  if (clock_.phase() == WaitPhase::kStep) {
    NoteResumed(now);
    clock_.Touch(now);
  }
}

void JobMachine::CheckWait(absl::Time now, const SignsOfLife& signs, JobEffects* effects) {
  CheckStragglers(now);
  CheckHang(now, effects);
  if (aborted_ || ended()) return;
  const PhaseClock::Verdict verdict = clock_.Check(now);
  if (verdict == PhaseClock::Verdict::kInTime) return;
  const WaitPhase phase = *clock_.phase();
  const MissingReport missing = DescribeMissing(Missing(signs), now, signs.silent_after);
  const std::string text = absl::StrCat(
      "phase ", WaitPhaseName(phase), ": no progress for ", ShortDuration(clock_.Elapsed(now)),
      " (", clock_.limits().Describe(phase), "); missing: ", missing.text);
  if (verdict == PhaseClock::Verdict::kOverdue) {
    AddEvent(now, "overdue", text);
    Changed();
    return;
  }
  const std::vector<int> slow = SlowRanks();
  if (slow.empty()) return OnStuck(std::max(missing.first_rank, 0), text, now, effects);
  // The others wait for these.
  for (const int rank : slow) {
    if (ended()) return;
    const std::string why = absl::StrCat(text, "; it computes, and the others wait for it");
    if (!aborted_) {
      OnStuck(rank, why, now, effects);
    } else {
      CondemnRank(rank, why, now, effects);
    }
  }
}

std::vector<MissingRank> JobMachine::Missing(const SignsOfLife& signs) const {
  // Until all have joined in, those that are furthest behind; then all that are not done, since
  // a step, an evaluation or a save is one of all ranks.
  std::optional<RankStage> only;
  if (!stepped_ && num_early() > 0 && !ended()) {
    only = NumIn(RankStage::kStart) > 0     ? RankStage::kStart
           : NumIn(RankStage::kForming) > 0 ? RankStage::kForming
                                            : RankStage::kLoad;
  }
  int64_t newest = 0;
  for (const auto& [incarnation, iteration] : agent_iteration_)
    newest = std::max(newest, iteration);
  std::vector<MissingRank> missing;
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    const RankSlot& slot = ranks_[rank];
    if (slot.trainer != RankSlot::Trainer::kLaunched) continue;
    if (!ended()) {
      if (slot.done.has_value() || slot.stage == RankStage::kGone) continue;
      if (only.has_value() && slot.stage != *only) continue;
    }
    MissingRank& entry = missing.emplace_back();
    entry.rank = rank;
    entry.worker = slot.worker;
    entry.node = slot.node;
    entry.phase = slot.phase;
    entry.detail = slot.phase_detail;
    entry.stage = static_cast<int>(slot.stage);
    entry.last_sign = slot.last_report;
    if (signs.of_agent) {
      if (const auto sign = signs.of_agent(slot.incarnation)) {
        entry.last_sign = std::max(entry.last_sign, *sign);
      }
    }
    // An agent whose ranks are steps behind the others'.
    const auto agent = agent_iteration_.find(slot.incarnation);
    if (agent != agent_iteration_.end() && agent->second < newest) entry.stage -= kNumRankStages;
  }
  return missing;
}

std::optional<JobWait> JobMachine::Wait(const SignsOfLife& signs) const {
  JobWait wait;
  bool tell = true;
  if (ended()) {
    if (released()) return std::nullopt;
    wait.phase = "stop";
    wait.elapsed = std::max(seen_at_ - *ended_at_, absl::ZeroDuration());
    wait.limit = options_.stop_grace + options_.release_limit;
    wait.overdue = wait.elapsed >= wait.limit;
    tell = wait.elapsed > options_.stop_grace;
  } else {
    if (workers_deadline_.has_value()) {
      wait.phase = "workers";
      wait.limit = absl::Seconds(spec_.recovery.wait_for_workers_s);
      wait.elapsed = std::max(seen_at_ - (*workers_deadline_ - wait.limit), absl::ZeroDuration());
      wait.missing = waits_for_;
      return wait;
    }
    if (!clock_.phase().has_value()) return std::nullopt;
    const WaitPhase phase = *clock_.phase();
    wait.phase = WaitPhaseName(phase);
    wait.elapsed = clock_.Elapsed(seen_at_);
    wait.limit = clock_.limits().Limit(phase);
    wait.overdue = clock_.overdue();
    // Nobody is missing in a step that takes as long as steps do.
    tell = !stepped_ || wait.overdue ||
           wait.elapsed > clock_.limits().Samples(phase).longest + absl::Seconds(1);
  }
  if (tell) wait.missing = DescribeMissing(Missing(signs), seen_at_, signs.silent_after).text;
  return wait;
}

}  // namespace muster
