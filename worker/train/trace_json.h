// A rank's part of a trace as text: one JSON object a line, first the part's head
// (docs/formats.md), then events of the Chrome trace format on rank 0's clock. `muster trace` puts
// the parts of all ranks into one file. Pure.
//
// The process is the rank. Its tracks: what the training thread computes; what it waits for; the
// pipeline's bubbles; then one for each communicator group, and further ones for a group whose
// operations overlap.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/topology/rank_topology.h"
#include "worker/train/trace_clock.h"
#include "worker/train/trace_data.h"

namespace muster {

inline constexpr int kTraceFormat = 1;  // of a part

struct TraceHead {
  int rank = 0, world_size = 1;
  RankCoordinates coordinates;
  std::string device;                           // "cpu", "cuda:0"
  int64_t directive = 0;                        // that asked for it
  int64_t first_iteration = 0, iterations = 0;  // traced
  int64_t requested = 0;                        // iterations asked for
  std::vector<std::vector<int64_t>> layers;  // by chunk, by unit: the layer's number in the model
  std::map<std::string, std::vector<int>> groups;  // of the job, by name: global ranks
  ClockMap clock;                                  // of this rank
  bool shared_clock = true;                        // this rank's clock is rank 0's
  int num_clocks = 1;
  int64_t origin_ns = 0;  // on rank 0's clock: the trace's zero
};

// For operations in the order of their starts: which of a group's tracks each is drawn on, so that
// none overlaps another.
std::vector<int> AssignTracks(absl::Span<const std::pair<int64_t, int64_t>> spans);

std::string TraceLines(const TraceHead& head, const TraceData& data);

}  // namespace muster
