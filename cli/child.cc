#include "cli/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/runtime/spawn.h"

namespace muster {
namespace {

constexpr size_t kShownLogLines = 10;

}  // namespace

absl::StatusOr<std::unique_ptr<Child>> Child::Start(const Options& options) {
  std::unique_ptr<Child> child(new Child(options));
  int lifeline[2];
  if (pipe2(lifeline, O_CLOEXEC) != 0) {
    return absl::UnavailableError(absl::StrCat("pipe2: ", strerror(errno)));
  }
  child->lifeline_ = lifeline[1];
  SpawnOptions spawn{.program = options.program,
                     .arguments = options.arguments,
                     .output_path = options.log_path,
                     .inherited_fd = lifeline[0]};
  spawn.arguments.push_back("--lifeline-fd");
  spawn.arguments.push_back(absl::StrCat(kInheritedFd));
  const int error = Spawn(spawn, &child->pid_);
  close(lifeline[0]);
  if (error != 0) {
    child->ended_ = true;
    return absl::NotFoundError(
        absl::StrCat("cannot start ", options.program, ": ", strerror(error)));
  }
  child->pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, child->pid_, 0));
  if (child->pidfd_ < 0) {
    return absl::UnavailableError(absl::StrCat("pidfd_open: ", strerror(errno)));
  }
  return child;
}

Child::~Child() {
  if (!ended_) {
    kill(pid_, SIGKILL);
    while (waitpid(pid_, &wait_status_, 0) < 0 && errno == EINTR) {
    }
  }
  if (pidfd_ >= 0) close(pidfd_);
  if (lifeline_ >= 0) close(lifeline_);
}

void Child::Signal(int signal) {
  if (!ended_) kill(pid_, signal);
}

bool Child::WaitEnd(absl::Duration limit) {
  if (ended_) return true;
  pollfd polled = {pidfd_, POLLIN, 0};
  const int ready = poll(&polled, 1, static_cast<int>(absl::ToInt64Milliseconds(limit)));
  if (ready <= 0) return false;
  while (waitpid(pid_, &wait_status_, 0) < 0 && errno == EINTR) {
  }
  ended_ = true;
  return true;
}

std::string Child::DescribeEnd() const {
  std::string text =
      WIFSIGNALED(wait_status_)
          ? absl::StrCat(options_.name, " was ended by signal ", WTERMSIG(wait_status_), " (",
                         strsignal(WTERMSIG(wait_status_)), ")")
          : absl::StrCat(options_.name, " ended with exit code ", WEXITSTATUS(wait_status_));
  std::deque<std::string> lines;
  std::ifstream log(options_.log_path);
  for (std::string line; std::getline(log, line);) {
    lines.push_back(line);
    if (lines.size() > kShownLogLines) lines.pop_front();
  }
  if (!lines.empty()) absl::StrAppend(&text, "; its last lines:\n  ", absl::StrJoin(lines, "\n  "));
  return text;
}

}  // namespace muster
