#include "worker/model/layer_build.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "common/base/check.h"

namespace muster {

ParameterPtr MakeParameter(LayerBuild& build, std::string name, std::vector<int64_t> shape,
                           InitMethod init, Partition partition) {
  at::NoGradGuard no_grad;
  auto parameter = std::make_shared<Parameter>();
  parameter->name = std::move(name);
  parameter->global_shape = shape;
  parameter->global_offset.assign(shape.size(), 0);
  const bool split = partition.dim >= 0;
  if (split) {
    MUSTER_CHECK_MSG(shape[partition.dim] % (build.tp.size * partition.stride) == 0,
                     parameter->name);
    shape[partition.dim] /= build.tp.size;
    parameter->global_offset[partition.dim] =
        shape[partition.dim] / partition.stride * build.tp.rank;
    parameter->tensor_model_parallel = true;
    parameter->partition_dim = partition.dim;
    parameter->partition_stride = partition.stride;
  }
  const auto options = at::TensorOptions().device(build.device);
  if (init.kind == InitMethod::Kind::kNormal) {
    // fp64 jobs draw in fp32 too, so that they start from the weights of the fp32 job.
    const at::Generator generator = split ? build.rng.ModelParallel() : build.rng.Default();
    parameter->data = at::empty(shape, options.dtype(at::kFloat))
                          .normal_(0.0, init.std, generator)
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
