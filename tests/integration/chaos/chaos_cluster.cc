#include "tests/integration/chaos/chaos_cluster.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace muster {
namespace {

using nlohmann::json;

// Of /proc/PID/stat; -1 when it is gone.
pid_t ParentOf(pid_t pid) {
  const std::string stat = FileText(absl::StrCat("/proc/", pid, "/stat"));
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return -1;
  std::istringstream fields(stat.substr(name_end + 1));
  char state;
  pid_t parent = -1;
  fields >> state >> parent;
  return parent;
}

}  // namespace

ChaosCluster::ChaosCluster(const std::vector<int>& slots_of_node)
    : start_(absl::Now()), cluster_("") {
  cluster_.agent_options = {"--plugin-dir", PLUGIN_DIR};
  for (const int slots : slots_of_node) {
    nodes_.push_back({.process = 0, .slots = slots});
    StartAgent(num_nodes() - 1);
  }
  EXPECT_TRUE(cluster_.WaitForWorkers(num_workers())) << cluster_.last_error;
}

// A stopped process would outlive its agent.
ChaosCluster::~ChaosCluster() {
  for (const Due& due : due_) {
    if (due.what == Due::What::kContinue) kill(due.pid, SIGCONT);
  }
}

int ChaosCluster::num_workers() const {
  return std::accumulate(nodes_.begin(), nodes_.end(), 0,
                         [](int sum, const Node& node) { return sum + node.slots; });
}

std::vector<pid_t> ChaosCluster::TrainersOf(int node) {
  const pid_t parent = agent(node).pid();
  std::vector<pid_t> trainers = Trainers();
  std::erase_if(trainers, [&](pid_t pid) { return ParentOf(pid) != parent; });
  return trainers;
}

int ChaosCluster::NodeOfRank(int rank) {
  const json workers = cluster_.MusterJson({"workers"});
  if (!workers.is_array()) return -1;
  for (const json& worker : workers) {
    if (worker["rank"].is_null() || worker["rank"] != rank) continue;
    for (int node = 0; node < num_nodes(); ++node) {
      if (worker["node"] == NodeName(node)) return node;
    }
  }
  return -1;
}

pid_t ChaosCluster::TrainerOfRank(int rank) {
  const int node = NodeOfRank(rank);
  if (node < 0) return -1;
  const std::vector<pid_t> trainers = TrainersOf(node);
  return trainers.size() == 1 ? trainers[0] : -1;
}

void ChaosCluster::Inject(const Fault& fault) {
  const int node = static_cast<int>(fault.target % nodes_.size());
  switch (fault.kind) {
    case Fault::Kind::kKillTrainer:
    case Fault::Kind::kStopTrainer: {
      const std::vector<pid_t> trainers = Trainers();
      if (trainers.empty()) return Note("no trainer is there");
      const pid_t pid = trainers[fault.target % trainers.size()];
      if (fault.kind == Fault::Kind::kStopTrainer) return Stop(pid, fault.lasts);
      Note(absl::StrCat("kill trainer ", pid));
      kill(pid, SIGKILL);
      return;
    }
    case Fault::Kind::kKillAgent:
    case Fault::Kind::kKillNode:
      if (nodes_[node].away) return;
      fault.kind == Fault::Kind::kKillAgent ? KillAgent(node) : KillNode(node);
      due_.push_back({absl::Now() + fault.lasts, Due::What::kStartAgent, -1, node});
      return;
    case Fault::Kind::kStopAgent:
      if (!nodes_[node].away) Stop(agent(node).pid(), fault.lasts);
      return;
    case Fault::Kind::kKillCoordinator:
      if (coordinator_away_) return;
      KillCoordinator();
      due_.push_back({absl::Now() + fault.lasts, Due::What::kStartCoordinator});
      return;
    case Fault::Kind::kStopCoordinator:
      if (!coordinator_away_) Stop(cluster_.coordinator().pid(), fault.lasts);
      return;
    case Fault::Kind::kDrainNode:
      if (nodes_[node].drain != nullptr) return;
      StartDrain(node, false);
      due_.push_back({absl::Now() + fault.lasts, Due::What::kUndrain, -1, node});
      return;
  }
}

void ChaosCluster::Stop(pid_t pid, absl::Duration lasts) {
  Note(absl::StrCat("stop process ", pid));
  kill(pid, SIGSTOP);
  due_.push_back({absl::Now() + lasts, Due::What::kContinue, pid});
}

void ChaosCluster::StartDrain(int node, bool undo) {
  Note(absl::StrCat(undo ? "undo: " : "", "drain node ", NodeName(node)));
  std::vector<std::string> command = {Binary("muster"), "drain", NodeName(node)};
  if (undo) command.push_back("--undo");
  nodes_[node].undoing = undo;
  nodes_[node].drain = std::make_unique<Process>(
      cluster_.folder().path(), std::move(command),
      std::map<std::string, std::string>{{"MUSTER_COORDINATOR", cluster_.address()}});
}

// The coordinator may be away or stand still for as long as this process wants it to, so that no
// command is waited for; but the last one must have succeeded.
void ChaosCluster::Undrain(int node) {
  const int code = nodes_[node].drain->Wait(absl::ZeroDuration());
  if (nodes_[node].undoing && code == 0) return nodes_[node].drain.reset();
  if (code != -1) StartDrain(node, true);
  due_.push_back({absl::Now() + absl::Milliseconds(100), Due::What::kUndrain, -1, node});
}

void ChaosCluster::KillAgent(int node) {
  Note(absl::StrCat("kill agent ", NodeName(node)));
  agent(node).Signal(SIGKILL);
  agent(node).Wait();
  nodes_[node].away = true;
}

void ChaosCluster::KillNode(int node) {
  const std::vector<pid_t> trainers = TrainersOf(node);
  agent(node).Signal(SIGKILL);  // first, or it tells of their deaths
  for (const pid_t pid : trainers) kill(pid, SIGKILL);
  KillAgent(node);
  Note(absl::StrCat("with ", trainers.size(), " trainers"));
}

void ChaosCluster::StartAgent(int node) {
  cluster_.StartAgent(NodeName(node), nodes_[node].slots);
  nodes_[node].process = num_agents_started_++;
  nodes_[node].away = false;
  Note(absl::StrCat("agent ", NodeName(node), " is process ", agent(node).pid()));
}

void ChaosCluster::KillCoordinator() {
  Note("kill the coordinator");
  cluster_.coordinator().Signal(SIGKILL);
  cluster_.coordinator().Wait();
  coordinator_away_ = true;
}

void ChaosCluster::StartCoordinator() {
  cluster_.RestartCoordinator();
  coordinator_away_ = false;
  Note(absl::StrCat("the coordinator is process ", cluster_.coordinator().pid()));
}

void ChaosCluster::Do(const Due& due) {
  switch (due.what) {
    case Due::What::kContinue:
      Note(absl::StrCat("process ", due.pid, " goes on"));
      kill(due.pid, SIGCONT);
      return;
    case Due::What::kStartAgent:
      if (nodes_[due.node].away) StartAgent(due.node);
      return;
    case Due::What::kStartCoordinator:
      if (coordinator_away_) StartCoordinator();
      return;
    case Due::What::kUndrain:
      Undrain(due.node);
      return;
  }
}

bool ChaosCluster::Advance() {
  const absl::Time now = absl::Now();
  std::vector<Due> due;
  for (const Due& each : due_) {
    if (each.at <= now) due.push_back(each);
  }
  std::erase_if(due_, [&](const Due& each) { return each.at <= now; });
  for (const Due& each : due) Do(each);
  return !due_.empty();
}

void ChaosCluster::Heal() {
  const bool healed = Eventually([&] {
    std::vector<Due> due;
    std::swap(due, due_);
    // Agents and commands look for the coordinator.
    std::stable_sort(due.begin(), due.end(), [](const Due& a, const Due& b) {
      return (a.what == Due::What::kStartCoordinator) > (b.what == Due::What::kStartCoordinator);
    });
    for (const Due& each : due) Do(each);
    return due_.empty();
  });
  EXPECT_TRUE(healed) << history_;
}

void ChaosCluster::Note(const std::string& text) {
  absl::StrAppendFormat(&history_, "%s (%5.2f s) %s\n",
                        absl::FormatTime("%H:%M:%E3S", absl::Now(), absl::UTCTimeZone()),
                        absl::ToDoubleSeconds(absl::Now() - start_), text);
}

}  // namespace muster
