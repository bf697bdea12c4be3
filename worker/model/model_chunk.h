// What the trainer knows of a model: chunks with parameters that run forward. Implemented by
// GptModel here and by the models of plugins.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "common/spec/job_spec.h"
#include "common/spec/spec_json.h"
#include "worker/data/batch.h"
#include "worker/parallel/expert_state.h"
#include "worker/parallel/parallel_context.h"
#include "worker/parallel/parameter.h"
#include "worker/parallel/rng.h"
#include "worker/parallel/unit_hooks.h"

namespace muster {

// One pipeline stage's chunk of a model. One thread. Parameters are created in the build, in the
// layers' order.
class ModelChunk {
 public:
  virtual ~ModelChunk() = default;
  virtual const std::vector<ParameterPtr>& parameters()
      const = 0;                                // registration order (bucket order is its reverse)
  virtual void SetTraining(bool training) = 0;  // dropout on or off
  // First stage: `input` is undefined and batch.tokens are embedded. Others: hidden states of the
  // stage before. Last stage: with labels, token losses (B, S) fp32; without, logits (B, S, V).
  // Others: hidden states.
  virtual at::Tensor Forward(const Batch& batch, const at::Tensor& input) = 0;
  // Does Forward call Parameter::AwaitGather for what it reads? Otherwise all of the chunk's
  // parameters are gathered before it (overlap_param_gather without overlap).
  virtual bool awaits_parameters() const { return false; }
  // Of the Forward calls that follow: recompute every layer in the backward pass, not only what
  // training.recompute_* names. The numbers stay the same; a chunk that cannot may ignore it.
  virtual void SetFullRecompute(bool /*full*/) {}
  // Calls `hooks`, which outlives the chunk's passes, around its units from now on; several are
  // called in the order in which they came (Before...) and in the opposite one (After...). Null
  // takes all of them away. False: the chunk has no units (its parameters have unit -1).
  virtual bool AddUnitHooks(UnitHooks* /*hooks*/) { return false; }
  // Takes one away, between passes, and leaves the others.
  virtual void RemoveUnitHooks(UnitHooks* /*hooks*/) {}
};

struct ModelBuildContext {
  const JobSpec& spec;
  const ResolvedSpec& sizes;
  const ParallelContext& parallel;
  RngTracker& rng;
  ExpertState& experts;
  at::Device device;
  at::ScalarType params_dtype;  // fp32, bf16, fp16 or fp64
  bool pre_process = true, post_process = true;
  std::optional<int> vp_stage;
  int64_t layer_offset = 0, num_layers = 0;  // of this chunk
};

}  // namespace muster
