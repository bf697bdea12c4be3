// Rows of the sections model and parallel.
#include "common/spec/fields.h"

namespace muster {

#define F(member) MUSTER_FIELD(model, member)
Section ModelFields() {
  const FieldRule size = Between(1, kMaxSize);
  const FieldRule fraction = Between(0, 1);
  return {
      "model",
      "The network, its sizes and its initialisation.",
      {
          {F(model_provider), Anything(), "",
           "Who builds the model: gpt, or a name that the plugin registers."},
          {F(forward_step), Anything(), "",
           "Who runs a microbatch and computes its loss: gpt, or a name that the plugin "
           "registers."},
          {F(num_layers), Required(size), "layers", "Transformer layers."},
          {F(hidden_size), Required(size), "elements", "Width of the residual stream."},
          {F(ffn_hidden_size), size, "elements", "Inner width of the feed-forward block.",
           "4 x hidden_size; with swiglu 8/3 x hidden_size rounded down to a multiple of 64"},
          {F(num_attention_heads), Required(size), "heads", "Query heads of a layer."},
          {F(num_query_groups), size, "groups",
           "Key and value heads; fewer than the query heads make grouped-query attention.",
           "num_attention_heads"},
          {F(kv_channels), size, "elements", "Width of one head.",
           "hidden_size / num_attention_heads"},
          {F(seq_length), Required(size), "tokens", "Length of a training sample."},
          {F(max_position_embeddings), size, "tokens", "Rows of the learned position table.",
           "seq_length"},
          {F(position_embedding_type), OneOf({"learned_absolute", "rope", "none"}), "",
           "How positions enter: a learned table, rotary embedding of queries and keys, or not "
           "at all."},
          {F(rotary_base), Above(0), "", "Base of the rotary wavelengths (rope)."},
          {F(rotary_percent), AboveUpTo(0, 1), "fraction",
           "Share of a head's channels that is rotated (rope)."},
          {F(normalization), OneOf({"LayerNorm", "RMSNorm"}), "",
           "Normalisation before each block."},
          {F(norm_epsilon), Above(0), "", "Added to the variance inside the normalisation."},
          {F(swiglu), Anything(), "",
           "Gated feed-forward block with SiLU instead of one with GELU."},
          {F(add_bias_linear), Anything(), "", "Biases in the linear layers."},
          {F(add_qkv_bias), Anything(), "",
           "A bias in the query, key, value projection even when add_bias_linear is off."},
          {F(qk_layernorm), Anything(), "", "Normalise queries and keys of each head."},
          {F(untie_embeddings_and_output_weights), Anything(), "",
           "Give the output layer a weight of its own instead of the embedding's."},
          {F(attention_dropout), fraction, "probability", "Dropout of attention weights."},
          {F(hidden_dropout), fraction, "probability",
           "Dropout of embeddings and of each block's output."},
          {F(init_method_std), AtLeast(0), "",
           "Standard deviation of the initial weights; projections back into the residual stream "
           "use it divided by sqrt(2 x num_layers)."},
          {F(vocab_size), size, "tokens", "Vocabulary before padding.", "the tokenizer's"},
          {F(make_vocab_size_divisible_by), size, "tokens",
           "The vocabulary is padded to a multiple of this times the tensor parallel size."},
          {F(num_experts), size, "experts", "Experts of a mixture-of-experts layer.",
           "not set: dense layers"},
          {F(moe_layer_freq), OneOrMore(Between(0, kMaxSize)), "layers",
           "Which layers have experts: every n-th, from the first on; or a list with 1 for such a "
           "layer and 0 for a dense one."},
          {F(moe_router_topk), size, "experts", "Experts that each token is sent to."},
          {F(moe_router_load_balancing_type),
           OneOrMore(OneOf({"aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none"})),
           "",
           "How the load of the experts is balanced: by losses over a microbatch, a sequence or a "
           "global batch, several of them if listed, or by sinkhorn's choice."},
          {F(moe_aux_loss_coeff), OneOrMore(AtLeast(0)), "",
           "Weight of the load-balancing loss; one for each type in "
           "moe_router_load_balancing_type."},
          {F(moe_router_score_function), OneOf({"softmax", "sigmoid"}), "",
           "Function that turns router logits into scores."},
          {F(moe_router_pre_softmax), Anything(), "",
           "Take the softmax over all experts before choosing, not over the chosen ones."},
          {F(moe_router_topk_scaling_factor), Above(0), "",
           "Factor of the weights of a token's experts.", "not set: 1"},
          {F(moe_router_num_groups), size, "groups",
           "Equal groups of experts; a token's experts are taken from the best "
           "moe_router_group_topk of them.",
           "not set: no groups"},
          {F(moe_router_group_topk), size, "groups", "Groups that a token may be sent to.",
           "required by moe_router_num_groups"},
          {F(moe_router_enable_expert_bias), Anything(), "",
           "Add a bias to each expert's score when experts are chosen; each step moves it against "
           "the expert's load."},
          {F(moe_router_bias_update_rate), AtLeast(0), "", "Step of the expert bias."},
          {F(moe_router_dtype), OneOf({"fp32", "fp64"}), "",
           "Precision of the router's product and of the combining of the experts' outputs.",
           "the model's"},
          {F(moe_input_jitter_eps), Between(0, 1), "",
           "The router's input is multiplied by random numbers between 1 - this and 1 + this.",
           "not set: none"},
          {F(moe_z_loss_coeff), AtLeast(0), "", "Weight of the router's z-loss.",
           "not set: no z-loss"},
          {F(moe_expert_capacity_factor), Above(0), "",
           "Room of an expert, as a multiple of an even share of the tokens.",
           "not set: no token is dropped"},
          {F(moe_pad_expert_input_to_capacity), Anything(), "",
           "Give every expert exactly its capacity of rows."},
          {F(moe_token_drop_policy), OneOf({"probs", "position"}), "",
           "Which tokens a full expert drops: the least probable or the last."},
          {F(moe_token_dispatcher_type), OneOf({"allgather", "alltoall"}), "",
           "How tokens travel to the ranks of their experts."},
          {F(moe_grouped_gemm), Anything(), "",
           "One grouped matrix product over a rank's experts instead of one each."},
          {F(moe_apply_probs_on_input), Anything(), "",
           "Multiply an expert's input by the token's weight, not its activation."},
          {F(moe_ffn_hidden_size), size, "elements", "Inner width of an expert.",
           "ffn_hidden_size"},
          {F(moe_shared_expert_intermediate_size), size, "elements",
           "Inner width of the expert that every token passes.", "not set: no shared expert"},
          {F(moe_shared_expert_gate), Anything(), "",
           "Scale the shared expert's output by a learned gate."},
          {F(moe_shared_expert_overlap), Anything(), "",
           "Run the shared expert while tokens travel to the others."},
      }};
}
#undef F

#define F(member) MUSTER_FIELD(parallel, member)
Section ParallelFields() {
  const FieldRule ranks = Between(1, kMaxSize);
  return {
      "parallel",
      "How the model, the batch and the optimizer are spread over ranks. Data parallel is what "
      "remains: world_size / (tensor x pipeline x context).",
      {
          {F(tensor_model_parallel_size), ranks, "ranks", "Ranks that share each weight matrix."},
          {F(pipeline_model_parallel_size), ranks, "ranks", "Pipeline stages."},
          {F(virtual_pipeline_model_parallel_size), ranks, "chunks",
           "Model chunks of a pipeline rank (interleaved schedule).", "not set: one"},
          {F(num_layers_per_virtual_pipeline_stage), ranks, "layers",
           "Layers of a model chunk; another way to set the number of chunks.", "not set"},
          {F(pipeline_model_parallel_layout), Anything(), "",
           "Which layers each stage holds, such as E|(tt|)*3tL: E embedding, t layer, L loss.",
           "not set: an even split"},
          {F(decoder_first_pipeline_num_layers), ranks, "layers",
           "Layers of the first stage in an uneven split.", "not set"},
          {F(decoder_last_pipeline_num_layers), ranks, "layers",
           "Layers of the last stage in an uneven split.", "not set"},
          {F(account_for_embedding_in_pipeline_split), Anything(), "",
           "Count the embedding as a layer of the first stage."},
          {F(account_for_loss_in_pipeline_split), Anything(), "",
           "Count the output layer and loss as a layer of the last stage."},
          {F(microbatch_group_size_per_virtual_pipeline_stage), ranks, "microbatches",
           "Consecutive microbatches that a chunk runs before the next chunk has its turn.",
           "pipeline_model_parallel_size"},
          {F(overlap_p2p_comm), Anything(), "",
           "Send and receive between stages behind the computation; takes effect with virtual "
           "stages only, which need more than two stages without it."},
          {F(overlap_p2p_comm_warmup_flush), Anything(), "",
           "Also while the pipeline fills and drains: stages post the next receive before they "
           "compute. Needs virtual stages and overlap_p2p_comm."},
          {F(context_parallel_size), ranks, "ranks", "Ranks that share each sequence."},
          {F(cp_comm_type), OneOrMore(OneOf({"p2p", "all_gather", "a2a", "a2a+p2p"})), "",
           "How attention sees the whole sequence: ring, gathered keys and values, heads exchanged "
           "for positions, or such exchanges inside a ring; one for all layers or one a layer."},
          {F(hierarchical_context_parallel_sizes), ranks, "ranks",
           "Levels of context parallel ranks, the innermost first; a2a+p2p exchanges heads over "
           "the first and rings over the second."},
          {F(expert_model_parallel_size), ranks, "ranks", "Ranks that share the experts."},
          {F(expert_tensor_parallel_size), ranks, "ranks",
           "Ranks that share each expert's matrices.", "tensor_model_parallel_size"},
          {F(order), Anything(), "",
           "Axes of the rank grid joined by '-'; the leftmost varies fastest."},
          {F(sequence_parallel), Anything(), "",
           "Split the sequence over the tensor parallel ranks between the split layers; without "
           "effect on one rank."},
          {F(use_distributed_optimizer), Anything(), "",
           "Shard optimizer state over the data parallel ranks."},
          {F(num_distributed_optimizer_instances), ranks, "instances",
           "Replicas of the sharded optimizer state."},
          {F(use_torch_fsdp2), Anything(), "",
           "Shard parameters, gradients and optimizer state layer by layer, as FSDP2 does."},
          {F(use_megatron_fsdp), Anything(), "",
           "Shard by data_parallel_sharding_strategy, as Megatron-FSDP does."},
          {F(data_parallel_sharding_strategy),
           OneOf({"no_shard", "optim", "optim_grads", "optim_grads_params"}), "",
           "What use_megatron_fsdp shards."},
          {F(outer_dp_sharding_strategy), OneOf({"no_shard", "optim"}), "",
           "What the replicas of num_distributed_optimizer_instances share of an "
           "optim_grads_params sharding: nothing, or the optimizer state."},
          {F(torch_fsdp2_reshard_after_forward), Anything(), "",
           "use_torch_fsdp2: free a layer's gathered parameters after its forward pass and gather "
           "them again for the backward pass."},
          {F(overlap_grad_reduce), Anything(), "",
           "Reduce gradient buckets while the backward pass still runs."},
          {F(overlap_param_gather), Anything(), "",
           "Gather updated parameters while the next forward pass runs."},
          {F(align_grad_reduce), Anything(), "",
           "Start gradient reductions of all pipeline stages at the same time."},
          {F(align_param_gather), Anything(), "",
           "Start parameter gathers of all pipeline stages at the same time."},
          {F(ddp_bucket_size), Between(1, kMaxCount), "elements", "Gradient bucket size.",
           "max(40,000,000, 1,000,000 x data parallel ranks)"},
          {F(ddp_num_buckets), ranks, "buckets", "Gradient buckets, instead of their size.",
           "not set"},
          {F(pad_buckets_for_high_nccl_busbw), Anything(), "",
           "Round buckets of the distributed optimizer up to multiples of 65,536 elements, a size "
           "at "
           "which NCCL reaches its full bandwidth."},
          {F(ddp_average_in_collective), Anything(), "",
           "Let the collective average gradients instead of scaling them before it."},
          {F(accumulate_allreduce_grads_in_fp32), Anything(), "",
           "Keep and reduce gradients in fp32; on with bf16 unless grad_reduce_in_bf16."},
          {F(grad_reduce_in_bf16), Anything(), "", "Keep and reduce gradients in bf16."},
          {F(distributed_backend), OneOf({"nccl", "gloo"}), "", "Library of the collectives.",
           "nccl on cuda, gloo on cpu"},
          {F(distributed_timeout_minutes), Between(1, 525600), "minutes",
           "A collective that makes no progress for so long has failed."},
          {F(shared_memory), Anything(), "",
           "Let cpu ranks of one node exchange tensors through shared memory instead of sockets."},
      }};
}
#undef F

}  // namespace muster
