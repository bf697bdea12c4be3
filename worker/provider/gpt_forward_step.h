// model.forward_step = "gpt": one microbatch through the chunk, and Megatron's GPT loss function
// (reference 5.1).
#pragma once

#include "absl/status/statusor.h"
#include "worker/provider/provider.h"

namespace muster {

// token losses (B, S), loss_mask (B, S) fp32 -> sum of the counted losses, how many are counted,
// and "lm loss": [sum, count] of this rank's tokens.
LossResult MaskedLoss(const at::Tensor& token_losses, const at::Tensor& loss_mask);

class GptForwardStep final : public ForwardStep {
 public:
  // Every stage takes its microbatch: tokens, labels or masks of it are needed (a stage that needs
  // none is given empty ones). Passes on the data iterator's error.
  absl::StatusOr<ForwardStepResult> Run(DataIterator& data, ModelChunk& model,
                                        const at::Tensor& input) override;
};

}  // namespace muster
