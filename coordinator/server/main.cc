// muster-coordinator: the daemon that owns a cluster's jobs.
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <random>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/runtime/log.h"
#include "coordinator/engine/sqlite_journal.h"
#include "coordinator/engine/state_folder.h"
#include "coordinator/server/server.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

constexpr char kHelp[] = R"(muster-coordinator: owns a cluster's workers and jobs.

usage: muster-coordinator --state-dir DIR [--listen HOST:PORT] [--http HOST:PORT]
                          [--token-file FILE]

  --state-dir DIR     folder of this coordinator: its journal, from which it goes on when it is started
                      again, and coordinator.json, which says where it listens
  --listen HOST:PORT  for workers and the command line; port 0: any free one
                      (default 127.0.0.1:7700); beyond loopback only with --token-file
  --http HOST:PORT    for /status, /metrics and /healthz; port 0: any free one (default: no HTTP);
                      beyond loopback only with --token-file, which all but /healthz then ask for
  --token-file FILE   a secret of 16 to 4096 characters on one line, in a file of mode 0600 or 0400;
                      every call must bring the same (muster-worker and muster --token-file)
  --heartbeat-interval-ms N, --heartbeat-timeout-ms N
                      how often agents report, and after which silence they are lost (500, 1500)
  --disk-reserve-mb N space that is kept free for the journal's last decisions on a full disk (16)
  --log-format text|json
                      of log lines (default: text, or MUSTER_LOG_FORMAT)
  --lifeline-fd N     stop when this descriptor reaches its end (for muster local)
  --help              this text

SIGTERM and SIGINT stop it in order. However it ends: trainers go on, and their agents reconnect to
the next coordinator that is started on the same address and state folder.
)";

constexpr int kUsage = 2;

struct Flags {
  std::string listen = "127.0.0.1:7700", http, state_dir, token_file, lifeline_fd, log_format;
  int heartbeat_interval_ms = 500, heartbeat_timeout_ms = 1500, disk_reserve_mb = 16;
  bool help = false;
};

absl::StatusOr<Flags> ParseFlags(int argc, char** argv) {
  Flags flags;
  const std::map<std::string, std::string*> texts = {
      {"--listen", &flags.listen},           {"--http", &flags.http},
      {"--state-dir", &flags.state_dir},     {"--token-file", &flags.token_file},
      {"--lifeline-fd", &flags.lifeline_fd}, {"--log-format", &flags.log_format}};
  const std::map<std::string, int*> numbers = {
      {"--heartbeat-interval-ms", &flags.heartbeat_interval_ms},
      {"--heartbeat-timeout-ms", &flags.heartbeat_timeout_ms},
      {"--disk-reserve-mb", &flags.disk_reserve_mb}};
  for (int i = 1; i < argc; ++i) {
    std::string name = argv[i], value;
    if (name == "--help" || name == "-h") {
      flags.help = true;
      continue;
    }
    const size_t equals = name.find('=');
    const bool known =
        texts.contains(name.substr(0, equals)) || numbers.contains(name.substr(0, equals));
    if (!known) {
      return absl::InvalidArgumentError(absl::StrCat("unknown flag ", name, "; see --help"));
    }
    if (equals != std::string::npos) {
      value = name.substr(equals + 1);
      name = name.substr(0, equals);
    } else if (i + 1 < argc) {
      value = argv[++i];
    } else {
      return absl::InvalidArgumentError(absl::StrCat(name, " needs a value; see --help"));
    }
    if (texts.contains(name)) {
      *texts.at(name) = value;
    } else if (const int least = name == "--disk-reserve-mb" ? 1 : 10;
               !absl::SimpleAtoi(value, numbers.at(name)) || *numbers.at(name) < least) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, "=", value, ": must be a number, ", least, " or more"));
    }
  }
  if (flags.help) return flags;
  if (!flags.log_format.empty() && !SetLogFormatByName(flags.log_format)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--log-format=", flags.log_format, ": must be text or json"));
  }
  if (flags.state_dir.empty()) {
    return absl::InvalidArgumentError("--state-dir DIR is missing; see --help");
  }
  if (flags.heartbeat_timeout_ms < 2 * flags.heartbeat_interval_ms) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--heartbeat-timeout-ms=", flags.heartbeat_timeout_ms,
        ": must be at least twice --heartbeat-interval-ms=", flags.heartbeat_interval_ms));
  }
  return flags;
}

absl::Status WriteAddressFile(const StateFolder& folder, const CoordinatorServer& server) {
  nlohmann::json json = {{"address", server.address()}, {"pid", getpid()}};
  if (!server.http_address().empty()) json["http_address"] = server.http_address();
  const std::string path = folder / "coordinator.json", aside = path + ".new";
  {
    std::ofstream out(aside, std::ios::trunc);
    out << json.dump() << "\n";
    if (!out.flush()) {
      return absl::InternalError(absl::StrCat(aside, ": cannot be written: ", strerror(errno)));
    }
  }
  std::error_code error;
  std::filesystem::rename(aside, path, error);  // whole or not at all
  if (error) return absl::InternalError(absl::StrCat(path, ": ", error.message()));
  return absl::OkStatus();
}

// The process that this one belongs to holds the pipe's other end: its end of file is as good as
// SIGTERM.
void StopAtEndOf(int lifeline_fd) {
  std::thread([lifeline_fd] {
    char ignored;
    ssize_t count;
    do {
      count = read(lifeline_fd, &ignored, 1);
    } while (count > 0 || (count < 0 && errno == EINTR));
    kill(getpid(), SIGTERM);
  }).detach();
}

void PrintRestored(const Restored& restored) {
  std::cout << absl::StreamFormat("restored %d jobs (%d not ended) and %d agents in %.1f ms\n",
                                  restored.num_jobs, restored.num_active_jobs, restored.num_agents,
                                  absl::ToDoubleMilliseconds(restored.took));
  MUSTER_LOG(kInfo) << "restored jobs=" << restored.num_jobs
                    << " active=" << restored.num_active_jobs << " agents=" << restored.num_agents
                    << " records=" << restored.num_records << " rows=" << restored.num_rows
                    << " ms=" << absl::ToInt64Milliseconds(restored.took);
}

std::string JobTag() {
  std::random_device random;
  return absl::StrFormat("%04x", random() & 0xffff);
}

absl::Status Serve(const Flags& flags, const sigset_t& signals) {
  ServerOptions options{.listen = flags.listen, .http = flags.http};
  if (!flags.token_file.empty()) {
    ASSIGN_OR_RETURN(options.token, ReadTokenFile(flags.token_file));
  }
  ASSIGN_OR_RETURN(const StateFolder folder, StateFolder::Open(flags.state_dir));
  ASSIGN_OR_RETURN(const auto journal,
                   SqliteJournal::Open({.path = folder / "journal.sqlite",
                                        .created_by = "muster-coordinator",
                                        .reserve_bytes = int64_t{flags.disk_reserve_mb} << 20}));
  options.journal = journal.get();
  options.coordinator_id = journal->coordinator_id();
  options.trace_folder = folder / "traces";
  RealClock clock;
  MembershipOptions& membership = options.engine.core.membership;
  membership.heartbeat_interval = absl::Milliseconds(flags.heartbeat_interval_ms);
  membership.heartbeat_timeout = absl::Milliseconds(flags.heartbeat_timeout_ms);
  options.engine.core.jobs.symptom_window = membership.heartbeat_timeout + absl::Seconds(1);
  options.engine.core.job_tag = JobTag();
  ASSIGN_OR_RETURN(const auto server, CoordinatorServer::Start(options, &clock));
  RETURN_IF_ERROR(WriteAddressFile(folder, *server));
  if (!journal->created()) PrintRestored(server->restored());
  if (!server->http_address().empty()) {
    std::cout << "http on " << server->http_address() << "\n";
  }
  std::cout << "listening on " << server->address() << std::endl;
  if (int fd = -1; !flags.lifeline_fd.empty() && absl::SimpleAtoi(flags.lifeline_fd, &fd)) {
    StopAtEndOf(fd);
  }
  int signal_number = 0;
  sigwait(&signals, &signal_number);
  MUSTER_LOG(kInfo) << "stopping signal=" << strsignal(signal_number);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);  // a second one ends the process at once
  server->Stop();
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  SetLogName("coordinator");
  const auto flags = ParseFlags(argc, argv);
  if (!flags.ok()) {
    std::cerr << "muster-coordinator: " << flags.status().message() << "\n";
    return kUsage;
  }
  if (flags->help) {
    std::cout << kHelp;
    return 0;
  }
  // Blocked before any thread starts, so that none of them takes the signals that sigwait is for.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const absl::Status status = Serve(*flags, signals);
  if (status.ok()) return 0;
  std::cerr << "muster-coordinator: " << status.message() << "\n";
  const bool usage = status.code() == absl::StatusCode::kInvalidArgument ||
                     status.code() == absl::StatusCode::kFailedPrecondition ||
                     status.code() == absl::StatusCode::kNotFound;
  return usage ? kUsage : 1;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) { return muster::Main(argc, argv); }
