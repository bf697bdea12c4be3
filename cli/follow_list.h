// A job's growing lists (events, log lines, metrics): all of one, its last entries, or on and on.
#pragma once

#include <google/protobuf/repeated_field.h>

#include <deque>
#include <functional>
#include <iostream>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "cli/client.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/patience.h"
#include "common/runtime/clock.h"

namespace muster {

// -f and --tail, of every command that shows such a list.
OptionSpec FollowOption();
OptionSpec TailOption();

struct FollowListOptions {
  bool follow = false;  // until the job has ended
  int64_t tail = -1;    // of what is there, this many last entries only; -1: all
};
// From --follow and --tail. INVALID_ARGUMENT when --tail is no number.
absl::StatusOr<FollowListOptions> FollowListOptionsOf(const Invocation& invocation);

// `fetch(since, wait)` asks the coordinator, `entries` are the answer's; each goes to `print` once.
// Outlasts a restart of the coordinator. Returns the exit code.
template <typename Response, typename Entry>
int FollowList(Client* client, const FollowListOptions& options,
               const std::function<absl::StatusOr<Response>(int64_t, absl::Duration)>& fetch,
               const google::protobuf::RepeatedPtrField<Entry>& (Response::*entries)() const,
               const std::function<void(const Entry&)>& print) {
  constexpr absl::Duration kWait = absl::Milliseconds(300);  // short enough for ctrl-C
  constexpr absl::Duration kRest = absl::Milliseconds(50);
  if (options.follow) CountOneInterrupt();
  RealClock clock;
  Patience patience(options.follow ? Patience::kLimit : absl::ZeroDuration(),
                    [](const std::string& text) { PrintError(text); });
  std::deque<Entry> held;  // while `tail` may still drop them
  bool holds = options.tail >= 0;
  int64_t since = 0;
  while (NumInterrupts() == 0) {
    const absl::StatusOr<Response> response =
        fetch(since, options.follow && !holds ? kWait : absl::ZeroDuration());
    if (patience.AskAgain(response.status(), clock.Steady())) {
      absl::SleepFor(kRest);
      continue;
    }
    if (!response.ok()) {
      if (NumInterrupts() > 0) break;
      return ReportCallError(response.status(), *client);
    }
    client->ExpectQuickAnswers();
    const auto& list = ((*response).*entries)();
    if (since > 0 && response->oldest() > since) {
      PrintError("some entries in between were dropped: the coordinator holds the newest ones");
    }
    for (const Entry& entry : list) {
      if (!holds) {
        print(entry);
        continue;
      }
      held.push_back(entry);
      if (static_cast<int64_t>(held.size()) > options.tail) held.pop_front();
    }
    const bool caught_up = list.empty();
    if (caught_up && holds) {
      for (const Entry& entry : held) print(entry);
      holds = false;
    }
    std::cout << std::flush;
    since = response->next();
    if (caught_up && (!options.follow || response->job_ended())) return kExitDone;
  }
  return kExitInterrupted;
}

}  // namespace muster
