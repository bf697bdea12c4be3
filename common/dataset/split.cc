#include "common/dataset/split.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster {
namespace {

bool IsNumberCharacter(char c) { return c == '.' || (c >= '0' && c <= '9'); }

// numpy's pairwise sum (its loops_utils), which fixes the last bits of a normalised weight.
double NumpySum(const double* values, int64_t size) {
  if (size < 8) {
    double sum = 0;
    for (int64_t i = 0; i < size; ++i) sum += values[i];
    return sum;
  }
  if (size > 128) {
    int64_t half = size / 2;
    half -= half % 8;
    return NumpySum(values, half) + NumpySum(values + half, size - half);
  }
  double r[8];
  for (int k = 0; k < 8; ++k) r[k] = values[k];
  int64_t i = 8;
  for (; i < size - size % 8; i += 8) {
    for (int k = 0; k < 8; ++k) r[k] += values[i + k];
  }
  double sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
  for (; i < size; ++i) sum += values[i];
  return sum;
}

}  // namespace

absl::string_view SplitName(Split split) {
  constexpr absl::string_view kNames[] = {"train", "valid", "test"};
  return kNames[static_cast<int>(split)];
}

absl::StatusOr<SplitBounds> ParseSplitBounds(absl::string_view text) {
  const auto bad = [text](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat("data.split=\"", text, "\": ", what...));
  };
  std::vector<double> weights;
  for (size_t begin = 0; begin < text.size();) {
    if (!IsNumberCharacter(text[begin])) {
      ++begin;
      continue;
    }
    size_t end = begin;
    while (end < text.size() && IsNumberCharacter(text[end])) ++end;
    double weight = 0;
    const absl::string_view number = text.substr(begin, end - begin);
    if (!absl::SimpleAtod(number, &weight)) return bad("\"", number, "\" is not a number");
    weights.push_back(weight);
    begin = end;
  }
  if (weights.empty() || weights.size() > kNumSplits) {
    return bad("needs one to three numbers (train, valid, test), has ", weights.size());
  }
  weights.resize(kNumSplits, 0.0);
  if (weights[0] + weights[1] + weights[2] <= 0) return bad("all weights are zero");
  weights = NormalizeWeights(weights);
  SplitBounds bounds;
  double begin = 0;
  for (size_t i = 0; i < kNumSplits; ++i) {
    const double end = begin + weights[i];
    if (weights[i] > 0) bounds[i] = {begin, end};
    begin = end;
  }
  return bounds;
}

std::pair<int64_t, int64_t> SplitRange(std::pair<double, double> bounds, int64_t num_sequences) {
  // nearbyint in the default mode rounds halves to even.
  const auto at = [num_sequences](double fraction) {
    return static_cast<int64_t>(std::nearbyint(fraction * static_cast<double>(num_sequences)));
  };
  return {at(bounds.first), at(bounds.second)};
}

std::vector<double> NormalizeWeights(const std::vector<double>& weights) {
  const double sum = NumpySum(weights.data(), static_cast<int64_t>(weights.size()));
  std::vector<double> normalized;
  normalized.reserve(weights.size());
  for (const double weight : weights) normalized.push_back(weight / sum);
  return normalized;
}

absl::StatusOr<Blend> ParseBlendList(const std::vector<std::string>& entries) {
  Blend blend;
  std::vector<double> weights;
  bool weighted = entries.size() % 2 == 0;
  for (size_t i = 0; weighted && i < entries.size(); i += 2) {
    double weight = 0;
    weighted = absl::SimpleAtod(entries[i], &weight);
    weights.push_back(weight);
  }
  if (!weighted || entries.empty()) {
    blend.prefixes = entries;
    return blend;
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!(weights[i] > 0) || !std::isfinite(weights[i])) {
      return absl::InvalidArgumentError(
          absl::StrCat("data path \"", absl::StrJoin(entries, " "), "\": the weight of ",
                       entries[2 * i + 1], " is ", entries[2 * i], "; it must be above 0"));
    }
    blend.prefixes.push_back(entries[2 * i + 1]);
  }
  blend.weights = NormalizeWeights(weights);
  return blend;
}

}  // namespace muster
