#include "common/control/agreement.h"

#include <algorithm>
#include <cstddef>

namespace muster {
namespace {

// Reasons to skip an update; the stronger one wins.
constexpr int64_t kNormTooLarge = 1, kFoundInf = 2;

}  // namespace

AgreementVector ToVector(const StepVote& vote) {
  const int64_t skip = vote.found_inf ? kFoundInf : vote.norm_too_large ? kNormTooLarge : 0;
  return {-vote.gap_free_directive, skip, vote.something_wrong ? 1 : 0,
          static_cast<int64_t>(vote.exit_wish), -vote.snapshot_complete};
}

StepDecision FromReduced(const AgreementVector& reduced) {
  StepDecision decision;
  decision.apply_directives_through = -reduced[0];
  decision.found_inf = reduced[1] == kFoundInf;
  decision.norm_too_large = reduced[1] == kNormTooLarge;
  decision.something_wrong = reduced[2] > 0;
  // A newer peer's unknown stronger wish is taken as the strongest that is known here.
  decision.exit_wish = static_cast<ExitWish>(
      std::clamp<int64_t>(reduced[3], 0, static_cast<int64_t>(ExitWish::kSignal)));
  decision.snapshots_counted = -reduced[4];
  return decision;
}

AgreementVector MaxOf(const AgreementVector& a, const AgreementVector& b) {
  AgreementVector result;
  for (size_t i = 0; i < result.size(); ++i) result[i] = std::max(a[i], b[i]);
  return result;
}

}  // namespace muster
