#include "worker/agent/process_look.h"

#include <unistd.h>

#include <fstream>
#include <iterator>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace muster {

ProcessLook ParseProcessStat(absl::string_view text, double ticks_per_second) {
  // "PID (NAME) STATE ...": a name may hold spaces and parentheses, so from its end on.
  const size_t end = text.rfind(')');
  if (end == absl::string_view::npos) return {};
  const std::vector<absl::string_view> fields =
      absl::StrSplit(text.substr(end + 1), ' ', absl::SkipEmpty());
  // proc(5): state is field 3, utime 14, stime 15.
  constexpr size_t kState = 0, kUserTicks = 11, kSystemTicks = 12;
  int64_t user = 0, system = 0;
  if (fields.size() <= kSystemTicks || !absl::SimpleAtoi(fields[kUserTicks], &user) ||
      !absl::SimpleAtoi(fields[kSystemTicks], &system)) {
    return {};
  }
  const std::string state(fields[kState]);
  return {.running = state != "Z" && state != "X",
          .state = state,
          .cpu_ms = 1e3 * double(user + system) / ticks_per_second};
}

ProcessLook LookAtProcess(pid_t pid) {
  if (pid <= 0) return {};
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return ParseProcessStat(text, double(sysconf(_SC_CLK_TCK)));
}

}  // namespace muster
