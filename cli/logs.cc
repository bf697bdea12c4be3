#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/follow_list.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

// The lines of all ranks, in the order of their arrival, each with its rank before it.
class LogPrinter {
 public:
  LogPrinter(bool json, bool prefixed)
      : json_(json), prefixed_(prefixed), colour_(WantsColour(STDOUT_FILENO)) {}

  void Print(const v1::LogLine& line) {
    if (json_) {
      PrintJsonLine(ToJson(line));
      return;
    }
    if (epoch_ != 0 && line.epoch() != epoch_) {
      std::cout << absl::StrCat("--- epoch ", line.epoch(), "\n");
    }
    epoch_ = line.epoch();
    if (prefixed_) {
      std::string prefix = absl::StrCat("[", line.rank(), "]");
      width_ = std::max(width_, prefix.size());
      prefix.append(width_ - prefix.size(), ' ');
      std::cout << (colour_ ? Coloured(prefix, line.rank()) : prefix) << " ";
    }
    std::cout << line.text() << "\n";
  }

 private:
  const bool json_, prefixed_, colour_;
  size_t width_ = 0;  // of the widest prefix so far
  int64_t epoch_ = 0;
};

int Logs(const Invocation& invocation) {
  const absl::StatusOr<int64_t> rank = invocation.GetInt("--rank", -1, 0);
  const absl::StatusOr<FollowListOptions> options = FollowListOptionsOf(invocation);
  for (const absl::Status& status : {rank.status(), options.status()}) {
    if (status.ok()) continue;
    PrintError(status.message());
    return kExitUsage;
  }
  std::optional<int> wanted;
  if (invocation.Has("--rank")) wanted = static_cast<int>(*rank);
  Client client(invocation);
  LogPrinter printer(invocation.Has("--json"), !wanted.has_value());
  return FollowList<v1::ReadLogsResponse, v1::LogLine>(
      &client, *options,
      [&](int64_t since, absl::Duration wait) {
        return client.ReadLogs(invocation.arguments[0], wanted, since, wait);
      },
      &v1::ReadLogsResponse::lines, [&](const v1::LogLine& line) { printer.Print(line); });
}

}  // namespace

Command LogsCommand() {
  return {
      .name = "logs",
      .arguments = "JOB",
      .help = "what the job's trainers printed",
      .details =
          "Prints the lines that the coordinator holds of the trainers' output: of all ranks, in "
          "the "
          "order in which they arrived, each after its rank in brackets (in colour on a terminal), "
          "or of one rank. Where an attempt of the job ends and another begins, a line names the "
          "new epoch.",
      .min_arguments = 1,
      .max_arguments = 1,
      .options = {{.name = "--rank", .value = "R", .help = "of this rank only"},
                  FollowOption(),
                  TailOption(),
                  JsonLinesOption(),
                  CoordinatorOption(),
                  TokenFileOption()},
      .examples = {{"muster logs job-1 --rank 3 --tail 50", "how rank 3 ended"},
                   {"muster logs job-1 -f", "follow all ranks"}},
      .files = {{"STATE_DIR/logs of the node's muster-worker", "the whole output of each trainer"}},
      .run = Logs};
}

}  // namespace muster
