// Puts the ranks' parts of a trace (docs/formats.md) into one file of the Chrome trace format, and
// adds up where each rank's time went. A part at a time, in the order of ranks. No gRPC, no files.
#pragma once

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace muster {

// Where the traced time of one rank went: it computes, waits for others, or has nothing to compute
// in the pipeline. What it communicates meanwhile is in all three.
struct RankTime {
  int rank = 0;
  nlohmann::ordered_json head;  // of its part
  double total_us = 0;          // its traced iterations
  double wait_us = 0;           // of these: waits, without bubbles
  double bubble_us = 0;
  double communication_us = 0;  // some operation of its was under way
  double busy_us() const { return total_us - wait_us - bubble_us; }
};

struct LongWait {
  double us = 0;
  int rank = 0;
  int64_t iteration = 0, sequence = 0, bytes = 0;
  std::string op, group;
  std::vector<int> ranks;  // of the group
  int last_rank = -1;      // that started the operation last; -1: a send_recv, which has no one
};

class TraceFile {
 public:
  static constexpr size_t kNumLongest = 5;

  // Writes to `out`, which outlives it.
  explicit TraceFile(std::ostream* out);

  // INVALID_ARGUMENT: not a part of a trace; the file is of no use then.
  absl::Status AddPart(absl::string_view lines);
  // Ends the file. `more`: the file's own metadata, beside what the parts tell.
  void Finish(nlohmann::ordered_json more);

  const std::vector<RankTime>& ranks() const { return ranks_; }
  // Of all ranks, the longest first.
  std::vector<LongWait> LongestWaits() const;
  int64_t dropped_events() const;
  double clock_error_us() const;  // the largest

 private:
  struct Sums;
  absl::Status AddEvent(absl::string_view line, Sums* sums);
  void AddWait(const nlohmann::json& event, double us, int rank);

  std::ostream* const out_;
  bool first_event_ = true;
  std::vector<RankTime> ranks_;
  std::vector<LongWait> longest_;  // sorted, at most kNumLongest
  // By group ("0,1") and sequence number of its collectives: when the last rank started it.
  std::map<std::pair<std::string, int64_t>, std::pair<double, int>> last_starts_;
};

}  // namespace muster
