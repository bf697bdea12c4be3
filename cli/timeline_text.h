// A schedule's timeline for a terminal: one row a pipeline rank, one column (of a few characters) a
// time slot. Pure.
#pragma once

#include <string>

#include "common/schedule/timeline.h"

namespace muster {

struct TimelineTextOptions {
  int columns = 0;  // in parts of at most this width; 0: in one
  bool colour = false;
};

// With one chunk "F3" is the forward pass of microbatch 3 and "B3--" its backward pass of two
// slots; with several "a3" and "A3--" those of the first chunk, "b3" of the second. Dots are
// bubbles. A pass that crosses the end of a part goes on with dashes in the next.
std::string TimelineText(const Timeline& timeline, const TimelineTextOptions& options);

// "F3", "B3", or with several chunks "a3", "A3".
std::string CellName(const TimelineCell& cell, int num_chunks);

}  // namespace muster
