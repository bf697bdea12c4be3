// Runs of elements from one member to another, cut into chunks of bounded size. Sender and receiver
// make the same cuts from the same runs. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/ckpt/transfer_plan.h"

namespace muster {

class PackedStream {
 public:
  // `count` elements of `run`, from its element `skip` on, at byte `at` of the chunk.
  struct Segment {
    TransferRun run;
    int64_t skip = 0, count = 0, at = 0;
  };

  // `size`: bytes an element on the way.
  void Add(const TransferRun& run, int64_t size) { runs_.push_back({run, size}); }

  // The next chunk's segments; its bytes, at most `limit` (>= kAlignment). 0: there is none.
  int64_t Next(int64_t limit, std::vector<Segment>& segments) {
    segments.clear();
    int64_t used = 0, end = 0;
    while (next_ < runs_.size()) {
      const auto& [run, size] = runs_[next_];
      const int64_t fit = std::min((limit - used) / size, run.count - skip_);
      if (fit <= 0) break;
      segments.push_back({.run = run, .skip = skip_, .count = fit, .at = used});
      end = used + fit * size;
      used = (end + kAlignment - 1) / kAlignment * kAlignment;
      skip_ += fit;
      if (skip_ < run.count) break;
      skip_ = 0;
      ++next_;
    }
    return end;
  }

 private:
  static constexpr int64_t kAlignment = 8;  // so that a segment is a row of any dtype

  struct Sized {
    TransferRun run;
    int64_t size = 1;
  };
  std::vector<Sized> runs_;
  size_t next_ = 0;
  int64_t skip_ = 0;  // elements of runs_[next_] that went before
};

}  // namespace muster
