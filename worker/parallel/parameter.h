// A parameter with Megatron's attributes and the place where its gradient is accumulated.
// Owned by the model (shared_ptr); DDP points main_grad into its buffers and sets `sink`.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace muster {

struct Parameter;

// Told once for each contribution to a parameter's gradient (a tied weight gets two a microbatch).
class GradSink {
 public:
  virtual ~GradSink() = default;
  // Before the contribution is written: main_grad's memory may be there in the backward pass only.
  virtual void GradComing(Parameter&) {}
  virtual void GradReady(Parameter& parameter) = 0;
};

// Asked before a forward pass reads a parameter, so that its all-gather can run behind the
// computation of the layers before it (overlap_param_gather).
class ParamGatherer {
 public:
  virtual ~ParamGatherer() = default;
  // Returns once `parameter`'s data is whole. Throws CollectiveError.
  virtual void ParamNeeded(Parameter& parameter) = 0;
};

struct Parameter {
  std::string name;      // Megatron-core's, unique in the job:
                         // "decoder.layers.0.self_attention.linear_qkv.weight"
  at::Tensor data;       // leaf with requires_grad; in the parameters' dtype
  at::Tensor main_grad;  // same shape, grad dtype (fp32 or the parameter's); a view into a grad
                         // buffer; undefined without DDP
  bool main_grad_is_zero =
      true;  // not yet written in this step: the first contribution overwrites instead of adding
  GradSink* sink = nullptr;
  ParamGatherer* gatherer = nullptr;  // set while forward pre-hooks are on
  // Every forward function calls it for each parameter that it is about to read.
  void AwaitGather() {
    if (gatherer != nullptr) gatherer->ParamNeeded(*this);
  }
  // Set while main_grad is final and its sum of squares is known already (the NaN check of a rank
  // without data-parallel peers read it): saves the gradient norm a pass over memory.
  std::optional<double> main_grad_squares;

  // Megatron's attributes (reference 14.1, 6.2, 7.1, 7.3).
  bool tensor_model_parallel = false;
  int partition_dim = -1;
  // Blocks of the whole tensor's partition_dim that are each split over tp: a shard holds its part
  // of block 0, then of block 1, ... (2 for linear_fc1 with SwiGLU: gate, up). With 1 the shard is
  // the box at global_offset; else that is where its first box lies, and parameter_slices.h lists
  // all of them.
  int partition_stride = 1;
  bool sequence_parallel = false;  // replicated over tp, gradients summed over tp
  bool average_gradients_across_tp_domain = false;
  bool allreduce = true;          // false: expert parameter, reduced over expt_dp
  bool shared_embedding = false;  // the tied word embedding
  bool shared = false;            // its copy on the last stage: left out of norms
  bool is_embedding_or_output_parameter = false;
  bool is_qk_layernorm = false;
  // The unit of its chunk that it belongs to (unit_hooks.h): the layer's place in the chunk. -1:
  // none, what stays outside of the layers.
  int unit = -1;

  // Where this shard lies in the whole tensor (checkpoints); equal to data.sizes() and zeros
  // without sharding.
  std::vector<int64_t> global_shape;
  std::vector<int64_t> global_offset;

  // Adds `grad` (same shape, any float dtype) to main_grad and tells the sink. For backward
  // functions of our own, which then return an undefined gradient to autograd. Needs main_grad.
  void AccumulateGrad(const at::Tensor& grad);
  // main_grad += a^T b for 2-D a (n, out), b (n, in), straight into the buffer
  // (gradient_accumulation_fusion).
  void AccumulateGradGemm(const at::Tensor& a, const at::Tensor& b);
  // main_grad[ids[i]] += rows[i] for a table of rows (embeddings): ids (n) int64, rows (n, width).
  // Touches only those rows, unless this is the step's first contribution. Adds in order of i.
  void AccumulateGradRows(const at::Tensor& ids, const at::Tensor& rows);
};
using ParameterPtr = std::shared_ptr<Parameter>;

}  // namespace muster
