// Which cores each worker of a node gets. Pure.
//
// The cores that the agent may use are shared out so that a worker's are neighbours: of one NUMA
// node where that works out, and with both threads of a physical core. A worker whose device sits
// on a NUMA node gets cores of that node.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

struct Core {
  int cpu = 0;       // the kernel's number
  int physical = 0;  // the same for threads of one physical core: its lowest cpu
  int numa_node = 0;
};

enum class BindMode {
  kNone,   // every worker runs where the agent may
  kCores,  // a share of the cores for each worker
  kNuma,   // all allowed cores of a node for each worker; workers of one node share them
};
// "cores", "numa", "none"; INVALID_ARGUMENT for others.
absl::StatusOr<BindMode> ParseBindMode(absl::string_view text);

struct WorkerCores {
  std::vector<int> cpus;  // sorted; empty: not bound
  int numa_node = -1;     // where all its cores are; -1: on several, or not bound
  bool operator==(const WorkerCores&) const = default;
};

// One entry a worker. `device_nodes`: the NUMA node of each worker's device, -1 where there is
// none. Without a mode: kCores for several workers with a core for each, else kNone.
// INVALID_ARGUMENT when kCores is asked for and there are fewer cores than workers.
absl::StatusOr<std::vector<WorkerCores>> SplitCores(std::vector<Core> cores,
                                                    const std::vector<int>& device_nodes,
                                                    std::optional<BindMode> mode);

// "0-3,8": as /proc/PID/status writes it.
std::string CpuList(const std::vector<int>& cpus);
// Its inverse; nullopt for other text.
std::optional<std::vector<int>> ParseCpuList(absl::string_view text);

}  // namespace muster
