// Which dataset each sample of a mixture comes from (Megatron's BlendedDataset). Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace muster {

struct BlendIndex {
  std::vector<int16_t> dataset;  // (size): which dataset
  std::vector<int64_t> sample;   // (size): which of its samples
};

inline constexpr int64_t kMaxBlendedDatasets = 32766;

// Samples asked of one dataset of weight w in a blend of `num_samples`: w's share, and the same
// with the mid-level surplus of 0.5 % that is built.
int64_t BlendShare(int64_t num_samples, double weight);
int64_t BlendRequest(int64_t num_samples, double weight);

// Sample i goes to the dataset that is furthest behind: max of w_d * max(i, 1) - count_d, the first
// one among equals. `weights` are normalised once more, as Megatron does (it changes ties).
// INVALID_ARGUMENT: too many datasets, a weight not above 0.
absl::StatusOr<BlendIndex> GreedyBlend(const std::vector<double>& weights, int64_t size);

// Every sample of every dataset, in the same greedy order with each one's share of the total as
// weight; exhausted datasets are left out.
absl::StatusOr<BlendIndex> ExhaustiveBlend(const std::vector<int64_t>& sizes);

}  // namespace muster
