// One training step (reference 12.3): forward and backward passes, final gradients, norms and
// reduced losses, the agreement that commits the step, the update, the gathers of parameters.
//
// The order is what recovery stands on (design 2.5): when the agreement returned on any rank, every
// rank holds all that it needs to commit and to report the step without talking to anybody. One
// thread.
#pragma once

#include "absl/status/statusor.h"
#include "common/control/agreement.h"
#include "worker/train/job_data.h"
#include "worker/train/job_state.h"
#include "worker/train/open_step.h"
#include "worker/train/step_agreement.h"
#include "worker/train/timers.h"

namespace muster {

// Collective. On return the step is committed on every rank, and `state` is advanced; or it was
// rejected for good (`leaves`), and `state` is that of its beginning. A result that is rejected on
// any rank is examined in here, by running the step again (state.rerun; reference 13). INTERNAL
// "iteration k: ..." when it is rejected and reruns are disabled. After an error state.open_step
// says how far this rank came.
absl::StatusOr<TrainStepResult> TrainStep(JobState& state, const DataIterators& data,
                                          StepAgreement& agreement, ExitWish wish, Timers& timers);

// The parts of it that recovery calls, too.
//
// Commits the prepared step that is open, with the agreement's result: the update of what this rank
// owns, scaler, schedule, progress. Talks to nobody, cannot fail. The step's result stands in
// state.last_step afterwards, its directives excepted.
void CommitOpenStep(JobState& state, const AgreementVector& agreed);
// Drops the open step, if there is one: the random states of its start are put back.
void DropOpenStep(JobState& state);
// After a commit: what other ranks own becomes whole here, unless the next forward passes gather
// it; params_norm. Collective; may be repeated.
absl::Status GatherAfterCommit(JobState& state);

}  // namespace muster
