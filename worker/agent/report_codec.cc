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
          .pid = exited.pid()};
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
    case v1::TrainerReport::REPORT_NOT_SET:
      return std::nullopt;
  }
  return out;
}

}  // namespace muster
