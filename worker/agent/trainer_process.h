// One muster-trainer as a child process: start, control socket, logs, signals, exit.
//
// posix_spawn, since a process with gRPC threads must not fork. The child gets stdin from
// /dev/null, stdout and stderr in one pipe, the control socket at file descriptor 3, a process
// group of its own (a ctrl-C at the terminal is the agent's to handle) and nothing else that is
// open here. A thread of this object reads and writes; the callbacks run on it, in order:
// everything that the trainer said or logged comes before on_dying and on_exit. on_exit comes
// exactly once, when the process is gone (pidfd); on_dying at most once, as soon as its main thread
// has ended with an error, which is before its memory is given back (common/runtime/life_lock.h;
// trainers hold it, other programs need not). The trainer ends itself at end of file on its control
// socket, so none survives an agent that was killed; see AgentToTrainer in
// common/control/messages.h.
//
// Thread-safe. The destructor kills what still runs, reaps it, and waits for the callbacks' end:
// never destroy it inside a callback.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace muster {

struct TrainerExit {
  int code = 0;       // exit code; -1 when a signal ended it
  int signal = 0;     // 0 when it exited by itself
  std::string error;  // the agent's own reason for ending it (a broken control line, ...), or empty
  std::vector<std::string> last_log_lines;  // oldest first, bounded
  // "exit code 3", "signal 9 (Killed)"
  std::string Describe() const;
};

class TrainerProcess {
 public:
  struct Options {
    std::string program;  // path of muster-trainer
    std::vector<std::string>
        arguments;  // after the program; --control-fd 3 and --life-lock PATH are added
    std::map<std::string, std::string> env;  // added to this process's own environment
    std::vector<int> cpus;                   // that it may run on; empty: as this process
    int memory_node = -1;              // NUMA node to take memory from; -1: the kernel's choice
    std::string log_path;              // appended to; the folder must be there. Empty: no file
    int64_t max_log_bytes = 64 << 20;  // then log_path becomes log_path.1
    size_t tail_lines = 50, tail_bytes = 16 << 10;
    size_t max_log_line = 4096;          // bytes; longer ones are cut into several
    size_t max_control_line = 16 << 20;  // bytes; a longer one ends the trainer
    size_t max_outbox = 64 << 20;        // bytes that wait for a trainer that does not read
  };
  struct Callbacks {
    std::function<void(std::string line)> on_message;  // a control line, without its '\n'
    std::function<void(std::string line)> on_log_line;
    // The log file can't be written, a full disk most likely; the trainer goes on.
    std::function<void(std::string text)> on_log_problem;
    std::function<void(TrainerExit)> on_dying;  // what on_exit will say
    std::function<void(TrainerExit)> on_exit;
  };

  // NOT_FOUND when the program is not there, PERMISSION_DENIED, or UNAVAILABLE (no memory,
  // processes or descriptors); each names the program and the reason.
  static absl::StatusOr<std::unique_ptr<TrainerProcess>> Start(Options options,
                                                               Callbacks callbacks);
  ~TrainerProcess();
  TrainerProcess(const TrainerProcess&) = delete;
  TrainerProcess& operator=(const TrainerProcess&) = delete;

  pid_t pid() const;
  // Queues a control line, '\n' included. RESOURCE_EXHAUSTED: the trainer does not read (it may be
  // stopped); FAILED_PRECONDITION: it has ended.
  absl::Status Send(absl::string_view line);
  // No effect once it has ended: the child is not reaped until then, so the pid is still its own.
  void Signal(int signal);
  // Kills the whole process group unless the trainer has ended within `grace`. The first call's
  // `reason` goes into TrainerExit.error when the kill was needed.
  void KillAfter(absl::Duration grace, absl::string_view reason);
  // Closes the control socket: end of file is the trainer's order to leave.
  void CloseControl();

 private:
  class Impl;
  explicit TrainerProcess(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

// muster-trainer beside the running program, or muster-trainer-cuda for CUDA devices.
// `override_path` wins when not empty.
std::string FindTrainerProgram(absl::string_view override_path, bool cuda);

}  // namespace muster
