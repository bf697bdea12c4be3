#include "tests/integration/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace muster {

Process::Process(const std::string& folder, std::vector<std::string> command,
                 const std::map<std::string, std::string>& env) {
  static std::atomic<int> counter{0};
  base_ = absl::StrCat(folder, "/process-", counter++);
  std::vector<char*> arguments;
  for (std::string& word : command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!env.contains(text.substr(0, text.find('=')))) variables.push_back(text);
  }
  for (const auto& [name, value] : env) variables.push_back(name + "=" + value);
  std::vector<char*> environment;
  for (std::string& text : variables) environment.push_back(text.data());
  environment.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, (base_ + ".out").c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0644);
  posix_spawn_file_actions_addopen(&actions, 2, (base_ + ".err").c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0644);
  const int error =
      posix_spawn(&pid_, arguments[0], &actions, nullptr, arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    ended_ = true;
    code_ = 127;
    PutFileText(base_ + ".err", absl::StrCat("cannot start ", command[0], ": ", error, "\n"));
    return;
  }
  pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
}

Process::~Process() {
  if (!ended_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (pidfd_ >= 0) close(pidfd_);
}

void Process::Signal(int signal) {
  if (!ended_) kill(pid_, signal);
}

int Process::Wait(absl::Duration limit) {
  if (ended_) return code_;
  pollfd polled = {pidfd_, POLLIN, 0};
  if (poll(&polled, 1, static_cast<int>(absl::ToInt64Milliseconds(limit))) <= 0) return -1;
  int status = 0;
  waitpid(pid_, &status, 0);
  ended_ = true;
  code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return code_;
}

std::string Process::Stdout() const { return FileText(base_ + ".out"); }
std::string Process::Stderr() const { return FileText(base_ + ".err"); }

Result RunCommand(const std::string& folder, std::vector<std::string> command,
                  const std::map<std::string, std::string>& env) {
  Process process(folder, std::move(command), env);
  Result result{.code = process.Wait()};
  result.out = process.Stdout();
  result.err = process.Stderr();
  return result;
}

TempFolder::TempFolder() {
  char pattern[] = "/tmp/muster-test-XXXXXX";
  path_ = mkdtemp(pattern);
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string FileText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

void PutFileText(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

bool Eventually(const std::function<bool()>& condition, absl::Duration limit) {
  const absl::Time until = absl::Now() + limit;
  while (!condition()) {
    if (absl::Now() > until) return false;
    absl::SleepFor(absl::Milliseconds(20));
  }
  return true;
}

std::vector<pid_t> ProcessesNaming(const std::string& text) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    pid_t pid;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid) || pid == getpid()) continue;
    std::string command = FileText(entry.path().string() + "/cmdline");
    std::string environment = FileText(entry.path().string() + "/environ");
    if (command.find(text) != std::string::npos || environment.find(text) != std::string::npos) {
      found.push_back(pid);
    }
  }
  return found;
}

}  // namespace muster
