// muster-worker: the agent of a node.
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/rpc/address.h"
#include "common/runtime/log.h"
#include "worker/agent/agent.h"
#include "worker/agent/device.h"
#include "worker/agent/machine_cores.h"
#include "worker/agent/trainer_process.h"

namespace muster {
namespace {

constexpr char kUsage[] =
    R"(muster-worker: runs the trainers of this node, as the coordinator says

  muster-worker --coordinator HOST:PORT --device cpu|cuda:N|cuda:all|LIST --state-dir DIR

  --coordinator HOST:PORT  where muster-coordinator listens
  --token-file FILE        the cluster's secret, in a file of mode 0600 or 0400; needed when
                           muster-coordinator was given one
  --device DEVICE          cpu, cuda:N, cuda:all, or a list such as cuda:0,cuda:1
  --slots N                with --device cpu: N workers in this agent (default 1)
  --name NAME              of this node, unique in the cluster (default: the host's name)
  --advertise ADDRESS      how other nodes reach this one (default: as the coordinator sees it)
  --state-dir DIR          logs of the trainers, reports while the coordinator is away
  --plugin-dir DIR         a folder that a job's `plugin` may come from; may be given repeatedly
  --trainer PATH           muster-trainer (default: beside this program)
  --num-cpus N             cores that the trainers share (default: all that this process may use)
  --bind cores|numa|none   cores: each worker has its share of the cores, near its device; numa: all
                           cores of its NUMA node; none: the kernel decides (default: cores when there
                           are several workers and a core for each)
  --log-format text|json   of this program's log lines and its trainers' (default: text, or
                           MUSTER_LOG_FORMAT)
  --lifeline-fd N          end at once when this descriptor reaches its end (for muster local)
)";

constexpr int kHardExitMs = 15'000;  // after the second order to end

struct Flags {
  Agent::Options agent;
  std::string device;
  int slots = 1;
  int lifeline_fd = -1;
  bool help = false;
};

absl::Status ParseInt(absl::string_view name, const std::string& text, int* value) {
  if (absl::SimpleAtoi(text, value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, "=", text, ": must be a number"));
}

absl::StatusOr<std::vector<WorkerCores>> CoresOf(const Agent::Options& agent,
                                                 const std::string& bind) {
  std::optional<BindMode> mode;
  if (!bind.empty()) {
    ASSIGN_OR_RETURN(mode, ParseBindMode(bind));
  }
  std::vector<Core> cores = AllowedCores();
  if (static_cast<int>(cores.size()) > agent.num_cpus) cores.resize(agent.num_cpus);
  std::vector<int> nodes;
  for (const DeviceSlot& slot : agent.devices) nodes.push_back(NumaNodeOfDevice(slot.device));
  ASSIGN_OR_RETURN(std::vector<WorkerCores> split, SplitCores(std::move(cores), nodes, mode));
  // Without a second node there is no policy to set.
  if (CountNumaNodes() < 2) {
    for (WorkerCores& worker : split) worker.numa_node = -1;
  }
  return split;
}

absl::StatusOr<Flags> ParseFlags(int argc, char** argv) {
  Flags flags;
  flags.agent.num_cpus = std::max(1u, std::thread::hardware_concurrency());
  std::string trainer, num_cpus, slots = "1", lifeline, bind, log_format;
  const std::map<std::string, std::string*> texts = {
      {"--coordinator", &flags.agent.coordinator},
      {"--token-file", &flags.agent.token_file},
      {"--device", &flags.device},
      {"--slots", &slots},
      {"--name", &flags.agent.name},
      {"--advertise", &flags.agent.advertised_address},
      {"--state-dir", &flags.agent.state_dir},
      {"--trainer", &trainer},
      {"--num-cpus", &num_cpus},
      {"--bind", &bind},
      {"--log-format", &log_format},
      {"--lifeline-fd", &lifeline}};
  for (int i = 1; i < argc; ++i) {
    std::string name = argv[i], value;
    if (name == "--help" || name == "-h") {
      flags.help = true;
      return flags;
    }
    const size_t equals = name.find('=');
    if (equals != std::string::npos) {
      value = name.substr(equals + 1);
      name = name.substr(0, equals);
    }
    const auto found = texts.find(name);
    if (found == texts.end() && name != "--plugin-dir") {
      return absl::InvalidArgumentError(absl::StrCat("unknown option ", name));
    }
    if (equals == std::string::npos) {
      if (++i == argc) return absl::InvalidArgumentError(absl::StrCat(name, " needs a value"));
      value = argv[i];
    }
    if (found != texts.end()) {
      *found->second = value;
    } else {
      flags.agent.plugin_dirs.push_back(value);
    }
  }
  for (const char* required : {"--coordinator", "--device", "--state-dir"}) {
    if (texts.at(required)->empty()) {
      return absl::InvalidArgumentError(absl::StrCat(required, " is needed"));
    }
  }
  RETURN_IF_ERROR(ParseInt("--slots", slots, &flags.slots));
  if (!log_format.empty() && !SetLogFormatByName(log_format)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--log-format=", log_format, ": must be text or json"));
  }
  if (!lifeline.empty()) {
    RETURN_IF_ERROR(ParseInt("--lifeline-fd", lifeline, &flags.lifeline_fd));
  }
  if (!num_cpus.empty()) {
    RETURN_IF_ERROR(ParseInt("--num-cpus", num_cpus, &flags.agent.num_cpus));
    if (flags.agent.num_cpus < 1) {
      return absl::InvalidArgumentError(absl::StrCat("--num-cpus=", num_cpus, ": at least 1"));
    }
  }
  ASSIGN_OR_RETURN(const HostPort coordinator, ParseHostPort(flags.agent.coordinator));
  (void)coordinator;
  if (!flags.agent.token_file.empty()) {
    ASSIGN_OR_RETURN(flags.agent.token, ReadTokenFile(flags.agent.token_file));
  }
  ASSIGN_OR_RETURN(flags.agent.devices,
                   ParseDevices(flags.device, flags.slots, CountCudaDevices()));
  ASSIGN_OR_RETURN(flags.agent.cores, CoresOf(flags.agent, bind));
  const bool cuda = flags.agent.devices.front().device != "cpu";
  flags.agent.trainer_program = FindTrainerProgram(trainer, cuda);
  if (access(flags.agent.trainer_program.c_str(), X_OK) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("no trainer program at ", flags.agent.trainer_program, ": install ",
                     cuda ? "muster-trainer-cuda (the cuda preset builds it)" : "muster-trainer",
                     " there, "
                     "or name it with --trainer"));
  }
  if (flags.agent.name.empty()) {
    char host[256] = "node";
    gethostname(host, sizeof(host) - 1);
    flags.agent.name = host;
  }
  return flags;
}

// Turns SIGTERM, SIGINT and the end of the lifeline into Terminate. The signals are blocked in
// every thread (before the first is started), so only this reads them.
class Watcher {
 public:
  Watcher(const sigset_t& signals, int lifeline_fd, Agent* agent)
      : signals_(signalfd(-1, &signals, SFD_CLOEXEC)), stop_(eventfd(0, EFD_CLOEXEC)) {
    thread_ = std::thread([this, lifeline_fd, agent] { Watch(lifeline_fd, agent); });
  }
  ~Watcher() {
    const uint64_t one = 1;
    (void)!write(stop_, &one, sizeof(one));
    thread_.join();
    close(signals_);
    close(stop_);
  }

 private:
  void Watch(int lifeline_fd, Agent* agent) {
    int terminations = 0;
    while (true) {
      pollfd polled[] = {
          {signals_, POLLIN, 0}, {stop_, POLLIN, 0}, {lifeline_fd, POLLIN | POLLHUP, 0}};
      const int ready = poll(polled, 3, terminations < 2 ? -1 : kHardExitMs);
      if (ready < 0) continue;
      if (ready == 0) {
        // A thread of the agent hangs, in a dead file system most likely. The trainers end
        // themselves at the end of file on their control sockets.
        MUSTER_LOG(kError) << "told to end twice and still here: leaving without an orderly end";
        std::_Exit(1);
      }
      if (polled[1].revents != 0) return;
      if (polled[0].revents != 0) {
        signalfd_siginfo info;
        if (read(signals_, &info, sizeof(info)) == sizeof(info)) {
          MUSTER_LOG(kInfo) << "signal " << info.ssi_signo << ": ending";
          agent->Terminate();
          ++terminations;
        }
      }
      if (polled[2].revents != 0) {
        MUSTER_LOG(kWarning) << "the process that this agent belongs to is gone: ending now";
        agent->Terminate();
        agent->Terminate();
        terminations += 2;
        lifeline_fd = -1;
      }
    }
  }

  const int signals_, stop_;
  std::thread thread_;
};

int Main(int argc, char** argv) {
  SetLogName("worker");
  absl::StatusOr<Flags> flags = ParseFlags(argc, argv);
  if (!flags.ok()) {
    std::cerr << "muster-worker: " << flags.status().message() << " (muster-worker --help)\n";
    return 2;
  }
  if (flags->help) {
    std::cout << kUsage;
    return 0;
  }
  std::error_code error;
  std::filesystem::create_directories(flags->agent.state_dir, error);
  if (error) {
    std::cerr << "muster-worker: --state-dir=" << flags->agent.state_dir
              << " can't be made: " << error.message() << "\n";
    return 2;
  }
  signal(SIGPIPE, SIG_IGN);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  Agent agent(flags->agent);
  absl::Status status;
  {
    Watcher watcher(signals, flags->lifeline_fd, &agent);
    status = agent.Run();
  }
  if (!status.ok()) {
    std::cerr << "muster-worker: " << status.message() << "\n";
    return absl::IsUnauthenticated(status) ? 2 : 1;
  }
  return 0;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) { return muster::Main(argc, argv); }
