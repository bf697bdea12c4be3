#include "worker/provider/gpt_forward_step.h"

#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>

#include "common/base/status.h"

namespace muster {

LossResult MaskedLoss(const at::Tensor& token_losses, const at::Tensor& loss_mask) {
  // fp32 whatever the model's dtype; an fp64 job stays in fp64.
  const at::ScalarType type = token_losses.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor mask = loss_mask.to(type);
  LossResult result;
  result.loss_sum = at::sum(at::mul(token_losses.to(type), mask));
  const at::Tensor count = at::sum(mask);
  result.num_tokens = count.to(at::kLong);
  result.reported["lm loss"] = at::stack({result.loss_sum.detach(), count});
  return result;
}

absl::StatusOr<ForwardStepResult> GptForwardStep::Run(DataIterator& data, ModelChunk& model,
                                                      const at::Tensor& input) {
  ASSIGN_OR_RETURN(const Batch batch, data.Next());
  ForwardStepResult result;
  result.output = model.Forward(batch, input);
  result.loss_function = [loss_mask = batch.loss_mask](const at::Tensor& output) {
    return MaskedLoss(output, loss_mask);
  };
  return result;
}

}  // namespace muster
