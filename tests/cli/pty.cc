#include "tests/cli/pty.h"

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

extern char** environ;

namespace muster {

Pty::Pty(const std::vector<std::string>& command, int columns,
         const std::map<std::string, std::string>& env) {
  // All that the child needs is made before the fork: other threads may hold locks in it.
  std::vector<std::string> variables = {"TERM=xterm"};
  for (const auto& [name, value] : env) variables.push_back(absl::StrCat(name, "=", value));
  for (char** inherited = environ; *inherited != nullptr; ++inherited) {
    const std::string variable = *inherited;
    if (variable.rfind("TERM=", 0) != 0) variables.push_back(variable);
  }
  std::vector<char*> argv, envp;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  for (const std::string& variable : variables) envp.push_back(const_cast<char*>(variable.c_str()));
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  winsize size = {};
  size.ws_row = 24;
  size.ws_col = static_cast<unsigned short>(columns);
  pid_ = forkpty(&fd_, nullptr, nullptr, &size);
  if (pid_ == 0) {
    execve(argv[0], argv.data(), envp.data());
    _exit(127);
  }
}

Pty::~Pty() {
  if (pid_ > 0 && code_ < 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (fd_ >= 0) close(fd_);
}

void Pty::Resize(int columns) {
  winsize size = {};
  size.ws_row = 24;
  size.ws_col = static_cast<unsigned short>(columns);
  ioctl(fd_, TIOCSWINSZ, &size);
}

void Pty::Type(const std::string& keys) {
  if (write(fd_, keys.data(), keys.size()) < 0) return;  // it is gone: Wait tells
}

bool Pty::Read(absl::Duration limit) {
  pollfd polled = {fd_, POLLIN, 0};
  if (poll(&polled, 1, static_cast<int>(absl::ToInt64Milliseconds(limit))) <= 0) return false;
  char bytes[4096];
  const ssize_t count = read(fd_, bytes, sizeof(bytes));
  if (count <= 0) return false;  // EIO: the program has ended
  output_.append(bytes, static_cast<size_t>(count));
  return true;
}

bool Pty::Shows(const std::string& text, absl::Duration limit) {
  const absl::Time end = absl::Now() + limit;
  while (true) {
    const size_t found = output_.find(text, seen_);
    if (found != std::string::npos) {
      seen_ = found + text.size();
      return true;
    }
    const absl::Duration left = end - absl::Now();
    if (left <= absl::ZeroDuration() || !Read(left)) return false;
  }
}

int Pty::Wait(absl::Duration limit) {
  const absl::Time end = absl::Now() + limit;
  while (absl::Now() < end && Read(end - absl::Now())) {
  }
  if (absl::Now() >= end) return -1;
  int status = 0;
  if (waitpid(pid_, &status, 0) != pid_) return -1;
  code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return code_;
}

int LongestLine(const std::string& raw) {
  int longest = 0, column = 0;
  for (size_t i = 0; i < raw.size(); ++i) {
    if (raw[i] == '\r' || raw[i] == '\n') {
      column = 0;
    } else if (raw[i] == '\x1b') {
      while (i < raw.size() && !isalpha(static_cast<unsigned char>(raw[i]))) ++i;
    } else if ((raw[i] & 0xc0) != 0x80) {
      longest = std::max(longest, ++column);
    }
  }
  return longest;
}

}  // namespace muster
