// The fields of a job's records, each list in one place for writing and for reading.
#pragma once

#include <string>
#include <type_traits>

#include "coordinator/core/durable_json.h"
#include "coordinator/core/job_machine.h"

namespace muster {

inline constexpr EnumName<JobState> kJobStates[] = {
    {JobState::kSubmitted, "SUBMITTED"},   {JobState::kQueued, "QUEUED"},
    {JobState::kForming, "FORMING"},       {JobState::kRunning, "RUNNING"},
    {JobState::kEvaluating, "EVALUATING"}, {JobState::kCheckpointing, "CHECKPOINTING"},
    {JobState::kRerunning, "RERUNNING"},   {JobState::kRecovering, "RECOVERING"},
    {JobState::kCompleted, "COMPLETED"},   {JobState::kFailed, "FAILED"},
    {JobState::kCancelled, "CANCELLED"},   {JobState::kExited, "EXITED"},
};
inline constexpr EnumName<RankSlot::Trainer> kTrainerStates[] = {
    {RankSlot::Trainer::kNone, "none"},
    {RankSlot::Trainer::kLaunched, "launched"},
    {RankSlot::Trainer::kExited, "exited"},
};
inline constexpr EnumName<CancelMode> kCancelModes[] = {
    {CancelMode::kStop, "stop"},
    {CancelMode::kCheckpointAndStop, "checkpoint_and_stop"},
    {CancelMode::kKill, "kill"},
};
inline constexpr EnumName<Directive::Kind> kDirectiveKindNames[] = {
    {Directive::Kind::kCheckpoint, "checkpoint"},
    {Directive::Kind::kEvaluate, "evaluate"},
    {Directive::Kind::kStop, "stop"},
    {Directive::Kind::kCheckpointAndStop, "checkpoint_and_stop"},
    {Directive::Kind::kTrace, "trace"},
    {Directive::Kind::kReform, "reform"},
    {Directive::Kind::kCheckpointAndExit, "checkpoint_and_exit"},
};

inline constexpr EnumName<ExtraSlot::Role> kExtraRoles[] = {
    {ExtraSlot::Role::kSpare, "spare"},
    {ExtraSlot::Role::kHelper, "helper"},
    {ExtraSlot::Role::kLeaving, "leaving"},
};
inline constexpr EnumName<PlannedChange::Kind> kChangeKinds[] = {
    {PlannedChange::Kind::kMove, "move"},
    {PlannedChange::Kind::kGrow, "grow"},
    {PlannedChange::Kind::kReform, "reform"},
};
inline constexpr EnumName<PlannedChange::Stage> kChangeStages[] = {
    {PlannedChange::Stage::kWarming, "warming"},
    {PlannedChange::Stage::kYielding, "yielding"},
};

#define MUSTER_FIELD(member) v(#member, m.member)

struct SavedIdentity {
  std::string job_id, spec_json, idempotency_key;
  int64_t train_iters = 0;
  absl::Time submitted_at;
};
template <class V, class M>
void VisitIdentity(V& v, M& m) {
  MUSTER_FIELD(job_id);
  MUSTER_FIELD(spec_json);
  MUSTER_FIELD(idempotency_key);
  MUSTER_FIELD(train_iters);
  MUSTER_FIELD(submitted_at);
}

template <class V, class M>
void VisitRestored(V& v, M& m) {
  MUSTER_FIELD(iteration);
  MUSTER_FIELD(source);
  MUSTER_FIELD(text);
  MUSTER_FIELD(form_ms);
  MUSTER_FIELD(state_ms);
  MUSTER_FIELD(bytes);
}

template <class V, class M>
void VisitIncident(V& v, M& m) {
  MUSTER_FIELD(open);
  MUSTER_FIELD(planned);
  MUSTER_FIELD(number);
  MUSTER_FIELD(failed_at);
  MUSTER_FIELD(aborted_at);
  MUSTER_FIELD(launched_at);
  MUSTER_FIELD(started_at);
  MUSTER_FIELD(formed_at);
  MUSTER_FIELD(loaded_at);
  MUSTER_FIELD(iteration);
  MUSTER_FIELD(what);
  MUSTER_FIELD(kind);
  MUSTER_FIELD(followed);
  MUSTER_FIELD(hit_workers);
  v.Nested("restored", m.restored, [](auto& inner, auto& value) { VisitRestored(inner, value); });
}

template <class V, class M>
void VisitTotals(V& v, M& m) {
  MUSTER_FIELD(count_by_kind);
  MUSTER_FIELD(seconds);
  MUSTER_FIELD(steps_redone);
  MUSTER_FIELD(rerun_verdicts);
}

template <class V, class M>
void VisitChange(V& v, M& m) {
  v.Enum("kind", m.kind, kChangeKinds);
  v.Enum("stage", m.stage, kChangeStages);
  MUSTER_FIELD(reason);
  v.List("moves", m.moves, [](auto& element, auto& move) {
    element("rank", move.rank);
    element("from", move.from);
    element("to", move.to);
  });
  MUSTER_FIELD(data_parallel_size);
  MUSTER_FIELD(needs_spares);
  MUSTER_FIELD(examine_json);
  MUSTER_FIELD(directive);
  MUSTER_FIELD(deadline);
  MUSTER_FIELD(overdue);
}

// What RestartBudget has to know.
struct SavedBudget {
  std::vector<double> restarts;  // seconds since 1970
  int64_t failed_step = -1, step_failures = 0, trainer_failures = 0;
  bool incident = false;
};
template <class V, class M>
void VisitBudget(V& v, M& m) {
  MUSTER_FIELD(restarts);
  v.Always("failed_step", m.failed_step);
  MUSTER_FIELD(step_failures);
  MUSTER_FIELD(trainer_failures);
  MUSTER_FIELD(incident);
}

template <class V, class M>
void JobMachine::VisitState(V& v, M& m) {
  v.Enum("state", m.state_, kJobStates);
  v("reason", m.reason_);
  v("version", m.version_);
  v("epoch", m.epoch_);
  v("iteration", m.iteration_);
  v("consumed_samples", m.consumed_samples_);
  v("flops_so_far", m.flops_so_far_);
  v("restarts", m.restarts_);
  v("exit_code", m.exit_code_);
  v("started_at", m.started_at_);
  v("ended_at", m.ended_at_);
  v.Enum("cancel", m.cancel_, kCancelModes);
  v("cancel_reason", m.cancel_reason_);
  v("cancel_deadline", m.cancel_deadline_);
  v("cancel_extended", m.cancel_extended_);
  v("not_released_noted", m.not_released_noted_);
  v("workers_deadline", m.workers_deadline_);
  v("exit_deadline", m.exit_deadline_);
  v("waits_for", m.waits_for_);
  v("skipped_steps", m.skipped_steps_);
  v("grew_at", m.grew_at_);
  v.Nested("change", m.change_, [](auto& inner, auto& change) { VisitChange(inner, change); });
}

template <class V, class M>
void JobMachine::VisitEpoch(V& v, M& m) {
  v("unique_id", m.unique_id_);
  v("aborted", m.aborted_);
  v("seeking_cause", m.seeking_cause_);
  v("directives_through", m.directives_through_);
  v("data_parallel_size", m.data_parallel_size_);
  v.Always("layout_epoch", m.layout_epoch_);
  v("spec_json", m.spec_override_);
  v("examine_json", m.examine_json_);
  v.List("extras", m.extras_, [](auto& element, auto& extra) {
    element.Enum("role", extra.role, kExtraRoles);
    element.Always("rank", extra.rank);
    element("epoch", extra.epoch);
    VisitRank(element, extra.slot);
  });
}

template <class V, class M>
void VisitCause(V& v, M& m) {
  MUSTER_FIELD(rank);
  MUSTER_FIELD(exit_code);
  MUSTER_FIELD(signal);
  MUSTER_FIELD(kind);
  MUSTER_FIELD(worker);
  MUSTER_FIELD(node);
  MUSTER_FIELD(text);
  MUSTER_FIELD(iteration);
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(last_log_lines);
  MUSTER_FIELD(time);
  MUSTER_FIELD(symptom);
  MUSTER_FIELD(by_trainer);
  MUSTER_FIELD(restarts);
}

template <class V, class M>
void VisitDone(V& v, M& m) {
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(exit_code);
  MUSTER_FIELD(reason);
}

template <class V, class M>
void VisitRank(V& v, M& m) {
  MUSTER_FIELD(worker);
  v.Bytes("incarnation", m.incarnation);
  MUSTER_FIELD(node);
  MUSTER_FIELD(host_address);
  MUSTER_FIELD(device);
  v.Always("num_threads", m.num_threads);
  v.Enum("trainer", m.trainer, kTrainerStates);
  v.Always("phase", m.phase);
  MUSTER_FIELD(phase_detail);
  v.Nested("done", m.done, [](auto& inner, auto& done) { VisitDone(inner, done); });
  MUSTER_FIELD(failed_in_collective);
  MUSTER_FIELD(held);
  MUSTER_FIELD(lost);
  MUSTER_FIELD(condemned);
  v.Always("buddy", m.buddy);
}

template <class V, class M>
void VisitDirective(V& v, M& m) {
  v.Enum("kind", m.kind, kDirectiveKindNames);
  MUSTER_FIELD(reason);
  MUSTER_FIELD(iterations);
  MUSTER_FIELD(iteration);
  MUSTER_FIELD(exit_code);
}

// ---- rows of the ledger; the element's type says which
template <class V, class M>
void VisitStep(V& v, M& m) {
  MUSTER_FIELD(iteration);
  MUSTER_FIELD(consumed_samples);
  MUSTER_FIELD(lm_loss);
  MUSTER_FIELD(loss_text);
  MUSTER_FIELD(grad_norm);
  MUSTER_FIELD(num_zeros);
  MUSTER_FIELD(params_norm);
  MUSTER_FIELD(load_balancing_loss);
  MUSTER_FIELD(seq_load_balancing_loss);
  MUSTER_FIELD(global_load_balancing_loss);
  MUSTER_FIELD(z_loss);
  MUSTER_FIELD(learning_rate);
  v.Always("loss_scale", m.loss_scale);
  MUSTER_FIELD(elapsed_ms);
  MUSTER_FIELD(tokens_per_s);
  MUSTER_FIELD(tflops_per_device);
  MUSTER_FIELD(skipped);
  MUSTER_FIELD(num_floating_point_operations_so_far);
  MUSTER_FIELD(memory_bytes);
  MUSTER_FIELD(applied_directive);
  MUSTER_FIELD(global_batch_size);
  MUSTER_FIELD(timers_ms);
}

template <class V, class M>
void VisitLedger(V& v, M& m) {
  using T = std::remove_const_t<M>;
  if constexpr (std::is_same_v<T, StepRecord>) {
    MUSTER_FIELD(epoch);
    MUSTER_FIELD(time);
    VisitStep(v, m.step);
  } else if constexpr (std::is_same_v<T, EvaluationMessage>) {
    MUSTER_FIELD(epoch);
    MUSTER_FIELD(iteration);
    MUSTER_FIELD(split);
    MUSTER_FIELD(lm_loss);
    MUSTER_FIELD(ppl);
    v("final", m.final);
  } else if constexpr (std::is_same_v<T, CheckpointMessage>) {
    MUSTER_FIELD(epoch);
    MUSTER_FIELD(iteration);
    MUSTER_FIELD(path);
    MUSTER_FIELD(ok);
    MUSTER_FIELD(error);
    MUSTER_FIELD(elapsed_ms);
  } else {
    static_assert(std::is_same_v<T, JobEvent>);
    MUSTER_FIELD(time);
    MUSTER_FIELD(epoch);
    MUSTER_FIELD(kind);
    MUSTER_FIELD(text);
    v.Always("rank", m.rank);
    MUSTER_FIELD(worker);
  }
}

#undef MUSTER_FIELD

}  // namespace muster
