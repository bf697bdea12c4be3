// The agent's end of a trainer's socket, driven by a test.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <variant>

#include "common/base/check.h"
#include "common/control/messages.h"
#include "common/runtime/mutex.h"

namespace muster {

class Notification {
 public:
  void Notify() {
    MutexLock lock(&mu_);
    notified_ = true;
    changed_.NotifyAll();
  }
  void Wait() {
    MutexLock lock(&mu_);
    while (!notified_) changed_.Wait(&mu_);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool notified_ ABSL_GUARDED_BY(mu_) = false;
};

// One thread.
class TestAgent {
 public:
  TestAgent() { MUSTER_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds_) == 0); }
  ~TestAgent() {
    Close();
    if (fds_[1] >= 0) ::close(fds_[1]);
  }

  int TakeTrainerEnd() { return std::exchange(fds_[1], -1); }
  void Close() {
    if (fds_[0] >= 0) ::close(std::exchange(fds_[0], -1));
  }

  void Send(AgentToTrainer message) { MUSTER_CHECK(SendRaw(Encode(message))); }
  // False when the trainer has closed.
  bool SendRaw(const std::string& bytes) {
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t n = ::send(fds_[0], bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return false;
      sent += static_cast<size_t>(n);
    }
    return true;
  }

  // The next message; blocks for it.
  TrainerToAgent Next() {
    size_t end;
    while ((end = buffer_.find('\n', scanned_)) == std::string::npos) {
      scanned_ = buffer_.size();
      char chunk[1 << 16];
      const ssize_t got = ::read(fds_[0], chunk, sizeof chunk);
      MUSTER_CHECK(got > 0);
      buffer_.append(chunk, static_cast<size_t>(got));
    }
    auto message = DecodeTrainerToAgent(absl::string_view(buffer_).substr(begin_, end - begin_));
    MUSTER_CHECK(message.ok());
    begin_ = scanned_ = end + 1;
    if (begin_ > (1 << 20)) {
      buffer_.erase(0, begin_);
      begin_ = scanned_ = 0;
    }
    return *std::move(message);
  }
  // Skips to the next message of this type.
  template <typename Message>
  Message WaitFor() {
    while (true) {
      TrainerToAgent message = Next();
      if (auto* wanted = std::get_if<Message>(&message)) return std::move(*wanted);
    }
  }

 private:
  int fds_[2] = {-1, -1};
  std::string buffer_;
  size_t begin_ = 0, scanned_ = 0;  // of the message under way; of what holds no line's end
};

}  // namespace muster
