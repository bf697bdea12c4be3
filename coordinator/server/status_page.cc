#include "coordinator/server/status_page.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/rpc/convert.h"

namespace muster {
namespace {

constexpr char kStyle[] = R"(
:root { color-scheme: light dark; --bg: #f6f7f9; --card: #fff; --text: #1c2430; --soft: #5d6878;
  --edge: #dde2ea; --good: #1a7f4b; --busy: #2463c4; --warn: #a86500; --bad: #c02b2b; }
@media (prefers-color-scheme: dark) { :root { --bg: #14181e; --card: #1d232c; --text: #e4e9f0;
  --soft: #98a4b5; --edge: #323b48; --good: #52c98a; --busy: #7aaeff; --warn: #e6ac4a; --bad: #ff7b72; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1rem; background: var(--bg); color: var(--text);
  font: 15px/1.45 system-ui, sans-serif; }
header { display: flex; flex-wrap: wrap; gap: .25rem 1rem; align-items: baseline; margin-bottom: 1rem; }
h1 { font-size: 1.35rem; margin: 0; } h2 { font-size: 1.05rem; margin: 1.5rem 0 .5rem; }
h3 { font-size: 1rem; margin: 0; overflow-wrap: anywhere; }
.soft { color: var(--soft); } .num { text-align: right; font-variant-numeric: tabular-nums; }
.card { background: var(--card); border: 1px solid var(--edge); border-radius: .5rem; padding: .8rem 1rem;
  margin-bottom: .8rem; overflow-wrap: anywhere; }
.top { display: flex; flex-wrap: wrap; gap: .3rem .8rem; align-items: baseline; }
.badge { font-size: .8rem; font-weight: 600; padding: .05rem .5rem; border-radius: 1rem;
  border: 1px solid currentColor; white-space: nowrap; }
.good { color: var(--good); } .busy { color: var(--busy); } .warn { color: var(--warn); }
.bad { color: var(--bad); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .5rem 1rem;
  margin: .7rem 0; }
.facts div span { display: block; font-size: .78rem; color: var(--soft); }
.facts div { font-variant-numeric: tabular-nums; }
.bar { height: .4rem; border-radius: .2rem; background: var(--edge); overflow: hidden; margin: .5rem 0; }
.bar div { height: 100%; background: var(--busy); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; overflow-wrap: break-word; }
th, td.num { white-space: nowrap; }
th { text-align: left; font-size: .78rem; font-weight: 600; color: var(--soft); }
th, td { padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--edge); vertical-align: top; }
tr:last-child td { border-bottom: 0; }
p { margin: .4rem 0; }
pre { margin: .4rem 0 0; padding: .5rem .7rem; border-radius: .4rem; background: var(--bg);
  white-space: pre-wrap; overflow-wrap: anywhere; font: 12.5px/1.4 ui-monospace, monospace; }
details { margin-top: .5rem; } summary { cursor: pointer; color: var(--soft); }
.plot { width: 100%; max-width: 46rem; height: auto; display: block; margin: .5rem 0; }
.plot text { fill: var(--soft); font-size: 11px; font-family: system-ui, sans-serif; }
.plot .axis { fill: none; stroke: var(--edge); } .plot .line { fill: none; stroke: var(--busy);
  stroke-width: 1.6; stroke-linejoin: round; }
@media (max-width: 32rem) { .plot text { font-size: 16px; } }
)";

std::string Seconds(const google::protobuf::Duration& duration) {
  const double seconds = absl::ToDoubleSeconds(FromProto(duration));
  if (seconds < 10) return absl::StrFormat("%.1f s", seconds);
  if (seconds < 600) return absl::StrFormat("%.0f s", seconds);
  return absl::StrFormat("%.0f min", seconds / 60);
}

std::string Ago(absl::Time now, const google::protobuf::Timestamp& time) {
  const double seconds = absl::ToDoubleSeconds(now - FromProto(time));
  if (seconds < 120) return absl::StrFormat("%.0f s ago", seconds);
  if (seconds < 7'200) return absl::StrFormat("%.0f min ago", seconds / 60);
  if (seconds < 48 * 3'600) return absl::StrFormat("%.1f h ago", seconds / 3'600);
  return absl::StrFormat("%.0f days ago", seconds / 86'400);
}

const char* ClassOf(const JobView& job) {
  if (job.state == "FAILED") return "bad";
  if (job.state == "COMPLETED") return "good";
  if (job.status.ended() || !job.status.has_started_at()) return "soft";
  return job.status.wait().overdue() ? "warn" : "busy";
}

void AddFact(absl::string_view name, absl::string_view value, std::string* html) {
  absl::StrAppend(html, "<div><span>", name, "</span>", HtmlEscaped(value), "</div>");
}

std::string Nodes(const std::vector<std::string>& nodes, int count) {
  const int more = count - static_cast<int>(nodes.size());
  return absl::StrCat(HtmlEscaped(absl::StrJoin(nodes, ", ")),
                      more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

void AddHead(const JobView& job, absl::Time now, std::string* html) {
  const v1::JobStatus& status = job.status;
  absl::StrAppend(html, "<div class=\"top\"><h3>", HtmlEscaped(status.job_id()), "</h3><span>",
                  HtmlEscaped(status.name()), "</span><span class=\"badge ", ClassOf(job), "\">",
                  job.state, "</span>");
  absl::StrAppend(html, "<span class=\"soft\">", status.world_size(), " rank",
                  status.world_size() == 1 ? "" : "s", ", submitted ",
                  Ago(now, status.submitted_at()));
  if (status.has_ended_at()) absl::StrAppend(html, ", ended ", Ago(now, status.ended_at()));
  absl::StrAppend(html, "</span></div>");
  if (!status.reason().empty()) absl::StrAppend(html, "<p>", HtmlEscaped(status.reason()), "</p>");
}

void AddNumbers(const JobView& job, std::string* html) {
  const v1::JobStatus& status = job.status;
  if (status.train_iters() > 0) {
    const double percent =
        std::min(100.0, 100.0 * static_cast<double>(status.iteration()) / status.train_iters());
    absl::StrAppendFormat(html, "<div class=\"bar\"><div style=\"width:%.1f%%\"></div></div>",
                          percent);
  }
  absl::StrAppend(html, "<div class=\"facts\">");
  AddFact("step", absl::StrCat(status.iteration(), " of ", status.train_iters()), html);
  if (status.has_last()) {
    const v1::StepReport& step = status.last().step();
    AddFact("loss", step.has_lm_loss() ? absl::StrFormat("%.4f", step.lm_loss()) : step.loss_text(),
            html);
    if (step.has_grad_norm()) {
      AddFact("gradient norm", absl::StrFormat("%.3f", step.grad_norm()), html);
    }
    AddFact("tokens/s", absl::StrFormat("%.0f", step.tokens_per_s()), html);
    AddFact("ms a step", absl::StrFormat("%.1f", step.elapsed_ms()), html);
    AddFact("learning rate", absl::StrFormat("%.3g", step.learning_rate()), html);
  }
  AddFact("samples", absl::StrCat(status.consumed_samples()), html);
  AddFact("attempt", absl::StrCat(status.epoch()), html);
  if (status.restarts() > 0) {
    AddFact("restarts", absl::StrCat(status.restarts()), html);
    AddFact("steps redone", absl::StrCat(status.steps_redone()), html);
    AddFact("recovering took", absl::StrFormat("%.1f s", status.recovery_seconds()), html);
  }
  if (status.spares_size() > 0) AddFact("spares", absl::StrCat(status.spares_size()), html);
  if (status.evaluations_size() > 0) {
    const v1::Evaluation& newest = status.evaluations(0);
    AddFact(
        "evaluation",
        absl::StrFormat("%.4f (%s, step %d)", newest.lm_loss(), newest.split(), newest.iteration()),
        html);
  }
  if (status.checkpoints_size() > 0) {
    AddFact("checkpoint", absl::StrCat("step ", status.checkpoints(0).iteration()), html);
  }
  absl::StrAppend(html, "</div>");
}

void AddWait(const v1::JobStatus& status, std::string* html) {
  if (status.has_wait()) {
    const v1::PhaseWait& wait = status.wait();
    absl::StrAppend(html, "<p class=\"", wait.overdue() ? "warn" : "soft", "\">",
                    wait.overdue() ? "Overdue: " : "", HtmlEscaped(wait.phase()), " for ",
                    Seconds(wait.elapsed()), ", limit ", Seconds(wait.limit()));
    if (!wait.missing().empty()) {
      absl::StrAppend(html, "; waiting for ", HtmlEscaped(wait.missing()));
    }
    absl::StrAppend(html, "</p>");
  }
  if (status.phase_limits_size() == 0) return;
  absl::StrAppend(html,
                  "<details><summary>Limits of its phases</summary><div class=\"scroll\"><table>"
                  "<tr><th>phase<th class=\"num\">limit<th class=\"num\">longest seen"
                  "<th class=\"num\">seen</tr>");
  for (const v1::PhaseLimit& limit : status.phase_limits()) {
    absl::StrAppend(html, "<tr><td>", HtmlEscaped(limit.phase()), "<td class=\"num\">",
                    Seconds(limit.limit()), "<td class=\"num\">",
                    limit.has_longest() ? Seconds(limit.longest()) : "", "<td class=\"num\">",
                    limit.samples(), "</tr>");
  }
  absl::StrAppend(html, "</table></div></details>");
}

// What a recovery does now, and who is slow.
void AddRecovery(const v1::JobStatus& status, std::string* html) {
  if (status.has_recovery()) {
    const v1::Recovery& now = status.recovery();
    absl::StrAppend(html, "<p class=\"", now.planned() ? "soft" : "warn", "\">",
                    now.planned() ? "Change: " : "Recovery: ", HtmlEscaped(now.what()),
                    now.has_elapsed() ? absl::StrCat(", for ", Seconds(now.elapsed())) : "",
                    ", since step ", now.iteration(), "</p>");
  }
  for (const v1::Straggler& slow : status.stragglers()) {
    absl::StrAppend(html, "<p class=\"warn\">Slow: rank ", slow.rank(), " (worker ",
                    HtmlEscaped(slow.worker()), "): ", HtmlEscaped(slow.cause()), "</p>");
  }
  for (const v1::HeldWorker& held : status.held_back()) {
    absl::StrAppend(html, "<p class=\"warn\">Held back: worker ", HtmlEscaped(held.worker()), ": ",
                    HtmlEscaped(held.why()), "</p>");
  }
}

void AddPhases(const JobView& job, std::string* html) {
  if (job.phases.empty()) return;
  absl::StrAppend(html,
                  "<div class=\"scroll\"><table><tr><th>phase<th class=\"num\">ranks<th>which"
                  "<th>nodes</tr>");
  for (const PhaseRow& row : job.phases) {
    absl::StrAppend(html, "<tr><td>", HtmlEscaped(row.phase), "<td class=\"num\">", row.num_ranks,
                    "<td>", HtmlEscaped(row.ranks), "<td>", Nodes(row.nodes, row.num_nodes),
                    "</tr>");
  }
  absl::StrAppend(html, "</table></div>");
}

void AddCause(const v1::JobStatus& status, std::string* html) {
  if (!status.has_cause()) return;
  const v1::FailureCause& cause = status.cause();
  absl::StrAppend(html, "<p class=\"bad\">First cause: ", HtmlEscaped(cause.text()));
  if (cause.has_rank()) {
    absl::StrAppend(html, " (rank ", cause.rank(), ", worker ", HtmlEscaped(cause.worker()),
                    ", step ", cause.iteration(), ")");
  }
  absl::StrAppend(html, "</p>");
}

void AddEvents(const JobView& job, std::string* html) {
  if (job.events.empty()) return;
  absl::StrAppend(html, "<details><summary>Newest events</summary><pre>");
  for (const std::string& event : job.events) absl::StrAppend(html, HtmlEscaped(event), "\n");
  absl::StrAppend(html, "</pre></details>");
}

void AddJob(const JobView& job, absl::Time now, std::string* html) {
  absl::StrAppend(html, "<section class=\"card\">");
  AddHead(job, now, html);
  AddCause(job.status, html);
  AddNumbers(job, html);
  absl::StrAppend(html, SvgLinePlot(job.losses, absl::StrCat("loss of ", job.status.job_id())));
  AddRecovery(job.status, html);
  AddWait(job.status, html);
  AddPhases(job, html);
  AddEvents(job, html);
  absl::StrAppend(html, "</section>");
}

void AddShortJob(const JobView& job, absl::Time now, std::string* html) {
  absl::StrAppend(html, "<section class=\"card\">");
  AddHead(job, now, html);
  AddCause(job.status, html);
  if (job.status.has_last()) {
    absl::StrAppend(html, "<details><summary>Step ", job.status.iteration(), " of ",
                    job.status.train_iters(), "</summary>",
                    SvgLinePlot(job.losses, absl::StrCat("loss of ", job.status.job_id())),
                    "</details>");
  }
  AddEvents(job, html);
  absl::StrAppend(html, "</section>");
}

using AddFn = void (*)(const JobView&, absl::Time, std::string*);
void AddJobs(absl::string_view title, const std::vector<JobView>& jobs, int left_out, AddFn add,
             absl::Time now, std::string* html) {
  if (jobs.empty()) return;
  absl::StrAppend(html, "<h2>", title, " <span class=\"soft\">", jobs.size() + left_out,
                  "</span></h2>");
  for (const JobView& job : jobs) add(job, now, html);
  if (left_out > 0) absl::StrAppend(html, "<p class=\"soft\">and ", left_out, " more</p>");
}

void AddWorkers(const StatusView& view, std::string* html) {
  absl::StrAppend(html, "<h2>Workers <span class=\"soft\">", view.num_workers,
                  "</span></h2><section class=\"card\"><div class=\"facts\">");
  AddFact("idle", absl::StrCat(view.num_idle), html);
  AddFact("busy", absl::StrCat(view.num_busy), html);
  AddFact("draining", absl::StrCat(view.num_draining), html);
  if (view.num_cordoned > 0) AddFact("cordoned", absl::StrCat(view.num_cordoned), html);
  if (view.num_quarantined > 0) AddFact("quarantined", absl::StrCat(view.num_quarantined), html);
  AddFact("not alive", absl::StrCat(view.num_not_alive), html);
  absl::StrAppend(html, "</div>");
  if (!view.nodes.empty()) {
    absl::StrAppend(html,
                    "<div class=\"scroll\"><table><tr><th>condition<th class=\"num\">workers"
                    "<th class=\"num\">nodes<th>which</tr>");
    for (const NodeRow& row : view.nodes) {
      absl::StrAppend(html, "<tr><td class=\"", row.trouble ? "warn" : "", "\">",
                      HtmlEscaped(row.condition), "<td class=\"num\">", row.num_workers,
                      "<td class=\"num\">", row.num_nodes, "<td>", Nodes(row.nodes, row.num_nodes),
                      "</tr>");
    }
    absl::StrAppend(html, "</table></div>");
  }
  absl::StrAppend(html, "</section>");
}

}  // namespace

std::string RenderStatusPage(const StatusView& view) {
  std::string html = absl::StrCat(
      "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
      "<meta http-equiv=\"refresh\" content=\"5\"><title>Muster</title><style>",
      kStyle, "</style></head><body><header><h1>Muster</h1><span class=\"soft\">",
      absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", view.now, absl::UTCTimeZone()), "</span></header>");
  if (!view.storage_trouble.empty()) {
    absl::StrAppend(&html,
                    "<section class=\"card bad\">Nothing is admitted while the journal cannot be "
                    "written: ",
                    HtmlEscaped(view.storage_trouble), "</section>");
  }
  AddJobs("Running", view.active, view.active_left_out, AddJob, view.now, &html);
  AddJobs("Waiting", view.waiting, view.waiting_left_out, AddShortJob, view.now, &html);
  if (view.active.empty() && view.waiting.empty()) {
    absl::StrAppend(&html, "<p class=\"soft\">No job runs or waits.</p>");
  }
  AddWorkers(view, &html);
  AddJobs("Ended", view.ended, view.ended_left_out, AddShortJob, view.now, &html);
  absl::StrAppend(&html, "</body></html>\n");
  return html;
}

}  // namespace muster
