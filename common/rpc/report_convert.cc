#include "common/rpc/report_convert.h"

namespace muster {

v1::StepReport ToProto(const StepMessage& step) {
  v1::StepReport proto;
  proto.set_iteration(step.iteration);
  proto.set_consumed_samples(step.consumed_samples);
  if (step.lm_loss.has_value()) proto.set_lm_loss(*step.lm_loss);
  proto.set_loss_text(step.loss_text);
  if (step.grad_norm.has_value()) proto.set_grad_norm(*step.grad_norm);
  if (step.num_zeros.has_value()) proto.set_num_zeros(*step.num_zeros);
  if (step.params_norm.has_value()) proto.set_params_norm(*step.params_norm);
  if (step.load_balancing_loss.has_value())
    proto.set_load_balancing_loss(*step.load_balancing_loss);
  if (step.seq_load_balancing_loss.has_value())
    proto.set_seq_load_balancing_loss(*step.seq_load_balancing_loss);
  if (step.global_load_balancing_loss.has_value())
    proto.set_global_load_balancing_loss(*step.global_load_balancing_loss);
  if (step.z_loss.has_value()) proto.set_z_loss(*step.z_loss);
  proto.set_learning_rate(step.learning_rate);
  proto.set_loss_scale(step.loss_scale);
  proto.set_elapsed_ms(step.elapsed_ms);
  proto.set_tokens_per_s(step.tokens_per_s);
  proto.set_tflops_per_device(step.tflops_per_device);
  proto.set_skipped(step.skipped);
  proto.set_num_floating_point_operations_so_far(step.num_floating_point_operations_so_far);
  proto.set_memory_bytes(step.memory_bytes);
  proto.set_applied_directive(step.applied_directive);
  proto.set_global_batch_size(step.global_batch_size);
  proto.mutable_timers_ms()->insert(step.timers_ms.begin(), step.timers_ms.end());
  return proto;
}

StepMessage FromProto(const v1::StepReport& step, int64_t epoch) {
  StepMessage message;
  message.epoch = epoch;
  message.iteration = step.iteration();
  message.consumed_samples = step.consumed_samples();
  if (step.has_lm_loss()) message.lm_loss = step.lm_loss();
  message.loss_text = step.loss_text();
  if (step.has_grad_norm()) message.grad_norm = step.grad_norm();
  if (step.has_num_zeros()) message.num_zeros = step.num_zeros();
  if (step.has_params_norm()) message.params_norm = step.params_norm();
  if (step.has_load_balancing_loss()) message.load_balancing_loss = step.load_balancing_loss();
  if (step.has_seq_load_balancing_loss())
    message.seq_load_balancing_loss = step.seq_load_balancing_loss();
  if (step.has_global_load_balancing_loss())
    message.global_load_balancing_loss = step.global_load_balancing_loss();
  if (step.has_z_loss()) message.z_loss = step.z_loss();
  message.learning_rate = step.learning_rate();
  message.loss_scale = step.loss_scale();
  message.elapsed_ms = step.elapsed_ms();
  message.tokens_per_s = step.tokens_per_s();
  message.tflops_per_device = step.tflops_per_device();
  message.skipped = step.skipped();
  message.num_floating_point_operations_so_far = step.num_floating_point_operations_so_far();
  message.memory_bytes = step.memory_bytes();
  message.applied_directive = step.applied_directive();
  message.global_batch_size = step.global_batch_size();
  message.timers_ms = {step.timers_ms().begin(), step.timers_ms().end()};
  return message;
}

v1::DeviceCheck ToProto(const DeviceCheck& check) {
  v1::DeviceCheck out;
  out.set_device(check.device);
  out.set_kind(check.kind);
  out.set_serial(check.serial);
  out.set_fingerprint(check.fingerprint);
  out.set_copy_gb_per_s(check.copy_gb_per_s);
  out.set_elapsed_ms(check.elapsed_ms);
  out.set_error(check.error);
  out.set_not_run(check.not_run);
  return out;
}

DeviceCheck FromProto(const v1::DeviceCheck& check) {
  return {.device = check.device(),
          .kind = check.kind(),
          .serial = check.serial(),
          .fingerprint = check.fingerprint(),
          .copy_gb_per_s = check.copy_gb_per_s(),
          .elapsed_ms = check.elapsed_ms(),
          .error = check.error(),
          .not_run = check.not_run()};
}

v1::ProbeReply ToProto(const ProbeReplyMessage& reply) {
  v1::ProbeReply proto;
  proto.set_iteration(reply.iteration);
  proto.set_phase(reply.phase);
  proto.set_thread_cpu_ms(reply.thread_cpu_ms);
  for (const OpArrival& op : reply.ops) {
    v1::OpArrival* added = proto.add_ops();
    added->set_group(op.group);
    added->mutable_ranks()->Add(op.ranks.begin(), op.ranks.end());
    added->set_sequence(op.sequence);
    added->set_operation(op.operation);
    added->set_done(op.done);
    added->set_age_ms(op.age_ms);
  }
  return proto;
}

ProbeReplyMessage FromProto(const v1::ProbeReply& reply, const v1::ProbeReport& probe,
                            int64_t epoch) {
  ProbeReplyMessage message{.epoch = epoch,
                            .request = probe.request(),
                            .iteration = reply.iteration(),
                            .phase = reply.phase(),
                            .thread_cpu_ms = reply.thread_cpu_ms()};
  for (const v1::OpArrival& op : reply.ops()) {
    message.ops.push_back({.group = op.group(),
                           .ranks = {op.ranks().begin(), op.ranks().end()},
                           .sequence = op.sequence(),
                           .operation = op.operation(),
                           .done = op.done(),
                           .age_ms = op.age_ms()});
  }
  return message;
}

std::optional<TrainerToAgent> MessageOf(const v1::TrainerReport& report) {
  const int64_t epoch = report.epoch();
  switch (report.report_case()) {
    case v1::TrainerReport::kPhase:
      return PhaseMessage{epoch, report.phase().phase(), report.phase().detail()};
    case v1::TrainerReport::kUniqueId:
      return PublishUniqueIdMessage{epoch, report.unique_id().id()};
    case v1::TrainerReport::kStep:
      return FromProto(report.step(), epoch);
    case v1::TrainerReport::kEvaluation:
      return EvaluationMessage{.epoch = epoch,
                               .iteration = report.evaluation().iteration(),
                               .split = report.evaluation().split(),
                               .lm_loss = report.evaluation().lm_loss(),
                               .ppl = report.evaluation().ppl(),
                               .final = report.evaluation().final()};
    case v1::TrainerReport::kCheckpoint:
      return CheckpointMessage{.epoch = epoch,
                               .iteration = report.checkpoint().iteration(),
                               .path = report.checkpoint().path(),
                               .ok = report.checkpoint().ok(),
                               .error = report.checkpoint().error(),
                               .elapsed_ms = report.checkpoint().elapsed_ms()};
    case v1::TrainerReport::kEvent:
      return EventMessage{epoch, report.event().kind(), report.event().text()};
    case v1::TrainerReport::kDone:
      return DoneMessage{epoch, report.done().exit_code(), report.done().reason()};
    case v1::TrainerReport::kFailed:
      return FailedMessage{epoch, report.failed().reason(), report.failed().collective()};
    case v1::TrainerReport::kRestored:
      return RestoredMessage{.epoch = epoch,
                             .iteration = report.restored().iteration(),
                             .source = report.restored().source(),
                             .text = report.restored().text(),
                             .form_ms = report.restored().form_ms(),
                             .state_ms = report.restored().state_ms(),
                             .bytes = report.restored().bytes()};
    case v1::TrainerReport::kRankTimes:
      return RankTimesMessage{.epoch = epoch,
                              .iteration = report.rank_times().iteration(),
                              .steps = report.rank_times().steps(),
                              .compute_ms = report.rank_times().compute_ms(),
                              .communication_wait_ms = report.rank_times().communication_wait_ms(),
                              .data_ms = report.rank_times().data_ms()};
    case v1::TrainerReport::kExamine:
      return ExamineMessage{epoch, report.examine().iteration(), report.examine().json()};
    case v1::TrainerReport::kExited:
    case v1::TrainerReport::kLog:
    case v1::TrainerReport::kProbe:
    case v1::TrainerReport::kDeviceCheck:
    case v1::TrainerReport::REPORT_NOT_SET:
      break;
  }
  return std::nullopt;
}

void SetBody(const PhaseMessage& message, v1::TrainerReport* report) {
  report->mutable_phase()->set_phase(message.phase);
  report->mutable_phase()->set_detail(message.detail);
}

void SetBody(const PublishUniqueIdMessage& message, v1::TrainerReport* report) {
  report->mutable_unique_id()->set_id(message.id);
}

void SetBody(const StepMessage& message, v1::TrainerReport* report) {
  *report->mutable_step() = ToProto(message);
}

void SetBody(const EvaluationMessage& message, v1::TrainerReport* report) {
  v1::EvaluationReport* evaluation = report->mutable_evaluation();
  evaluation->set_iteration(message.iteration);
  evaluation->set_split(message.split);
  evaluation->set_lm_loss(message.lm_loss);
  evaluation->set_ppl(message.ppl);
  evaluation->set_final(message.final);
}

void SetBody(const CheckpointMessage& message, v1::TrainerReport* report) {
  v1::CheckpointReport* checkpoint = report->mutable_checkpoint();
  checkpoint->set_iteration(message.iteration);
  checkpoint->set_path(message.path);
  checkpoint->set_ok(message.ok);
  checkpoint->set_error(message.error);
  checkpoint->set_elapsed_ms(message.elapsed_ms);
}

void SetBody(const EventMessage& message, v1::TrainerReport* report) {
  report->mutable_event()->set_kind(message.kind);
  report->mutable_event()->set_text(message.text);
}

void SetBody(const DoneMessage& message, v1::TrainerReport* report) {
  report->mutable_done()->set_exit_code(message.exit_code);
  report->mutable_done()->set_reason(message.reason);
}

void SetBody(const FailedMessage& message, v1::TrainerReport* report) {
  report->mutable_failed()->set_reason(message.reason);
  report->mutable_failed()->set_collective(message.collective);
}

void SetBody(const RestoredMessage& message, v1::TrainerReport* report) {
  v1::RestoredReport* restored = report->mutable_restored();
  restored->set_iteration(message.iteration);
  restored->set_source(message.source);
  restored->set_text(message.text);
  restored->set_form_ms(message.form_ms);
  restored->set_state_ms(message.state_ms);
  restored->set_bytes(message.bytes);
}

void SetBody(const RankTimesMessage& message, v1::TrainerReport* report) {
  v1::RankTimesReport* times = report->mutable_rank_times();
  times->set_iteration(message.iteration);
  times->set_steps(message.steps);
  times->set_compute_ms(message.compute_ms);
  times->set_communication_wait_ms(message.communication_wait_ms);
  times->set_data_ms(message.data_ms);
}

void SetBody(const ExamineMessage& message, v1::TrainerReport* report) {
  report->mutable_examine()->set_iteration(message.iteration);
  report->mutable_examine()->set_json(message.json);
}

}  // namespace muster
