// Rows of the document itself and of evaluation, checkpoint, rerun, recovery and resources.
#include "common/spec/fields.h"

namespace muster {

Section DocumentFields() {
  return {"",
          "The fields of the document itself.",
          {
              {"name", [](JobSpec& s) -> FieldRef { return &s.name; }, Anything(), "",
               "Name of the job, for people."},
              {"plugin", [](JobSpec& s) -> FieldRef { return &s.plugin; }, Anything(), "",
               "Shared library with further providers, in a folder that the workers' operator "
               "allows.",
               "not set"},
          }};
}

#define F(member) MUSTER_FIELD(evaluation, member)
Section EvaluationFields() {
  const FieldRule count = Between(1, kMaxCount);
  return {"evaluation",
          "When to evaluate, and on how much.",
          {
              {F(eval_interval), count, "iterations", "Iterations between two evaluations.",
               "not set: only at the end"},
              {F(eval_iters), Between(0, kMaxCount), "iterations",
               "Batches of an evaluation; 0: never evaluate."},
              {F(at_start), Anything(), "", "Also evaluate before the first iteration."},
              {F(start_eval_at_iter), Between(0, kMaxCount), "iterations",
               "No evaluation by interval before this iteration.", "not set"},
              {F(eval_global_batch_size), Between(1, kMaxSize), "samples",
               "Samples of an evaluation batch.", "training.global_batch_size"},
          }};
}
#undef F

#define F(member) MUSTER_FIELD(checkpoint, member)
Section CheckpointFields() {
  const FieldRule count = Between(1, kMaxCount);
  return {
      "checkpoint",
      "What is saved and loaded.",
      {
          {F(save), Anything(), "", "Folder that checkpoints are written to.",
           "not set: nothing is saved"},
          {F(load), Anything(), "",
           "Folder to go on from; without a checkpoint in it the job starts anew.", "not set"},
          {F(pretrained_checkpoint), Anything(), "",
           "Folder whose weights are taken when load has no checkpoint.", "not set"},
          {F(finetune), Anything(), "", "Load weights only, and start at iteration 0."},
          {F(save_interval), count, "iterations", "Iterations between two checkpoints.",
           "required by save"},
          {F(save_retain_interval), count, "iterations",
           "Keep only the checkpoints at multiples of this, and the newest.", "not set: keep all"},
          {F(keep_last), Between(1, kMaxSize), "checkpoints",
           "Keep only so many of the newest checkpoints.", "not set: keep all"},
          {F(async_save), Anything(), "", "Write checkpoints behind training."},
          {F(no_save_optim), Anything(), "", "Save without the optimizer's state."},
          {F(no_save_rng), Anything(), "", "Save without the random generators' state."},
          {F(no_load_optim), Anything(), "", "Load without the optimizer's state."},
          {F(no_load_rng), Anything(), "", "Load without the random generators' state."},
          {F(ckpt_step), Between(0, kMaxCount), "iterations",
           "Iteration of the checkpoint to load.", "the newest"},
          {F(exit_on_missing_checkpoint), Anything(), "",
           "Fail when load has no checkpoint instead of starting anew."},
      }};
}
#undef F

#define F(member) MUSTER_FIELD(rerun, member)
Section RerunFields() {
  return {
      "rerun",
      "Checks of results, and what follows a bad one.",
      {
          {F(mode), OneOf({"disabled", "validate_results", "report_determinism_stats"}), "",
           "Check results and run a suspicious step again, measure how far reruns differ, or "
           "neither."},
          {F(error_injection_rate), Between(0, kMaxCount), "checks",
           "For tests: inject one error in about so many checks; 0: none."},
          {F(error_injection_type),
           OneOf({"transient_error", "persistent_error", "correct_result"}), "",
           "What the injected error looks like to the rerun."},
          {F(check_for_nan_in_loss), Anything(), "",
           "A loss that is NaN or infinite is a bad result."},
          {F(check_for_spiky_loss), Anything(), "",
           "A loss ten times above the usual is a suspicious result."},
          {F(result_rejected_tracker_filename), Anything(), "",
           "A line for each rejected result is appended to this file; iterations that it shows "
           "to be bad are skipped at the next start.",
           "none"},
          {F(rerun_elsewhere), Anything(), "",
           "Run a step whose bad result repeats again on a spare or on two exchanged workers, "
           "at once; if not, exit with 16 for a resume on other hardware."},
          {F(continue_on_correct), Anything(), "",
           "Go on when the same bad result comes from other hardware too: the data or the model "
           "is to blame."},
      }};
}
#undef F

#define F(member) MUSTER_FIELD(recovery, member)
Section RecoveryFields() {
  const FieldRule milliseconds = Between(10, 3600000);
  return {
      "recovery",
      "How failures of workers are noticed and survived.",
      {
          {F(max_restarts), Between(0, kMaxSize), "restarts",
           "Recoveries within restart_window_s before the job is given up; 0: the first failure "
           "ends it."},
          {F(restart_window_s), Between(1, 31536000), "s",
           "Older recoveries do not count against max_restarts."},
          {F(max_failures_of_step), Between(1, kMaxCount), "failures",
           "Failures at the same step, with none committed in between, that end the job."},
          {F(skip_poisoned_batch), Anything(), "",
           "Skip a step that kills its trainers again and again, with its samples, instead of "
           "failing."},
          {F(wait_for_workers_s), Between(0, 31536000), "s",
           "How long a job waits for workers in the place of lost ones."},
          {F(snapshot_interval), Between(0, kMaxCount), "iterations",
           "Committed steps between two snapshots in memory; 0: none."},
          {F(elastic), Anything(), "",
           "Go on with fewer data parallel replicas when no worker can take a lost one's "
           "place."},
          {F(heartbeat_interval_ms), milliseconds, "ms",
           "No effect: an agent serves many jobs, the coordinator's --heartbeat-interval-ms "
           "counts."},
          {F(heartbeat_timeout_ms), milliseconds, "ms",
           "No effect: an agent serves many jobs, the coordinator's --heartbeat-timeout-ms "
           "counts."},
          {F(watchdog_timeout_s), Between(1, 31536000), "s",
           "A collective that makes no progress for so long is reported and ended."},
      }};
}
#undef F

#define F(member) MUSTER_FIELD(resources, member)
Section ResourcesFields() {
  return {
      "resources",
      "What the job asks of the cluster.",
      {
          {F(world_size), Between(1, 1e6), "ranks", "Ranks of the job, a worker each."},
          {F(device), OneOf({"cpu", "cuda"}), "", "Kind of device of every rank."},
          {F(spares), Between(0, 1e6), "workers", "Idle workers held ready for a lost one."},
          {F(priority), Between(-1000000, 1000000), "", "A job of higher priority starts first."},
          {F(env), Anything(), "", "Environment variables of the trainers."},
      }};
}
#undef F

}  // namespace muster
