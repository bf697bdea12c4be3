#include "worker/train/job_tensors.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "worker/parallel/parameter_slices.h"

namespace muster {
namespace {

// A tied weight is kept under the first stage's name.
constexpr char kTiedWeight[] = "embedding.word_embeddings.weight";
const std::string& NameOf(const Parameter& parameter) {
  static const std::string& tied = *new std::string(kTiedWeight);
  return parameter.shared ? tied : parameter.name;
}

// What describes elements [begin, begin + data.numel()) of the parameter's shard.
struct Range {
  const Parameter& parameter;
  std::string name;
  at::Tensor data;  // the shard's shape when it is all of it, else 1-D
  int64_t begin = 0;
};

void AppendSlices(const Range& range, std::vector<NamedTensor>& out) {
  const Parameter& p = range.parameter;
  const auto add = [&](at::Tensor data, std::vector<int64_t> offset, std::vector<int64_t> shape,
                       int64_t flat_begin) {
    NamedTensor tensor{.name = range.name,
                       .data = std::move(data),
                       .global_shape = p.global_shape,
                       .global_offset = std::move(offset),
                       .local_shape = std::move(shape),
                       .flat_begin = flat_begin};
    tensor.allow_dim0_padding = p.is_embedding_or_output_parameter;
    out.push_back(std::move(tensor));
  };
  const std::vector<ParameterSlice> boxes = ParameterSlices(p);
  const bool whole = range.data.numel() == p.data.numel();
  if (boxes.size() == 1) {
    if (whole) return add(range.data, p.global_offset, {}, 0);
    return add(range.data, p.global_offset, p.data.sizes().vec(), range.begin);
  }
  // Blocks of dim 0: each box is a run of the shard's elements.
  MUSTER_CHECK_MSG(p.partition_dim == 0, absl::StrCat(p.name, ": blocks are of rows"));
  const at::Tensor flat = range.data.view({-1});
  int64_t box_begin = 0;  // elements of the shard before this box
  for (const ParameterSlice& box : boxes) {
    int64_t numel = 1;
    for (const int64_t size : box.size) numel *= size;
    const int64_t begin = std::max(range.begin, box_begin);
    const int64_t end = std::min(range.begin + flat.numel(), box_begin + numel);
    if (begin < end) {
      const at::Tensor part = flat.narrow(0, begin - range.begin, end - begin);
      if (end - begin == numel) {
        add(part.view(box.size), box.global_offset, {}, 0);
      } else {
        add(part, box.global_offset, box.size, begin - box_begin);
      }
    }
    box_begin += numel;
  }
}

bool IsUsed(const Parameter& parameter, TensorUse use) {
  // The tied copy: the first stage's is the one that is kept.
  return use == TensorUse::kLoad || !parameter.shared;
}

// Not parameters, and the same on all ranks of a stage.
std::vector<NamedTensor> ExpertBiases(const JobState& state) {
  std::vector<NamedTensor> out;
  for (const ExpertBias& entry : state.experts->biases()) {
    out.push_back({.name = entry.name,
                   .data = entry.bias,
                   .global_shape = entry.bias.sizes().vec(),
                   .global_offset = {0}});
  }
  return out;
}

// Parameters that this rank's optimizer updates; nullopt: all those of which it has a shard. In the
// layer-wise form every rank has all gradients, and each parameter is updated by one rank, which is
// the one that keeps state of it.
std::optional<std::set<std::string>> UpdatedHere(const JobState& state) {
  if (state.spec.optimizer.optimizer != "dist_muon") return std::nullopt;
  std::set<std::string> names;
  for (const OptimizerStateTensor& tensor : state.optimizer->StateTensors())
    names.insert(tensor.param);
  return names;
}

void AppendShards(const JobState& state, TensorUse use,
                  const std::optional<std::set<std::string>>& only, std::vector<NamedTensor>& out) {
  for (const OwnedShard& shard : state.ddp->shards()) {
    if (!IsUsed(*shard.parameter, use)) continue;
    if (only.has_value() && !only->contains(shard.parameter->name)) continue;
    AppendSlices({.parameter = *shard.parameter,
                  .name = NameOf(*shard.parameter),
                  .data = shard.data,
                  .begin = shard.in_param.begin},
                 out);
  }
}

}  // namespace

std::vector<NamedTensor> OwnedModelTensors(const JobState& state) {
  std::vector<NamedTensor> out = ExpertBiases(state);
  AppendShards(state, TensorUse::kLoad, UpdatedHere(state), out);
  return out;
}

std::vector<NamedTensor> ModelTensors(const JobState& state, TensorUse use) {
  std::vector<NamedTensor> out = ExpertBiases(state);
  if (state.ddp != nullptr && state.ddp->shards_hold_parameters()) {
    AppendShards(state, use, std::nullopt, out);
    return out;
  }
  for (const ParameterPtr& parameter : ParametersOf(state)) {
    if (!IsUsed(*parameter, use)) continue;
    AppendSlices(
        {.parameter = *parameter, .name = NameOf(*parameter), .data = parameter->data.detach()},
        out);
  }
  return out;
}

std::vector<NamedTensor> OptimizerTensors(const JobState& state, TensorUse use) {
  std::map<std::string, const Parameter*> parameters;
  for (const ParameterPtr& parameter : ParametersOf(state))
    parameters[parameter->name] = parameter.get();
  std::vector<NamedTensor> out;
  for (const OptimizerStateTensor& tensor : state.optimizer->StateTensors()) {
    const Parameter& parameter = *parameters.at(tensor.param);
    if (!IsUsed(parameter, use)) continue;
    AppendSlices({.parameter = parameter,
                  .name = absl::StrCat("optimizer.", tensor.kind, ".", NameOf(parameter)),
                  .data = tensor.tensor,
                  .begin = tensor.flat_begin},
                 out);
  }
  return out;
}

}  // namespace muster
