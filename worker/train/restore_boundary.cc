#include "worker/train/restore_boundary.h"

#include <algorithm>
#include <utility>

namespace muster {
namespace {

// The prepared step of a member that finishes it now.
std::optional<TrainStepResult> FinishedStep(const MemberText& member,
                                            const AgreementVector& agreed) {
  std::optional<TrainStepResult> step = member.prepared_step;
  if (!step.has_value()) return step;
  step->decision = FromReduced(agreed);
  step->skipped = step->decision.found_inf || step->decision.norm_too_large;
  if (step->decision.found_inf) {
    step->grad_norm.reset();
    step->num_zeros.reset();
  }
  for (const Directive& directive : member.held) {
    if (directive.number <= step->decision.apply_directives_through)
      step->directives.push_back(directive);
  }
  return step;
}

}  // namespace

bool HasLive(const MemberText& member) {
  const std::vector<HeldState>& held = member.offer.held;
  return !held.empty() && held[0].kind == HeldState::Kind::kLive;
}

bool UsesLive(const MemberText& member, const RestoreDecision::Member& decided) {
  if (!HasLive(member)) return false;
  return decided.keeps == 0 || std::count(decided.gives.begin(), decided.gives.end(), 0) > 0;
}

RestoredBoundary BoundaryOf(const std::vector<MemberText>& members, const RestoreDecision& decision,
                            int64_t directives_through) {
  RestoredBoundary out{.directives_through = directives_through};
  std::optional<TrainStepResult>& known = out.step;
  bool live = false, done = true, reporter_lives = false;
  for (size_t m = 0; m < members.size(); ++m) {
    const MemberText& member = members[m];
    const RestoreDecision::Member& decided = decision.members[m];
    if (!UsesLive(member, decided)) continue;
    live = true;
    done = done && member.boundary_done >= decision.iteration;
    reporter_lives = reporter_lives || member.reported;
    out.directives_through = std::max(out.directives_through, member.applied_through);
    std::optional<TrainStepResult> step =
        decided.finishes ? FinishedStep(member, *decision.finish_with) : member.step;
    // Losses are on the last stage only.
    if (step.has_value() && (!known.has_value() || known->losses.empty())) {
      if (known.has_value() && step->directives.empty()) step->directives = known->directives;
      known = std::move(step);
    }
  }
  if (known.has_value()) {
    out.directives_through =
        std::max(out.directives_through, known->decision.apply_directives_through);
  }
  const bool through = done && reporter_lives;
  out.done = !live || through;
  out.redo = live && known.has_value() && !through;
  return out;
}

}  // namespace muster
