// The two small languages of the data section: a blend of datasets and the split of one. Pure.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

// ["0.7", "a", "0.3", "b"] or ["a", "b"]: weights where every other item is a number (reference
// 10.3), otherwise prefixes only.
struct DataBlend {
  std::vector<double> weights;  // as written, not normalised; empty: none
  std::vector<std::string> prefixes;
};
DataBlend ParseBlend(const std::vector<std::string>& items);

// What is wrong with a blend, or "".
std::string BlendProblem(const std::vector<std::string>& items);

// "969, 30, 1" -> the shares of train, validation and test, normalised; missing ones are 0.
absl::StatusOr<std::array<double, 3>> ParseSplit(absl::string_view split);
std::string SplitProblem(absl::string_view split);

}  // namespace muster
