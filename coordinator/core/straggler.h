// Which rank is slow, and why, from what ranks say of their time now and then. Ranks that do the
// same (one pipeline stage) are compared; where a stage has one rank only, it is compared with all.
//
//   compute, data         its part of a step is over `factor` times the median of the others and
//                         by `min_excess` above it, and they wait for it: their median wait in
//                         communication is at least half of that excess
//   communication wait    nobody is slow in compute or data, and it waits over `factor` times as
//                         long as the median of the others: its link is slow, or what it waits for
//
// It must be so in `reports_to_start` reports of the rank, one after the other, and is over when it
// was not in as many, or when the rank has said nothing for `forget_after`. Pure.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/control/messages.h"

namespace muster {

struct StragglerOptions {
  double factor = 1.5;
  absl::Duration min_excess = absl::Milliseconds(5);
  int reports_to_start = 2;
  absl::Duration forget_after = absl::Seconds(60);  // reports come every 10 s
  absl::Duration judge_interval = absl::Seconds(2);
};

enum class StragglerCause { kCompute, kData, kCommunicationWait };
const char* StragglerCauseName(StragglerCause cause);  // "compute", "data", "communication wait"

struct StragglerNews {
  int rank = 0;
  bool over = false;
  StragglerCause cause = StragglerCause::kCompute;
  // "compute 31.0 ms a step, median of the others 10.2 ms; they wait 19.8 ms in communication"
  std::string text;
  bool operator==(const StragglerNews&) const = default;
};

class StragglerWatch {
 public:
  explicit StragglerWatch(const StragglerOptions& options = {}) : options_(options) {}

  // A new epoch: `stage_of_rank` says which ranks do the same. Nobody is slow, and nothing is said
  // of those that were: their processes may have changed.
  void Begin(std::vector<int> stage_of_rank);
  void Take(int rank, const RankTimesMessage& times, absl::Time now);
  // What has changed, by rank. Looks at most once a judge_interval.
  std::vector<StragglerNews> Judge(absl::Time now);
  // Who is slow now.
  std::map<int, StragglerCause> slow() const;

 private:
  struct Rank {
    RankTimesMessage times;
    absl::Time at = absl::InfinitePast();
    bool fresh = false;  // not judged yet
    int streak = 0;      // reports in a row that say the opposite of `slow`
    std::optional<StragglerCause> slow;
  };
  // Of ranks that do the same, what each metric's values are, sorted.
  struct Peers {
    std::vector<double> compute, data, wait;
  };
  struct Finding {
    StragglerCause cause;
    std::string text;
  };
  bool Known(const Rank& rank, absl::Time now) const {
    return now - rank.at < options_.forget_after;
  }
  std::optional<Finding> SlowByItself(const RankTimesMessage& times, const Peers& peers) const;
  std::optional<Finding> SlowByItsLink(const RankTimesMessage& times, const Peers& peers) const;

  const StragglerOptions options_;
  std::vector<int> stages_;
  std::vector<Rank> ranks_;
  absl::Time judged_at_ = absl::InfinitePast();
  bool any_fresh_ = false;
};

}  // namespace muster
