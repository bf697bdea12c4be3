#include "cli/progress.h"

#include <algorithm>
#include <ostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/output.h"
#include "common/rpc/convert.h"

namespace muster {
namespace {

constexpr absl::Duration kRedraw = absl::Milliseconds(100);

std::string Loss(const v1::StepReport& step) {
  if (step.has_lm_loss()) return absl::StrFormat("%.6f", step.lm_loss());
  return step.loss_text().empty() ? "-" : step.loss_text();
}

}  // namespace

std::string Progress::Eta(int64_t iteration, int64_t train_iters) const {
  if (!mean_ms_ || train_iters <= iteration) return "";
  return FormatSeconds(*mean_ms_ * (train_iters - iteration) / 1e3);
}

std::string Progress::Line(const v1::MetricsRecord& record, int64_t train_iters) const {
  const v1::StepReport& step = record.step();
  std::string line =
      absl::StrFormat("iteration %d/%d | lm loss %s | learning rate %.3e", step.iteration(),
                      train_iters, Loss(step), step.learning_rate());
  if (step.has_grad_norm()) absl::StrAppendFormat(&line, " | grad norm %.3f", step.grad_norm());
  absl::StrAppendFormat(&line, " | %.1f ms | %s tokens/s", step.elapsed_ms(),
                        FormatCount(step.tokens_per_s()));
  if (step.skipped()) absl::StrAppend(&line, " | skipped");
  if (const std::string eta = Eta(step.iteration(), train_iters); !eta.empty()) {
    absl::StrAppend(&line, " | ETA ", eta);
  }
  return line;
}

std::string Progress::Bar(const v1::MetricsRecord& record, int64_t train_iters) const {
  const v1::StepReport& step = record.step();
  std::string text = absl::StrFormat(" %d/%d  loss %s  %s tokens/s", step.iteration(), train_iters,
                                     Loss(step), FormatCount(step.tokens_per_s()));
  if (const std::string eta = Eta(step.iteration(), train_iters); !eta.empty()) {
    absl::StrAppend(&text, "  ETA ", eta);
  }
  const int width = std::clamp<int>(options_.columns - static_cast<int>(text.size()) - 3, 0, 40);
  const double share =
      train_iters > 0 ? std::min(1.0, double(step.iteration()) / train_iters) : 0.0;
  const int filled = static_cast<int>(share * width);
  text = absl::StrCat("[", std::string(filled, '='), std::string(width - filled, ' '), "]", text);
  return text.substr(0, std::max(1, options_.columns - 1));
}

void Progress::PrintLine(const std::string& line) {
  if (bar_shown_) out_ << "\r\x1b[K";
  bar_shown_ = false;
  out_ << line << "\n" << std::flush;
}

void Progress::OnRecord(const v1::JobStatus& job, const v1::MetricsRecord& record,
                        absl::Duration now) {
  const v1::StepReport& step = record.step();
  // The first step of a process pays for its start: it says little about the others.
  if (step.elapsed_ms() > 0 && step.iteration() > 1) {
    mean_ms_ = mean_ms_ ? 0.9 * *mean_ms_ + 0.1 * step.elapsed_ms() : step.elapsed_ms();
  }
  const bool last = step.iteration() == job.train_iters();
  if (options_.terminal) {
    if (!last && last_drawn_ && now < *last_drawn_ + kRedraw) return;
    out_ << "\r" << Bar(record, job.train_iters()) << "\x1b[K" << std::flush;
    bar_shown_ = true;
    last_drawn_ = now;
    return;
  }
  const bool due = !last_drawn_ || last || step.iteration() % options_.log_interval == 0 ||
                   now >= *last_drawn_ + options_.least_often;
  if (!due || step.iteration() == last_line_iteration_) return;
  PrintLine(Line(record, job.train_iters()));
  last_drawn_ = now;
  last_line_iteration_ = step.iteration();
}

void Progress::OnJob(const v1::JobStatus& job, absl::Duration now) {
  // Evaluating and saving come and go with every interval: their results say enough.
  const bool was_training = last_state_ == v1::JOB_STATE_RUNNING ||
                            last_state_ == v1::JOB_STATE_EVALUATING ||
                            last_state_ == v1::JOB_STATE_CHECKPOINTING;
  const bool told = job.state() == v1::JOB_STATE_QUEUED || job.state() == v1::JOB_STATE_FORMING ||
                    job.state() == v1::JOB_STATE_RECOVERING ||
                    (job.state() == v1::JOB_STATE_RUNNING && !was_training);
  if (told && (job.state() != last_state_ || job.progress() != last_progress_)) {
    const std::string detail = job.progress().empty() ? job.reason() : job.progress();
    PrintLine(absl::StrCat(job.job_id(), " ", StateName(job.state()), detail.empty() ? "" : ": ",
                           detail));
    last_progress_ = job.progress();
  }
  last_state_ = job.state();
  for (; num_evaluations_ < job.evaluations_size(); ++num_evaluations_) {
    const v1::Evaluation& evaluation = job.evaluations(num_evaluations_);
    PrintLine(absl::StrFormat("%s loss %.6f | ppl %.4f | at iteration %d%s", evaluation.split(),
                              evaluation.lm_loss(), evaluation.ppl(), evaluation.iteration(),
                              evaluation.final() ? " (final)" : ""));
  }
  for (; num_checkpoints_ < job.checkpoints_size(); ++num_checkpoints_) {
    const v1::Checkpoint& checkpoint = job.checkpoints(num_checkpoints_);
    PrintLine(
        absl::StrCat("checkpoint of iteration ", checkpoint.iteration(), ": ", checkpoint.path()));
  }
}

void Progress::OnEnd(const v1::JobStatus& job) {
  std::string line = absl::StrCat(job.job_id(), " ", StateName(job.state()));
  if (job.state() == v1::JOB_STATE_EXITED) absl::StrAppend(&line, "(", job.exit_code(), ")");
  absl::StrAppend(&line, " at iteration ", job.iteration());
  if (job.has_started_at() && job.has_ended_at()) {
    absl::StrAppend(&line, " after ",
                    FormatSeconds(absl::ToDoubleSeconds(FromProto(job.ended_at()) -
                                                        FromProto(job.started_at()))));
  }
  if (!job.reason().empty()) absl::StrAppend(&line, ": ", job.reason());
  if (job.has_cause() && !job.cause().last_log_lines().empty()) {
    PrintLine("last lines of the trainer that failed first:");
    for (const std::string& text : job.cause().last_log_lines()) PrintLine("  " + text);
  }
  PrintLine(line);
}

void Progress::Note(const std::string& text) { PrintLine(text); }

}  // namespace muster
