#include "coordinator/server/html.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/utf8.h"

namespace muster {
namespace {

constexpr double kWidth = 600, kHeight = 150;                      // of the whole picture
constexpr double kLeft = 56, kRight = 8, kTop = 10, kBottom = 20;  // room for the scale

}  // namespace

std::string HtmlEscaped(absl::string_view text) {
  std::string escaped;
  for (const char c : ValidUtf8(text)) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        // Control characters have no place in HTML; blanks of all kinds do.
        escaped += static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' ? ' ' : c;
    }
  }
  return escaped;
}

std::string SvgLinePlot(const std::vector<PlotPoint>& points, absl::string_view title) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  size_t finite = 0;
  for (const PlotPoint& point : points) {
    if (!std::isfinite(point.value)) continue;
    low = std::min(low, point.value);
    high = std::max(high, point.value);
    ++finite;
  }
  if (finite < 2) return "";
  const int64_t first = points.front().iteration, last = points.back().iteration;
  const double span = high > low ? high - low : 1;
  const double steps = last > first ? static_cast<double>(last - first) : 1;
  std::string path;
  bool drawing = false;
  for (const PlotPoint& point : points) {
    if (!std::isfinite(point.value)) {
      drawing = false;
      continue;
    }
    const double x = kLeft + (kWidth - kLeft - kRight) * (point.iteration - first) / steps;
    const double y = kTop + (kHeight - kTop - kBottom) * (high - point.value) / span;
    absl::StrAppendFormat(&path, "%s%.1f %.1f", drawing ? "L" : "M", x, y);
    drawing = true;
  }
  const double bottom = kHeight - kBottom;
  return absl::StrCat(
      absl::StrFormat(
          "<svg class=\"plot\" viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"%s\">", kWidth,
          kHeight, HtmlEscaped(title)),
      "<title>", HtmlEscaped(title), "</title>",
      absl::StrFormat("<path class=\"axis\" d=\"M%.0f %.0fV%.0fH%.0f\"/>", kLeft, kTop, bottom,
                      kWidth - kRight),
      absl::StrFormat("<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"end\">%.3g</text>", kLeft - 6,
                      kTop + 8, high),
      absl::StrFormat("<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"end\">%.3g</text>", kLeft - 6,
                      bottom, low),
      absl::StrFormat("<text x=\"%.0f\" y=\"%.0f\">%d</text>", kLeft, kHeight - 5, first),
      absl::StrFormat("<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"end\">%d</text>", kWidth - kRight,
                      kHeight - 5, last),
      "<path class=\"line\" d=\"", path, "\"/></svg>");
}

}  // namespace muster
