#include "worker/model/layer_build.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "common/base/check.h"

namespace muster {

ParameterPtr MakeParameter(LayerBuild& build, std::string name, std::vector<int64_t> shape,
                           InitMethod init, int partition_dim) {
  at::NoGradGuard no_grad;
  auto parameter = std::make_shared<Parameter>();
  parameter->name = std::move(name);
  parameter->global_shape = shape;
  parameter->global_offset.assign(shape.size(), 0);
  if (partition_dim >= 0) {
    MUSTER_CHECK_MSG(shape[partition_dim] % build.tp.size == 0, parameter->name);
    shape[partition_dim] /= build.tp.size;
    parameter->global_offset[partition_dim] = shape[partition_dim] * build.tp.rank;
    parameter->tensor_model_parallel = true;
    parameter->partition_dim = partition_dim;
  }
  const auto options = at::TensorOptions().device(build.device);
  if (init.kind == InitMethod::Kind::kNormal) {
    // fp64 jobs draw in fp32 too, so that they start from the weights of the fp32 job.
    const at::Generator generator =
        partition_dim >= 0 ? build.rng.ModelParallel() : build.rng.Default();
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

}  // namespace muster
