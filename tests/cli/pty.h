// A program on a terminal of its own (a pseudo-terminal), for tests. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace muster {

class Pty {
 public:
  Pty(const std::vector<std::string>& command, int columns,
      const std::map<std::string, std::string>& env = {});
  ~Pty();  // SIGKILL
  Pty(const Pty&) = delete;

  void Resize(int columns);            // the program gets SIGWINCH
  void Type(const std::string& keys);  // "\x03": ctrl-C
  // Reads until everything that came after the last call holds `text`; false when that took too
  // long, or the program has ended without it.
  bool Shows(const std::string& text, absl::Duration limit = absl::Seconds(20));
  // The exit code, or 128 + signal; reads what is left.
  int Wait(absl::Duration limit = absl::Seconds(20));
  const std::string& output() const { return output_; }  // all of it, raw
  size_t seen() const { return seen_; }                  // bytes of it up to the last Shows

 private:
  bool Read(absl::Duration limit);  // false: nothing came, or it is over

  int fd_ = -1;
  pid_t pid_ = -1;
  int code_ = -1;
  std::string output_;
  size_t seen_ = 0;
};

// The longest line that `raw` draws: visible characters between carriage returns and line feeds.
int LongestLine(const std::string& raw);

}  // namespace muster
