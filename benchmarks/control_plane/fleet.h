// What both fleets of simulated agents share: a connection of its own for each agent, limits of
// this process, paced sending, and results as JSON.
#pragma once

#include <grpcpp/channel.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace muster::bench {

// `num_workers` in agents of `workers_per_agent`; an agent has one connection and one stream.
struct FleetShape {
  std::string address;
  int num_workers = 0;
  int workers_per_agent = 1;
  int num_agents() const { return num_workers / workers_per_agent; }
};

// A process that plays agents. A command and its answer are a line each; see load_main.cc.
class Fleet {
 public:
  virtual ~Fleet() = default;
  virtual nlohmann::json Run(const std::string& command, const std::vector<double>& numbers) = 0;
};
std::unique_ptr<Fleet> NewMusterFleet(const FleetShape& shape);
std::unique_ptr<Fleet> NewFloorFleet(const FleetShape& shape);

std::shared_ptr<grpc::Channel> OwnChannel(const std::string& address);

// Empty, or why this process may not open so many connections and what to do.
std::string RaiseDescriptorLimit(int num_connections);

// Calls send(0..count-1) in turn, each every `interval_s`, evenly spread, for `window_s`. Returns
// the number of calls.
int64_t SendPaced(int count, double interval_s, double window_s,
                  const std::function<void(int)>& send);

// {"p50", "p99", "max"} in seconds of sorted values.
nlohmann::json Summary(const std::vector<double>& sorted);

// Ends the process with `what` and the message unless it is OK.
void MustBeOk(const grpc::Status& status, const char* what);

}  // namespace muster::bench
