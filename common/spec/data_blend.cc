#include "common/spec/data_blend.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace muster {

DataBlend ParseBlend(const std::vector<std::string>& items) {
  DataBlend blend;
  bool weighted = !items.empty() && items.size() % 2 == 0;
  for (size_t i = 0; weighted && i < items.size(); i += 2) {
    double weight = 0;
    weighted = absl::SimpleAtod(items[i], &weight);
    blend.weights.push_back(weight);
  }
  if (!weighted) return {{}, items};
  for (size_t i = 1; i < items.size(); i += 2) blend.prefixes.push_back(items[i]);
  return blend;
}

std::string BlendProblem(const std::vector<std::string>& items) {
  const DataBlend blend = ParseBlend(items);
  for (const double weight : blend.weights) {
    if (!std::isfinite(weight) || weight <= 0) return "weights must be finite and greater than 0";
  }
  for (const std::string& prefix : blend.prefixes) {
    double number = 0;
    if (absl::SimpleAtod(prefix, &number)) {
      return absl::StrCat("\"", prefix,
                          "\" is a number where a path is expected; write weight and path in "
                          "turn, or paths only");
    }
  }
  constexpr size_t kMaxDatasets = 32766;  // reference 10.3: the blend's index is an int16
  if (blend.prefixes.size() > kMaxDatasets) {
    return absl::StrCat("blends more than ", kMaxDatasets, " datasets");
  }
  return "";
}

absl::StatusOr<std::array<double, 3>> ParseSplit(absl::string_view split) {
  std::array<double, 3> shares = {0, 0, 0};
  size_t count = 0;
  double sum = 0;
  for (const absl::string_view part :
       absl::StrSplit(split, absl::ByAnyChar(", /"), absl::SkipEmpty())) {
    double share = 0;
    if (count == shares.size() || !absl::SimpleAtod(part, &share) || !std::isfinite(share) ||
        share < 0) {
      return absl::InvalidArgumentError(
          "must be up to three numbers of at least 0 separated by commas, such as 969,30,1");
    }
    shares[count++] = share;
    sum += share;
  }
  if (!(sum > 0) || !std::isfinite(sum)) {
    return absl::InvalidArgumentError("the shares must add up to more than 0");
  }
  for (double& share : shares) share /= sum;
  return shares;
}

std::string SplitProblem(absl::string_view split) {
  return std::string(ParseSplit(split).status().message());
}

}  // namespace muster
