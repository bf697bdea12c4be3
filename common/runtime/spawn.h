// A program as a child process. By posix_spawn, since a process with threads must not fork.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace muster {

struct SpawnOptions {
  std::string program;                                  // a path
  std::vector<std::string> arguments;                   // after the program
  std::optional<std::vector<std::string>> environment;  // NAME=VALUE; nullopt: this process's own
  // stdout and stderr: this descriptor, or, where it is -1, this file, appended to.
  int output_fd = -1;
  std::string output_path;
  int inherited_fd = -1;  // the child has it as kInheritedFd
};
inline constexpr int kInheritedFd = 3;

// The child gets stdin from /dev/null, no blocked or ignored signal, a process group of its own (a
// ctrl-C at the terminal is this process's to handle) and nothing else that is open here. Returns
// 0, or errno when it could not be started.
[[nodiscard]] int Spawn(const SpawnOptions& options, pid_t* pid);

}  // namespace muster
