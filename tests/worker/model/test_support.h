// Helpers of the model's tests: tiny models, reference numbers, finite differences.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "nlohmann/json.hpp"
#include "worker/model/gpt.h"

namespace muster {

// The files that tests/golden/make_gpt_goldens.py wrote.
struct GptGolden {
  nlohmann::json document;
  std::map<std::string, at::Tensor> tensors;
  TransformerConfig Config() const;
  Batch MakeBatch() const;  // without a mask
  const at::Tensor& at(const std::string& name) const { return tensors.at(name); }
};
GptGolden LoadGptGolden(const std::string& name);

RngTracker MakeRng(int64_t seed = 1234);

// All layers on one stage.
std::unique_ptr<GptModel> MakeModel(const TransformerConfig& config, at::ScalarType dtype,
                                    int64_t seed = 1234);
std::unique_ptr<GptModel> MakeGoldenModel(const GptGolden& golden, at::ScalarType dtype);
void CopyParameters(const std::vector<ParameterPtr>& from, const std::vector<ParameterPtr>& to);

// 2 layers, width 32, 4 heads, no dropout.
TransformerConfig TinyConfig();
// Random tokens with labels.
Batch RandomBatch(const TransformerConfig& config, int64_t batch, int64_t seq, uint64_t seed);

// Gives every parameter a main_grad full of NaN: who does not overwrite it is found out.
void AttachMainGrads(const std::vector<ParameterPtr>& parameters, at::ScalarType dtype);

// Uniform in [-1, 1), leaf with gradient.
at::Tensor RandomLeaf(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype = at::kDouble);
ParameterPtr RandomParameter(at::IntArrayRef sizes, uint64_t seed);

// Largest |analytic - central difference| over all elements of all leaves (fp64), relative to
// max(1, |difference|). `output` is recomputed; its elements are weighed at random.
double GradientError(const std::vector<at::Tensor>& leaves,
                     const std::function<at::Tensor()>& output);

// max |a - b|, NaN counts as infinite.
double MaxDifference(const at::Tensor& a, const at::Tensor& b);

}  // namespace muster
