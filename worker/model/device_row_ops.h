// The row operations of row_ops.h on a GPU. The kernels are linked only where CUDA is
// (worker/cuda), so they come in by registration; without them, and for types or widths that they
// do not take, the model composes the same from LibTorch's operations.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/model/norm_kernels.h"
#include "worker/model/row_ops.h"

namespace muster {

class DeviceRowOps {
 public:
  virtual ~DeviceRowOps() = default;
  // Whether the calls of that kind accept rows of this type and width.
  virtual bool TakesActivation(const at::Tensor& x) const = 0;
  virtual bool TakesNorm(const at::Tensor& x) const = 0;
  virtual NormForwardResult NormForward(Normalization kind, const NormInputs& in) const = 0;
  virtual NormBackwardResult NormBackward(Normalization kind,
                                          const NormBackwardInputs& in) const = 0;
  virtual at::Tensor BiasGelu(const at::Tensor& x, const at::Tensor& bias) const = 0;
  virtual at::Tensor BiasSwiglu(const at::Tensor& x, const at::Tensor& bias) const = 0;
  virtual row_ops::ActivationGrads BiasGeluBackward(const at::Tensor& dy, const at::Tensor& x,
                                                    const at::Tensor& bias,
                                                    bool want_dbias) const = 0;
  virtual row_ops::ActivationGrads BiasSwigluBackward(const at::Tensor& dy, const at::Tensor& x,
                                                      const at::Tensor& bias,
                                                      bool want_dbias) const = 0;
  virtual bool TakesLogits(const at::Tensor& logits) const = 0;
  virtual row_ops::CrossEntropyResult CrossEntropy(const at::Tensor& logits,
                                                   const at::Tensor& labels,
                                                   const VocabShard& shard) const = 0;
  virtual void CrossEntropyBackward(const at::Tensor& logits, const at::Tensor& labels,
                                    const at::Tensor& lse, const at::Tensor& dloss,
                                    const VocabShard& shard) const = 0;
};

// Those registered, if they take x (one of the Takes... above); null when not.
const DeviceRowOps* DeviceRowOpsFor(const at::Tensor& x,
                                    bool (DeviceRowOps::*takes)(const at::Tensor&) const);
// Once, before the first model is made.
void RegisterDeviceRowOps(const DeviceRowOps* ops);

}  // namespace muster
