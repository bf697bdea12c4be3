// An example plugin: the forward step "second_half" trains on the second half of each sequence
// only, the first half being context (as with prompts and answers of fixed length). It has the size
// of what each stage computes checked: a step with a value out of all bounds is run again, and goes
// on with what the second run gave. Everything else is the built-in GPT step.
//
// Spec: "plugin": "<allowed folder>/libsecond_half.so", "model": {"forward_step": "second_half",
// ...}

#include <memory>

#include <ATen/core/Tensor.h>

#include "worker/provider/gpt_forward_step.h"
#include "worker/provider/plugin_api.h"

namespace {

class SecondHalfForwardStep final : public muster::ForwardStep {
 public:
  absl::StatusOr<muster::ForwardStepResult> Run(muster::DataIterator& data,
                                                muster::ModelChunk& model,
                                                const at::Tensor& input) override {
    absl::StatusOr<muster::Batch> batch = data.Next();
    if (!batch.ok()) return batch.status();
    muster::ForwardStepResult result;
    result.output = model.Forward(*batch, input);
    result.checks.push_back({.message = "a value of the stage's output is above 1e6",
                             .result = result.output.detach().abs().max(),
                             .rejected = [](double largest) { return !(largest <= 1e6); },
                             .fatal = false});
    at::Tensor mask = batch->loss_mask.clone();  // (B, S)
    mask.narrow(1, 0, mask.size(1) / 2).zero_();
    result.loss_function = [mask](const at::Tensor& output) {
      return muster::MaskedLoss(output, mask);
    };
    return result;
  }
};

absl::Status Register(muster::ProviderRegistry& registry) {
  return registry.AddForwardStep("second_half", std::make_shared<SecondHalfForwardStep>());
}

}  // namespace

MUSTER_PLUGIN(Register)
