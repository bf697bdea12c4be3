// JobMachine's part that keeps the ledger of steps. A step that is run again after a recovery is
// compared with what the ledger says of it: the same numbers change nothing, others say that the
// job went on from a wrong state, and end it.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/core/job_machine.h"

namespace muster {
namespace {

// With another number of replicas, or on NCCL with another ring, sums are rounded otherwise.
constexpr double kRelativeTolerance = 1e-5;

bool Same(const std::optional<double>& a, const std::optional<double>& b, bool exact) {
  if (a.has_value() != b.has_value()) return false;
  if (!a.has_value() || *a == *b || (std::isnan(*a) && std::isnan(*b))) return true;
  if (exact || !std::isfinite(*a) || !std::isfinite(*b)) return false;
  return std::abs(*a - *b) <= kRelativeTolerance * std::max(std::abs(*a), std::abs(*b));
}

std::string Number(const std::optional<double>& value, const std::string& otherwise) {
  return value.has_value() ? absl::StrFormat("%.17g", *value)
                           : (otherwise.empty() ? "none" : otherwise);
}

std::string Describe(const StepMessage& step) {
  return absl::StrCat("lm_loss ", Number(step.lm_loss, step.loss_text), ", grad_norm ",
                      Number(step.grad_norm, ""), ", consumed_samples ", step.consumed_samples);
}

}  // namespace

std::string JobMachine::CompareReplay(const StepRecord& known, const StepMessage& again) const {
  const bool exact = kind() == DeviceKind::kCpu && known.epoch >= layout_epoch_;
  const bool same = known.step.consumed_samples == again.consumed_samples &&
                    known.step.skipped == again.skipped &&
                    known.step.loss_text == again.loss_text &&
                    Same(known.step.lm_loss, again.lm_loss, exact) &&
                    Same(known.step.grad_norm, again.grad_norm, exact);
  if (same) return "";
  return absl::StrCat("wrong resume: step ", again.iteration, " was run again with ",
                      Describe(again), "; the ledger has ", Describe(known.step), " (epoch ",
                      known.epoch, "; ",
                      exact ? "must be equal" : "may differ by 1e-5 of their size", ")");
}

void JobMachine::OnStep(int rank, int64_t epoch, const StepMessage& step, absl::Time now,
                        JobEffects* effects) {
  StepMessage record = step;
  record.epoch = epoch;
  if (const StepRecord* known = history_.FindStep(step.iteration)) {
    const std::string mismatch = CompareReplay(*known, record);
    if (!mismatch.empty() && IsActive(state_)) {
      FailureCause cause;
      cause.text = mismatch;
      cause.iteration = iteration_;
      cause.epoch = epoch;
      cause.time = now;
      if (rank >= 0) cause = CauseAt(rank, mismatch, now);
      cause.hopeless = true;
      AddEvent(now, "wrong_resume", mismatch, rank);
      OnFailure(std::move(cause), now, effects);
      return;
    }
    if (known->epoch < epoch) ++totals_.steps_redone;
  } else if (step.iteration > iteration_) {
    if (step.iteration > iteration_ + 1 && LacksSteps(epoch)) {
      AddEvent(now, "ledger_gap",
               absl::StrCat("steps ", iteration_ + 1, "-", step.iteration - 1,
                            " were committed, and their reports were lost with their worker"));
    }
    history_.AddStep(epoch, record, now);
    iteration_ = step.iteration;
    consumed_samples_ = step.consumed_samples;
    flops_so_far_ = step.num_floating_point_operations_so_far;
  }  // else: older than what is held
  // Of an older epoch: this one's trainers may have gone on from before that step, and get what
  // they have not applied.
  if (epoch != epoch_) return;
  directives_.Applied(step.applied_directive);
  if (aborted_) return;
  std::optional<absl::Duration> measured;
  if (step.elapsed_ms > 0) measured = absl::Milliseconds(step.elapsed_ms);
  OnCommitted(step.iteration, measured, now);
}

// A step beyond the next one is reported in this epoch: those between were made before it.
bool JobMachine::LacksSteps(int64_t epoch) const {
  if (!history_.steps().empty()) return epoch > history_.steps().newest().value.epoch;
  // A job may begin at an iteration that another one has saved.
  return epoch > 1 && !spec_.checkpoint.load.has_value();
}

void JobMachine::OnLateReport(int rank, int64_t epoch, const std::string& worker,
                              const ReportBody& body, absl::Time now, JobEffects* effects) {
  if (ended() || epoch >= epoch_) return;
  if (const auto* step = std::get_if<StepMessage>(&body)) {
    OnStep(-1, epoch, *step, now, effects);  // the rank may be another worker's by now
  } else if (const auto* log = std::get_if<LogLines>(&body)) {
    history_.AddLogLines(rank, epoch, worker, log->lines, now);
    return;
  } else if (const auto* saved = std::get_if<CheckpointMessage>(&body)) {
    if (!saved->ok) return;
    CheckpointMessage record = *saved;
    record.epoch = epoch;
    history_.AddCheckpoint(record);
  } else {
    return;
  }
  Changed();
}

}  // namespace muster
