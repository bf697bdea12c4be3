// The step's agreement (design 2.5): each rank enters five int64 into one world-wide MAX
// all-reduce when its gradients are final, before its optimizer step. From the reduced vector all
// ranks draw the same conclusions, without a round trip to the coordinator. Pure.
//
//   slot 0  minus the highest gap-free directive held; the maximum is minus the minimum over
//           ranks, so that all ranks hold what is agreed on
//   slot 1  2 where a gradient is not finite (found_inf), 1 where the gradient norm is above the
//           threshold from which on steps are skipped
//   slot 2  something is wrong here: 1 where a result was rejected
//   slot 3  exit wish: an ExitWish, the strongest over ranks wins
//   slot 4  minus the newest snapshot generation that is complete here; the maximum is minus the
//           newest one that is complete on all ranks (1: some rank has none)
#pragma once

#include <array>
#include <cstdint>

namespace muster {

using AgreementVector = std::array<int64_t, 5>;

// Why a rank would like to leave after this step. In rising order of strength.
enum class ExitWish : int64_t {
  kNone = 0,
  kDuration = 1,  // exit_duration_in_mins has passed here
  kSignal = 2,    // this process received the exit signal
};

struct StepVote {
  int64_t gap_free_directive = 0;  // DirectiveLog::gap_free_through()
  bool found_inf = false;
  bool norm_too_large = false;  // optimizer.grad_norm_skip_threshold
  bool something_wrong = false;
  ExitWish exit_wish = ExitWish::kNone;
  int64_t snapshot_complete = -1;  // newest generation (an iteration) complete here; -1: none
  bool operator==(const StepVote&) const = default;
};

// What every rank does at this step's boundary.
struct StepDecision {
  int64_t apply_directives_through = 0;  // minimum over ranks
  bool found_inf = false;                // any rank: skip the optimizer step
  bool norm_too_large = false;           // any rank: the same, unless found_inf
  bool something_wrong = false;          // any rank: hold, rerun
  ExitWish exit_wish = ExitWish::kNone;  // strongest of any rank
  int64_t snapshots_counted = -1;        // newest generation that every rank holds; -1: none
  bool operator==(const StepDecision&) const = default;
};

AgreementVector ToVector(const StepVote& vote);
StepDecision FromReduced(const AgreementVector& reduced);

// The reduction itself, where no communicator does it: world size 1, the simulator, relaying a
// committed vector after a failure.
AgreementVector MaxOf(const AgreementVector& a, const AgreementVector& b);

}  // namespace muster
