// The writing end of the socket to the agent: a thread sends lines in their order, callers never
// wait for the agent. Thread-safe.
#pragma once

#include <deque>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "common/runtime/mutex.h"

namespace muster {

class LineWriter {
 public:
  // Does not own the socket, which outlives it. Once it is broken, lines go nowhere.
  explicit LineWriter(int fd);
  ~LineWriter();  // Close

  // False: the agent does not read, and the line was dropped.
  bool Push(std::string line);
  // However many wait.
  void PushAlways(std::string line);
  // Waits until everything has left, at most `limit`.
  void Flush(absl::Duration limit);
  // Nothing is sent after it; what is left is dropped. Shut the socket down before: its reader may
  // be stuck. By the owner.
  void Close();

 private:
  void Run();
  // False: the socket is broken.
  bool SendAll(const std::string& lines) const;

  const int fd_;
  Mutex mu_;
  CondVar changed_;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::string> lines_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace muster
