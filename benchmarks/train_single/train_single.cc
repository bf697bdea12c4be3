// Training speed of one worker: the engine's GPT, gradient buffers and AdamW, without data and
// control. Driven by run.py, which interleaves it with PyTorch.
//
// Usage: bench-train-single MODEL(gpt2|small) BATCH SEQ DTYPE(fp32|bf16) THREADS [DEVICE(cpu|cuda)]
// Then one line a request on standard input: "step N" runs N steps and prints one JSON line with
// their seconds; "parts N" prints the CPU seconds of a step's parts, each the best of N; end of
// input ends the program.

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/randint.h>

#include "benchmarks/train_single/parts.h"
#include "common/base/check.h"
#ifdef MUSTER_BENCH_CUDA
#include "worker/cuda/row_ops.h"
#endif
#include "worker/model/caching_allocator.h"
#include "worker/model/gpt.h"
#include "worker/optim/optimizer.h"
#include "worker/parallel/ddp.h"
#include "worker/parallel/parallel_context.h"

namespace muster {
namespace {

TransformerConfig ConfigNamed(const std::string& name) {
  TransformerConfig c;
  c.attention_dropout = c.hidden_dropout = 0;
  if (name == "gpt2") {
    c.num_layers = 12;
    c.hidden_size = 768;
    c.num_attention_heads = c.num_query_groups = 12;
    c.padded_vocab_size = 50304;
    c.max_position_embeddings = 1024;
  } else {
    MUSTER_CHECK_MSG(name == "small", name);
    c.num_layers = 6;
    c.hidden_size = 384;
    c.num_attention_heads = c.num_query_groups = 6;
    c.padded_vocab_size = 256;
    c.max_position_embeddings = 256;
  }
  c.ffn_hidden_size = 4 * c.hidden_size;
  c.kv_channels = 64;
  return c;
}

double CpuSecondsSince(std::clock_t start) {
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

class Bench {
 public:
  Bench(const TransformerConfig& config, int64_t batch, int64_t seq, at::ScalarType dtype,
        at::Device device)
      : config_(config),
        batch_(batch),
        seq_(seq),
        device_(device),
        parallel_(ParallelContext::SingleProcess()) {
    auto rng = RngTracker::Create(1234, {}, false, device.is_cuda());
    MUSTER_CHECK(rng.ok());
    model_ =
        std::make_unique<GptModel>(config, GptModel::Placement{.num_layers = config.num_layers},
                                   TensorParallel{}, *rng, device, dtype);
    auto ddp = DistributedDataParallel::Create({model_->parameters()}, DdpGroups::Of(parallel_),
                                               {.grad_reduce_in_fp32 = true});
    MUSTER_CHECK(ddp.ok());
    ddp_ = *std::move(ddp);
    auto optimizer =
        Optimizer::Create(WholeShards(model_->parameters()), GradStatsGroups::Of(parallel_, false),
                          {.adam_beta2 = 0.95, .clip_grad = 1.0});
    MUSTER_CHECK(optimizer.ok());
    optimizer_ = *std::move(optimizer);
    for (size_t i = 0; i < optimizer_->param_groups().size(); ++i) {
      const double wd_mult = optimizer_->param_groups()[i].identity.wd_mult;
      optimizer_->SetGroupLr(static_cast<int>(i), 3e-4, 0.1 * wd_mult);
    }
  }

  double Step() {
    const at::Tensor data = at::randint(0, config_.padded_vocab_size, {batch_, seq_ + 1},
                                        generator_, at::TensorOptions().dtype(at::kLong));
    Batch batch;
    batch.tokens = data.narrow(1, 0, seq_).contiguous().to(device_);
    batch.labels = data.narrow(1, 1, seq_).contiguous().to(device_);
    batch.position_ids =
        at::arange(seq_, at::kLong).expand({batch_, seq_}).contiguous().to(device_);
    ddp_->ZeroGradBuffer();
    const at::Tensor loss = at::mean(model_->Forward(batch, {}));
    loss.backward();
    MUSTER_CHECK(ddp_->FinishGradSync(0).ok());
    const std::clock_t start = std::clock();
    auto prepared = optimizer_->PrepareStep();
    MUSTER_CHECK(prepared.ok());
    optimizer_->CommitStep(*prepared);
    optimizer_cpu_seconds_ = CpuSecondsSince(start);
    return loss.item<double>();
  }
  double optimizer_cpu_seconds() const { return optimizer_cpu_seconds_; }  // of the last step

 private:
  const TransformerConfig config_;
  const int64_t batch_, seq_;
  const at::Device device_;
  ParallelContext parallel_;
  at::Generator generator_ = at::detail::createCPUGenerator(1);
  std::unique_ptr<GptModel> model_;
  std::unique_ptr<DistributedDataParallel> ddp_;
  std::unique_ptr<Optimizer> optimizer_;
  double optimizer_cpu_seconds_ = 0;
};

// One JSON line: a part's name and CPU seconds; "step" is a whole one, the last of `repeats`.
void PrintParts(Bench& bench, const std::vector<PartTime>& parts, int64_t repeats) {
  double step = 0, sum = 0;
  for (int64_t i = 0; i < repeats; ++i) {
    const std::clock_t start = std::clock();
    bench.Step();
    step = CpuSecondsSince(start);
  }
  std::cout << "{";
  for (const PartTime& part : parts) {
    std::cout << '"' << part.name << "\": " << part.cpu_seconds << ", ";
    sum += part.cpu_seconds;
  }
  sum += bench.optimizer_cpu_seconds();
  std::cout << "\"optimizer\": " << bench.optimizer_cpu_seconds() << ", \"rest\": " << step - sum
            << ", \"step\": " << step << "}" << std::endl;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  if (argc != 6 && argc != 7) {
    std::cerr << "usage: bench-train-single gpt2|small BATCH SEQ fp32|bf16 THREADS [cpu|cuda]\n";
    return 2;
  }
  muster::InstallCachingCpuAllocator();
  at::set_num_threads(std::atoi(argv[5]));
  const at::ScalarType dtype = std::string(argv[4]) == "bf16" ? at::kBFloat16 : at::kFloat;
  const muster::TransformerConfig config = muster::ConfigNamed(argv[1]);
  const int64_t batch = std::atoll(argv[2]), seq = std::atoll(argv[3]);
#ifdef MUSTER_BENCH_CUDA
  muster::UseCudaRowOps();
#endif
  const bool cuda = argc == 7 && std::string(argv[6]) == "cuda";
  muster::Bench bench(config, batch, seq, dtype, at::Device(cuda ? at::kCUDA : at::kCPU));
  std::string word;
  int64_t steps = 0;
  while (std::cin >> word >> steps) {
    if (word == "parts") {
      PrintParts(bench, muster::TimeParts(config, batch, seq, dtype, steps), steps);
      continue;
    }
    std::string seconds, cpu_seconds;
    double loss = 0;
    for (int64_t i = 0; i < steps; ++i) {
      const auto start = std::chrono::steady_clock::now();
      const std::clock_t cpu_start = std::clock();
      loss = bench.Step();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      const double cpu = muster::CpuSecondsSince(cpu_start);
      seconds += (i == 0 ? "" : ", ") + std::to_string(took.count());
      cpu_seconds += (i == 0 ? "" : ", ") + std::to_string(cpu);
    }
    std::cout << "{\"seconds\": [" << seconds << "], \"cpu_seconds\": [" << cpu_seconds
              << "], \"loss\": " << loss << "}" << std::endl;
  }
  return 0;
}
