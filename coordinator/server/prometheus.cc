#include "coordinator/server/prometheus.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/utf8.h"

namespace muster {
namespace {

std::string Escaped(absl::string_view text) {
  std::string escaped;
  for (const char c : ValidUtf8(text)) {
    if (c == '\n') {
      escaped += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  // Counts whole, however large; the rest with all its digits.
  if (value == std::floor(value) && std::abs(value) < 1e15) return absl::StrFormat("%.0f", value);
  return absl::StrFormat("%.17g", value);
}

}  // namespace

PrometheusFamily::PrometheusFamily(absl::string_view name, absl::string_view type,
                                   absl::string_view help)
    : name_(name),
      head_(absl::StrCat("# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n")) {}

void PrometheusFamily::Add(const PrometheusLabels& labels, double value, absl::string_view suffix) {
  if (text_.empty()) text_ = head_;
  absl::StrAppend(&text_, name_, suffix);
  absl::string_view separator = "{";
  for (const auto& [label, text] : labels) {
    absl::StrAppend(&text_, separator, label, "=\"", Escaped(text), "\"");
    separator = ",";
  }
  absl::StrAppend(&text_, labels.empty() ? "" : "}", " ", Number(value), "\n");
}

}  // namespace muster
