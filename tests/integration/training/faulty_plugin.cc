// A forward step for tests of reruns: GPT's, but what it computes on the worker that MUSTER_WORKER
// names as ".../1" is a thousand times too large from the process's 21st pass on, and a check says
// so. The fault is the worker's: it stays whatever rank the worker gets.

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/mul.h>

#include "worker/provider/gpt_forward_step.h"
#include "worker/provider/plugin_api.h"

namespace {

class FaultyForwardStep final : public muster::ForwardStep {
 public:
  absl::StatusOr<muster::ForwardStepResult> Run(muster::DataIterator& data,
                                                muster::ModelChunk& model,
                                                const at::Tensor& input) override {
    static std::atomic<int64_t> passes{0};  // of the process: a provider lives for an assignment
    const char* const worker = std::getenv("MUSTER_WORKER");
    const std::string name = worker == nullptr ? "" : worker;
    const bool mine = name.size() > 2 && name.substr(name.size() - 2) == "/1";
    auto step = gpt_.Run(data, model, input);
    if (!step.ok()) return step;
    // Evaluations are no training passes.
    const bool training = step->output.requires_grad();
    if (training && mine && ++passes > 20) step->output = at::mul(step->output, 1000);
    step->checks.push_back({.message = "the loss is too large",
                            .result = step->output.detach().abs().max(),
                            .rejected = [](double value) { return value > 1000; }});
    return step;
  }

 private:
  muster::GptForwardStep gpt_;
};

absl::Status Register(muster::ProviderRegistry& registry) {
  return registry.AddForwardStep("faulty", std::make_shared<FaultyForwardStep>());
}

}  // namespace

MUSTER_PLUGIN(Register)
