// JobMachine's part that looks for the cause of waits that last too long (hang_watch.h,
// hang_judge.h), and for ranks that are slow (straggler.h).
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/job_machine.h"

namespace muster {
namespace {

// With fewer steps than this nobody knows how long one takes: warming up, building of indices.
constexpr int64_t kMinSteps = 5;
// How long a phase may last before it is looked at when it was not seen before.
constexpr absl::Duration kUnknownWait = absl::Seconds(10);
// Two probes and their answers, mostly: whoever is to be stopped at a step's cap is known by then.
constexpr absl::Duration kVerdictTakes = absl::Milliseconds(600);

}  // namespace

void JobMachine::NoteKind(FailureKind kind, const std::string& text, int rank, absl::Time now) {
  if (kind != FailureKind::kOutOfMemory && kind != FailureKind::kDiskFull) return;
  AddEvent(now, FailureKindName(kind), text, rank);
}

// When a wait of this phase is looked at: a step by its limit; other phases sooner than they are
// overdue, since looking costs nothing and who is stopped can be told from who is slow.
absl::Duration JobMachine::HangLimit(WaitPhase phase) const {
  const PhaseLimits& limits = clock_.limits();
  const PhaseSamples& seen = limits.Samples(phase);
  absl::Duration limit = kUnknownWait;
  if (phase == WaitPhase::kStep && seen.count >= kMinSteps) {
    limit = limits.Limit(phase);
  } else if (phase != WaitPhase::kStep && seen.count > 0) {
    limit = options_.phases.factor * seen.longest + options_.phases.step_margin;
  }
  const absl::Duration cap = limits.Cap(phase);
  return std::min(limit, phase == WaitPhase::kStep ? cap - kVerdictTakes : cap);
}

void JobMachine::CheckHang(absl::Time now, JobEffects* effects) {
  const std::optional<WaitPhase> phase = clock_.phase();
  if (!phase.has_value() || aborted_ || !IsActive(state_)) return hang_watch_.Reset();
  const absl::Duration elapsed = clock_.Elapsed(now);
  // Another wait, or the same one after progress.
  const absl::Time since = now - elapsed;
  if (hang_phase_ != phase || hang_since_ != since) {
    hang_watch_.Reset();
    hang_noted_ = false;
    hang_slow_.clear();
    hang_phase_ = phase;
    hang_since_ = since;
  }
  const HangWatch::Decision decision =
      hang_watch_.Look(now, elapsed, HangLimit(*phase), static_cast<int>(ranks_.size()));
  if (decision.probe.has_value()) effects->emplace_back(ProbeRanks{*decision.probe});
  if (decision.judge) OnHangVerdict(*phase, elapsed, now, effects);
}

void JobMachine::OnHangVerdict(WaitPhase phase, absl::Duration elapsed, absl::Time now,
                               JobEffects* effects) {
  const bool steps = phase == WaitPhase::kStep && clock_.limits().Samples(phase).count >= kMinSteps;
  HangOptions options{.count_process = kind() == DeviceKind::kCpu,
                      .judge_arrivals = steps,
                      .committed = std::max({committed_, iteration_, hang_iteration_})};
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    const RankSlot& slot = ranks_[rank];
    // It has not said hello yet, so it cannot answer; or it has nothing to do any more.
    const bool silent = slot.stage == RankStage::kStart || slot.stage >= RankStage::kYielded;
    if (silent || slot.trainer != RankSlot::Trainer::kLaunched) options.may_be_silent.insert(rank);
  }
  const HangVerdict verdict = JudgeHang(hang_watch_.first(), hang_watch_.second(), options);
  const std::string text = absl::StrCat(
      "phase ", WaitPhaseName(phase), ": no progress for ", ShortDuration(elapsed), ": ",
      verdict.summary, verdict.arrivals.empty() ? "" : "; operations: ", verdict.arrivals);
  switch (verdict.kind) {
    case HangVerdict::Kind::kProgress:
      hang_iteration_ = std::max(hang_iteration_, verdict.iteration);
      NoteResumed(now);
      clock_.Touch(now);  // the news of it is on its way
      return;
    case HangVerdict::Kind::kSlow:
    case HangVerdict::Kind::kUnclear:
      hang_slow_ = verdict.slow;
      if (!steps || hang_noted_) return;
      hang_noted_ = true;
      AddEvent(now, "hang",
               absl::StrCat(text, "; nobody is stopped for it before ",
                            ShortDuration(clock_.limits().Cap(phase))));
      Changed();
      return;
    case HangVerdict::Kind::kHang:
      break;
  }
  AddEvent(now, "hang", text, verdict.culprits.front().rank);
  Changed();
  for (const HangVerdict::Culprit& culprit : verdict.culprits) {
    const std::string why = absl::StrCat("hang: ", culprit.reason, Circumstances(culprit.rank));
    if (!aborted_) {
      (void)Condemn(culprit.rank, FailureKind::kHang, why, now, effects);
      continue;
    }
    if (ended()) return;
    OnFailure(CauseAt(culprit.rank, why, now), now, effects);
    CondemnRank(culprit.rank, why, now, effects);
  }
}

std::vector<int> JobMachine::SlowRanks() const {
  std::vector<int> slow;
  for (const int rank : hang_slow_) {
    const bool trains = rank < static_cast<int>(ranks_.size()) &&
                        ranks_[rank].trainer == RankSlot::Trainer::kLaunched &&
                        ranks_[rank].stage == RankStage::kStep;
    if (trains) slow.push_back(rank);
  }
  return slow;
}

void JobMachine::CheckStragglers(absl::Time now) {
  BeginStragglers();
  for (const StragglerNews& news : stragglers_.Judge(now)) {
    const RankSlot& slot = ranks_[news.rank];
    AddEvent(now, news.over ? "straggler_over" : "straggler",
             absl::StrCat("rank ", news.rank, " (worker ", slot.worker, ", node ", slot.node, "), ",
                          StragglerCauseName(news.cause), ": ", news.text),
             news.rank);
    Changed();
  }
}

// Of the epoch that runs now: ranks of one pipeline stage do the same.
void JobMachine::BeginStragglers() {
  if (straggler_epoch_ == epoch_) return;
  straggler_epoch_ = epoch_;
  std::vector<int> stages(ranks_.size(), 0);
  const auto ranks = RankTopology::Create(topology());
  for (int rank = 0; ranks.ok() && rank < static_cast<int>(stages.size()); ++rank) {
    stages[rank] = ranks->Coordinates(rank).pp;
  }
  stragglers_.Begin(std::move(stages));
}

void JobMachine::OnRankTimes(int rank, const RankTimesMessage& times, absl::Time now) {
  BeginStragglers();
  stragglers_.Take(rank, times, now);
}

}  // namespace muster
