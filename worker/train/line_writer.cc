#include "worker/train/line_writer.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/time/clock.h"

namespace muster {
namespace {

// A stuck agent must not make the trainer's memory grow without end: at some 300 bytes a step
// report this is days of steps.
constexpr size_t kMaxLines = 200'000;
constexpr size_t kMostAtOnce = 1 << 16;  // bytes, but for a longer line

}  // namespace

LineWriter::LineWriter(int fd) : fd_(fd), thread_([this] { Run(); }) {}

LineWriter::~LineWriter() { Close(); }

bool LineWriter::Push(std::string line) {
  const MutexLock lock(&mu_);
  if (lines_.size() >= kMaxLines) return false;
  lines_.push_back(std::move(line));
  changed_.NotifyAll();
  return true;
}

void LineWriter::PushAlways(std::string line) {
  const MutexLock lock(&mu_);
  lines_.push_back(std::move(line));
  changed_.NotifyAll();
}

void LineWriter::Flush(absl::Duration limit) {
  const absl::Time deadline = absl::Now() + limit;
  const MutexLock lock(&mu_);
  while ((!lines_.empty() || writing_) && !closing_ && absl::Now() < deadline)
    changed_.WaitFor(&mu_, deadline - absl::Now());
}

void LineWriter::Close() {
  {
    const MutexLock lock(&mu_);
    closing_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void LineWriter::Run() {
  while (true) {
    std::string lines;
    {
      const MutexLock lock(&mu_);
      while (lines_.empty() && !closing_) changed_.Wait(&mu_);
      if (closing_) return;
      while (!lines_.empty() && lines.size() < kMostAtOnce) {
        lines += lines_.front();
        lines_.pop_front();
      }
      writing_ = true;
    }
    const bool sent = SendAll(lines);
    const MutexLock lock(&mu_);
    writing_ = false;
    if (!sent) lines_.clear();  // the reader sees the end of file and ends the process
    changed_.NotifyAll();
  }
}

bool LineWriter::SendAll(const std::string& lines) const {
  for (size_t sent = 0; sent < lines.size();) {
    const ssize_t n = ::send(fd_, lines.data() + sent, lines.size() - sent, MSG_NOSIGNAL);
    if (n > 0) sent += static_cast<size_t>(n);
    if (n <= 0 && errno != EINTR) return false;
  }
  return true;
}

}  // namespace muster
