// What all ranks hold the same of the step that they go on from, when the state comes from memory:
// its result, the directives that are applied, and whether its boundary (evaluation, checkpoint)
// was gone through. Computed by all alike from what the members said of themselves. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/recovery/restore_plan.h"
#include "worker/train/member_offer.h"

namespace muster {

bool HasLive(const MemberText& member);
// Its live state is what the job goes on with.
bool UsesLive(const MemberText& member, const RestoreDecision::Member& decided);

struct RestoredBoundary {
  std::optional<TrainStepResult> step;  // from whoever knows it; losses from the last stage
  int64_t directives_through = 0;       // applied
  // By all, and with what the job was told of it: nothing of it is to be done again.
  bool done = true;
  bool redo = false;  // it is to be gone through (again), as `step` says
};

// `directives_through`: applied, as the coordinator knows.
RestoredBoundary BoundaryOf(const std::vector<MemberText>& members, const RestoreDecision& decision,
                            int64_t directives_through);

}  // namespace muster
