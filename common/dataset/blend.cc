#include "common/dataset/blend.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/dataset/split.h"

namespace muster {
namespace {

absl::Status CheckNumDatasets(size_t count) {
  if (count >= 1 && count <= static_cast<size_t>(kMaxBlendedDatasets)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a blend of ", count, " datasets: must be 1 to ", kMaxBlendedDatasets));
}

// `limits`: samples that each dataset may give.
BlendIndex Greedy(const std::vector<double>& weights, const std::vector<int64_t>& limits,
                  int64_t size) {
  BlendIndex index;
  index.dataset.reserve(static_cast<size_t>(size));
  index.sample.reserve(static_cast<size_t>(size));
  std::vector<int64_t> counts(weights.size(), 0);
  for (int64_t i = 0; i < size; ++i) {
    const double position = static_cast<double>(std::max<int64_t>(i, 1));
    size_t chosen = weights.size();
    double largest = 0;
    for (size_t d = 0; d < weights.size(); ++d) {
      if (counts[d] >= limits[d]) continue;
      const double behind = weights[d] * position - static_cast<double>(counts[d]);
      if (chosen == weights.size() || behind > largest) {
        chosen = d;
        largest = behind;
      }
    }
    index.dataset.push_back(static_cast<int16_t>(chosen));
    index.sample.push_back(counts[chosen]++);
  }
  return index;
}

}  // namespace

int64_t BlendShare(int64_t num_samples, double weight) {
  return static_cast<int64_t>(std::ceil(static_cast<double>(num_samples) * weight));
}

int64_t BlendRequest(int64_t num_samples, double weight) {
  return static_cast<int64_t>(
      std::ceil(static_cast<double>(BlendShare(num_samples, weight)) * 1.005));
}

absl::StatusOr<BlendIndex> GreedyBlend(const std::vector<double>& weights, int64_t size) {
  if (absl::Status status = CheckNumDatasets(weights.size()); !status.ok()) return status;
  for (size_t d = 0; d < weights.size(); ++d) {
    if (!(weights[d] > 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("weight of dataset ", d, " is ", weights[d], "; it must be above 0"));
    }
  }
  return Greedy(NormalizeWeights(weights), std::vector<int64_t>(weights.size(), size), size);
}

absl::StatusOr<BlendIndex> ExhaustiveBlend(const std::vector<int64_t>& sizes) {
  if (absl::Status status = CheckNumDatasets(sizes.size()); !status.ok()) return status;
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  std::vector<double> shares;
  for (const int64_t size : sizes) {
    if (size < 1) {
      return absl::InvalidArgumentError("an empty dataset cannot be part of a blend");
    }
    shares.push_back(static_cast<double>(size) / static_cast<double>(total));
  }
  return Greedy(shares, sizes, total);
}

}  // namespace muster
