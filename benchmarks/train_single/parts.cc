#include "benchmarks/train_single/parts.h"

#include <algorithm>
#include <ctime>
#include <functional>
#include <limits>
#include <utility>

#include <ATen/ops/arange.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "common/base/check.h"
#include "worker/model/activation.h"
#include "worker/model/core_attention.h"
#include "worker/model/embedding.h"
#include "worker/model/linear.h"
#include "worker/model/lm_head.h"
#include "worker/model/norm.h"

namespace muster {
namespace {

class PartTimer {
 public:
  PartTimer(const TransformerConfig& config, int64_t batch, int64_t seq, at::ScalarType dtype,
            int64_t repeats)
      : config_(config),
        dtype_(dtype),
        repeats_(repeats),
        layout_{.batch = batch, .seq = seq},
        rng_(MakeRng()) {}

  std::vector<PartTime> Run() {
    const int64_t hidden = config_.hidden_size, ffn = config_.ffn_hidden_size;
    const int64_t width = config_.num_attention_heads * config_.kv_channels;
    const int64_t layers = config_.num_layers;
    AddLinear("qkv product", hidden, 3 * width);
    AddLinear("proj product", width, hidden);
    AddLinear("fc1 product", hidden, ffn);
    AddLinear("fc2 product", ffn, hidden);
    const at::Tensor qkv = Leaf(3 * width);
    const AttentionShape shape{config_.num_attention_heads, config_.num_query_groups,
                               config_.kv_channels};
    Add("attention", layers,
        [&] { return FlashCausalAttentionOp(qkv, shape, layout_, /*rotary=*/nullptr); });
    const at::Tensor u = Leaf(ffn);
    LayerBuild build = Build();
    const ParameterPtr bias = MakeParameter(build, "bias", {ffn}, InitMethod::Zeros());
    const Norm norm(build, "norm", hidden);
    const LanguageModelEmbedding embedding(build);
    AttachMainGrads();
    Add("gelu", layers, [&] { return BiasGeluOp(u, bias); });
    const PendingAdd pending{Leaf(hidden), Leaf(hidden), nullptr, {}};
    Add("norms", 2 * layers + 1, [&] { return norm.Forward(pending).y; });
    Batch batch;
    batch.tokens = Ids();
    batch.position_ids =
        at::arange(layout_.seq, at::kLong).expand({layout_.batch, layout_.seq}).contiguous();
    Add("embedding", 1, [&] { return embedding.Forward(batch, layout_, /*training=*/true); });
    const at::Tensor last = Leaf(hidden), labels = IdsInRowOrder(Ids(), layout_);
    Add("lm head and loss", 1,
        [&] { return LmHeadLossOp(last, embedding.word_embeddings(), labels); });
    return std::move(times_);
  }

 private:
  static RngTracker MakeRng() {
    auto rng = RngTracker::Create(1, {}, false, false);
    MUSTER_CHECK(rng.ok());
    return *std::move(rng);
  }
  LayerBuild Build() {
    return {.config = config_, .rng = rng_, .dtype = dtype_, .parameters = parameters_};
  }
  at::Tensor Leaf(int64_t width) const {
    return at::randn({layout_.rows(), width}).to(dtype_).requires_grad_();
  }
  at::Tensor Ids() const {
    return at::randint(0, config_.padded_vocab_size, {layout_.batch, layout_.seq},
                       at::TensorOptions().dtype(at::kLong));
  }
  // fp32 gradients of parameters go where a training step's go.
  void AttachMainGrads() {
    for (const ParameterPtr& parameter : parameters_) {
      parameter->main_grad = at::zeros(parameter->data.sizes(), at::kFloat);
    }
  }

  void AddLinear(const std::string& name, int64_t in, int64_t out) {
    LayerBuild build = Build();
    const ColumnParallelLinear linear(build, name, {.in = in, .out = out, .init_std = 0.02});
    AttachMainGrads();
    const at::Tensor x = Leaf(in);
    Add(name, config_.num_layers, [&] { return linear.Forward(x); });
  }

  void Add(const std::string& name, int64_t uses, const std::function<at::Tensor()>& forward) {
    double best = std::numeric_limits<double>::infinity();
    at::Tensor grad;
    for (int64_t i = 0; i <= repeats_; ++i) {  // the first one warms up
      const std::clock_t start = std::clock();
      const at::Tensor y = forward();
      const std::clock_t between = std::clock();
      if (!grad.defined()) grad = at::ones_like(y);
      const std::clock_t again = std::clock();
      y.backward(grad);
      const std::clock_t took = (std::clock() - again) + (between - start);
      if (i > 0) best = std::min(best, static_cast<double>(took) / CLOCKS_PER_SEC);
    }
    times_.push_back({name, best * static_cast<double>(uses)});
  }

  const TransformerConfig& config_;
  const at::ScalarType dtype_;
  const int64_t repeats_;
  const TokenLayout layout_;
  RngTracker rng_;
  std::vector<ParameterPtr> parameters_;
  std::vector<PartTime> times_;
};

}  // namespace

std::vector<PartTime> TimeParts(const TransformerConfig& config, int64_t batch, int64_t seq,
                                at::ScalarType dtype, int64_t repeats) {
  return PartTimer(config, batch, seq, dtype, repeats).Run();
}

}  // namespace muster
