#include "cli/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster {
namespace {

constexpr int kLifelineFd = 3;  // in the child
constexpr size_t kShownLogLines = 10;

}  // namespace

absl::StatusOr<std::unique_ptr<Child>> Child::Start(const Options& options) {
  std::unique_ptr<Child> child(new Child(options));
  int lifeline[2];
  if (pipe2(lifeline, O_CLOEXEC) != 0) {
    return absl::UnavailableError(absl::StrCat("pipe2: ", strerror(errno)));
  }
  child->lifeline_ = lifeline[1];
  std::vector<std::string> words = {options.program};
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  words.push_back("--lifeline-fd");
  words.push_back(absl::StrCat(kLifelineFd));
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, options.log_path.c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0644);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  // dup2 onto itself would keep close-on-exec in an older libc; 3 may be the pipe's own number.
  posix_spawn_file_actions_adddup2(&actions, lifeline[0], kLifelineFd);
  posix_spawn_file_actions_addclosefrom_np(&actions, kLifelineFd + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  // A process group of its own: a ctrl-C at the terminal is this program's to handle.
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  const int error = posix_spawn(&child->pid_, options.program.c_str(), &actions, &attributes,
                                arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
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
