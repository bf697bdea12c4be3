#include "common/runtime/log.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/runtime/mutex.h"

namespace muster {
namespace {

LogLevel LevelFromEnvironment() {
  const char* value = std::getenv("MUSTER_LOG_LEVEL");
  if (value == nullptr) return LogLevel::kInfo;
  if (std::strcmp(value, "debug") == 0) return LogLevel::kDebug;
  if (std::strcmp(value, "warning") == 0) return LogLevel::kWarning;
  if (std::strcmp(value, "error") == 0) return LogLevel::kError;
  return LogLevel::kInfo;
}

struct LogState {
  Mutex mu;
  std::string name ABSL_GUARDED_BY(mu) = "muster";
  std::atomic<LogLevel> level{LevelFromEnvironment()};
};

// Leaked on purpose: threads may log while the process exits.
LogState& State() {
  static LogState* const state = new LogState;
  return *state;
}

const char* Letter(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "D";
    case LogLevel::kInfo:
      return "I";
    case LogLevel::kWarning:
      return "W";
    case LogLevel::kError:
      return "E";
  }
  return "?";
}

}  // namespace

void SetLogName(std::string name) {
  MutexLock lock(&State().mu);
  State().name = std::move(name);
}

void SetLogLevel(LogLevel level) { State().level = level; }

bool LogEnabled(LogLevel level) { return level >= State().level.load(std::memory_order_relaxed); }

void WriteLog(LogLevel level, absl::string_view text) {
  std::string line = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
  {
    MutexLock lock(&State().mu);
    absl::StrAppend(&line, " ", Letter(level), " ", State().name, " ", text, "\n");
  }
  // A failed write to stderr has nowhere to be reported.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace muster
