#include "worker/model/layer_build.h"

#include <cmath>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "common/base/check.h"
#include "worker/model/parameter_init.h"

namespace muster {
namespace {

at::Generator RegionOf(const LayerBuild& build, const Partition& partition) {
  if (partition.expert) {
    const absl::StatusOr<at::Generator> region = build.rng.Get(kExpertParallelRng);
    MUSTER_CHECK_MSG(region.ok(), kExpertParallelRng);
    return *region;
  }
  return partition.dim >= 0 ? build.rng.ModelParallel() : build.rng.Default();
}

}  // namespace

double OutputInitStd(const TransformerConfig& config) {
  return config.init_method_std / std::sqrt(2.0 * static_cast<double>(config.num_layers));
}

ParameterPtr MakeParameter(LayerBuild& build, std::string name, std::vector<int64_t> shape,
                           InitMethod init, Partition partition) {
  at::NoGradGuard no_grad;
  auto parameter = std::make_shared<Parameter>();
  parameter->name = std::move(name);
  parameter->global_shape = shape;
  parameter->global_offset.assign(shape.size(), 0);
  const bool split = partition.dim >= 0;
  if (partition.expert) parameter->allreduce = !build.ep.own_gradient_group;
  if (split) {
    const int ranks = partition.expert ? build.ep.etp_size : build.tp.size;
    const int rank = partition.expert ? build.ep.etp_rank : build.tp.rank;
    MUSTER_CHECK_MSG(shape[partition.dim] % (ranks * partition.stride) == 0, parameter->name);
    shape[partition.dim] /= ranks;
    parameter->global_offset[partition.dim] = shape[partition.dim] / partition.stride * rank;
    parameter->tensor_model_parallel = true;
    parameter->partition_dim = partition.dim;
    parameter->partition_stride = partition.stride;
  }
  const auto options = at::TensorOptions().device(build.device);
  if (WithoutParameterInit::active()) {
    parameter->data = at::empty(shape, options.dtype(build.dtype));
  } else if (init.kind == InitMethod::Kind::kNormal) {
    // fp64 jobs draw in fp32 too, so that they start from the weights of the fp32 job.
    parameter->data = at::empty(shape, options.dtype(at::kFloat))
                          .normal_(0.0, init.std, RegionOf(build, partition))
                          .to(build.dtype);
  } else {
    parameter->data = at::full(shape, init.kind == InitMethod::Kind::kOnes ? 1.0 : 0.0,
                               options.dtype(build.dtype));
  }
  parameter->data.set_requires_grad(true);
  build.parameters.push_back(parameter);
  return parameter;
}

void MarkSequenceParallel(const LayerBuild& build, const ParameterPtr& parameter) {
  if (parameter != nullptr) parameter->sequence_parallel = build.tp.sequence_parallel;
}

at::Generator HiddenDropoutGenerator(const LayerBuild& build) {
  return build.tp.sequence_parallel ? build.rng.ModelParallel() : build.rng.Default();
}

}  // namespace muster
