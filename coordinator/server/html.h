// Text and small pictures for HTML. Thread-safe: functions of values.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace muster {

// Fit for an element's text and for a quoted attribute, whatever `text` holds.
std::string HtmlEscaped(absl::string_view text);

// (iteration, value) as a line plot with its scale, an inline SVG element; values that are not
// finite leave gaps. Empty for fewer than two points.
struct PlotPoint {
  int64_t iteration = 0;
  double value = 0;
};
std::string SvgLinePlot(const std::vector<PlotPoint>& points, absl::string_view title);

}  // namespace muster
