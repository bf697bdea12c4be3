#include "tests/integration/cluster.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace muster {

using nlohmann::json;

// MUSTER_BIN_DIR in the environment: binaries that were built elsewhere (./dev gpu).
std::string Binary(const std::string& name) {
  const char* const folder = std::getenv("MUSTER_BIN_DIR");
  return absl::StrCat(folder == nullptr ? MUSTER_BIN_DIR : folder, "/", name);
}

std::vector<json> JsonLines(const std::string& text) {
  std::vector<json> records;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) records.push_back(json::parse(line));
  return records;
}

json SmallSpec(int world_size, int train_iters) {
  return {{"name", "small"},
          {"model",
           {{"num_layers", 1},
            {"hidden_size", 16},
            {"num_attention_heads", 2},
            {"seq_length", 16},
            {"attention_dropout", 0.0},
            {"hidden_dropout", 0.0}}},
          {"parallel", {{"distributed_backend", "gloo"}}},
          {"data", {{"dataset_provider", "mock"}}},
          {"training",
           {{"micro_batch_size", 1},
            {"global_batch_size", world_size},
            {"train_iters", train_iters},
            {"log_interval", 10},
            {"num_threads", 1}}},
          {"optimizer", {{"lr", 0.001}}},
          {"schedule", {{"lr_decay_style", "constant"}}},
          {"evaluation", {{"eval_iters", 1}}},
          {"resources", {{"world_size", world_size}, {"device", "cpu"}}}};
}

Cluster::Cluster(const std::string& trainer, const std::string& token) : trainer_(trainer) {
  if (!token.empty()) {
    token_file_ = folder_ / "token";
    PutFileText(token_file_, token + "\n");
    EXPECT_EQ(chmod(token_file_.c_str(), 0600), 0);
  }
  StartCoordinator(token.empty() ? "127.0.0.1:0" : "0.0.0.0:0");
}

void Cluster::RestartCoordinator() {
  coordinator_.reset();
  unlink((folder_ / "coordinator/coordinator.json").c_str());
  StartCoordinator(address_);
}

void Cluster::StartCoordinator(const std::string& listen) {
  std::vector<std::string> command = {
      Binary("muster-coordinator"), "--listen", listen, "--http", "127.0.0.1:0", "--state-dir",
      folder_ / "coordinator"};
  if (!token_file_.empty()) {
    command.push_back("--token-file");
    command.push_back(token_file_);
  }
  coordinator_ = std::make_unique<Process>(folder_.path(), command);
  const std::string file = folder_ / "coordinator/coordinator.json";
  EXPECT_TRUE(Eventually([&] {
    const json parsed = json::parse(FileText(file), nullptr, false);
    if (!parsed.is_object()) return false;
    address_ =
        absl::StrReplaceAll(parsed["address"].get<std::string>(), {{"0.0.0.0", "127.0.0.1"}});
    return true;
  })) << coordinator_->Stderr();
}

Process& Cluster::StartAgent(const std::string& name, int slots) {
  return StartAgent(name, slots, token_file_);
}

Process& Cluster::StartAgent(const std::string& name, int slots, const std::string& token_file) {
  std::vector<std::string> command = {
      Binary("muster-worker"), "--coordinator", address_, "--device",    "cpu",       "--slots",
      absl::StrCat(slots),     "--name",        name,     "--advertise", "127.0.0.1", "--state-dir",
      folder_ / name};
  command.insert(command.end(), agent_options.begin(), agent_options.end());
  if (!trainer_.empty()) {
    command.push_back("--trainer");
    command.push_back(trainer_);
  }
  if (!token_file.empty()) {
    command.push_back("--token-file");
    command.push_back(token_file);
  }
  command.insert(command.begin(), agent_prefix.begin(), agent_prefix.end());
  // The variable marks the trainers as this test's own.
  agents_.push_back(std::make_unique<Process>(
      folder_.path(), command,
      std::map<std::string, std::string>{{"MUSTER_TEST_FOLDER", folder_.path()}}));
  return *agents_.back();
}

Result Cluster::Muster(std::vector<std::string> words) {
  words.insert(words.begin(), Binary("muster"));
  return RunCommand(folder_.path(), std::move(words),
                    {{"MUSTER_COORDINATOR", address_}, {"MUSTER_TOKEN_FILE", token_file_}});
}

json Cluster::MusterJson(std::vector<std::string> words) {
  words.push_back("--json");
  const Result result = Muster(std::move(words));
  if (result.code != 0) {
    last_error = result.err;
    return nullptr;
  }
  return json::parse(result.out, nullptr, false);
}

std::string Cluster::Submit(const json& spec) {
  PutFileText(folder_ / "spec.json", spec.dump());
  const json submitted = MusterJson({"submit", folder_ / "spec.json"});
  return submitted.is_object() ? submitted["job_id"].get<std::string>() : "";
}

bool Cluster::WaitForWorkers(int count) {
  return Eventually([&] {
    const json workers = MusterJson({"workers"});
    return workers.is_array() &&
           count == std::count_if(workers.begin(), workers.end(), [](const json& worker) {
             return worker["state"] == "ALIVE" && worker["job_id"].is_null();
           });
  });
}

bool Cluster::WaitForIteration(const std::string& job_id, int64_t iteration) {
  return Eventually([&] {
    const json status = MusterJson({"status", job_id});
    return status.is_object() && status["iteration"].get<int64_t>() >= iteration;
  });
}

json Cluster::WaitForEnd(const std::string& job_id) {
  json status;
  const bool ended = Eventually([&] {
    status = MusterJson({"status", job_id});
    return status.is_object() && !status["exit_code"].is_null();
  });
  return ended ? status : json(nullptr);
}

std::vector<pid_t> Cluster::TrainerPids() {
  const std::string name = trainer_.empty() ? Binary("muster-trainer") : trainer_;
  std::vector<pid_t> pids;
  for (const pid_t pid : ProcessesNaming("MUSTER_TEST_FOLDER=" + folder_.path())) {
    const std::string command = FileText(absl::StrCat("/proc/", pid, "/cmdline"));
    const bool is_it = command.rfind(name + std::string(1, '\0'), 0) == 0;
    if (is_it && command.find("--check-device") == std::string::npos) pids.push_back(pid);
  }
  return pids;
}

bool Cluster::NoTrainerLeft() {
  return Eventually([&] { return TrainerPids().empty(); }, absl::Seconds(20));
}

}  // namespace muster
