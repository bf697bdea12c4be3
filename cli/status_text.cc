#include "cli/status_text.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "common/rpc/convert.h"

namespace muster {
namespace {

constexpr int kLabel = 17;  // columns
// What one screen has room for.
constexpr size_t kMaxMissing = 5, kMaxLogLines = 6, kMaxTextLines = 2;

std::string Seconds(const google::protobuf::Duration& duration) {
  return FormatSeconds(absl::ToDoubleSeconds(FromProto(duration)));
}

class Page {
 public:
  explicit Page(const StatusTextOptions& options) : options_(options) {}

  // A value of a line, or (wrapped) of a few.
  void Add(absl::string_view label, absl::string_view value) {
    std::vector<std::string> lines = Wrapped(value, ValueColumns());
    const size_t count = lines.size();
    if (!options_.verbose && count > kMaxTextLines) {
      lines.resize(kMaxTextLines);
      lines.back() =
          Shortened(absl::StrCat(lines.back(), " ..."), std::max(ValueColumns() - 12, 8)) +
          " (--verbose)";
    }
    for (size_t i = 0; i < lines.size(); ++i) {
      // A word of its own may be too long.
      Line(i == 0 ? label : "", Cut(lines[i]));
    }
  }
  // The newest of `lines`, whole, and how many came before.
  void AddNewest(absl::string_view label, const std::vector<std::string>& lines, size_t most) {
    const size_t hidden = options_.verbose || lines.size() <= most ? 0 : lines.size() - most;
    if (hidden > 0) Line(label, absl::StrCat(hidden, " before these (--verbose)"));
    for (size_t i = hidden; i < lines.size(); ++i) Line(i == 0 ? label : "", lines[i]);
  }
  // The newest one of `results`, whole, and how many came before; all of them if verbose.
  void AddResults(absl::string_view label, const std::vector<std::string>& results) {
    if (options_.verbose || results.size() <= 1) {
      AddNewest(label, results, 1);
    } else {
      Line(label, absl::StrCat(results.back(), " (", results.size() - 1, " before)"));
    }
  }
  // Below what was added last, with more room.
  void AddBelow(const std::vector<std::string>& lines) {
    for (const std::string& line : lines) {
      const std::string indented = absl::StrCat("  ", line);
      absl::StrAppend(&text_, options_.verbose ? indented : Shortened(indented, options_.columns),
                      "\n");
    }
  }
  // What may be of any length, so that it stays on its line.
  std::string Cut(absl::string_view line) const {
    return options_.verbose ? std::string(line) : Shortened(line, ValueColumns());
  }
  const std::string& text() const { return text_; }

 private:
  int ValueColumns() const { return std::max(options_.columns - kLabel, 20); }
  void Line(absl::string_view label, absl::string_view value) {
    absl::StrAppendFormat(&text_, "%-*s%s", kLabel, label, value);
    while (text_.back() == ' ') text_.pop_back();
    text_ += '\n';
  }

  const StatusTextOptions options_;
  std::string text_;
};

void AddTimes(const v1::JobStatus& job, Page* page) {
  if (job.has_submitted_at()) {
    std::string text = FormatTime(job.submitted_at());
    if (job.has_started_at() && job.has_submitted_at()) {
      absl::StrAppend(&text, ", started after ",
                      FormatSeconds(absl::ToDoubleSeconds(FromProto(job.started_at()) -
                                                          FromProto(job.submitted_at()))));
    }
    if (job.has_started_at() && job.has_ended_at()) {
      absl::StrAppend(&text, ", ended after ",
                      FormatSeconds(absl::ToDoubleSeconds(FromProto(job.ended_at()) -
                                                          FromProto(job.started_at()))));
    }
    page->Add("submitted", text);
  }
}

void AddWait(const v1::JobStatus& job, const StatusTextOptions& options, Page* page) {
  if (job.has_wait()) {
    const v1::PhaseWait& wait = job.wait();
    page->Add("waits for", absl::StrCat(wait.phase(), ": ", Seconds(wait.elapsed()),
                                        " since the last progress, limit ", Seconds(wait.limit()),
                                        wait.overdue() ? ": OVERDUE" : "",
                                        wait.missing().empty() ? "" : "; missing:"));
    if (!wait.missing().empty()) {
      page->AddBelow(
          MissingLines(wait.missing(), options.verbose ? std::string::npos : kMaxMissing));
    }
  }
  if (job.ended() && !options.verbose) return;  // they are of no use any more
  std::vector<std::string> limits;
  for (const v1::PhaseLimit& limit : job.phase_limits()) {
    std::string text = absl::StrCat(limit.phase(), " ", Seconds(limit.limit()));
    if (options.verbose && limit.has_longest()) {
      absl::StrAppend(&text, " (longest of ", limit.samples(), ": ", Seconds(limit.longest()),
                      limit.has_p99() ? absl::StrCat(", 99% within ", Seconds(limit.p99())) : "",
                      ")");
    } else if (options.verbose) {
      absl::StrAppend(&text, " (none seen yet)");
    }
    limits.push_back(std::move(text));
  }
  if (!limits.empty()) page->Add("limits", absl::StrJoin(limits, ", "));
}

// What a recovery does now, and what those before have cost.
void AddRecovery(const v1::JobStatus& job, Page* page) {
  if (job.has_recovery()) {
    const v1::Recovery& now = job.recovery();
    std::string text = absl::StrCat(now.planned() ? "change: " : "", now.what());
    if (now.has_elapsed()) absl::StrAppend(&text, ", for ", Seconds(now.elapsed()));
    absl::StrAppend(&text, ", since iteration ", now.iteration());
    page->Add("recovery", text);
  }
  if (job.restarts() > 0) {
    page->Add("recovered",
              absl::StrCat(job.restarts(), job.restarts() == 1 ? " time, " : " times, ",
                           FormatSeconds(job.recovery_seconds()), " in all, ", job.steps_redone(),
                           job.steps_redone() == 1 ? " step" : " steps", " redone"));
  }
  if (job.spares_size() > 0) page->Add("spares", absl::StrJoin(job.spares(), ", "));
  for (const v1::Straggler& slow : job.stragglers()) {
    page->Add("slow",
              absl::StrCat("rank ", slow.rank(), " (worker ", slow.worker(), "): ", slow.cause()));
  }
  for (const v1::HeldWorker& held : job.held_back()) {
    page->Add("held back", absl::StrCat("worker ", held.worker(), ": ", held.why()));
  }
}

void AddTraining(const v1::JobStatus& job, Page* page) {
  page->Add("iteration",
            absl::StrCat(job.iteration(), " of ", job.train_iters(), ", ", job.consumed_samples(),
                         " samples, ",
                         absl::StrFormat("%.4g", job.num_floating_point_operations_so_far()),
                         " FLOPs so far"));
  if (job.has_last()) {
    const v1::StepReport& step = job.last().step();
    page->Add("lm loss",
              step.has_lm_loss() ? absl::StrFormat("%.6f", step.lm_loss()) : step.loss_text());
    std::vector<std::string> side_losses;
    for (const auto& [name, value] : SideLosses(step))
      side_losses.push_back(absl::StrFormat("%s %.6f", name, value));
    if (!side_losses.empty()) page->Add("side losses", absl::StrJoin(side_losses, ", "));
    page->Add("speed", absl::StrFormat("%.1f ms a step, %s tokens/s, %.3g TFLOP/s a device",
                                       step.elapsed_ms(), FormatCount(step.tokens_per_s()),
                                       step.tflops_per_device()));
  }
  std::vector<std::string> evaluations, checkpoints;
  for (const v1::Evaluation& evaluation : job.evaluations()) {
    evaluations.push_back(absl::StrFormat("iteration %d %s: loss %.6f, ppl %.4f",
                                          evaluation.iteration(), evaluation.split(),
                                          evaluation.lm_loss(), evaluation.ppl()));
  }
  for (const v1::Checkpoint& checkpoint : job.checkpoints()) {
    checkpoints.push_back(
        absl::StrCat("iteration ", checkpoint.iteration(), ": ", checkpoint.path()));
  }
  page->AddResults("evaluation", evaluations);
  page->AddResults("checkpoint", checkpoints);
}

void AddCause(const v1::FailureCause& cause, Page* page) {
  std::string where;
  if (cause.has_rank()) {
    where =
        absl::StrCat("rank ", cause.rank(), ", worker ", cause.worker(), ", node ", cause.node(),
                     ", after iteration ", cause.iteration(), ", epoch ", cause.epoch());
  }
  page->Add("first cause", cause.text());
  if (!cause.kind().empty()) {
    absl::StrAppend(&where, where.empty() ? "" : ", ", "kind ", cause.kind());
  }
  if (!where.empty()) page->Add("", where);
  std::vector<std::string> lines;
  for (const std::string& line : cause.last_log_lines()) lines.push_back(page->Cut(line));
  page->AddNewest("its last lines", lines, kMaxLogLines);
}

}  // namespace

std::vector<std::string> Wrapped(absl::string_view text, int columns) {
  std::vector<std::string> lines;
  for (absl::string_view paragraph : absl::StrSplit(text, '\n')) {
    std::string line;
    for (absl::string_view word : absl::StrSplit(paragraph, ' ')) {
      if (!line.empty() && TextColumns(line) + 1 + TextColumns(word) > columns) {
        lines.push_back(std::move(line));
        line.clear();
      }
      absl::StrAppend(&line, line.empty() ? "" : " ", word);
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

std::vector<std::string> MissingLines(absl::string_view missing, size_t most) {
  std::vector<std::string> lines = absl::StrSplit(missing, "; ");
  if (lines.size() <= most) return lines;
  // What the coordinator itself has counted together: "and 4032 more ranks (64-4095)".
  std::string rest;
  if (absl::StartsWith(lines.back(), "and ")) {
    rest = std::move(lines.back());
    lines.pop_back();
  }
  const size_t shown = most - (rest.empty() ? 1 : 2);
  // "ranks 3-5 (node b, workers b/0-2): loading, last sign of life 12s ago"
  std::map<std::string, int> by_phase;
  for (size_t i = shown; i < lines.size(); ++i) {
    const std::vector<std::string> halves = absl::StrSplit(lines[i], absl::MaxSplits("): ", 1));
    const std::vector<std::string> words = absl::StrSplit(halves.back(), absl::MaxSplits(',', 1));
    ++by_phase[halves.size() == 2 ? words[0] : "others"];
  }
  std::vector<std::string> counts;
  for (const auto& [phase, count] : by_phase) counts.push_back(absl::StrCat(count, " ", phase));
  const size_t hidden = lines.size() - shown;
  lines.resize(shown);
  lines.push_back(absl::StrCat("and ", hidden, hidden == 1 ? " more group: " : " more groups: ",
                               absl::StrJoin(counts, ", "), " (--verbose)"));
  if (!rest.empty()) lines.push_back(std::move(rest));
  return lines;
}

std::string StatusText(const v1::JobStatus& job, absl::string_view storage_trouble,
                       const StatusTextOptions& options) {
  Page page(options);
  page.Add("job",
           absl::StrCat(job.job_id(), " (", job.name(), "), ", job.world_size(),
                        job.world_size() == 1 ? " rank" : " ranks", ", priority ", job.priority()));
  std::string state = StateName(job.state());
  if (job.ended()) absl::StrAppend(&state, ", exit code ", job.exit_code());
  if (job.cancelling() && !job.ended()) absl::StrAppend(&state, ", cancelling");
  if (job.ended() && !job.workers_released()) absl::StrAppend(&state, ", trainers are leaving");
  absl::StrAppend(&state, ", epoch ", job.epoch(), ", restarts ", job.restarts());
  page.Add("state", state);
  if (!job.reason().empty()) page.Add("reason", job.reason());
  if (!storage_trouble.empty()) page.Add("storage", storage_trouble);
  AddTimes(job, &page);
  AddRecovery(job, &page);
  if (!job.progress().empty()) page.Add("progress", job.progress());
  AddWait(job, options, &page);
  AddTraining(job, &page);
  if (job.next_evaluation() > 0) {
    page.Add("next evaluation", absl::StrCat("after iteration ", job.next_evaluation()));
  }
  if (job.has_cause()) AddCause(job.cause(), &page);
  return page.text();
}

}  // namespace muster
