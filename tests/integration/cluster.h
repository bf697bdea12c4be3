// A cluster of real processes on loopback, for tests: a coordinator and agents, with a trainer of
// the test's choice. Ports are the system's to choose.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/integration/process.h"

namespace muster {

class Cluster {
 public:
  // `trainer`: path; empty: the real one, beside muster-worker.
  // `token`: when not empty, the coordinator listens on every address of this machine and asks for
  // it; agents and commands get its file.
  explicit Cluster(const std::string& trainer, const std::string& token = "");

  // An agent with `slots` CPU workers, named `name` (name/0, name/1, ... with several).
  Process& StartAgent(const std::string& name, int slots);
  // With another token file than the cluster's; empty: none.
  Process& StartAgent(const std::string& name, int slots, const std::string& token_file);
  Process& coordinator() { return *coordinator_; }
  // Kills it; the next one listens on the same port.
  void RestartCoordinator();
  Process& agent(size_t index) { return *agents_[index]; }
  const std::string& address() const { return address_; }
  const TempFolder& folder() const { return folder_; }

  // `muster ...` against this cluster.
  Result Muster(std::vector<std::string> words);
  // The same with --json, parsed; null when it failed.
  nlohmann::json MusterJson(std::vector<std::string> words);

  // Writes the spec into the folder and submits it; the job's id, or "" (then `last_error`).
  std::string Submit(const nlohmann::json& spec);
  std::string last_error;
  // Further options of agents that are started from now on, and words before their command.
  std::vector<std::string> agent_options, agent_prefix;

  // Waits for these; false when the limit passed.
  bool WaitForWorkers(int count);  // alive and idle
  bool WaitForIteration(const std::string& job_id, int64_t iteration);
  // The job's status once it has ended and its workers are free; null when it did not end.
  nlohmann::json WaitForEnd(const std::string& job_id);
  // No trainer process of this cluster is left.
  bool NoTrainerLeft();
  // Their process ids, by rank, as the status of workers and /proc tell.
  std::vector<pid_t> TrainerPids();

 private:
  void StartCoordinator(const std::string& listen);

  TempFolder folder_;
  std::string trainer_, token_file_, address_;
  std::unique_ptr<Process> coordinator_;
  std::vector<std::unique_ptr<Process>> agents_;
};

std::string Binary(const std::string& name);

// What commands print with --json as one record a line.
std::vector<nlohmann::json> JsonLines(const std::string& text);

// A small GPT on mock data that trains on one CPU in milliseconds a step.
nlohmann::json SmallSpec(int world_size, int train_iters);

}  // namespace muster
