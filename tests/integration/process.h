// Real processes for tests: start, output, exit code, signals. Everything that was started is gone
// when its object is.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace muster {

class Process {
 public:
  // stdout and stderr go to files in `folder`.
  Process(const std::string& folder, std::vector<std::string> command,
          const std::map<std::string, std::string>& env = {});
  ~Process();  // SIGKILL
  Process(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal);
  // The exit code, 128 + signal, or -1 when it did not end within the limit.
  int Wait(absl::Duration limit = absl::Seconds(60));
  std::string Stdout() const;
  std::string Stderr() const;

 private:
  pid_t pid_ = -1;
  int pidfd_ = -1;
  int code_ = -1;
  bool ended_ = false;
  std::string base_;
};

struct Result {
  int code = -1;
  std::string out, err;
};
// Runs to the end.
Result RunCommand(const std::string& folder, std::vector<std::string> command,
                  const std::map<std::string, std::string>& env = {});

// A folder that removes itself.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::string FileText(const std::string& path);
void PutFileText(const std::string& path, const std::string& text);

// Polls until it holds or the limit has passed; what it returned last.
bool Eventually(const std::function<bool()>& condition, absl::Duration limit = absl::Seconds(60));

// Processes whose command line holds `text` (a folder of this test's own).
std::vector<pid_t> ProcessesNaming(const std::string& text);

}  // namespace muster
