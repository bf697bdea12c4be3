#include "worker/cuda/row_ops.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAStream.h>

#include "worker/cuda/row_kernels.h"
#include "worker/model/device_row_ops.h"

namespace muster {
namespace {

using cuda::Type;
using row_ops::ActivationGrads;
using row_ops::CrossEntropyResult;

bool IsSupported(const at::Tensor& x) {
  const at::ScalarType type = x.scalar_type();
  return x.is_cuda() && (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf);
}

Type TypeOf(const at::Tensor& x) {
  if (x.scalar_type() == at::kFloat) return Type::kFloat;
  return x.scalar_type() == at::kBFloat16 ? Type::kBFloat16 : Type::kHalf;
}

const void* DataOrNull(const at::Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }
float* FloatsOrNull(const at::Tensor& x) {
  return x.defined() ? x.mutable_data_ptr<float>() : nullptr;
}
at::Tensor Dense(const at::Tensor& x) { return x.defined() ? x.contiguous() : x; }

void Launched(int error, const char* what) {
  TORCH_CHECK(error == 0, what, ": the CUDA kernel did not start, error ", error);
}

void* Stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

at::Tensor Floats(at::IntArrayRef sizes, const at::Tensor& like) {
  return at::empty(sizes, like.options().dtype(at::kFloat));
}

at::Tensor AddUp(const at::Tensor& partials) {
  return partials.defined() ? at::sum(partials, {0}) : partials;
}

class CudaRowOps final : public DeviceRowOps {
 public:
  bool TakesActivation(const at::Tensor& x) const override {
    return IsSupported(x) && x.is_contiguous() && x.size(-1) % 16 == 0;
  }
  bool TakesNorm(const at::Tensor& x) const override {
    return IsSupported(x) && x.size(-1) % 8 == 0 && x.size(-1) <= cuda::kMaxNormCols;
  }
  bool TakesLogits(const at::Tensor& logits) const override {
    return IsSupported(logits) && logits.is_contiguous();
  }

  NormForwardResult NormForward(Normalization kind, const NormInputs& in) const override {
    const at::Tensor residual = Dense(in.residual), branch = Dense(in.branch);
    const at::Tensor mask = Dense(in.drop_mask);
    const int64_t cols = residual.size(-1), rows = residual.numel() / cols;
    const bool layer_norm = kind == Normalization::kLayerNorm;
    NormForwardResult out;
    out.x = branch.defined() ? at::empty_like(residual) : in.residual;
    out.y = at::empty_like(residual);
    out.rstd = Floats({rows}, residual);
    if (layer_norm) out.mean = Floats({rows}, residual);
    Launched(cuda::Norm({.type = TypeOf(residual),
                         .layer_norm = layer_norm,
                         .residual = DataOrNull(residual),
                         .branch = DataOrNull(branch),
                         .bias = DataOrNull(in.bias),
                         .mask = DataOrNull(mask),
                         .weight = DataOrNull(in.weight),
                         .beta = DataOrNull(in.beta),
                         .epsilon = static_cast<float>(in.epsilon),
                         .x = out.x.mutable_data_ptr(),
                         .y = out.y.mutable_data_ptr(),
                         .mean = FloatsOrNull(out.mean),
                         .rstd = FloatsOrNull(out.rstd),
                         .rows = rows,
                         .cols = cols},
                        Stream()),
             "norm");
    return out;
  }

  NormBackwardResult NormBackward(Normalization kind, const NormBackwardInputs& in) const override {
    const at::Tensor dy = Dense(in.dy), dx_in = Dense(in.dx_in), x = Dense(in.x);
    const at::Tensor mask = Dense(in.drop_mask);
    const int64_t cols = x.size(-1), rows = x.numel() / cols;
    const int64_t parts = cuda::NumNormPartials(rows);
    NormBackwardResult out;
    out.dx = at::empty_like(x);
    out.dbranch = mask.defined() ? at::empty_like(x) : out.dx;
    const at::Tensor dweight = Floats({parts, cols}, x);
    const at::Tensor dbeta = in.want_dbeta ? Floats({parts, cols}, x) : at::Tensor();
    const at::Tensor dbias = in.want_dbias ? Floats({parts, cols}, x) : at::Tensor();
    Launched(
        cuda::NormBackward({.type = TypeOf(x),
                            .layer_norm = kind == Normalization::kLayerNorm,
                            .dy = DataOrNull(dy),
                            .dx_in = DataOrNull(dx_in),
                            .x = DataOrNull(x),
                            .mask = DataOrNull(mask),
                            .weight = DataOrNull(in.weight),
                            .mean = FloatsOrNull(in.mean),
                            .rstd = FloatsOrNull(in.rstd),
                            .dx = out.dx.mutable_data_ptr(),
                            .dbranch = mask.defined() ? out.dbranch.mutable_data_ptr() : nullptr,
                            .dweight = FloatsOrNull(dweight),
                            .dbeta = FloatsOrNull(dbeta),
                            .dbias = FloatsOrNull(dbias),
                            .rows = rows,
                            .cols = cols},
                           Stream()),
        "norm, backward");
    out.dweight = AddUp(dweight);
    out.dbeta = AddUp(dbeta);
    out.dbias = AddUp(dbias);
    return out;
  }

  at::Tensor BiasGelu(const at::Tensor& x, const at::Tensor& bias) const override {
    return Forward(x, bias, /*swiglu=*/false);
  }
  at::Tensor BiasSwiglu(const at::Tensor& x, const at::Tensor& bias) const override {
    return Forward(x, bias, /*swiglu=*/true);
  }
  ActivationGrads BiasGeluBackward(const at::Tensor& dy, const at::Tensor& x,
                                   const at::Tensor& bias, bool want_dbias) const override {
    return Backward(dy, x, bias, want_dbias, /*swiglu=*/false);
  }
  ActivationGrads BiasSwigluBackward(const at::Tensor& dy, const at::Tensor& x,
                                     const at::Tensor& bias, bool want_dbias) const override {
    return Backward(dy, x, bias, want_dbias, /*swiglu=*/true);
  }

  CrossEntropyResult CrossEntropy(const at::Tensor& logits, const at::Tensor& labels,
                                  const VocabShard& shard) const override {
    const int64_t rows = logits.size(0);
    const at::Tensor label = labels.contiguous();
    CrossEntropyResult out = {Floats({rows}, logits), Floats({rows}, logits)};
    Launched(cuda::CrossEntropy({.type = TypeOf(logits),
                                 .logits = logits.const_data_ptr(),
                                 .labels = label.const_data_ptr<int64_t>(),
                                 .begin = shard.begin,
                                 .rows = rows,
                                 .cols = logits.size(1),
                                 .lse = FloatsOrNull(out.lse),
                                 .loss = FloatsOrNull(out.loss)},
                                Stream()),
             "cross entropy");
    return out;
  }

  void CrossEntropyBackward(const at::Tensor& logits, const at::Tensor& labels,
                            const at::Tensor& lse, const at::Tensor& dloss,
                            const VocabShard& shard) const override {
    const at::Tensor label = labels.contiguous(), scale = dloss.contiguous();
    Launched(cuda::CrossEntropyBackward({.type = TypeOf(logits),
                                         .logits = logits.mutable_data_ptr(),
                                         .labels = label.const_data_ptr<int64_t>(),
                                         .begin = shard.begin,
                                         .lse = FloatsOrNull(lse),
                                         .dloss = FloatsOrNull(scale),
                                         .rows = logits.size(0),
                                         .cols = logits.size(1)},
                                        Stream()),
             "cross entropy, backward");
  }

 private:
  static at::Tensor Forward(const at::Tensor& x, const at::Tensor& bias, bool swiglu) {
    const int64_t rows = x.size(0), cols = swiglu ? x.size(1) / 2 : x.size(1);
    at::Tensor y = at::empty({rows, cols}, x.options());
    Launched(cuda::Activation({.type = TypeOf(x),
                               .swiglu = swiglu,
                               .x = x.const_data_ptr(),
                               .bias = DataOrNull(bias),
                               .y = y.mutable_data_ptr(),
                               .rows = rows,
                               .cols = cols},
                              Stream()),
             "activation");
    return y;
  }

  static ActivationGrads Backward(const at::Tensor& grad, const at::Tensor& x,
                                  const at::Tensor& bias, bool want_dbias, bool swiglu) {
    const at::Tensor dy = Dense(grad);
    const int64_t rows = x.size(0), cols = swiglu ? x.size(1) / 2 : x.size(1);
    ActivationGrads out;
    out.dx = at::empty_like(x);
    at::Tensor partials;
    if (want_dbias) partials = Floats({cuda::NumPartials(rows), x.size(1)}, x);
    if (want_dbias && rows == 0) partials.zero_();  // an expert without rows: no kernel runs
    Launched(cuda::ActivationBackward({.type = TypeOf(x),
                                       .swiglu = swiglu,
                                       .dy = dy.const_data_ptr(),
                                       .x = x.const_data_ptr(),
                                       .bias = DataOrNull(bias),
                                       .dx = out.dx.mutable_data_ptr(),
                                       .partials = FloatsOrNull(partials),
                                       .rows = rows,
                                       .cols = cols},
                                      Stream()),
             "activation, backward");
    out.dbias = AddUp(partials);
    return out;
  }
};

}  // namespace

void UseCudaRowOps() {
  static const CudaRowOps ops;
  RegisterDeviceRowOps(&ops);
}

}  // namespace muster
