#include "cli/local_cluster.h"

#include <signal.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/interrupt.h"
#include "cli/programs.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

constexpr absl::Duration kStartLimit = absl::Seconds(20);

}  // namespace

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Start(const Options& options) {
  std::unique_ptr<LocalCluster> cluster(new LocalCluster(options));
  RETURN_IF_ERROR(cluster->StartAll());
  return cluster;
}

absl::Status LocalCluster::StartAll() {
  const std::string& dir = options_.state_dir;
  std::error_code error;
  std::filesystem::create_directories(dir + "/coordinator", error);
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("--state-dir=", dir, " can't be made: ", error.message()));
  }
  // A former run's address must not be taken for this one's.
  std::filesystem::remove(dir + "/coordinator/coordinator.json", error);
  ASSIGN_OR_RETURN(
      coordinator_,
      Child::Start({.name = "muster-coordinator",
                    .program = ProgramBeside("muster-coordinator"),
                    .arguments = {"--listen", absl::StrCat("127.0.0.1:", options_.port), "--http",
                                  "127.0.0.1:0", "--state-dir", dir + "/coordinator"},
                    .log_path = dir + "/coordinator.log"}));
  ASSIGN_OR_RETURN(address_, WaitForAddress());
  std::vector<std::string> arguments = {
      "--coordinator", address_,      "--device",
      options_.device, "--slots",     absl::StrCat(options_.num_workers),
      "--name",        "local",       "--advertise",
      "127.0.0.1",     "--state-dir", dir + "/worker"};
  if (!options_.trainer.empty()) {
    arguments.push_back("--trainer");
    arguments.push_back(options_.trainer);
  }
  ASSIGN_OR_RETURN(worker_, Child::Start({.name = "muster-worker",
                                          .program = ProgramBeside("muster-worker"),
                                          .arguments = arguments,
                                          .log_path = dir + "/worker.log"}));
  return WriteDescription("");
}

absl::StatusOr<std::string> LocalCluster::WaitForAddress() {
  const absl::Time limit = absl::Now() + kStartLimit;
  while (absl::Now() < limit) {
    if (NumInterrupts() > 0) return absl::CancelledError("interrupted");
    // It appears whole or not at all.
    std::ifstream file(options_.state_dir + "/coordinator/coordinator.json");
    const nlohmann::json json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.contains("address")) {
      http_address_ = json.value("http_address", "");
      return json["address"].get<std::string>();
    }
    if (coordinator_->WaitEnd(absl::Milliseconds(5))) {
      return absl::UnavailableError(coordinator_->DescribeEnd());
    }
  }
  return absl::DeadlineExceededError(absl::StrCat("muster-coordinator does not listen after ",
                                                  absl::FormatDuration(kStartLimit), "; see ",
                                                  options_.state_dir, "/coordinator.log"));
}

absl::Status LocalCluster::Check() {
  for (Child* child : {coordinator_.get(), worker_.get()}) {
    if (child->WaitEnd(absl::ZeroDuration())) return absl::InternalError(child->DescribeEnd());
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::WriteDescription(const std::string& job_id) const {
  nlohmann::ordered_json json = {
      {"address", address_},
      {"http_address", http_address_},
      {"pids", {{"coordinator", coordinator_->pid()}, {"worker", worker_->pid()}}},
      {"state_dir", std::filesystem::absolute(options_.state_dir).string()}};
  if (!job_id.empty()) json["job_id"] = job_id;
  return WriteStateFile("cluster.json", json.dump(2));
}

absl::Status LocalCluster::WriteStateFile(const std::string& name, const std::string& text) const {
  const std::string path = options_.state_dir + "/" + name, aside = path + ".new";
  {
    std::ofstream file(aside);
    file << text << "\n";
    if (!file.flush()) {
      return absl::UnavailableError(absl::StrCat("cannot write ", aside, ": ", strerror(errno)));
    }
  }
  if (rename(aside.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", strerror(errno)));
  }
  return absl::OkStatus();
}

void LocalCluster::Stop(absl::Duration grace) {
  for (Child* child : {worker_.get(), coordinator_.get()}) {
    if (child == nullptr) continue;
    child->Signal(grace > absl::ZeroDuration() ? SIGTERM : SIGKILL);
    if (!child->WaitEnd(grace)) child->Signal(SIGKILL);
  }
  worker_.reset();
  coordinator_.reset();
}

}  // namespace muster
