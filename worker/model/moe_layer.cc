#include "worker/model/moe_layer.h"

#include "common/base/check.h"

namespace muster {
namespace {

// Replicated; each rank sees its own tokens.
TopKRouter MakeRouter(LayerBuild& build, const std::string& name) {
  MUSTER_CHECK(build.experts != nullptr);
  const TransformerConfig& config = build.config;
  const InitMethod init = InitMethod::Normal(config.init_method_std);
  const int64_t experts = config.moe.num_experts;
  TopKRouter::Options options{
      .config = config.moe,
      .name = name,
      .weight = MakeParameter(build, name + ".weight", {experts, config.hidden_size}, init),
      .groups = build.ep,
      .experts = build.experts,
      .jitter = HiddenDropoutGenerator(build)};
  if (config.moe.router_bias) options.bias = MakeParameter(build, name + ".bias", {experts}, init);
  MarkSequenceParallel(build, options.weight);
  MarkSequenceParallel(build, options.bias);
  return TopKRouter(std::move(options));
}

}  // namespace

MoeLayer::MoeLayer(LayerBuild& build, const std::string& name)
    : sequence_parts_(build.tp.sequence_parts()),
      shared_expert_overlap_(build.config.moe.shared_expert_overlap),
      router_(MakeRouter(build, name + ".router")),
      dispatcher_(MakeTokenDispatcher(build.config.moe, build.ep)),
      experts_(build, name + ".experts") {
  if (build.config.moe.shared_expert_ffn > 0)
    shared_expert_.emplace(build, name + ".shared_experts");
}

at::Tensor MoeLayer::Forward(const at::Tensor& x, const TokenLayout& layout, bool training) const {
  const RoutedTokens routed = router_.Forward(
      x,
      {.batch = layout.batch, .seq = layout.seq / sequence_parts_, .seq_major = layout.seq_major},
      /*padding=*/{}, training);
  at::Tensor shared;
  const auto run_shared = [&] { shared = shared_expert_->Forward(x); };
  const bool behind = shared_expert_.has_value() && shared_expert_overlap_;
  const Dispatched rows =
      behind ? dispatcher_->Dispatch(x, routed, run_shared) : dispatcher_->Dispatch(x, routed);
  const at::Tensor y = dispatcher_->Combine(rows, experts_.Forward(rows));
  if (!shared_expert_.has_value()) return y;
  if (!behind) run_shared();
  return y.add(shared);
}

}  // namespace muster
