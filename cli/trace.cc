// trace: the next steps of a job on all ranks, as one file for a trace viewer.
#include <cstdio>
#include <fstream>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/patience.h"
#include "cli/trace_file.h"
#include "common/base/status.h"
#include "common/control/messages.h"
#include "common/runtime/clock.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kDefaultTimeout = 900;
constexpr absl::Duration kPoll = absl::Milliseconds(200);

struct Wanted {
  std::string job_id, file;
  int64_t iterations = 1;
  absl::Duration limit;
  bool last = false;  // the one that is kept
  bool json = false;
};

absl::StatusOr<Wanted> WantedOf(const Invocation& invocation) {
  Wanted wanted{.job_id = invocation.arguments[0],
                .last = invocation.Has("--last"),
                .json = invocation.Has("--json")};
  wanted.file = invocation.Get("--output", absl::StrCat("trace-", wanted.job_id, ".json"));
  ASSIGN_OR_RETURN(wanted.iterations, invocation.GetInt("--iterations", 1, 1));
  if (wanted.iterations > kMaxTracedIterations) {
    return absl::InvalidArgumentError(absl::StrCat("--iterations=", wanted.iterations,
                                                   ": must be at most ", kMaxTracedIterations));
  }
  if (wanted.last && invocation.Has("--iterations")) {
    return absl::InvalidArgumentError(
        "--last fetches the trace that is there: --iterations does not go with it");
  }
  ASSIGN_OR_RETURN(const int64_t seconds, invocation.GetInt("--timeout", kDefaultTimeout, 1));
  wanted.limit = absl::Seconds(seconds);
  return wanted;
}

std::string Megabytes(int64_t bytes) {
  return absl::StrFormat("%.1f MB", static_cast<double>(bytes) / 1e6);
}

// Waits until every rank's part is with the coordinator.
absl::StatusOr<v1::GetTraceResponse> AwaitTrace(Client* client, const Wanted& wanted,
                                                int64_t directive) {
  RealClock clock;
  const absl::Duration deadline = clock.Steady() + wanted.limit;
  Patience patience(wanted.limit, [](const std::string& text) { PrintError(text); });
  patience.AskAgain(absl::OkStatus(), clock.Steady());
  client->ExpectQuickAnswers();
  for (;;) {
    absl::StatusOr<v1::GetTraceResponse> trace = client->GetTrace(wanted.job_id, directive);
    if (!patience.AskAgain(trace.status(), clock.Steady())) {
      if (!trace.ok()) return trace.status();
      if (trace->state() == v1::TRACE_STATE_COMPLETE) return trace;
      if (trace->state() == v1::TRACE_STATE_FAILED) {
        return absl::FailedPreconditionError(
            absl::StrCat("there will be no trace: ", trace->reason()));
      }
      if (clock.Steady() >= deadline) {
        return absl::FailedPreconditionError(absl::StrCat(
            trace->ranks_size(), " of ", trace->world_size(), " ranks have sent their part of the ",
            "trace within ", absl::FormatDuration(wanted.limit), " (the job is at iteration ",
            trace->job_iteration(), "); muster trace ", wanted.job_id,
            " --last fetches it once it is there, and --timeout waits longer"));
      }
    }
    if (NumInterrupts() > 0) return absl::CancelledError("interrupted");
    absl::SleepFor(kPoll);
  }
}

absl::StatusOr<std::string> Download(Client* client, const std::string& job_id, int64_t directive,
                                     int rank) {
  RealClock clock;
  Patience patience(absl::Minutes(1), [](const std::string& text) { PrintError(text); });
  patience.AskAgain(absl::OkStatus(), clock.Steady());
  std::string part;
  for (;;) {
    auto piece = client->ReadTrace(job_id, directive, rank, static_cast<int64_t>(part.size()));
    if (patience.AskAgain(piece.status(), clock.Steady())) {
      absl::SleepFor(kPoll);
      continue;
    }
    if (!piece.ok()) return piece.status();
    part += piece->data();
    if (piece->end()) return part;
  }
}

Json ToJson(const LongWait& wait) {
  Json json = {{"ms", wait.us / 1e3}, {"rank", wait.rank},         {"iteration", wait.iteration},
               {"op", wait.op},       {"group", wait.group},       {"ranks", wait.ranks},
               {"bytes", wait.bytes}, {"sequence", wait.sequence}, {"last_rank", nullptr}};
  if (wait.last_rank >= 0) json["last_rank"] = wait.last_rank;
  return json;
}

Json ToJson(const RankTime& time) {
  Json json = {{"rank", time.rank}};
  for (const char* name : {"tp", "cp", "pp", "dp", "ep"}) json[name] = time.head.value(name, 0);
  json["total_ms"] = time.total_us / 1e3;
  json["busy_ms"] = time.busy_us() / 1e3;
  json["wait_ms"] = time.wait_us / 1e3;
  json["bubble_ms"] = time.bubble_us / 1e3;
  json["communication_ms"] = time.communication_us / 1e3;
  return json;
}

std::string Share(double part, double whole) {
  return whole <= 0 ? "-" : absl::StrFormat("%.1f %%", 100 * part / whole);
}

void PrintRanks(const TraceFile& file) {
  std::vector<std::vector<std::string>> rows;
  for (const RankTime& time : file.ranks()) {
    std::vector<std::string> at;
    for (const char* name : {"tp", "cp", "pp", "dp", "ep"})
      at.push_back(absl::StrCat(name, " ", time.head.value(name, 0)));
    rows.push_back({absl::StrCat(time.rank), absl::StrJoin(at, ", "),
                    absl::StrFormat("%.1f", time.total_us / 1e3),
                    Share(time.busy_us(), time.total_us), Share(time.wait_us, time.total_us),
                    Share(time.bubble_us, time.total_us),
                    Share(time.communication_us, time.total_us)});
  }
  std::cout << FormatTable(
      {"rank", "coordinates", "traced ms", "busy", "waiting", "bubble", "communicating"}, rows);
}

void PrintWaits(const TraceFile& file) {
  const std::vector<LongWait> waits = file.LongestWaits();
  if (waits.empty()) return;
  std::cout << "\nlongest waits\n";
  for (const LongWait& wait : waits) {
    std::cout << absl::StrFormat("%10.3f ms  rank %d, iteration %d: %s in group %s, ranks %s",
                                 wait.us / 1e3, wait.rank, wait.iteration, wait.op, wait.group,
                                 absl::StrJoin(wait.ranks, ","));
    if (wait.bytes > 0) std::cout << absl::StrCat(", ", FormatCount(wait.bytes), " bytes");
    if (wait.last_rank >= 0) std::cout << absl::StrCat("; rank ", wait.last_rank, " came last");
    std::cout << "\n";
  }
}

// What a reader must know before believing the numbers.
std::vector<std::string> NotesOf(const TraceFile& file, const Wanted& wanted) {
  std::vector<std::string> notes;
  const Json& head = file.ranks()[0].head;
  const int64_t traced = head.value("iterations", int64_t{0});
  const int64_t requested = head.value("requested_iterations", int64_t{0});
  if (traced < requested) {
    notes.push_back(absl::StrCat("only ", traced, " of ", requested, " iterations: ", wanted.job_id,
                                 " ended, or another trace of it was asked for"));
  }
  if (const int64_t clocks = head.value("clocks", int64_t{1}); clocks > 1) {
    notes.push_back(
        absl::StrFormat("the clocks of %d machines were compared: times of different "
                        "ranks are off by %.1f us at most, if drift was even",
                        clocks, file.clock_error_us()));
  }
  if (file.dropped_events() > 0) {
    notes.push_back(absl::StrCat(file.dropped_events(),
                                 " events found no place in the ranks' buffers and are missing: "
                                 "ask for fewer iterations"));
  }
  if (head.value("times", "") != "computed") {
    notes.push_back(
        "on a GPU passes, layers and waits show when the host issued them; the device "
        "computes later");
  }
  return notes;
}

void PrintSummary(const TraceFile& file, const Wanted& wanted, int64_t directive, int64_t bytes) {
  const Json& head = file.ranks()[0].head;
  const std::vector<std::string> notes = NotesOf(file, wanted);
  if (wanted.json) {
    Json json = {{"job_id", wanted.job_id},
                 {"directive", directive},
                 {"file", wanted.file},
                 {"bytes", bytes},
                 {"first_iteration", head.value("first_iteration", int64_t{0})},
                 {"iterations", head.value("iterations", int64_t{0})},
                 {"world_size", head.value("world_size", int64_t{0})},
                 {"clock_error_us", file.clock_error_us()},
                 {"dropped_events", file.dropped_events()},
                 {"ranks", Json::array()},
                 {"longest_waits", Json::array()},
                 {"notes", notes}};
    for (const RankTime& time : file.ranks()) json["ranks"].push_back(ToJson(time));
    for (const LongWait& wait : file.LongestWaits()) json["longest_waits"].push_back(ToJson(wait));
    PrintJsonLine(json);
    return;
  }
  const int64_t first = head.value("first_iteration", int64_t{0});
  const int64_t count = head.value("iterations", int64_t{0});
  std::cout << absl::StrCat(wanted.file, ": ", count == 1 ? "iteration " : "iterations ", first,
                            count > 1 ? absl::StrCat("-", first + count - 1) : "", " of ",
                            wanted.job_id, " on ", file.ranks().size(), " ranks, ",
                            Megabytes(bytes), "\n\n");
  PrintRanks(file);
  PrintWaits(file);
  for (const std::string& note : notes) std::cout << "\nnote: " << note << "\n";
  std::cout << "\nopen it in https://ui.perfetto.dev\n";
}

// Writes aside and renames: the file is whole or not there.
absl::Status WriteTrace(Client* client, const Wanted& wanted, const v1::GetTraceResponse& trace) {
  const std::string aside = wanted.file + ".part";
  std::ofstream out(aside, std::ios::binary | std::ios::trunc);
  TraceFile file(&out);
  for (int rank = 0; rank < trace.world_size(); ++rank) {
    ASSIGN_OR_RETURN(const std::string part,
                     Download(client, wanted.job_id, trace.directive(), rank));
    RETURN_IF_ERROR(file.AddPart(part));
  }
  file.Finish(
      {{"job_id", wanted.job_id}, {"directive", trace.directive()}, {"muster", MUSTER_VERSION}});
  const int64_t bytes = static_cast<int64_t>(out.tellp());
  out.close();
  if (!out || std::rename(aside.c_str(), wanted.file.c_str()) != 0) {
    std::remove(aside.c_str());
    return absl::FailedPreconditionError(absl::StrCat(wanted.file, ": cannot be written"));
  }
  PrintSummary(file, wanted, trace.directive(), bytes);
  return absl::OkStatus();
}

int Trace(const Invocation& invocation) {
  const absl::StatusOr<Wanted> wanted = WantedOf(invocation);
  if (!wanted.ok()) {
    PrintError(wanted.status().message());
    return kExitUsage;
  }
  const std::string aside = wanted->file + ".part";
  if (!std::ofstream(aside, std::ios::trunc)) {  // before the job is asked
    PrintError(absl::StrCat("--output=", wanted->file, ": cannot be written"));
    return kExitUsage;
  }
  std::remove(aside.c_str());
  Client client(invocation);
  int64_t directive = 0;
  if (!wanted->last) {
    const absl::StatusOr<int64_t> number =
        client.RequestTrace(wanted->job_id, "requested by muster trace", wanted->iterations);
    if (!number.ok()) return ReportCallError(number.status(), client);
    directive = *number;
  }
  CountOneInterrupt();
  const auto trace = AwaitTrace(&client, *wanted, directive);
  if (NumInterrupts() > 0) {
    std::cerr << absl::StrCat("the ranks go on: muster trace ", wanted->job_id,
                              " --last fetches the trace once it is there\n");
    return kExitInterrupted;
  }
  if (!trace.ok()) return ReportCallError(trace.status(), client);
  if (absl::Status status = WriteTrace(&client, *wanted, *trace); !status.ok()) {
    std::remove(aside.c_str());
    return ReportCallError(status, client);
  }
  return kExitDone;
}

}  // namespace

Command TraceCommand() {
  return {
      .name = "trace",
      .arguments = "JOB",
      .help = "record the next steps of all ranks, for a trace viewer",
      .details =
          "All ranks of a training job record their next iterations, the same ones, and this "
          "command writes what they did into one file on one clock: passes and layers, each "
          "communicator group's operations with their bytes, what was waited for, the pipeline's "
          "bubbles, and arrows from each send to its receive. It prints where the time of each "
          "rank went: busy, waiting for others, in bubbles (these add up to all of it), and how "
          "much of it some communication was under way; then the longest waits, with the rank that "
          "the others waited for.\n\n"
          "Open the file in https://ui.perfetto.dev. The coordinator keeps the "
          "newest trace of a job; --last fetches it again. A trace that is asked for while another "
          "is recorded ends that one with the iterations it has.",
      .min_arguments = 1,
      .max_arguments = 1,
      .options = {{.name = "--iterations", .value = "N", .help = "how many, 1 to 100 (default: 1)"},
                  {.name = "--output",
                   .value = "FILE",
                   .help = "where to write it (default: trace-JOB.json)"},
                  {.name = "--last", .help = "fetch the trace that the coordinator keeps"},
                  {.name = "--timeout",
                   .value = "SECONDS",
                   .help = "how long to wait for the trace (default: 900)"},
                  JsonOption(),
                  CoordinatorOption(),
                  TokenFileOption()},
      .examples = {{"muster trace job-1 --iterations 3", "the next three steps"}},
      .files = {{"trace-JOB.json", "the trace, where --output names no other file"}},
      .failure =
          "The job does not train, ended before its ranks had sent the trace, or the file "
          "could not be written.",
      .run = Trace};
}

}  // namespace muster
