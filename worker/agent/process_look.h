// A process as /proc shows it.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/strings/string_view.h"

namespace muster {

struct ProcessLook {
  bool running = false;  // it is there and has not ended
  std::string state;     // "R", "S", "D", "T", "t", "Z", ...; empty: it is not there
  double cpu_ms = 0;     // of all its threads, so far, in user and system mode
};
ProcessLook LookAtProcess(pid_t pid);

// Of the text of /proc/PID/stat, whose times are in ticks of 1/`ticks_per_second`.
ProcessLook ParseProcessStat(absl::string_view text, double ticks_per_second);

}  // namespace muster
