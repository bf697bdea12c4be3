// A plugin for tests: the forward step "poison" is the built-in one until it meets a certain
// microbatch, which ends its process, whoever runs it and as often as it comes.
//   TEST_POISON_SUMS=FILE  writes the sum of each training microbatch's tokens, a line each
//   TEST_POISON=SUM the microbatch that kills
#include <cstdlib>
#include <fstream>
#include <memory>

#include <ATen/core/Tensor.h>
#include <ATen/ops/sum.h>

#include "worker/provider/gpt_forward_step.h"
#include "worker/provider/plugin_api.h"

namespace {

class PoisonForwardStep final : public muster::ForwardStep {
 public:
  absl::StatusOr<muster::ForwardStepResult> Run(muster::DataIterator& data,
                                                muster::ModelChunk& model,
                                                const at::Tensor& input) override {
    absl::StatusOr<muster::Batch> batch = data.Next();
    if (!batch.ok()) return batch.status();
    const int64_t sum = at::sum(batch->tokens).item<int64_t>();
    if (sums_ != nullptr) std::ofstream(sums_, std::ios::app) << sum << "\n";
    if (poison_ != nullptr && std::atoll(poison_) == sum) std::abort();
    muster::ForwardStepResult result;
    result.output = model.Forward(*batch, input);
    const at::Tensor mask = batch->loss_mask;
    result.loss_function = [mask](const at::Tensor& output) {
      return muster::MaskedLoss(output, mask);
    };
    return result;
  }

 private:
  const char* const sums_ = std::getenv("TEST_POISON_SUMS");
  const char* const poison_ = std::getenv("TEST_POISON");
};

absl::Status Register(muster::ProviderRegistry& registry) {
  return registry.AddForwardStep("poison", std::make_shared<PoisonForwardStep>());
}

}  // namespace

MUSTER_PLUGIN(Register)
