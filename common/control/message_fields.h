// The fields of each message between agent and trainer, listed once: Writer and Reader walk these
// lists, so that the two directions cannot drift apart. For messages.cc.
#pragma once

#include "common/control/messages.h"

namespace muster::control_fields {

// ---- names of the enums
template <typename E>
struct EnumName {
  E value;
  const char* name;
};
inline constexpr EnumName<Directive::Kind> kDirectiveKinds[] = {
    {Directive::Kind::kCheckpoint, "checkpoint"},
    {Directive::Kind::kEvaluate, "evaluate"},
    {Directive::Kind::kStop, "stop"},
    {Directive::Kind::kCheckpointAndStop, "checkpoint_and_stop"},
    {Directive::Kind::kTrace, "trace"},
    {Directive::Kind::kReform, "reform"},
    {Directive::Kind::kCheckpointAndExit, "checkpoint_and_exit"},
};
inline constexpr EnumName<StoreRequestMessage::Op> kStoreOps[] = {
    {StoreRequestMessage::Op::kSet, "set"},
    {StoreRequestMessage::Op::kWaitPrefix, "wait_prefix"},
};
constexpr auto& NamesOf(Directive::Kind) { return kDirectiveKinds; }
constexpr auto& NamesOf(StoreRequestMessage::Op) { return kStoreOps; }

// ---- the fields of each message
#define MUSTER_FIELD(member) v(#member, m.member)
// Added after version 1: where the peer does not send it, the value that is named here.
#define MUSTER_LATER_FIELD(member, otherwise) v.Later(#member, m.member, otherwise)

template <class V, class M>
void VisitDirective(V& v, M& m) {
  MUSTER_FIELD(number);
  MUSTER_FIELD(kind);
  MUSTER_FIELD(reason);
  MUSTER_FIELD(iterations);
  MUSTER_LATER_FIELD(iteration, 0);
  MUSTER_LATER_FIELD(exit_code, 0);
}

template <class V, class M>
void VisitOpArrival(V& v, M& m) {
  MUSTER_FIELD(group);
  MUSTER_FIELD(ranks);
  MUSTER_FIELD(sequence);
  MUSTER_FIELD(operation);
  MUSTER_FIELD(done);
  MUSTER_FIELD(age_ms);
}

template <class T>
struct Tag {};

template <class V, class M>
void Visit(Tag<AssignMessage>, V& v, M& m) {
  MUSTER_FIELD(job_id);
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(rank);
  MUSTER_FIELD(world_size);
  MUSTER_FIELD(spec_json);
  MUSTER_FIELD(host_address);
  MUSTER_FIELD(device);
  MUSTER_FIELD(num_threads);
  MUSTER_FIELD(directives_through);
  MUSTER_FIELD(plugin_dirs);
  MUSTER_LATER_FIELD(num_helpers, 0);
  MUSTER_LATER_FIELD(buddy, -1);
  MUSTER_LATER_FIELD(snapshot_memory, "");
  MUSTER_LATER_FIELD(ledger_through, 0);
  MUSTER_LATER_FIELD(examine_json, "");
}
template <class V, class M>
void Visit(Tag<UniqueIdMessage>, V& v, M& m) {
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(id);
}
template <class V, class M>
void Visit(Tag<DirectiveMessage>, V& v, M& m) {
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(directive);
}
template <class V, class M>
void Visit(Tag<AbortMessage>, V& v, M& m) {
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(reason);
}
template <class V, class M>
void Visit(Tag<ShutdownMessage>, V& v, M& m) {
  MUSTER_FIELD(reason);
}
template <class V, class M>
void Visit(Tag<StoreReplyMessage>, V& v, M& m) {
  MUSTER_FIELD(request);
  MUSTER_FIELD(ok);
  MUSTER_FIELD(error);
  MUSTER_FIELD(error_code);
  MUSTER_FIELD(entries);
}
template <class V, class M>
void Visit(Tag<HelloMessage>, V& v, M& m) {
  MUSTER_FIELD(pid);
  MUSTER_FIELD(version);
  MUSTER_LATER_FIELD(revision, 1);
}
template <class V, class M>
void Visit(Tag<PhaseMessage>, V& v, M& m) {
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(phase);
  MUSTER_FIELD(detail);
}
template <class V, class M>
void Visit(Tag<PublishUniqueIdMessage>, V& v, M& m) {
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(id);
}
template <class V, class M>
void Visit(Tag<StoreRequestMessage>, V& v, M& m) {
  MUSTER_FIELD(request);
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(op);
  MUSTER_FIELD(key);
  MUSTER_FIELD(value);
  MUSTER_FIELD(count);
  MUSTER_FIELD(limit_ms);
}
template <class V, class M>
void Visit(Tag<StepMessage>, V& v, M& m) {
  MUSTER_FIELD(epoch);
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
  MUSTER_FIELD(loss_scale);
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
void Visit(Tag<EvaluationMessage>, V& v, M& m) {
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(iteration);
  MUSTER_FIELD(split);
  MUSTER_FIELD(lm_loss);
  MUSTER_FIELD(ppl);
  MUSTER_FIELD(final);
}
template <class V, class M>
void Visit(Tag<CheckpointMessage>, V& v, M& m) {
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(iteration);
  MUSTER_FIELD(path);
  MUSTER_FIELD(ok);
  MUSTER_FIELD(error);
  MUSTER_FIELD(elapsed_ms);
}
template <class V, class M>
void Visit(Tag<EventMessage>, V& v, M& m) {
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(kind);
  MUSTER_FIELD(text);
}
template <class V, class M>
void Visit(Tag<DoneMessage>, V& v, M& m) {
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(exit_code);
  MUSTER_FIELD(reason);
}
template <class V, class M>
void Visit(Tag<FailedMessage>, V& v, M& m) {
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(reason);
  MUSTER_FIELD(collective);
}
template <class V, class M>
void Visit(Tag<ProgressMessage>, V& v, M& m) {
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(iteration);
}
template <class V, class M>
void Visit(Tag<TracePieceMessage>, V& v, M& m) {
  MUSTER_FIELD(request);
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(directive);
  MUSTER_FIELD(offset);
  MUSTER_FIELD(data);
  MUSTER_FIELD(last);
  MUSTER_FIELD(limit_ms);
}
template <class V, class M>
void Visit(Tag<ProbeMessage>, V& v, M& m) {
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(request);
}
template <class V, class M>
void Visit(Tag<ProbeReplyMessage>, V& v, M& m) {
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(request);
  MUSTER_FIELD(iteration);
  MUSTER_FIELD(phase);
  MUSTER_FIELD(thread_cpu_ms);
  MUSTER_FIELD(ops);
}
template <class V, class M>
void Visit(Tag<RestoredMessage>, V& v, M& m) {
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(iteration);
  MUSTER_FIELD(source);
  MUSTER_FIELD(text);
  MUSTER_FIELD(form_ms);
  MUSTER_FIELD(state_ms);
  MUSTER_FIELD(bytes);
}
template <class V, class M>
void Visit(Tag<RankTimesMessage>, V& v, M& m) {
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(iteration);
  MUSTER_FIELD(steps);
  MUSTER_FIELD(compute_ms);
  MUSTER_FIELD(communication_wait_ms);
  MUSTER_FIELD(data_ms);
}
template <class V, class M>
void Visit(Tag<ExamineMessage>, V& v, M& m) {
  MUSTER_FIELD(epoch);
  MUSTER_FIELD(iteration);
  MUSTER_FIELD(json);
}
#undef MUSTER_LATER_FIELD
#undef MUSTER_FIELD

}  // namespace muster::control_fields
