// JobSpec: the only definition of a job's settings, with their defaults. Leaf names are Megatron's
// arguments in snake_case, in the sections of the JSON document. fields.h describes every member
// (type, unit, help) and drives JSON both ways, errors and docs/spec.md; validate.h holds the rules
// across fields. Plain values; pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace muster {

struct ModelSpec {
  std::string model_provider = "gpt";
  std::string forward_step = "gpt";
  int64_t num_layers = 0;                  // required
  int64_t hidden_size = 0;                 // required
  std::optional<int64_t> ffn_hidden_size;  // default 4*hidden; with swiglu: int(4*hidden*2/3/64)*64
  int64_t num_attention_heads = 0;         // required
  std::optional<int64_t>
      num_query_groups;                // default: num_attention_heads (no grouped-query attention)
  std::optional<int64_t> kv_channels;  // default hidden_size / num_attention_heads
  int64_t seq_length = 0;              // required
  std::optional<int64_t> max_position_embeddings;            // default seq_length
  std::string position_embedding_type = "learned_absolute";  // learned_absolute | rope | none
  double rotary_base = 10000;
  double rotary_percent = 1.0;
  std::string normalization = "LayerNorm";  // LayerNorm | RMSNorm
  double norm_epsilon = 1e-5;
  bool swiglu = false;
  bool add_bias_linear = true;
  bool add_qkv_bias = false;
  bool qk_layernorm = false;
  bool untie_embeddings_and_output_weights = false;
  double attention_dropout = 0.1;
  double hidden_dropout = 0.1;
  double init_method_std = 0.02;
  std::optional<int64_t> vocab_size;  // default: the tokenizer's
  int64_t make_vocab_size_divisible_by = 128;
  std::optional<int64_t> num_experts;
  std::vector<int64_t> moe_layer_freq = {1};  // every n-th layer; or 0 and 1, one a layer
  int64_t moe_router_topk = 2;
  std::vector<std::string> moe_router_load_balancing_type = {"aux_loss"};
  std::vector<double> moe_aux_loss_coeff = {0.0};  // one a type
  std::string moe_router_score_function = "softmax";
  bool moe_router_pre_softmax = false;
  std::optional<double> moe_router_topk_scaling_factor;
  std::optional<int64_t> moe_router_num_groups, moe_router_group_topk;
  bool moe_router_enable_expert_bias = false;
  double moe_router_bias_update_rate = 1e-3;
  std::optional<std::string> moe_router_dtype;  // fp32 | fp64; default: the model's
  std::optional<double> moe_input_jitter_eps;
  std::optional<double> moe_z_loss_coeff;
  std::optional<double> moe_expert_capacity_factor;
  bool moe_pad_expert_input_to_capacity = false;
  std::string moe_token_drop_policy = "probs";
  std::string moe_token_dispatcher_type = "allgather";
  bool moe_grouped_gemm = false;
  bool moe_apply_probs_on_input = false;
  std::optional<int64_t> moe_ffn_hidden_size;
  std::optional<int64_t> moe_shared_expert_intermediate_size;
  bool moe_shared_expert_gate = false;
  bool moe_shared_expert_overlap = false;
};

struct ParallelSpec {
  int64_t tensor_model_parallel_size = 1;
  int64_t pipeline_model_parallel_size = 1;
  std::optional<int64_t> virtual_pipeline_model_parallel_size;
  std::optional<int64_t> num_layers_per_virtual_pipeline_stage;
  std::optional<std::string> pipeline_model_parallel_layout;
  std::optional<int64_t> decoder_first_pipeline_num_layers;
  std::optional<int64_t> decoder_last_pipeline_num_layers;
  bool account_for_embedding_in_pipeline_split = false;
  bool account_for_loss_in_pipeline_split = false;
  std::optional<int64_t> microbatch_group_size_per_virtual_pipeline_stage;
  bool overlap_p2p_comm = true;  // with virtual stages only; off needs more than two stages
  bool overlap_p2p_comm_warmup_flush = false;
  int64_t context_parallel_size = 1;
  std::vector<std::string> cp_comm_type = {"p2p"};           // one, or one a layer
  std::vector<int64_t> hierarchical_context_parallel_sizes;  // a2a+p2p: ranks of each level
  int64_t expert_model_parallel_size = 1;
  std::optional<int64_t> expert_tensor_parallel_size;  // default: tensor_model_parallel_size
  std::string order = "tp-cp-ep-dp-pp";
  bool sequence_parallel = false;
  bool use_distributed_optimizer = false;
  int64_t num_distributed_optimizer_instances = 1;
  bool use_torch_fsdp2 = false;
  bool use_megatron_fsdp = false;
  std::string data_parallel_sharding_strategy = "no_shard";
  std::string outer_dp_sharding_strategy = "no_shard";  // no_shard | optim
  bool torch_fsdp2_reshard_after_forward = true;
  bool overlap_grad_reduce = false;
  bool overlap_param_gather = false;
  bool align_grad_reduce = true;
  bool align_param_gather = true;
  std::optional<int64_t> ddp_bucket_size;  // elements
  std::optional<int64_t> ddp_num_buckets;
  bool pad_buckets_for_high_nccl_busbw = false;
  bool ddp_average_in_collective = false;
  bool accumulate_allreduce_grads_in_fp32 = false;  // bf16 turns it on unless grad_reduce_in_bf16
  bool grad_reduce_in_bf16 = false;
  std::string distributed_backend =
      "nccl";  // nccl | gloo; "cpu" devices need gloo (the default there)
  int64_t distributed_timeout_minutes = 10;
  bool shared_memory = true;  // between the cpu ranks of a node
};

struct DataSpec {
  std::string dataset_provider = "gpt";  // gpt | mock | one of the plugin's
  std::vector<std::string> data_path;    // prefixes, or weight prefix pairs
  std::vector<std::string> train_data_path, valid_data_path, test_data_path;
  std::optional<std::string> split;  // default "969, 30, 1"; mock: "1,1,1"
  std::optional<std::string> data_cache_path;
  std::string tokenizer_type = "byte";  // byte | huggingface | sentencepiece
  std::optional<std::string> tokenizer_model;
  std::string dataloader_type = "single";  // single | cyclic
  bool data_sharding = true;
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  bool eod_mask_loss = false;
  bool full_validation = false;
};

struct TrainingSpec {
  int64_t micro_batch_size = 0;                           // required
  std::optional<int64_t> global_batch_size;               // default micro_batch_size * dp
  std::optional<std::vector<int64_t>> rampup_batch_size;  // [start, increment, samples]
  bool decrease_batch_size_if_needed = false;
  std::optional<int64_t> train_iters;
  std::optional<int64_t> train_samples;
  int64_t seed = 1234;
  bool data_parallel_random_init = false;
  bool fp16 = false, bf16 = false, fp64 = false;
  std::optional<double> loss_scale;
  double initial_loss_scale = 4294967296.0;
  double min_loss_scale = 1.0;
  int64_t loss_scale_window = 1000;
  int64_t hysteresis = 2;
  bool calculate_per_token_loss = false;
  std::optional<std::string> recompute_granularity;  // full | selective
  std::optional<std::string> recompute_method;
  std::optional<int64_t> recompute_num_layers;
  std::vector<std::string> recompute_modules = {"core_attn"};  // selective
  std::optional<int64_t> num_microbatches_with_partial_activation_checkpoints;
  std::optional<int64_t> exit_interval;
  std::optional<double> exit_duration_in_mins;
  bool exit_signal_handler = true;  // SIGTERM: checkpoint and exit
  bool skip_train = false;
  int64_t log_interval = 100;
  bool log_params_norm = false;
  bool log_num_zeros_in_grad = false;
  std::vector<int64_t> iterations_to_skip;  // 1-based
  // iterations; not set: the check does not run
  std::optional<int64_t> check_weight_hash_across_dp_replicas_interval;
  std::optional<int64_t>
      num_threads;  // CPU threads of a trainer; default: cores of the node / its workers
};

struct OptimizerSpec {
  std::string optimizer = "adam";  // adam | sgd | muon | dist_muon (layer-wise muon)
  double lr = 0;                   // required
  double weight_decay = 0.01;
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_eps = 1e-8;
  double sgd_momentum = 0.9;
  double muon_momentum = 0.9;
  bool muon_use_nesterov = false;
  int64_t muon_num_ns_steps = 5;
  std::string muon_coefficient_type = "quintic";  // quintic | simple
  std::string muon_matmul_precision = "medium";   // medium: bf16 iteration | high | highest
  std::string muon_scale_mode = "spectral";
  double muon_extra_scale_factor = 1.0;
  bool muon_split_qkv = true;
  std::string muon_tp_mode = "duplicated";
  std::string muon_scalar_optimizer = "adam";
  double clip_grad = 1.0;
  std::optional<double> grad_norm_skip_threshold;  // not set: infinite
  std::optional<double> decoupled_lr, decoupled_min_lr;
  bool apply_wd_to_qk_layernorm = false;
};

// Both forms: replicated (muon) and layer-wise (dist_muon).
inline bool UsesMuon(const OptimizerSpec& optimizer) {
  return optimizer.optimizer == "muon" || optimizer.optimizer == "dist_muon";
}

struct ScheduleSpec {
  std::string lr_decay_style = "linear";  // constant | linear | cosine | inverse-square-root | WSD
  double min_lr = 0.0;
  double lr_warmup_init = 0.0;
  std::optional<double> lr_warmup_fraction;
  int64_t lr_warmup_iters = 0;
  int64_t lr_warmup_samples = 0;
  std::optional<int64_t> lr_decay_iters, lr_decay_samples;
  std::string lr_wsd_decay_style = "exponential";  // linear | cosine | exponential | minus_sqrt
  std::optional<int64_t> lr_wsd_decay_iters, lr_wsd_decay_samples;
  std::optional<double> start_weight_decay, end_weight_decay;
  std::string weight_decay_incr_style = "constant";  // constant | linear | cosine
  bool override_opt_param_scheduler = false;
  bool use_checkpoint_opt_param_scheduler = false;
};

struct EvaluationSpec {
  std::optional<int64_t> eval_interval;  // iterations; not set: only at the end
  int64_t eval_iters = 100;
  bool at_start = false;
  std::optional<int64_t> start_eval_at_iter;
  std::optional<int64_t> eval_global_batch_size;
};

struct CheckpointSpec {
  std::optional<std::string> save, load, pretrained_checkpoint;
  bool finetune = false;
  std::optional<int64_t> save_interval;
  std::optional<int64_t> save_retain_interval;
  std::optional<int64_t> keep_last;  // newest checkpoints kept
  bool async_save = false;
  bool no_save_optim = false, no_save_rng = false, no_load_optim = false, no_load_rng = false;
  std::optional<int64_t> ckpt_step;
  bool exit_on_missing_checkpoint = false;
};

struct RerunSpec {
  std::string mode = "validate_results";  // disabled | validate_results | report_determinism_stats
  int64_t error_injection_rate = 0;
  std::string error_injection_type =
      "transient_error";  // transient_error | persistent_error | correct_result
  bool check_for_nan_in_loss = true;
  bool check_for_spiky_loss = false;
  std::optional<std::string> result_rejected_tracker_filename;
  bool rerun_elsewhere = true;  // on a spare, or by exchanging two ranks; false: by exit and resume
  bool continue_on_correct = false;  // the data or the model is to blame: go on
};

struct RecoverySpec {
  int64_t max_restarts = 3;
  int64_t restart_window_s = 3600;
  int64_t max_failures_of_step = 3;
  bool skip_poisoned_batch = false;
  int64_t wait_for_workers_s = 600;
  int64_t snapshot_interval = 10;  // committed steps
  bool elastic = false;
  int64_t heartbeat_interval_ms = 500;
  int64_t heartbeat_timeout_ms = 1500;
  int64_t watchdog_timeout_s = 600;
};

struct ResourcesSpec {
  int64_t world_size = 1;
  std::string device = "cpu";  // cpu | cuda
  int64_t spares = 0;
  int64_t priority = 0;
  std::map<std::string, std::string> env;
};

struct JobSpec {
  std::string name = "job";
  std::optional<std::string> plugin;
  ModelSpec model;
  ParallelSpec parallel;
  DataSpec data;
  TrainingSpec training;
  OptimizerSpec optimizer;
  ScheduleSpec schedule;
  EvaluationSpec evaluation;
  CheckpointSpec checkpoint;
  RerunSpec rerun;
  RecoverySpec recovery;
  ResourcesSpec resources;
};

}  // namespace muster
