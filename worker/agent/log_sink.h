// A trainer's log file with one older generation, and its last lines in memory. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/runtime/fd.h"

namespace muster {

class LogSink {
 public:
  struct Options {
    std::string path;       // appended to; the folder must be there. Empty: no file
    int64_t max_bytes = 0;  // then PATH becomes PATH.1
    size_t tail_lines = 0, tail_bytes = 0;
  };
  explicit LogSink(Options options) : options_(std::move(options)) {}

  // A full disk is no error: see Write. NOT_FOUND, PERMISSION_DENIED, UNAVAILABLE.
  absl::Status Open();
  void AddLine(const std::string& line);
  // A full disk must not stop training: what cannot be written is lost, and the tail stays.
  void Write(absl::string_view bytes);
  // What went wrong since writing last went well, said once; empty: nothing new.
  std::string TakeProblem();
  std::vector<std::string> Tail() const { return {tail_.begin(), tail_.end()}; }

 private:
  void Note(int error);

  const Options options_;
  Fd file_;
  bool failing_ = false;
  std::string problem_;
  int64_t written_ = 0;
  std::deque<std::string> tail_;
  size_t tail_bytes_ = 0;
};

}  // namespace muster
