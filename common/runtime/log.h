// MUSTER_LOG(kInfo) << "worker registered worker=" << name;
// One line a record on stderr: time, level, process name, text. Thread-safe; a record is written
// with one write(2).
#pragma once

#include <sstream>
#include <string>
#include "absl/strings/string_view.h"

namespace muster {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Name shown in each line ("coordinator", "worker", "trainer r3"); call once, early.
void SetLogName(std::string name);
// Records below this level are dropped. Default: kInfo, or
// MUSTER_LOG_LEVEL=debug|info|warning|error.
void SetLogLevel(LogLevel level);
bool LogEnabled(LogLevel level);
void WriteLog(LogLevel level, absl::string_view text);

class LogRecord {
 public:
  explicit LogRecord(LogLevel level) : level_(level) {}
  ~LogRecord() { WriteLog(level_, out_.str()); }
  std::ostream& stream() { return out_; }

 private:
  const LogLevel level_;
  std::ostringstream out_;
};

}  // namespace muster

#define MUSTER_LOG(level)                                 \
  if (!::muster::LogEnabled(::muster::LogLevel::level)) { \
  } else                                                  \
    ::muster::LogRecord(::muster::LogLevel::level).stream()
