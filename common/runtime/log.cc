#include "common/runtime/log.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
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

LogFormat FormatFromEnvironment() {
  const char* value = std::getenv("MUSTER_LOG_FORMAT");
  return value != nullptr && std::strcmp(value, "json") == 0 ? LogFormat::kJson : LogFormat::kText;
}

struct LogState {
  Mutex mu;
  std::string name ABSL_GUARDED_BY(mu) = "muster";
  LogContext context ABSL_GUARDED_BY(mu);
  std::atomic<LogLevel> level{LevelFromEnvironment()};
  std::atomic<LogFormat> format{FormatFromEnvironment()};
};

thread_local const ScopedLogContext* innermost = nullptr;

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

void SetLogFormat(LogFormat format) { State().format = format; }

bool SetLogFormatByName(const std::string& name) {
  if (name != "text" && name != "json") return false;
  setenv("MUSTER_LOG_FORMAT", name.c_str(), /*overwrite=*/1);
  SetLogFormat(name == "json" ? LogFormat::kJson : LogFormat::kText);
  return true;
}

void SetLogContext(const LogContext& context) {
  MutexLock lock(&State().mu);
  State().context = context;
}

ScopedLogContext::ScopedLogContext(LogContext context)
    : context_(std::move(context)), outer_(innermost) {
  innermost = this;
}

ScopedLogContext::~ScopedLogContext() { innermost = outer_; }

void WriteLog(LogLevel level, absl::string_view text) {
  const absl::Time now = absl::Now();
  std::string name, line;
  LogContext context;
  {
    MutexLock lock(&State().mu);
    name = State().name;
    context = State().context;
  }
  if (State().format.load(std::memory_order_relaxed) == LogFormat::kJson) {
    if (innermost != nullptr) context = innermost->context_;
    line = LogRecordAsJson(now, level, name, context, text);
  } else {
    line = absl::StrCat(absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", now, absl::UTCTimeZone()), " ",
                        Letter(level), " ", name, " ", absl::StrReplaceAll(text, {{"\n", "\\n"}}));
  }
  line += '\n';
  // A failed write to stderr has nowhere to be reported.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace muster
