// A plugin for tests: the forward step "unruly" computes what the built-in one does, and does to
// its process what the environment says.
//   TEST_PACE=FILE            each pass takes as many ms longer as FILE says, while it is there
//   TEST_POISON_SUMS=FILE     writes the sum of each microbatch's tokens, a line each
//   TEST_POISON=SUM           the microbatch with this sum ends whoever runs it, each time
//   TEST_FAULT="KIND WORKER PASS FILE"  once, in the process of that worker, in its PASSth training
//                             pass; FILE says that it was done. KIND:
//     hang      sleeps for ever
//     spin      computes for ever
//     allocate  takes memory until there is none
//     nan       once more wherever the worker computes, from then on: its output is not a number
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>

#include "worker/provider/gpt_forward_step.h"
#include "worker/provider/plugin_api.h"

namespace {

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

class Fault {
 public:
  Fault() {
    std::istringstream words(Environment("TEST_FAULT"));
    std::string worker;
    words >> kind_ >> worker >> pass_ >> done_;
    mine_ = !worker.empty() && worker == Environment("MUSTER_WORKER");
  }

  // To be called once a training pass. Whether the output is to be spoiled.
  bool Strike() {
    if (!mine_ || ++passes_ < pass_) return false;
    if (kind_ == "nan") return true;
    if (access(done_.c_str(), F_OK) == 0) return false;
    std::ofstream(done_) << getpid() << "\n";
    if (kind_ == "hang") {
      while (true) pause();
    }
    if (kind_ == "spin") {
      for (std::atomic<int64_t> turns{0};; ++turns) {
      }
    }
    if (kind_ == "allocate") {
      constexpr size_t kBlock = size_t{16} << 20;
      for (std::vector<std::unique_ptr<char[]>> blocks;;) {
        blocks.push_back(std::make_unique<char[]>(kBlock));
        std::memset(blocks.back().get(), 1, kBlock);
      }
    }
    return false;
  }

 private:
  std::string kind_, done_;
  int64_t pass_ = 0;
  std::atomic<int64_t> passes_{0};
  bool mine_ = false;
};

// Looks at the microbatches that are taken from another one.
class WatchedData final : public muster::DataIterator {
 public:
  WatchedData(muster::DataIterator& data, const std::string& sums, const std::string& poison)
      : data_(data), sums_(sums), poison_(poison) {}

  absl::StatusOr<muster::Batch> Next() override {
    absl::StatusOr<muster::Batch> batch = data_.Next();
    if (!batch.ok() || (sums_.empty() && poison_.empty())) return batch;
    const std::string sum = std::to_string(at::sum(batch->tokens).item<int64_t>());
    if (!sums_.empty()) std::ofstream(sums_, std::ios::app) << sum << "\n";
    if (sum == poison_) std::abort();
    return batch;
  }

 private:
  muster::DataIterator& data_;
  const std::string &sums_, &poison_;
};

class UnrulyForwardStep final : public muster::ForwardStep {
 public:
  absl::StatusOr<muster::ForwardStepResult> Run(muster::DataIterator& data,
                                                muster::ModelChunk& model,
                                                const at::Tensor& input) override {
    static Fault fault;  // of the process: a provider lives for an assignment
    if (int64_t ms = 0; !pace_.empty() && std::ifstream(pace_) >> ms) usleep(1000 * ms);
    WatchedData watched(data, sums_, poison_);
    auto step = gpt_.Run(watched, model, input);
    // Evaluations are no training passes.
    if (step.ok() && step->output.requires_grad() && fault.Strike()) {
      step->output = at::mul(step->output, std::nan(""));
    }
    return step;
  }

 private:
  muster::GptForwardStep gpt_;
  const std::string pace_ = Environment("TEST_PACE"), sums_ = Environment("TEST_POISON_SUMS"),
                    poison_ = Environment("TEST_POISON");
};

absl::Status Register(muster::ProviderRegistry& registry) {
  return registry.AddForwardStep("unruly", std::make_shared<UnrulyForwardStep>());
}

}  // namespace

MUSTER_PLUGIN(Register)
