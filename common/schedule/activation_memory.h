// Bytes of activations that the GPT engine keeps and needs for one microbatch, by walking through
// the same allocations as worker/model, in the same order: what each operation keeps for its
// backward pass, what it frees, and the temporaries on the way. Pure.
//
// Not in it: collectives' own buffers, libraries' packed operands on a GPU, plugins' models. The
// CPU's kernels are modelled where they need a copy of an operand.
#pragma once

#include "common/spec/job_spec.h"
#include "common/spec/spec_json.h"
#include "common/topology/layer_assignment.h"

namespace muster {

// Of one chunk and microbatch, above what lives before the pass begins (without this microbatch).
struct ActivationBytes {
  int64_t kept = 0;           // between the forward and the backward pass
  int64_t forward_peak = 0;   // while the forward pass runs; at least `kept`
  int64_t backward_peak = 0;  // while the backward pass runs; at least `kept`
};

enum class Recomputed {
  kAsTheSpecSays,
  kAllLayers,  // ScheduleOp::recompute
};
ActivationBytes ChunkActivations(const JobSpec& spec, const ResolvedSpec& resolved,
                                 const ChunkLayers& chunk,
                                 Recomputed recomputed = Recomputed::kAsTheSpecSays);

}  // namespace muster
