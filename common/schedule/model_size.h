// Parameters of a GPT-family model by formula, whole and on one rank. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "common/spec/job_spec.h"
#include "common/spec/spec_json.h"
#include "common/topology/layer_assignment.h"

namespace muster {

// Numbers of parameters (elements). Dense ones are data-parallel over dp x cp, those of experts
// over expert dp. Matrices are the weights of the layers' products (what Muon takes); the rest are
// biases, norms, embeddings and the output layer.
struct ParameterCount {
  int64_t dense_matrices = 0, dense_other = 0;
  int64_t expert_matrices = 0, expert_other = 0;
  int64_t total() const { return dense_matrices + dense_other + expert_matrices + expert_other; }
};

ParameterCount operator+(const ParameterCount& a, const ParameterCount& b);

// The whole model; tied weights count once.
ParameterCount CountParameters(const JobSpec& spec, const ResolvedSpec& resolved);

// What a rank holds of a chunk: split over tensor and expert parallelism, whole otherwise (no
// data-parallel sharding). With pipelining, the last stage has its own copy of a tied embedding.
struct ChunkParameters {
  std::vector<ParameterCount> layers;
  ParameterCount embedding, final_norm, output;
};
ChunkParameters CountChunkParameters(const JobSpec& spec, const ResolvedSpec& resolved,
                                     const ChunkLayers& chunk);

// The sum over the chunks of a pipeline stage.
ParameterCount CountRankParameters(const JobSpec& spec, const ResolvedSpec& resolved,
                                   const std::vector<ChunkLayers>& chunks);

}  // namespace muster
