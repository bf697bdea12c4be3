// How often the kernel has killed a process of this one's control group for want of memory: how a
// trainer's SIGKILL is told from any other. Trainers are in their agent's group. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "common/runtime/mutex.h"

namespace muster {

class OomKills {
 public:
  // `file`: see OomFile; empty: nothing is known here.
  explicit OomKills(std::string file);
  // After a trainer was killed by SIGKILL: true when there is a kill of the kernel's that no
  // trainer was counted for yet.
  bool TakeOne();

 private:
  const std::string file_;
  Mutex mu_;
  int64_t taken_ ABSL_GUARDED_BY(mu_) = 0;
};

// The file that counts them for the group named in /proc/PID/cgroup's `text`, where control groups
// are mounted at `root`: memory.events (version 2) or memory.oom_control (version 1); empty: none.
std::string OomFile(absl::string_view text, const std::string& root);
// Of this process.
std::string OomFileHere();
// nullopt: there is no such line in it.
std::optional<int64_t> ParseOomKills(absl::string_view text);

}  // namespace muster
