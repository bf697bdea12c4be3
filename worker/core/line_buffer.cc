#include "worker/core/line_buffer.h"

#include <utility>

namespace muster {
namespace {

std::string WithoutCarriageReturn(std::string line) {
  if (!line.empty() && line.back() == '\r') line.pop_back();
  return line;
}

}  // namespace

bool LineBuffer::Add(absl::string_view bytes, std::vector<std::string>* lines) {
  while (!bytes.empty() && !failed_) {
    const size_t newline = bytes.find('\n');
    const bool complete = newline != absl::string_view::npos;
    absl::string_view piece = bytes.substr(0, newline);
    if (pending_.size() + piece.size() > max_line_) {
      if (too_long_ == TooLong::kFail) {
        failed_ = true;
        pending_.clear();
        break;
      }
      piece = piece.substr(0, max_line_ - pending_.size());
      pending_.append(piece.data(), piece.size());
      lines->push_back(std::exchange(pending_, {}));
      bytes.remove_prefix(piece.size());
      continue;
    }
    pending_.append(piece.data(), piece.size());
    if (!complete) break;
    lines->push_back(WithoutCarriageReturn(std::exchange(pending_, {})));
    bytes.remove_prefix(newline + 1);
  }
  return !failed_;
}

std::string LineBuffer::TakeRest() { return WithoutCarriageReturn(std::exchange(pending_, {})); }

}  // namespace muster
