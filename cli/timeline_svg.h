// A schedule's timeline as a picture that needs nothing else: one SVG file, readable on light and
// on dark. Pure.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "common/schedule/timeline.h"

namespace muster {

// One row a pipeline rank, an axis of time slots, a legend. `title` and `note` (below the title)
// are escaped here. Each pass tells its name and slots when pointed at.
std::string TimelineSvg(const Timeline& timeline, absl::string_view title, absl::string_view note);

}  // namespace muster
