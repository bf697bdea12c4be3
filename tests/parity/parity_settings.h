// Settings that the parity matrix puts layouts and models together from.
#pragma once

#include "absl/strings/str_cat.h"
#include "tests/parity/parity_run.h"

namespace muster {

inline Settings World(int size) { return {absl::StrCat("resources.world_size=", size)}; }
inline Settings Tp(int size) {
  return {absl::StrCat("parallel.tensor_model_parallel_size=", size)};
}
inline Settings Pp(int size) {
  return {absl::StrCat("parallel.pipeline_model_parallel_size=", size)};
}
inline Settings Vpp(int chunks) {
  return {absl::StrCat("parallel.virtual_pipeline_model_parallel_size=", chunks)};
}
inline Settings PipelineLayout(const char* layout) {
  return {absl::StrCat("parallel.pipeline_model_parallel_layout=", layout)};
}
inline Settings Instances(int n) {
  return {absl::StrCat("parallel.num_distributed_optimizer_instances=", n)};
}
inline const Settings kSequenceParallel = {"parallel.sequence_parallel=true"};
inline const Settings kDistributedOptimizer = {"parallel.use_distributed_optimizer=true"};
inline const Settings kOverlapGradReduce = {"parallel.overlap_grad_reduce=true",
                                            "parallel.ddp_bucket_size=5000"};
inline const Settings kOverlapAll =
    kOverlapGradReduce + Settings{"parallel.overlap_param_gather=true"};
inline const Settings kNotAligned = {"parallel.align_grad_reduce=false",
                                     "parallel.align_param_gather=false"};
inline const Settings kPartial = {
    "training.num_microbatches_with_partial_activation_checkpoints=1"};
inline const Settings kUntied = {"model.untie_embeddings_and_output_weights=true"};

// Rotary positions, RMS norms, SwiGLU, grouped queries, no biases, untied.
inline const Settings kLlama = kUntied + Settings{"model.position_embedding_type=rope",
                                                  "model.normalization=RMSNorm",
                                                  "model.swiglu=true",
                                                  "model.num_query_groups=2",
                                                  "model.add_bias_linear=false",
                                                  "model.qk_layernorm=true"};

inline Settings Cp(int size, const char* comm_type = "p2p") {
  return {absl::StrCat("parallel.context_parallel_size=", size),
          absl::StrCat("parallel.cp_comm_type=", comm_type)};
}
inline Settings Ep(int size, int etp = 1) {
  return {absl::StrCat("parallel.expert_model_parallel_size=", size),
          absl::StrCat("parallel.expert_tensor_parallel_size=", etp)};
}
inline Settings MegatronFsdp(const char* strategy) {
  return {"parallel.use_megatron_fsdp=true",
          absl::StrCat("parallel.data_parallel_sharding_strategy=", strategy)};
}
inline const Settings kFsdp2 = {"parallel.use_torch_fsdp2=true"};
inline const Settings kFsdp2NoReshard =
    kFsdp2 + Settings{"parallel.torch_fsdp2_reshard_after_forward=false"};

// Four experts a layer, two of them for each token.
inline const Settings kMoe = {"model.num_experts=4", "model.moe_router_topk=2",
                              "model.moe_ffn_hidden_size=32", "model.add_bias_linear=false"};
inline const Settings kAllToAll = {"model.moe_token_dispatcher_type=alltoall"};
inline const Settings kGroupedGemm = {"model.moe_grouped_gemm=true"};

}  // namespace muster
