// bench-control-load muster|floor HOST:PORT WORKERS WORKERS_PER_AGENT: plays a cluster's agents.
// Reads commands ("register", "open", "beat 0.5 4", ...) from standard input, one a line, and
// answers each with a line of JSON; ends with the input.
#include <iostream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/synchronization/mutex.h"
#include "benchmarks/control_plane/fleet.h"

namespace muster::bench {
namespace {

int Main(int argc, char** argv) {
  // Many agents in one process would wait for the detector's one table.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  FleetShape shape;
  if (argc != 5 || !absl::SimpleAtoi(argv[3], &shape.num_workers) ||
      !absl::SimpleAtoi(argv[4], &shape.workers_per_agent) || shape.workers_per_agent < 1 ||
      shape.num_workers < shape.workers_per_agent ||
      shape.num_workers % shape.workers_per_agent != 0) {
    std::cerr << "usage: bench-control-load muster|floor HOST:PORT WORKERS WORKERS_PER_AGENT\n";
    return 2;
  }
  shape.address = argv[2];
  if (const std::string refused = RaiseDescriptorLimit(shape.num_agents()); !refused.empty()) {
    std::cerr << "bench-control-load: " << refused << "\n";
    return 2;
  }
  const auto fleet =
      std::string(argv[1]) == "muster" ? NewMusterFleet(shape) : NewFloorFleet(shape);
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string command;
    std::vector<double> numbers;
    words >> command;
    for (double number; words >> number;) numbers.push_back(number);
    const nlohmann::json answer = fleet->Run(command, numbers);
    if (answer.is_null()) std::cerr << "unknown command " << line << "\n";
    std::cout << answer.dump() << std::endl;
  }
  std::cout.flush();
  std::_Exit(0);  // thousands of connections need no orderly end
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) { return muster::bench::Main(argc, argv); }
