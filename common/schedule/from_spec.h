// A job spec's settings as the options of the pure pieces (topology, schedules, policies), so that
// coordinator, trainer and CLI read a spec in one way. `resolved` is Resolve(spec, ...) of a spec
// without faults. Pure.
#pragma once

#include "absl/status/statusor.h"
#include "common/schedule/eval_schedule.h"
#include "common/schedule/exit_policy.h"
#include "common/schedule/flops.h"
#include "common/schedule/loss_scaler.h"
#include "common/schedule/lr_schedule.h"
#include "common/schedule/microbatches.h"
#include "common/schedule/pipeline_schedule.h"
#include "common/schedule/sample_counts.h"
#include "common/spec/job_spec.h"
#include "common/spec/spec_json.h"
#include "common/topology/layer_assignment.h"
#include "common/topology/rank_topology.h"

namespace muster {

TopologySpec TopologyOf(const JobSpec& spec);
// With the number of virtual stages worked out from whichever option gives it (1: none).
absl::StatusOr<LayerSplit> LayerSplitOf(const JobSpec& spec);
MicrobatchOptions MicrobatchOptionsOf(const JobSpec& spec, const ResolvedSpec& resolved);
// For a step of `num_microbatches`; virtual_pp from LayerSplitOf.
ScheduleOptions ScheduleOptionsOf(const JobSpec& spec, int virtual_pp, int64_t num_microbatches);
// The same for an evaluation step: no backward passes, nothing to synchronise.
ScheduleOptions ForwardOnlyScheduleOptionsOf(const JobSpec& spec, int virtual_pp,
                                             int64_t num_microbatches);
// Iterations become samples here: times the global batch size (reference 8).
absl::StatusOr<LrScheduleOptions> LrScheduleOptionsOf(const JobSpec& spec,
                                                      const ResolvedSpec& resolved);
LossScalerOptions LossScalerOptionsOf(const JobSpec& spec);
FlopsModel FlopsModelOf(const JobSpec& spec, const ResolvedSpec& resolved);
SampleCountOptions SampleCountOptionsOf(const JobSpec& spec, const ResolvedSpec& resolved);
// do_valid and do_test are the data's to say; they are left true.
EvalScheduleOptions EvalScheduleOptionsOf(const JobSpec& spec);
ExitOptions ExitOptionsOf(const JobSpec& spec);

}  // namespace muster
