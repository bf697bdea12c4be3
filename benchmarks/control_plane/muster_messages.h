// The messages of simulated agents. The floor sends as many bytes.
#pragma once

#include <string>

#include "muster/v1/membership.pb.h"

namespace muster::bench {

std::string WorkerName(int agent, int slot);
v1::RegisterRequest Registration(int agent, int workers_per_agent, int64_t run);
v1::ConnectRequest HelloOf(const v1::RegisterRequest& registration);
v1::ConnectRequest HeartbeatOf(int64_t sequence);
// A spec of a data-parallel job on `world_size` CPU workers.
std::string SpecOf(int world_size);

}  // namespace muster::bench
