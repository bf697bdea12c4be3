#include "tensor_parallel_support.h"

#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "common/base/check.h"
#include "tests/worker/model/logged_work.h"
#include "worker/parallel/parameter_slices.h"

namespace muster {
TransformerConfig TpGpt2Like() {
  TransformerConfig config = TinyConfig();
  config.num_attention_heads = config.num_query_groups = 8;
  config.kv_channels = 4;
  return config;
}

TransformerConfig TpLlamaLike() {
  TransformerConfig config = TpGpt2Like();
  config.num_query_groups = 4;
  config.position_embedding = PositionEmbedding::kRope;
  config.normalization = Normalization::kRmsNorm;
  config.swiglu = config.qk_layernorm = config.add_qkv_bias = true;
  config.add_bias_linear = false;
  config.untie_embeddings_and_output_weights = true;
  return config;
}

TensorParallel TensorParallelOver(Communicator& group, bool sequence_parallel) {
  return {.comm = &group,
          .rank = group.rank(),
          .size = group.size(),
          .sequence_parallel = sequence_parallel};
}

std::unique_ptr<GptModel> MakeShard(const TransformerConfig& config, const TensorParallel& tp,
                                    const std::vector<ParameterPtr>& whole, at::ScalarType dtype,
                                    GptModel::Placement placement) {
  RngTracker rng = *RngTracker::Create(1234, {.tp_rank = tp.rank}, false, false);
  auto model = std::make_unique<GptModel>(config, placement, GptModel::Groups{.tp = tp}, rng,
                                          at::kCPU, dtype);
  std::map<std::string, ParameterPtr> by_name;
  for (const ParameterPtr& parameter : whole) by_name[parameter->name] = parameter;
  at::NoGradGuard no_grad;
  for (const ParameterPtr& parameter : model->parameters()) {
    const bool tied_copy = !by_name.contains(parameter->name);
    const ParameterPtr& source =
        by_name.at(tied_copy ? "embedding.word_embeddings.weight" : parameter->name);
    parameter->data.copy_(ShardOf(source->data.detach(), *parameter));
  }
  return model;
}

std::unique_ptr<GptModel> MakeShard(const TransformerConfig& config, const TensorParallel& tp,
                                    const std::vector<ParameterPtr>& whole, at::ScalarType dtype) {
  return MakeShard(config, tp, whole, dtype,
                   {.num_layers = config.num_layers, .seq_major = tp.sequence_parallel});
}

void FillAtRandom(const std::vector<ParameterPtr>& parameters, uint64_t seed) {
  at::NoGradGuard no_grad;
  for (const ParameterPtr& parameter : parameters) {
    const at::Tensor noise = RandomLeaf(parameter->data.sizes(), ++seed).detach();
    const bool norm_weight = parameter->name.ends_with("layernorm.weight");
    parameter->data.copy_(noise.mul(0.3).add(norm_weight ? 1.0 : 0.0));
  }
}

at::Tensor GradOf(const Parameter& parameter) {
  return parameter.main_grad.defined() ? parameter.main_grad : parameter.data.grad();
}

at::Tensor FinalGradOf(const Parameter& parameter, Communicator& tp) {
  at::Tensor grad = GradOf(parameter).contiguous().clone();
  if (parameter.sequence_parallel || parameter.is_qk_layernorm) {
    WaitOrThrow(tp.AllReduce(grad, ReduceOp::kSum));
  }
  return grad;
}

WorkPtr LoggingCommunicator::Log(const std::string& kind, int64_t bytes, WorkPtr work) {
  events_.push_back("start " + kind);
  ++traffic_[kind].calls;
  traffic_[kind].bytes += bytes;
  return std::make_shared<LoggedWork>(events_, "wait " + kind, std::move(work));
}

WorkPtr LoggingCommunicator::AllReduce(at::Tensor tensor, ReduceOp op) {
  return Log("all-reduce", static_cast<int64_t>(tensor.nbytes()), inner_.AllReduce(tensor, op));
}
WorkPtr LoggingCommunicator::ReduceScatter(at::Tensor output, at::Tensor input, ReduceOp op) {
  return Log("reduce-scatter", static_cast<int64_t>(input.nbytes()),
             inner_.ReduceScatter(output, input, op));
}
WorkPtr LoggingCommunicator::AllGather(at::Tensor output, at::Tensor input) {
  return Log("all-gather", static_cast<int64_t>(input.nbytes()), inner_.AllGather(output, input));
}
WorkPtr LoggingCommunicator::AllToAll(at::Tensor output, at::Tensor input,
                                      std::vector<int64_t> output_splits,
                                      std::vector<int64_t> input_splits) {
  return Log("all-to-all", static_cast<int64_t>(input.nbytes()),
             inner_.AllToAll(output, input, std::move(output_splits), std::move(input_splits)));
}
WorkPtr LoggingCommunicator::Broadcast(at::Tensor tensor, int root) {
  return Log("broadcast", static_cast<int64_t>(tensor.nbytes()), inner_.Broadcast(tensor, root));
}
WorkPtr LoggingCommunicator::SendRecv(std::vector<P2POp> batch) {
  return Log("send-recv", 0, inner_.SendRecv(std::move(batch)));
}

}  // namespace muster
