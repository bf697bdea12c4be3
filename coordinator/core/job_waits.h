// Who is missing while a job waits, as people read it. All of them are counted, in groups of ranks
// that share a node and a phase, those first that are the likeliest reason: whose agent is silent,
// then those that are behind the others. The text stays short however many ranks there are. Pure.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/core/phase_limits.h"
#include "coordinator/core/rank_set.h"

namespace muster {

// When agents were last heard, by whoever knows that; without it, only ranks' own reports count.
struct SignsOfLife {
  std::function<std::optional<absl::Time>(const std::string& incarnation)> of_agent;
  absl::Duration silent_after = absl::Milliseconds(1500);  // the heartbeat timeout
};

// A rank that has not come through. The views live as long as the job's ranks.
struct MissingRank {
  int rank = 0;
  absl::string_view worker, node, phase, detail;
  int stage = 0;  // lower: further behind
  absl::Time last_sign = absl::InfinitePast();
};

struct MissingReport {
  std::string text;     // "ranks 3-5 (node b, workers b/0-2): loading, last sign of life 12s ago"
  int first_rank = -1;  // the likeliest reason; -1: nobody is missing
};
// Beyond `max_groups` groups: "and 4032 more ranks (64-4095)".
MissingReport DescribeMissing(const std::vector<MissingRank>& missing, absl::Time now,
                              absl::Duration silent_after, int max_groups = 8);

// "b/0-2": names that differ in their last number only are compressed; of others the first few.
std::string CompressNames(const std::vector<absl::string_view>& names);

// What a job waits for now.
struct JobWait {
  std::string phase;  // start, forming, load, step, evaluation, save; stop: trainers that shall end
  absl::Duration elapsed, limit;
  bool overdue = false;
  std::string missing;
};

// "12s", "3m20s": as exact as people need it.
std::string ShortDuration(absl::Duration duration);

}  // namespace muster
