// What a recorder hands over: plain values, of one rank. Times are of this process's
// CLOCK_MONOTONIC, in nanoseconds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muster {

enum class TraceKind : uint8_t {
  kIteration,
  kPart,  // of a step: "forward-backward", "optimizer", ...
  kForward,
  kBackward,
  kLayerForward,
  kLayerBackward,
  kData,
  kOp,        // of a communicator group
  kWait,      // for an operation
  kTransfer,  // one message of a send_recv: no time of its own
};

struct TraceEvent {
  TraceKind kind = TraceKind::kPart;
  bool is_send = false;    // kTransfer
  int thread = 0;          // 0: the one that trains
  const char* name = "";   // literals
  const char* dtype = "";  // kOp
  int64_t start_ns = 0;
  int64_t end_ns = 0;  // 0: had not ended
  int64_t iteration = -1;
  int chunk = -1, microbatch = -1;  // of the pass that it lies in
  int unit = -1;                    // of a layer: its place in the chunk
  int group = -1;                   // kOp, kTransfer: in TraceData::groups
  int peer = -1, channel = 0;       // kTransfer: global rank
  int64_t op = -1;                  // kWait, kTransfer: the operation's place among the events
  int64_t number = 0;               // kOp: its sequence number; kTransfer: which message of its
                                    // stream since the trace began
  int64_t bytes_in = 0, bytes_out = 0;
};

struct TraceGroup {
  std::string name;
  std::vector<int> ranks;  // global, in group order
};

struct TraceData {
  std::vector<TraceEvent> events;  // in the order in which they were recorded
  std::vector<TraceGroup> groups;
  int64_t num_dropped = 0;  // found no place
};

}  // namespace muster
