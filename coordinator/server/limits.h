// What one coordinator gives its callers at most, together and each. Whoever goes beyond gets
// RESOURCE_EXHAUSTED with the name of the limit and its value.
//
// A client is one connection; an address is one machine as seen here. Sizes of messages stand in
// common/rpc/channel.h, bounds of what jobs hold in the core's options.
#pragma once

#include "absl/time/time.h"

namespace muster {

struct ServerLimits {
  // Streams of agents.
  int max_streams = 32'768;
  int max_streams_per_address = 16'384;
  absl::Duration hello_limit = absl::Seconds(10);  // from the opening to hello
  // More heartbeats than this between two ticks of the engine: the next is read after the tick.
  int max_heartbeats_per_tick = 16;

  // Unary calls in progress: handled, queued or waiting for news.
  int max_calls = 65'536;
  int max_calls_per_client = 8'192;
  int max_waits_per_client = 4'096;  // of these, calls that may wait for news or keys
  // Of these, requests in the engine's queue at once; the others stand in a queue of their client.
  // So a request waits behind at most this many of each other client.
  int max_turns_per_client = 64;
};

}  // namespace muster
