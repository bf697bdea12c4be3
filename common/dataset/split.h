// Megatron's split strings ("969, 30, 1") and blend lists ("0.7 a 0.3 b"). Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

enum class Split { kTrain = 0, kValid = 1, kTest = 2 };
inline constexpr int kNumSplits = 3;
absl::string_view SplitName(Split split);

// Fractions [begin, end) of train, valid, test; nullopt where the weight is zero.
using SplitBounds = std::array<std::optional<std::pair<double, double>>, kNumSplits>;

// Every run of digits and dots is a number; up to three, missing ones are 0; normalised.
// INVALID_ARGUMENT: no or more than three numbers, one that does not parse, all zero.
absl::StatusOr<SplitBounds> ParseSplitBounds(absl::string_view text);

// [round(begin * n), round(end * n)), halves to even (Python's round).
std::pair<int64_t, int64_t> SplitRange(std::pair<double, double> bounds, int64_t num_sequences);

// w / sum(w), the sum in numpy's order: sequential below 8 terms, else 8 interleaved partial sums
// added as a tree, in halves above 128 terms.
std::vector<double> NormalizeWeights(const std::vector<double>& weights);

struct Blend {
  std::vector<std::string> prefixes;
  std::optional<std::vector<double>> weights;  // normalised once; nullopt: none given
};
// Even length with a number at each first place of a pair: weights and prefixes; else all prefixes.
// INVALID_ARGUMENT for a weight that is not above 0.
absl::StatusOr<Blend> ParseBlendList(const std::vector<std::string>& entries);

}  // namespace muster
