#include "common/spec/per_layer.h"

namespace muster {

std::vector<bool> ExpertLayers(const ModelSpec& model) {
  std::vector<bool> layers(static_cast<size_t>(model.num_layers), false);
  if (!model.num_experts.has_value()) return layers;
  const std::vector<int64_t>& given = model.moe_layer_freq;
  for (size_t i = 0; i < layers.size(); ++i) {
    // A list of one is a frequency, except the list [0] of a model of one layer.
    layers[i] =
        given.size() == 1 ? given[0] > 0 && i % static_cast<size_t>(given[0]) == 0 : given[i] != 0;
  }
  return layers;
}

std::vector<std::string> CpCommTypes(const JobSpec& spec) {
  const std::vector<std::string>& given = spec.parallel.cp_comm_type;
  if (given.size() > 1) return given;
  return std::vector<std::string>(static_cast<size_t>(spec.model.num_layers), given.front());
}

}  // namespace muster
