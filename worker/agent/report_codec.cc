#include "worker/agent/report_codec.h"

#include "worker/agent/convert.h"

namespace muster {
namespace {

StepMessage FromProto(int64_t epoch, const v1::StepReport& step) {
  StepMessage m{.epoch = epoch,
                .iteration = step.iteration(),
                .consumed_samples = step.consumed_samples(),
                .loss_text = step.loss_text(),
                .learning_rate = step.learning_rate(),
                .loss_scale = step.loss_scale(),
                .elapsed_ms = step.elapsed_ms(),
                .tokens_per_s = step.tokens_per_s(),
                .tflops_per_device = step.tflops_per_device(),
                .skipped = step.skipped(),
                .num_floating_point_operations_so_far = step.num_floating_point_operations_so_far(),
                .memory_bytes = step.memory_bytes(),
                .applied_directive = step.applied_directive(),
                .global_batch_size = step.global_batch_size()};
  if (step.has_lm_loss()) m.lm_loss = step.lm_loss();
  if (step.has_grad_norm()) m.grad_norm = step.grad_norm();
  if (step.has_num_zeros()) m.num_zeros = step.num_zeros();
  if (step.has_params_norm()) m.params_norm = step.params_norm();
  if (step.has_load_balancing_loss()) m.load_balancing_loss = step.load_balancing_loss();
  if (step.has_seq_load_balancing_loss())
    m.seq_load_balancing_loss = step.seq_load_balancing_loss();
  if (step.has_global_load_balancing_loss())
    m.global_load_balancing_loss = step.global_load_balancing_loss();
  if (step.has_z_loss()) m.z_loss = step.z_loss();
  for (const auto& [name, ms] : step.timers_ms()) m.timers_ms[name] = ms;
  return m;
}

TrainerExited FromProto(const v1::ExitedReport& exited) {
  return {.exit_code = exited.exit_code(),
          .signal = exited.signal(),
          .launch_error = exited.launch_error(),
          .last_log_lines = {exited.last_log_lines().begin(), exited.last_log_lines().end()},
          .pid = exited.pid(),
          .oom_killed = exited.oom_killed()};
}

TrainerProbed FromProto(int64_t epoch, const v1::ProbeReport& probe) {
  TrainerProbed m{.request = probe.request(),
                  .running = probe.running(),
                  .process_state = probe.process_state(),
                  .cpu_ms = probe.cpu_ms()};
  if (!probe.has_reply()) return m;
  m.reply = ProbeReplyMessage{.epoch = epoch,
                              .request = probe.request(),
                              .iteration = probe.reply().iteration(),
                              .phase = probe.reply().phase(),
                              .thread_cpu_ms = probe.reply().thread_cpu_ms()};
  for (const v1::OpArrival& op : probe.reply().ops()) {
    m.reply->ops.push_back({.group = op.group(),
                            .ranks = {op.ranks().begin(), op.ranks().end()},
                            .sequence = op.sequence(),
                            .operation = op.operation(),
                            .done = op.done(),
                            .age_ms = op.age_ms()});
  }
  return m;
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

}  // namespace

std::string EncodeReport(const NodeReport& report) { return ToProto(report).SerializeAsString(); }

std::optional<NodeReport> DecodeReport(absl::string_view bytes) {
  v1::TrainerReport in;
  if (!in.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return std::nullopt;
  NodeReport out{.assignment = {in.worker(), in.job_id(), in.epoch()}, .rank = in.rank()};
  const int64_t epoch = in.epoch();
  switch (in.report_case()) {
    case v1::TrainerReport::kPhase:
      out.report = PhaseMessage{epoch, in.phase().phase(), in.phase().detail()};
      break;
    case v1::TrainerReport::kUniqueId:
      out.report = PublishUniqueIdMessage{epoch, in.unique_id().id()};
      break;
    case v1::TrainerReport::kStep:
      out.report = FromProto(epoch, in.step());
      break;
    case v1::TrainerReport::kEvaluation:
      out.report = EvaluationMessage{.epoch = epoch,
                                     .iteration = in.evaluation().iteration(),
                                     .split = in.evaluation().split(),
                                     .lm_loss = in.evaluation().lm_loss(),
                                     .ppl = in.evaluation().ppl(),
                                     .final = in.evaluation().final()};
      break;
    case v1::TrainerReport::kCheckpoint:
      out.report = CheckpointMessage{.epoch = epoch,
                                     .iteration = in.checkpoint().iteration(),
                                     .path = in.checkpoint().path(),
                                     .ok = in.checkpoint().ok(),
                                     .error = in.checkpoint().error(),
                                     .elapsed_ms = in.checkpoint().elapsed_ms()};
      break;
    case v1::TrainerReport::kEvent:
      out.report = EventMessage{epoch, in.event().kind(), in.event().text()};
      break;
    case v1::TrainerReport::kDone:
      out.report = DoneMessage{epoch, in.done().exit_code(), in.done().reason()};
      break;
    case v1::TrainerReport::kFailed:
      out.report = FailedMessage{epoch, in.failed().reason(), in.failed().collective()};
      break;
    case v1::TrainerReport::kExited:
      out.report = FromProto(in.exited());
      break;
    case v1::TrainerReport::kLog:
      out.report = NodeLogLines{{in.log().lines().begin(), in.log().lines().end()}};
      break;
    case v1::TrainerReport::kRestored:
      out.report = RestoredMessage{.epoch = epoch,
                                   .iteration = in.restored().iteration(),
                                   .source = in.restored().source(),
                                   .text = in.restored().text(),
                                   .form_ms = in.restored().form_ms(),
                                   .state_ms = in.restored().state_ms(),
                                   .bytes = in.restored().bytes()};
      break;
    case v1::TrainerReport::kRankTimes:
      out.report =
          RankTimesMessage{.epoch = epoch,
                           .iteration = in.rank_times().iteration(),
                           .steps = in.rank_times().steps(),
                           .compute_ms = in.rank_times().compute_ms(),
                           .communication_wait_ms = in.rank_times().communication_wait_ms(),
                           .data_ms = in.rank_times().data_ms()};
      break;
    case v1::TrainerReport::kExamine:
      out.report = ExamineMessage{epoch, in.examine().iteration(), in.examine().json()};
      break;
    case v1::TrainerReport::kProbe:
      out.report = FromProto(epoch, in.probe());
      break;
    case v1::TrainerReport::kDeviceCheck:
      out.report = FromProto(in.device_check());
      break;
    case v1::TrainerReport::REPORT_NOT_SET:
      return std::nullopt;
  }
  return out;
}

}  // namespace muster
