// One metric family in Prometheus' text format: HELP, TYPE, samples. Not thread-safe.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace muster {

using PrometheusLabels = std::vector<std::pair<std::string, std::string>>;

class PrometheusFamily {
 public:
  // `type`: "gauge", "counter" or "histogram".
  PrometheusFamily(absl::string_view name, absl::string_view type, absl::string_view help);

  // `suffix`: of a histogram's samples. Values that are no numbers are written as NaN, +Inf, -Inf.
  void Add(const PrometheusLabels& labels, double value, absl::string_view suffix = "");
  void Add(double value) { Add({}, value); }

  // Empty when nothing was added: a family without samples is left out.
  const std::string& text() const { return text_; }

 private:
  const std::string name_, head_;
  std::string text_;
};

}  // namespace muster
