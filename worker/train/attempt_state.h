// What a trainer keeps of a job from one attempt to the next: so a rank that lives through the
// failure of another goes on with its model where it stands. Restored by restore.h, used by
// training.h. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/control/directive_log.h"
#include "common/control/messages.h"
#include "worker/snapshot/snapshotter.h"
#include "worker/train/job_data.h"
#include "worker/train/job_state.h"
#include "worker/train/warm_data.h"

namespace muster {

struct AttemptState {
  std::string job_id;               // of all that follows
  std::unique_ptr<JobState> state;  // null: none
  std::string spec_json;            // that `state` was built from
  std::optional<JobData> data;
  std::unique_ptr<WarmData> warm_data;       // until `data` is there; null: nobody has begun
  std::unique_ptr<Snapshotter> snapshotter;  // null: this job keeps none
  DirectiveLog directives{0};
  // The newest iteration at whose boundary everything was done here (evaluation, checkpoint, ...);
  // -1: none.
  int64_t boundary_done = -1;
  int64_t consumed_valid_then = 0;  // progress.consumed_valid_samples after it
  bool reports = false;             // this rank spoke for the job
  // What the rerun machine of this rank (or its peers) had seen elsewhere: for the next StepRerun.
  std::vector<std::string> large_values;
};

}  // namespace muster
