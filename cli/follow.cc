#include "cli/follow.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/describe_end.h"
#include "cli/event_lines.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/terminal.h"
#include "common/base/status.h"
#include "common/runtime/clock.h"
#include "common/spec/spec_json.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

// How long a call waits for news: short enough for ctrl-C.
constexpr absl::Duration kWait = absl::Milliseconds(200);
constexpr absl::Duration kRest = absl::Milliseconds(50);

Progress::Options ProgressOptions(const std::string& spec_json) {
  Progress::Options options;
  options.terminal = IsTerminal(STDOUT_FILENO);
  options.current_columns = [] { return TerminalColumns(STDOUT_FILENO); };
  options.log_interval = std::max<int64_t>(1, ParseJobSpec(spec_json).spec.training.log_interval);
  return options;
}

// Prints the events since `since`. A failed call is left to the next one.
void FollowEvents(Client* client, const std::string& job_id, int64_t* since, Progress* progress) {
  const absl::StatusOr<v1::GetEventsResponse> response =
      client->GetEvents(job_id, *since, absl::ZeroDuration());
  if (!response.ok()) return;
  for (const std::string& line : WatchLines(response->events(), job_id)) progress->Note(line);
  for (const v1::Event& event : response->events()) {
    if (event.kind() == "recovering") progress->set_told_reason(event.text());
  }
  *since = response->next();
}

}  // namespace

absl::StatusOr<v1::JobStatus> FollowJob(Client* client, const std::string& job_id,
                                        const FollowOptions& options) {
  RealClock clock;
  std::string spec_json;
  ASSIGN_OR_RETURN(v1::JobStatus job, client->GetJob(job_id, 0, absl::ZeroDuration(), &spec_json));
  CountResizes();
  Progress progress(ProgressOptions(spec_json), &std::cout);
  Patience patience(options.patience, [&](const std::string& text) {
    if (options.progress) {
      progress.Note(text);
    } else {
      PrintError(text);
    }
  });
  patience.AskAgain(absl::OkStatus(), clock.Steady());
  client->ExpectQuickAnswers();
  if (options.progress) progress.OnJob(job, clock.Steady());
  int64_t since = 0, events_since = 0;
  int num_resizes = NumResizes();
  while (true) {
    if (options.poll) RETURN_IF_ERROR(options.poll());
    const bool ended = job.ended();  // before the metrics are asked for: the last ones are there
    const absl::StatusOr<v1::GetMetricsResponse> metrics =
        client->GetMetrics(job_id, since, ended ? absl::ZeroDuration() : kWait);
    absl::StatusOr<v1::JobStatus> newer = metrics.ok() ? client->GetJob(job_id) : metrics.status();
    if (num_resizes != NumResizes()) {
      num_resizes = NumResizes();
      progress.OnResize();
    }
    if (patience.AskAgain(newer.status(), clock.Steady())) {
      absl::SleepFor(kRest);
      continue;
    }
    if (!newer.ok()) return newer.status();
    job = *std::move(newer);
    for (const v1::MetricsRecord& record : metrics->records()) {
      if (options.on_record) options.on_record(record);
      if (options.progress) progress.OnRecord(job, record, clock.Steady());
    }
    since = metrics->next();
    if (options.progress) FollowEvents(client, job_id, &events_since, &progress);
    if (options.progress) progress.OnJob(job, clock.Steady());
    if (ended && metrics->records().empty()) break;
    // Steps of a millisecond must not make this loop a load on the machine that trains.
    if (!ended && !metrics->records().empty()) absl::SleepFor(kRest);
  }
  if (options.progress) progress.OnEnd(job);
  return job;
}

int WatchJob(Client* client, const std::string& job_id, bool json) {
  CountOneInterrupt();
  FollowOptions options{.progress = !json, .poll = []() -> absl::Status {
                          if (NumInterrupts() > 0) return absl::CancelledError("interrupted");
                          return absl::OkStatus();
                        }};
  if (json)
    options.on_record = [](const v1::MetricsRecord& record) { PrintJsonLine(ToJson(record)); };
  const absl::StatusOr<v1::JobStatus> job = FollowJob(client, job_id, options);
  if (job.ok()) {
    if (json) PrintJsonLine(ToJson(*job));
    if (job->exit_code() != kExitDone) PrintError(DescribeEnd(*job));
    return job->exit_code();
  }
  if (NumInterrupts() > 0) {
    (json ? std::cerr : std::cout)
        << absl::StrCat(job_id, " goes on: muster watch ", job_id,
                        " follows it again, muster cancel ", job_id, " ends it\n")
        << std::flush;
    return kExitInterrupted;
  }
  return ReportCallError(job.status(), *client);
}

}  // namespace muster
