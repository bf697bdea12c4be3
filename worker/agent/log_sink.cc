#include "worker/agent/log_sink.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "worker/agent/trainer_spawn.h"

namespace muster {

absl::Status LogSink::Open() {
  if (options_.path.empty()) return absl::OkStatus();
  file_ = Fd(open(options_.path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file_.open()) {
    const int error = errno;
    Note(error);
    if (error == ENOSPC || error == EDQUOT) return absl::OkStatus();
    return ErrnoStatus(error, absl::StrCat("log file ", options_.path));
  }
  struct stat info;
  written_ = fstat(file_.get(), &info) == 0 ? info.st_size : 0;
  return absl::OkStatus();
}

void LogSink::AddLine(const std::string& line) {
  tail_.push_back(line);
  tail_bytes_ += line.size();
  while (tail_.size() > options_.tail_lines ||
         (tail_bytes_ > options_.tail_bytes && tail_.size() > 1)) {
    tail_bytes_ -= tail_.front().size();
    tail_.pop_front();
  }
}

void LogSink::Write(absl::string_view bytes) {
  if (options_.path.empty()) return;
  if (written_ >= options_.max_bytes) {
    rename(options_.path.c_str(), absl::StrCat(options_.path, ".1").c_str());
    file_.Reset();
  }
  if (!file_.open() && (!Open().ok() || !file_.open())) return;
  while (!bytes.empty()) {
    const ssize_t count = write(file_.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return Note(errno);
    written_ += count;
    bytes.remove_prefix(count);
  }
  failing_ = false;
}

void LogSink::Note(int error) {
  if (std::exchange(failing_, true)) return;
  problem_ = absl::StrCat("the log file ", options_.path, " can't be written (", strerror(error),
                          "): its lines are lost there until it can");
}

std::string LogSink::TakeProblem() { return std::exchange(problem_, ""); }

}  // namespace muster
