// Rows of the sections data, training, optimizer and schedule.
#include "common/spec/fields.h"

namespace muster {

#define F(member) MUSTER_FIELD(data, member)
Section DataFields() {
  return {
      "data",
      "Where the tokens come from. A data path is the common prefix of a .bin and an .idx file; a "
      "list may put a weight before each prefix to blend them.",
      {
          {F(dataset_provider), Anything(), "",
           "Who builds the datasets: gpt, mock (synthetic documents, no files), or a name that "
           "the plugin registers."},
          {F(data_path), Anything(), "", "Data of all three splits.", "not set"},
          {F(train_data_path), Anything(), "", "Data of the training split only.", "not set"},
          {F(valid_data_path), Anything(), "", "Data of the validation split only.", "not set"},
          {F(test_data_path), Anything(), "", "Data of the test split only.", "not set"},
          {F(split), Anything(), "",
           "Shares of train, validation and test, such as 969,30,1; they are normalised.",
           "969, 30, 1; 1,1,1 for mock data"},
          {F(data_cache_path), Anything(), "", "Folder of the cached sample indices.",
           "cache/GPTDataset_indices beside the data"},
          {F(tokenizer_type), OneOf({"byte", "huggingface", "sentencepiece"}), "",
           "Tokenizer: 256 bytes and an end-of-document token, or a model file."},
          {F(tokenizer_model), Anything(), "",
           "File of the tokenizer: tokenizer.json or a SentencePiece model.",
           "none for byte, else required"},
          {F(dataloader_type), OneOf({"single", "cyclic"}), "",
           "Read samples once in order, or shuffled again each epoch."},
          {F(data_sharding), Anything(), "",
           "cyclic: each data parallel rank shuffles a part of its own."},
          {F(reset_position_ids), Anything(), "",
           "Count positions from zero again after an end of document."},
          {F(reset_attention_mask), Anything(), "",
           "Hide earlier documents of a sample from attention."},
          {F(eod_mask_loss), Anything(), "",
           "No loss where the input token is an end of document."},
          {F(full_validation), Anything(), "",
           "Evaluate on the whole validation set, each sample once."},
      }};
}
#undef F

#define F(member) MUSTER_FIELD(training, member)
Section TrainingFields() {
  const FieldRule count = Between(1, kMaxCount);
  return {
      "training",
      "Batches, length, precision and exits.",
      {
          {F(micro_batch_size), Required(Between(1, kMaxSize)), "samples",
           "Samples that one rank takes through the model at once."},
          {F(global_batch_size), Between(1, kMaxSize), "samples", "Samples of one optimizer step.",
           "micro_batch_size x data parallel size"},
          {F(rampup_batch_size), Between(0, kMaxSamples), "samples",
           "[start, increment, samples]: grow the batch from start to global_batch_size in steps "
           "of increment over the first samples.",
           "not set: constant"},
          {F(decrease_batch_size_if_needed), Anything(), "",
           "Run with the next smaller batch that the ranks can share instead of refusing."},
          {F(train_iters), count, "iterations", "Optimizer steps of the job.",
           "one of train_iters and train_samples is required"},
          {F(train_samples), Between(1, kMaxSamples), "samples",
           "Samples of the job, instead of train_iters.", "not set"},
          {F(seed), Between(1, 4294967295.0), "", "Seed of data order, weights and dropout."},
          {F(data_parallel_random_init), Anything(), "",
           "Draw initial weights on each data parallel rank apart, then take the first's."},
          {F(fp16), Anything(), "", "Train in fp16 with loss scaling."},
          {F(bf16), Anything(), "", "Train in bf16."},
          {F(fp64), Anything(), "", "Run everything in fp64, for parity checks; cpu only."},
          {F(loss_scale), Above(0), "", "Constant loss scale for fp16.", "not set: dynamic"},
          {F(initial_loss_scale), Above(0), "", "First value of the dynamic loss scale."},
          {F(min_loss_scale), Above(0), "", "Smallest dynamic loss scale."},
          {F(loss_scale_window), count, "iterations",
           "Clean steps after which the loss scale is doubled."},
          {F(hysteresis), Between(1, kMaxSize), "iterations",
           "Steps with overflow before the loss scale is halved."},
          {F(calculate_per_token_loss), Anything(), "",
           "Weigh every token of the global batch equally, instead of every microbatch."},
          {F(recompute_granularity), OneOf({"full", "selective"}), "",
           "Recompute activations in the backward pass: whole layers, or attention only.",
           "not set: keep them"},
          {F(recompute_method), OneOf({"uniform", "block"}), "",
           "full: recompute evenly spaced groups of layers, or the first layers of a stage.",
           "not set"},
          {F(recompute_num_layers), Between(1, kMaxSize), "layers",
           "full: layers of a recomputed group, or layers recomputed in a stage.", "not set"},
          {F(recompute_modules), Anything(), "",
           "selective: what is recomputed; core_attn is attention without its projections."},
          {F(num_microbatches_with_partial_activation_checkpoints), Between(0, kMaxSize),
           "microbatches",
           "Of the microbatches that a pipeline stage holds at once, how many are recomputed as "
           "the fields above say; the others recompute every layer. Needs pipeline stages.",
           "not set: all"},
          {F(exit_interval), count, "iterations",
           "Save and leave when the iteration is a multiple of this.", "not set"},
          {F(exit_duration_in_mins), Above(0), "minutes",
           "Save and leave once the trainer has run so long.", "not set"},
          {F(exit_signal_handler), Anything(), "", "On SIGTERM save and leave in order."},
          {F(skip_train), Anything(), "", "Only evaluate: no optimizer, no training."},
          {F(log_interval), count, "iterations", "Iterations between two lines of the log."},
          {F(log_params_norm), Anything(), "", "Also log the norm of the parameters."},
          {F(log_num_zeros_in_grad), Anything(), "", "Also log how many gradients are zero."},
          {F(iterations_to_skip), count, "iterations",
           "Iterations, counted from 1, whose batch is read but not trained on."},
          {F(check_weight_hash_across_dp_replicas_interval), count, "iterations",
           "Before training, and when the iteration is a multiple of this, compare the parameters "
           "of all data parallel replicas by their SHA-1; a difference fails the job.",
           "not set: they are not compared"},
          {F(num_threads), Between(1, 4096), "threads", "CPU threads of a trainer.",
           "cores of the node / its workers"},
      }};
}
#undef F

#define F(member) MUSTER_FIELD(optimizer, member)
Section OptimizerFields() {
  const FieldRule positive_or_zero = AtLeast(0);
  const FieldRule beta = Between(0, 0.9999999999);
  return {
      "optimizer",
      "The optimizer and gradient clipping.",
      {
          {F(optimizer), OneOf({"adam", "sgd", "muon", "dist_muon"}), "",
           "adam decouples weight decay from the gradient, sgd does not; muon orthogonalises the "
           "update of matrices; dist_muon is muon with whole parameters dealt out to the data "
           "parallel ranks."},
          {F(lr), Required(positive_or_zero), "", "Largest learning rate."},
          {F(weight_decay), positive_or_zero, "",
           "Weight decay of everything but biases and one-dimensional parameters."},
          {F(adam_beta1), beta, "", "Decay of Adam's mean of gradients."},
          {F(adam_beta2), beta, "", "Decay of Adam's mean of squared gradients."},
          {F(adam_eps), Above(0), "", "Added to Adam's denominator."},
          {F(sgd_momentum), beta, "", "Momentum of SGD."},
          {F(muon_momentum), beta, "", "Momentum of Muon."},
          {F(muon_use_nesterov), Anything(), "", "Nesterov form of Muon's momentum."},
          {F(muon_num_ns_steps), Between(1, 1000), "steps",
           "Newton-Schulz steps of an orthogonalisation."},
          {F(muon_coefficient_type), OneOf({"quintic", "simple"}), "",
           "Coefficients of the Newton-Schulz steps: five sets in turn, or one."},
          {F(muon_matmul_precision), OneOf({"medium", "high", "highest"}), "",
           "Precision of the Newton-Schulz products: bf16, or fp32 (high may use TF32 on a GPU)."},
          {F(muon_scale_mode), OneOf({"spectral", "unit_rms_norm", "shape_scaling"}), "",
           "How a Muon update is scaled by its matrix's shape."},
          {F(muon_extra_scale_factor), Above(0), "", "Further factor of Muon's update."},
          {F(muon_split_qkv), Anything(), "",
           "Orthogonalise the query, key and value parts apart."},
          {F(muon_tp_mode), OneOf({"duplicated", "distributed", "blockwise"}), "",
           "How Muon treats a matrix that is split over tensor parallel ranks."},
          {F(muon_scalar_optimizer), OneOf({"adam"}), "",
           "Optimizer of the parameters that Muon leaves alone."},
          {F(clip_grad), positive_or_zero, "", "Largest global gradient norm; 0: no clipping."},
          {F(grad_norm_skip_threshold), positive_or_zero, "",
           "A step whose gradient norm, before clipping, is above this updates nothing.",
           "not set: no step is skipped for it"},
          {F(decoupled_lr), positive_or_zero, "",
           "Learning rate of the embedding and the output layer.", "lr"},
          {F(decoupled_min_lr), positive_or_zero, "",
           "Smallest learning rate of the embedding and the output layer.", "schedule.min_lr"},
          {F(apply_wd_to_qk_layernorm), Anything(), "",
           "Decay the weights of the query and key normalisation too."},
      }};
}
#undef F

#define F(member) MUSTER_FIELD(schedule, member)
Section ScheduleFields() {
  const FieldRule positive_or_zero = AtLeast(0);
  const FieldRule count = Between(1, kMaxCount);
  const FieldRule samples = Between(1, kMaxSamples);
  return {
      "schedule",
      "Learning rate and weight decay over the job. Use the _iters fields with "
      "training.train_iters and the _samples fields with training.train_samples.",
      {
          {F(lr_decay_style), OneOf({"constant", "linear", "cosine", "inverse-square-root", "WSD"}),
           "", "Shape of the decay after warm-up."},
          {F(min_lr), positive_or_zero, "", "Learning rate at the end of the decay."},
          {F(lr_warmup_init), positive_or_zero, "", "Learning rate at the start of the warm-up."},
          {F(lr_warmup_fraction), Between(0, 1), "fraction",
           "Warm-up as a share of the decay's length.", "not set"},
          {F(lr_warmup_iters), Between(0, kMaxCount), "iterations", "Length of the warm-up."},
          {F(lr_warmup_samples), Between(0, kMaxSamples), "samples", "Length of the warm-up."},
          {F(lr_decay_iters), count, "iterations",
           "Iteration at which the decay, warm-up included, ends.", "train_iters"},
          {F(lr_decay_samples), samples, "samples",
           "Sample at which the decay, warm-up included, ends.", "train_samples"},
          {F(lr_wsd_decay_style), OneOf({"linear", "cosine", "exponential", "minus_sqrt"}), "",
           "Shape of the final decay of WSD."},
          {F(lr_wsd_decay_iters), count, "iterations", "Length of the final decay of WSD.",
           "required by WSD with train_iters"},
          {F(lr_wsd_decay_samples), samples, "samples", "Length of the final decay of WSD.",
           "required by WSD with train_samples"},
          {F(start_weight_decay), positive_or_zero, "", "Weight decay at the start.",
           "optimizer.weight_decay"},
          {F(end_weight_decay), positive_or_zero, "", "Weight decay at the end.",
           "optimizer.weight_decay"},
          {F(weight_decay_incr_style), OneOf({"constant", "linear", "cosine"}), "",
           "How weight decay goes from start_weight_decay to end_weight_decay."},
          {F(override_opt_param_scheduler), Anything(), "",
           "After a load use these settings, not the checkpoint's."},
          {F(use_checkpoint_opt_param_scheduler), Anything(), "",
           "After a load use the checkpoint's settings, not these."},
      }};
}
#undef F

}  // namespace muster
