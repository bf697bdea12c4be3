#include "common/control/agreement.h"

#include <algorithm>
#include <cstddef>

namespace muster {

AgreementVector ToVector(const StepVote& vote) {
  return {-vote.gap_free_directive, vote.found_inf ? 1 : 0, vote.something_wrong ? 1 : 0,
          static_cast<int64_t>(vote.exit_wish)};
}

StepDecision FromReduced(const AgreementVector& reduced) {
  StepDecision decision;
  decision.apply_directives_through = -reduced[0];
  decision.found_inf = reduced[1] > 0;
  decision.something_wrong = reduced[2] > 0;
  // A newer peer's unknown stronger wish is taken as the strongest that is known here.
  decision.exit_wish = static_cast<ExitWish>(
      std::clamp<int64_t>(reduced[3], 0, static_cast<int64_t>(ExitWish::kSignal)));
  return decision;
}

AgreementVector MaxOf(const AgreementVector& a, const AgreementVector& b) {
  AgreementVector result;
  for (size_t i = 0; i < result.size(); ++i) result[i] = std::max(a[i], b[i]);
  return result;
}

}  // namespace muster
