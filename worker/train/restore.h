// The beginning of an attempt: its members tell each other what they hold of the job's state,
// decide where they all go on (common/recovery/restore_plan.h), finish a step that was committed,
// and fill those that lack something. A rank that lived through the last epoch's end keeps its
// state and rebinds it to the new groups; others build theirs. Collective over the members. One
// thread.
//
// Whatever fails in here, what a member kept before can be offered again in the next epoch: a state
// is replaced only once the new one is complete.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/recovery/restore_plan.h"
#include "worker/provider/provider.h"
#include "worker/train/attempt_state.h"
#include "worker/train/trainer_host.h"

namespace muster {

struct RestoreOptions {
  const JobSpec& spec;
  CommunicatorPtr members;  // resources.world_size ranks, then helpers
  TrainerHost& host;
  const ProviderRegistry& providers;
  int64_t epoch = 0;
  int64_t directives_through = 0;  // applied before this attempt, as the coordinator knows
  int64_t ledger_through = 0;      // iterations that its ledger holds
  c10::Device device = c10::kCPU;
  AttemptState& kept;
  // Called once the state has its groups, before a checkpoint is loaded into it. Collective over
  // the job's ranks.
  std::function<absl::Status(JobState& state)> prepare;
  int buddy = -1;  // rank that keeps a copy of this one's snapshots; -1: nobody
};

struct Restored {
  CommunicatorPtr world;  // of the job's ranks; null on a helper, which is done then
  RestoreDecision decision;
  // The boundary of `decision.iteration` is to be gone through (again): evaluation, checkpoint, as
  // kept.state->last_step says.
  bool redo_boundary = false;
  // The step `decision.iteration` is to be reported (again): the ledger may lack it.
  bool report_again = false;
  int64_t bytes_moved = 0;
};

// On return `kept.state` is the state that training goes on with, with whole parameters where the
// forward passes do not gather them; its directives and boundary are those of the iteration.
absl::StatusOr<Restored> RestoreJob(const RestoreOptions& options);

}  // namespace muster
