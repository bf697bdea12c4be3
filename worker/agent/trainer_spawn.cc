#include "worker/agent/trainer_spawn.h"

#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/runtime/log.h"
#include "common/runtime/spawn.h"
#include "worker/agent/machine_cores.h"

namespace muster {
namespace {

// Moves a descriptor above the ones that the child's dup2 calls overwrite.
absl::StatusOr<Fd> MoveUp(int fd) {
  Fd low(fd);
  Fd high(fcntl(fd, F_DUPFD_CLOEXEC, 10));
  if (!high.open()) return ErrnoStatus(errno, "fcntl(F_DUPFD_CLOEXEC)");
  return high;
}

std::vector<std::string> MergedEnvironment(const std::map<std::string, std::string>& added) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!added.contains(text.substr(0, text.find('=')))) result.push_back(text);
  }
  for (const auto& [name, value] : added) result.push_back(absl::StrCat(name, "=", value));
  return result;
}

}  // namespace

absl::Status ErrnoStatus(int error, absl::string_view what) {
  const std::string text = absl::StrCat(what, ": ", strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(text);
    case EACCES:
    case EPERM:
    case ENOEXEC:
      return absl::PermissionDeniedError(text);
    default:
      return absl::UnavailableError(text);
  }
}

absl::StatusOr<TrainerChannels> MakeTrainerChannels() {
  TrainerChannels channels;
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
    return ErrnoStatus(errno, "socketpair");
  }
  channels.control = Fd(pair[0]);
  ASSIGN_OR_RETURN(channels.control_child, MoveUp(pair[1]));
  if (pipe2(pair, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe2");
  channels.log = Fd(pair[0]);
  ASSIGN_OR_RETURN(channels.log_child, MoveUp(pair[1]));
  for (int fd : {channels.control.get(), channels.log.get()}) {
    if (fcntl(fd, F_SETFL, O_NONBLOCK) != 0) return ErrnoStatus(errno, "fcntl(O_NONBLOCK)");
  }
  return channels;
}

absl::StatusOr<pid_t> SpawnTrainer(const TrainerProcess::Options& options,
                                   const TrainerChannels& channels, const std::string& life_lock) {
  SpawnOptions spawn{.program = options.program,
                     .arguments = options.arguments,
                     .environment = MergedEnvironment(options.env),
                     .output_fd = channels.log_child.get(),
                     .inherited_fd = channels.control_child.get()};
  spawn.arguments.push_back("--control-fd");
  spawn.arguments.push_back(absl::StrCat(kInheritedFd));
  spawn.arguments.push_back("--life-lock");
  spawn.arguments.push_back(life_lock);
  const ScopedBinding binding(options.cpus, options.memory_node);
  if (!binding.problem().empty()) {
    // Cores may have been taken from this agent since its start. Slower, not wrong.
    MUSTER_LOG(kWarning) << "the trainer is not bound to its cores: " << binding.problem();
  }
  pid_t pid = -1;
  const int error = Spawn(spawn, &pid);
  if (error == 0) return pid;
  return ErrnoStatus(error, absl::StrCat("cannot start the trainer ", options.program));
}

std::optional<TrainerExit> DyingWith(pid_t pid) {
  // proc(5): after the name in parentheses, which may contain anything, fields 3 (the state) and
  // on; 52 is the exit status, 0 while the process lives.
  constexpr size_t kExitStatus = 52 - 3;
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string text;
  std::getline(file, text);
  const std::vector<std::string> fields =
      absl::StrSplit(text.substr(std::min(text.rfind(')'), text.size())), ' ', absl::SkipEmpty());
  int status = 0;
  if (fields.size() <= kExitStatus + 1 || !absl::SimpleAtoi(fields[kExitStatus + 1], &status) ||
      status == 0) {
    return std::nullopt;
  }
  if (WIFSIGNALED(status)) return TrainerExit{.code = -1, .signal = WTERMSIG(status)};
  return TrainerExit{.code = WEXITSTATUS(status)};
}

}  // namespace muster
