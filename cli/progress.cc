#include "cli/progress.h"

#include <algorithm>
#include <ostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "common/rpc/convert.h"

namespace muster {
namespace {

constexpr absl::Duration kRedraw = absl::Milliseconds(100);
constexpr absl::Duration kSettle = absl::Seconds(2);
constexpr int kMinBar = 8, kMaxBar = 40;  // columns
constexpr int kMaxMissing = 400;          // characters; `muster status` has them all

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
  for (const auto& [name, value] : SideLosses(step))
    absl::StrAppendFormat(&line, " | %s %.4f", name, value);
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
  const std::string eta = Eta(step.iteration(), train_iters);
  // The last column stays free: some terminals wrap when it is written. So do, where there is room,
  // two more, for the ^C that a terminal writes there.
  const int columns = std::max(1, options_.columns - (options_.columns >= 40 ? 3 : 1));
  std::string text = absl::StrCat(step.iteration(), "/", train_iters);
  // In order of worth; on a narrow terminal the last ones are left out.
  for (const std::string& part :
       {absl::StrCat("loss ", Loss(step)), eta.empty() ? "" : absl::StrCat("ETA ", eta),
        absl::StrCat(FormatCount(step.tokens_per_s()), " tokens/s")}) {
    if (part.empty()) continue;
    if (static_cast<int>(text.size() + 2 + part.size()) > columns) break;
    absl::StrAppend(&text, "  ", part);
  }
  // Only beside a bar.
  for (const auto& [name, value] : SideLosses(step)) {
    const std::string part = absl::StrFormat("  %s %.4f", name, value);
    if (static_cast<int>(text.size() + part.size()) + 3 + kMinBar > columns) break;
    absl::StrAppend(&text, part);
  }
  const int width = std::min(columns - static_cast<int>(text.size()) - 3, kMaxBar);
  if (width < kMinBar) return Shortened(text, columns);
  const double share =
      train_iters > 0 ? std::min(1.0, double(step.iteration()) / train_iters) : 0.0;
  const int filled = static_cast<int>(share * width);
  return absl::StrCat("[", std::string(filled, '='), std::string(width - filled, ' '), "] ", text);
}

Progress::~Progress() {
  if (drawn_columns_ > 0) out_ << "\n" << std::flush;
}

void Progress::Erase() {
  if (drawn_columns_ == 0) return;
  // A terminal that has become narrower has wrapped what was drawn: it stands on several rows.
  const int rows = (drawn_columns_ - 1) / std::max(1, options_.columns);
  out_ << "\r";
  if (rows > 0) out_ << "\x1b[" << rows << "A\x1b[J";
  out_ << "\x1b[K";
  drawn_columns_ = 0;
}

void Progress::Draw(const std::string& text) {
  // Over what is there, so that it does not flicker.
  if (drawn_columns_ > options_.columns) Erase();
  out_ << "\r" << text << "\x1b[K" << std::flush;
  drawn_columns_ = std::max(1, TextColumns(text));
}

void Progress::PrintLine(const std::string& line) {
  if (drawn_columns_ > 0) LookAtColumns();
  Erase();
  out_ << line << "\n" << std::flush;
}

void Progress::LookAtColumns() {
  if (options_.current_columns) options_.columns = options_.current_columns();
}

void Progress::OnResize() {
  LookAtColumns();
  if (drawn_columns_ == 0) return;
  Erase();
  if (last_record_.has_value()) Draw(Bar(*last_record_, train_iters_));
}

void Progress::DrawNewest(absl::Duration now, bool at_once) {
  if (!undrawn_ || (!at_once && last_drawn_ && now < *last_drawn_ + kRedraw)) return;
  LookAtColumns();
  Draw(Bar(*last_record_, train_iters_));
  last_drawn_ = now;
  undrawn_ = false;
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
    last_record_ = record;
    train_iters_ = job.train_iters();
    undrawn_ = true;
    DrawNewest(now, last);
    return;
  }
  const bool due = !last_drawn_ || last || step.iteration() % options_.log_interval == 0 ||
                   now >= *last_drawn_ + options_.least_often;
  if (!due || step.iteration() == last_line_iteration_) return;
  PrintLine(Line(record, job.train_iters()));
  last_drawn_ = now;
  last_line_iteration_ = step.iteration();
}

// What a person wants to know of a job in this state: of a recovery why it is and what is done.
std::string Progress::Detail(const v1::JobStatus& job) const {
  if (job.state() != v1::JOB_STATE_RECOVERING || job.reason().empty())
    return job.progress().empty() ? job.reason() : job.progress();
  const std::string& what = job.recovery().what();
  if (job.reason() == told_reason_) return what;
  return absl::StrCat(job.reason(), what.empty() ? "" : "; ", what);
}

void Progress::OnState(const v1::JobStatus& job, absl::Duration now) {
  // Evaluating and saving come and go with every interval: their results say enough.
  const bool was_training = last_state_ == v1::JOB_STATE_RUNNING ||
                            last_state_ == v1::JOB_STATE_EVALUATING ||
                            last_state_ == v1::JOB_STATE_CHECKPOINTING;
  const bool told = job.state() == v1::JOB_STATE_QUEUED || job.state() == v1::JOB_STATE_FORMING ||
                    job.state() == v1::JOB_STATE_RECOVERING ||
                    (job.state() == v1::JOB_STATE_RUNNING && !was_training);
  const std::string detail = Detail(job);
  const bool entered = job.state() != last_state_;
  // Many ranks come to their places one by one: not a line for each.
  const bool moved =
      detail != last_progress_ && (!last_progress_time_ || now >= *last_progress_time_ + kSettle);
  last_state_ = job.state();
  if (!told || !(entered || moved)) return;
  last_progress_ = detail;
  last_progress_time_ = now;
  const std::string line =
      absl::StrCat(job.job_id(), " ", StateName(job.state()), detail.empty() ? "" : ": ", detail);
  if (options_.terminal && !entered) {
    LookAtColumns();
    Draw(Shortened(line, std::max(1, options_.columns - 1)));
  } else {
    PrintLine(line);
  }
}

void Progress::OnWait(const v1::JobStatus& job) {
  const std::string phase = job.has_wait() && job.wait().overdue() ? job.wait().phase() : "";
  if (phase == overdue_phase_) return;
  overdue_phase_ = phase;
  if (phase.empty()) return;
  const v1::PhaseWait& wait = job.wait();
  PrintLine(absl::StrCat(
      "overdue: ", phase, " without progress for ",
      FormatSeconds(absl::ToDoubleSeconds(FromProto(wait.elapsed()))), ", expected within ",
      FormatSeconds(absl::ToDoubleSeconds(FromProto(wait.limit()))),
      wait.missing().empty() ? "" : "; missing: ", Shortened(wait.missing(), kMaxMissing)));
}

void Progress::OnJob(const v1::JobStatus& job, absl::Duration now) {
  DrawNewest(now, /*at_once=*/false);
  OnState(job, now);
  OnWait(job);
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
  // Of a job that has come through, `muster status` and `muster events` tell what it survived.
  const bool failed = job.state() != v1::JOB_STATE_COMPLETED;
  if (failed && job.has_cause() && !job.cause().last_log_lines().empty()) {
    PrintLine("last lines of the trainer that failed first:");
    for (const std::string& text : job.cause().last_log_lines()) PrintLine("  " + text);
  }
  PrintLine(line);
}

void Progress::Note(const std::string& text) { PrintLine(text); }

}  // namespace muster
