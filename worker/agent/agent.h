// A node's agent: the loop that brings events (the coordinator's orders, the trainers, time,
// signals) to the pure AgentMachine and carries out its actions. One thread runs it; the others
// only post events.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/rpc/token.h"
#include "worker/agent/device.h"
#include "worker/core/core_split.h"

namespace muster {

class Agent {
 public:
  struct Options {
    std::string coordinator;  // HOST:PORT
    Token token;              // that its calls bring; empty: none
    std::string token_file;   // where that came from, for people
    std::string name;         // of the node; workers are NAME/0, NAME/1, ... or NAME with one
    std::vector<DeviceSlot> devices;
    std::string advertised_address;  // empty: the one that the coordinator sees
    std::string state_dir;
    std::vector<std::string> plugin_dirs;
    std::string trainer_program;
    int num_cpus = 1;                // shared by this node's trainers
    std::vector<WorkerCores> cores;  // of each device's worker; empty: none is bound
    // For the check of the devices before the registration; a crashed trainer's device is checked
    // `recheck_delay` after.
    absl::Duration device_check_limit = absl::Seconds(10), recheck_delay = absl::Seconds(2);
  };
  explicit Agent(Options options);
  ~Agent();

  // Until the agent has ended: OK after Terminate, else why it can't go on. Call once.
  absl::Status Run();

  // Any thread. The first lets the trainers checkpoint and leave, the second ends them now.
  void Terminate();

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace muster
