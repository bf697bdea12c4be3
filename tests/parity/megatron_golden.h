// What tests/golden/make_megatron_goldens.py and make_megatron_moe_goldens.py wrote, and jobs that
// train the same model on the same batches: the real trainer, ranks as threads, with a model
// provider that sets the weights and a dataset of the golden's samples.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "nlohmann/json.hpp"

namespace muster {

struct MegatronGolden {
  nlohmann::json document;
  std::map<std::string, at::Tensor> tensors;
  const at::Tensor& at(const std::string& name) const { return tensors.at(name); }
  std::vector<double> Losses(const std::string& layout) const;
  std::vector<double> GradNorms(const std::string& layout) const;
  // By step, those that Megatron logs in the same way on every layout; empty without experts.
  std::vector<std::map<std::string, double>> SideLosses(const std::string& layout) const;
};
// "gpt2", "llama" or "moe".
MegatronGolden LoadMegatronGolden(const std::string& name);

struct GoldenRun {
  std::vector<double> losses, grad_norms;
  std::vector<std::map<std::string, double>> side_losses;  // of each step, by name
  std::map<std::string, at::Tensor> weights;               // whole, after the last step
};
// Trains on the golden's batches from its weights with `settings` ("section.field=value") on top of
// its model and optimizer. Failures are the test's.
GoldenRun TrainGolden(const MegatronGolden& golden, const std::vector<std::string>& settings);

// main_grad of every parameter of a single process after the first step's microbatches, by name.
std::map<std::string, at::Tensor> FirstGradients(const MegatronGolden& golden,
                                                 const std::vector<std::string>& settings);

}  // namespace muster
