#include "worker/model/layer.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

std::string NameOf(int64_t number) { return absl::StrCat("decoder.layers.", number); }

}  // namespace

TransformerLayer::TransformerLayer(LayerBuild& build, int64_t number,
                                   std::shared_ptr<const RotaryTable> rotary)
    : hidden_dropout_(build.config.hidden_dropout),
      dropout_generator_(HiddenDropoutGenerator(build)),
      input_layernorm_(build, NameOf(number) + ".input_layernorm", build.config.hidden_size),
      self_attention_(build, NameOf(number) + ".self_attention", std::move(rotary), number),
      pre_mlp_layernorm_(build, NameOf(number) + ".pre_mlp_layernorm", build.config.hidden_size) {
  if (build.config.moe.HasExperts(number)) {
    moe_.emplace(build, NameOf(number) + ".mlp");
  } else {
    mlp_.emplace(build, NameOf(number) + ".mlp", build.config.ffn_hidden_size);
  }
}

PendingAdd TransformerLayer::Forward(const PendingAdd& input, const TokenLayout& layout,
                                     const at::Tensor& mask, bool training) const {
  const double dropout = training ? hidden_dropout_ : 0.0;
  const auto leave_open = [&](const at::Tensor& residual, const at::Tensor& branch,
                              const ParameterPtr& bias) {
    return PendingAdd{residual, branch, bias, MakeDropMask(branch, dropout, dropout_generator_)};
  };
  const Norm::Result first = input_layernorm_.Forward(input);
  const at::Tensor attended = self_attention_.Forward(first.y, layout, mask, training);
  const Norm::Result second =
      pre_mlp_layernorm_.Forward(leave_open(first.x, attended, self_attention_.bias()));
  if (moe_.has_value())
    return leave_open(second.x, moe_->Forward(second.y, layout, training), nullptr);
  return leave_open(second.x, mlp_->Forward(second.y), mlp_->bias());
}

}  // namespace muster
