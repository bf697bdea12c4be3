// A daemon as this program's child, ended with it whatever happens: it holds the read end of a pipe
// (the lifeline) whose only write end is here, and leaves at its end of file. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace muster {

class Child {
 public:
  struct Options {
    std::string name;  // for messages
    std::string program;
    std::vector<std::string> arguments;  // --lifeline-fd N is added
    std::string log_path;                // its stdout and stderr, appended
  };
  // NOT_FOUND and the like name the program and the reason.
  static absl::StatusOr<std::unique_ptr<Child>> Start(const Options& options);
  ~Child();  // kills and reaps it
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  const std::string& name() const { return options_.name; }
  void Signal(int signal);
  // True once it has ended; waits for it at most `limit`.
  bool WaitEnd(absl::Duration limit);
  // How it ended, with the last lines of its log: for a message.
  std::string DescribeEnd() const;

 private:
  explicit Child(Options options) : options_(std::move(options)) {}

  const Options options_;
  pid_t pid_ = -1;
  int pidfd_ = -1, lifeline_ = -1;
  bool ended_ = false;
  int wait_status_ = 0;
};

}  // namespace muster
