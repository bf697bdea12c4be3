// Resolve: what a good spec leaves to default, worked out (Megatron's validate_args and microbatch
// calculator).
#include <algorithm>

#include "common/spec/spec_json.h"

namespace muster {
namespace {

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Iterations of a job whose batch grows (reference 8 and 9): steps while the consumed samples lie
// within the ramp and the job, then whole global batches of what remains.
int64_t RampedIterations(int64_t train_samples, int64_t global, const std::vector<int64_t>& ramp) {
  const int64_t start = ramp[0], increment = ramp[1], ramp_samples = ramp[2];
  const double per_level =
      static_cast<double>(ramp_samples) / static_cast<double>((global - start) / increment);
  const int64_t limit = std::min(ramp_samples, train_samples);
  int64_t consumed = 0, iterations = 0;
  while (consumed <= limit) {
    const auto level = static_cast<int64_t>(static_cast<double>(consumed) / per_level);
    const int64_t batch = start + level * increment;
    // Most of a level in one stride; the last steps, where rounding decides, one by one.
    const auto level_end = static_cast<int64_t>(
        std::min(per_level * static_cast<double>(level + 1), static_cast<double>(limit)));
    const int64_t steps = std::max<int64_t>(1, (level_end - consumed) / batch - 1);
    consumed += steps * batch;
    iterations += steps;
  }
  return iterations + std::max<int64_t>(0, train_samples - consumed) / global;
}

}  // namespace

ResolvedSpec Resolve(const JobSpec& spec, int64_t tokenizer_vocab_size) {
  const ModelSpec& model = spec.model;
  const ParallelSpec& parallel = spec.parallel;
  const TrainingSpec& training = spec.training;
  const int64_t tp = parallel.tensor_model_parallel_size;
  const int64_t heads = std::max<int64_t>(1, model.num_attention_heads);
  ResolvedSpec out;
  out.data_parallel_size = spec.resources.world_size / (tp * parallel.context_parallel_size *
                                                        parallel.pipeline_model_parallel_size);
  out.global_batch_size =
      training.global_batch_size.value_or(training.micro_batch_size * out.data_parallel_size);
  out.ffn_hidden_size = model.ffn_hidden_size.value_or(
      model.swiglu ? model.hidden_size * 8 / 3 / 64 * 64 : 4 * model.hidden_size);
  out.kv_channels = model.kv_channels.value_or(model.hidden_size / heads);
  out.num_query_groups = model.num_query_groups.value_or(model.num_attention_heads);
  out.max_position_embeddings = model.max_position_embeddings.value_or(model.seq_length);
  out.vocab_size = model.vocab_size.value_or(tokenizer_vocab_size);
  out.padded_vocab_size = RoundUp(out.vocab_size, model.make_vocab_size_divisible_by * tp);
  out.grads_in_fp32 = parallel.accumulate_allreduce_grads_in_fp32 ||
                      (training.bf16 && !parallel.grad_reduce_in_bf16);
  out.split =
      spec.data.split.value_or(spec.data.dataset_provider == "mock" ? "1,1,1" : "969, 30, 1");
  const int64_t global = std::max<int64_t>(1, out.global_batch_size);
  if (training.train_samples) {
    out.train_samples = *training.train_samples;
    out.train_iters = training.rampup_batch_size
                          ? RampedIterations(out.train_samples, global, *training.rampup_batch_size)
                          : out.train_samples / global;
  } else {
    out.train_iters = training.train_iters.value_or(0);
    out.train_samples = out.train_iters * out.global_batch_size;
  }
  return out;
}

}  // namespace muster
