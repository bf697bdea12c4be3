// Cuts a stream of bytes into lines, within a bound. Pure; not thread-safe.
// Invariant: pending bytes <= max_line.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace muster {

class LineBuffer {
 public:
  enum class TooLong {
    kFail,   // a longer line is a broken peer: Add returns false from then on
    kSplit,  // a longer line is cut into pieces of max_line bytes (a log)
  };
  LineBuffer(size_t max_line, TooLong too_long) : max_line_(max_line), too_long_(too_long) {}

  // Appends to `lines` every line that `bytes` completes, without its '\n' (nor a '\r' before it).
  // False when a line is longer than max_line under kFail.
  bool Add(absl::string_view bytes, std::vector<std::string>* lines);
  // What came after the last '\n', as at the end of the stream; empty when nothing did.
  std::string TakeRest();

 private:
  const size_t max_line_;
  const TooLong too_long_;
  std::string pending_;
  bool failed_ = false;
};

}  // namespace muster
