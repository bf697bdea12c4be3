// Training speed of one worker: the engine's GPT, gradient buffers and AdamW, without data and
// control. Driven by run.py, which interleaves it with PyTorch.
//
// Usage: bench-train-single MODEL(gpt2|small) BATCH SEQ DTYPE(fp32|bf16|fp16) THREADS
//            [DEVICE(cpu|cuda)] [--peak-tflops N]
// Then one line a request on standard input, each answered by one JSON line; end of input ends the
// program:
//   step N    runs N steps: their seconds, the work of one, the peak memory so far
//   report N  runs N steps after 3 others: tokens/s and TFLOP/s of the median one, and its share of
//             the device's peak (MFU), which --peak-tflops gives where bench_device.cc has none
//   parts N   the CPU seconds of a step's parts, each the best of N (CPU only)

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/randint.h>

#include "benchmarks/train_single/bench_device.h"
#include "benchmarks/train_single/parts.h"
#include "common/base/check.h"
#include "common/schedule/flops.h"
#include "nlohmann/json.hpp"
#include "worker/model/caching_allocator.h"
#include "worker/model/gpt.h"
#include "worker/model/tensor_memory.h"
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

struct Arguments {
  TransformerConfig config;
  int64_t batch = 0, seq = 0;
  at::ScalarType dtype = at::kFloat;
  int threads = 1;
  at::Device device = at::kCPU;
  std::optional<double> peak_tflops;
};

std::optional<Arguments> ParseArguments(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  Arguments arguments;
  if (words.size() >= 2 && words[words.size() - 2] == "--peak-tflops") {
    arguments.peak_tflops = std::atof(words.back().c_str());
    words.resize(words.size() - 2);
  }
  if (words.size() != 5 && words.size() != 6) return std::nullopt;
  arguments.config = ConfigNamed(words[0]);
  arguments.batch = std::atoll(words[1].c_str());
  arguments.seq = std::atoll(words[2].c_str());
  if (words[3] == "bf16") arguments.dtype = at::kBFloat16;
  if (words[3] == "fp16") arguments.dtype = at::kHalf;
  arguments.threads = std::atoi(words[4].c_str());
  if (words.size() == 6 && words[5] == "cuda") arguments.device = at::Device(at::kCUDA, 0);
  return arguments;
}

double CpuSecondsSince(std::clock_t start) {
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

class Bench {
 public:
  explicit Bench(const Arguments& arguments)
      : arguments_(arguments), parallel_(ParallelContext::SingleProcess()) {
    const TransformerConfig& config = arguments.config;
    auto rng = RngTracker::Create(1234, {}, false, arguments.device.is_cuda());
    MUSTER_CHECK(rng.ok());
    model_ =
        std::make_unique<GptModel>(config, GptModel::Placement{.num_layers = config.num_layers},
                                   GptModel::Groups{}, *rng, arguments.device, arguments.dtype);
    auto ddp = DistributedDataParallel::Create({model_->parameters()}, DdpGroups::Of(parallel_),
                                               {.grad_reduce_in_fp32 = true});
    MUSTER_CHECK(ddp.ok());
    ddp_ = *std::move(ddp);
    auto optimizer = Optimizer::Create(
        WholeShards(model_->parameters()), GradStatsGroups::Of(parallel_, false),
        {.adam_beta2 = 0.95, .clip_grad = 1.0, .skip_non_finite = arguments.dtype == at::kHalf});
    MUSTER_CHECK(optimizer.ok());
    optimizer_ = *std::move(optimizer);
    for (size_t i = 0; i < optimizer_->param_groups().size(); ++i) {
      const double wd_mult = optimizer_->param_groups()[i].identity.wd_mult;
      optimizer_->SetGroupLr(static_cast<int>(i), 3e-4, 0.1 * wd_mult);
    }
  }

  double Step() {
    const int64_t seq = arguments_.seq;
    const at::Device device = arguments_.device;
    const at::Tensor data =
        at::randint(0, arguments_.config.padded_vocab_size, {arguments_.batch, seq + 1}, generator_,
                    at::TensorOptions().dtype(at::kLong));
    Batch batch;
    batch.tokens = data.narrow(1, 0, seq).contiguous().to(device);
    batch.labels = data.narrow(1, 1, seq).contiguous().to(device);
    batch.position_ids =
        at::arange(seq, at::kLong).expand({arguments_.batch, seq}).contiguous().to(device);
    ddp_->ZeroGradBuffer();
    const at::Tensor loss = at::mean(model_->Forward(batch, {}));
    const double scale = arguments_.dtype == at::kHalf ? kLossScale : 1;
    scale == 1 ? loss.backward() : loss.mul(scale).backward();
    MUSTER_CHECK(ddp_->FinishGradSync(0).ok());
    const std::clock_t start = std::clock();
    auto prepared = optimizer_->PrepareStep(scale);
    MUSTER_CHECK(prepared.ok() && !prepared->found_inf);
    optimizer_->CommitStep(*prepared);
    optimizer_cpu_seconds_ = CpuSecondsSince(start);
    return loss.item<double>();
  }
  const Arguments& arguments() const { return arguments_; }
  double optimizer_cpu_seconds() const { return optimizer_cpu_seconds_; }  // of the last step

 private:
  static constexpr double kLossScale = 1024;
  const Arguments arguments_;
  ParallelContext parallel_;
  at::Generator generator_ = at::detail::createCPUGenerator(1);
  std::unique_ptr<GptModel> model_;
  std::unique_ptr<DistributedDataParallel> ddp_;
  std::unique_ptr<Optimizer> optimizer_;
  double optimizer_cpu_seconds_ = 0;
};

// Model FLOPs of a step as the trainer counts them.
double FlopsOfStep(const Arguments& a) {
  return FlopsOfBatch({.num_layers = a.config.num_layers,
                       .hidden_size = a.config.hidden_size,
                       .ffn_hidden_size = a.config.ffn_hidden_size,
                       .num_attention_heads = a.config.num_attention_heads,
                       .num_query_groups = a.config.num_query_groups,
                       .kv_channels = a.config.kv_channels,
                       .padded_vocab_size = a.config.padded_vocab_size},
                      a.batch, a.seq);
}

std::optional<double> PeakOf(const Arguments& a) {
  return a.peak_tflops.has_value() ? a.peak_tflops : PeakTflops(BenchDeviceName(a.device));
}

struct Steps {
  std::vector<double> seconds, cpu_seconds;
  double loss = 0;  // of the last one
};

// Each step ends with reading its loss, so that a GPU's work is in its time.
Steps RunSteps(Bench& bench, int64_t count) {
  Steps steps;
  for (int64_t i = 0; i < count; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const std::clock_t cpu_start = std::clock();
    steps.loss = bench.Step();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    steps.seconds.push_back(took.count());
    steps.cpu_seconds.push_back(CpuSecondsSince(cpu_start));
  }
  return steps;
}

void PrintSteps(Bench& bench, int64_t count) {
  const Arguments& arguments = bench.arguments();
  const Steps steps = RunSteps(bench, count);
  nlohmann::ordered_json line = {
      {"seconds", steps.seconds},
      {"cpu_seconds", steps.cpu_seconds},
      {"loss", steps.loss},
      {"flops", FlopsOfStep(arguments)},
      {"peak_memory_bytes", TensorMemoryOn(arguments.device).peak_bytes}};
  if (const auto peak = PeakOf(arguments)) line["peak_tflops"] = *peak;
  std::cout << line.dump() << std::endl;
}

void PrintReport(Bench& bench, int64_t count) {
  const Arguments& arguments = bench.arguments();
  RunSteps(bench, 3);
  Steps steps = RunSteps(bench, count);
  const auto middle = steps.seconds.begin() + count / 2;
  std::nth_element(steps.seconds.begin(), middle, steps.seconds.end());
  const double tflops = FlopsOfStep(arguments) / *middle / 1e12;
  nlohmann::ordered_json line = {
      {"device", BenchDeviceName(arguments.device)},
      {"tokens_per_s", static_cast<double>(arguments.batch * arguments.seq) / *middle},
      {"step_ms", 1e3 * *middle},
      {"tflops", tflops},
      {"peak_memory_mib",
       static_cast<double>(TensorMemoryOn(arguments.device).peak_bytes) / (1 << 20)},
      {"loss", steps.loss}};
  if (const auto peak = PeakOf(arguments)) {
    line["peak_tflops"] = *peak;
    line["mfu"] = tflops / *peak;
  }
  std::cout << line.dump() << std::endl;
}

// A part's name and CPU seconds; "step" is a whole one, the last of `repeats`.
void PrintParts(Bench& bench, int64_t repeats) {
  const Arguments& a = bench.arguments();
  const std::vector<PartTime> parts = TimeParts(a.config, a.batch, a.seq, a.dtype, repeats);
  const double step = RunSteps(bench, repeats).cpu_seconds.back();
  double sum = bench.optimizer_cpu_seconds();
  nlohmann::ordered_json line;
  for (const PartTime& part : parts) {
    line[part.name] = part.cpu_seconds;
    sum += part.cpu_seconds;
  }
  line["optimizer"] = bench.optimizer_cpu_seconds();
  line["rest"] = step - sum;
  line["step"] = step;
  std::cout << line.dump() << std::endl;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  const auto arguments = muster::ParseArguments(argc, argv);
  if (!arguments.has_value()) {
    std::cerr << "usage: bench-train-single gpt2|small BATCH SEQ fp32|bf16|fp16 THREADS [cpu|cuda] "
                 "[--peak-tflops N]\n";
    return 2;
  }
  muster::InstallCachingCpuAllocator();
  at::set_num_threads(arguments->threads);
  if (const std::string why = muster::UseBenchDevice(arguments->device); !why.empty()) {
    std::cerr << "bench-train-single: " << why << "\n";
    return 2;
  }
  muster::Bench bench(*arguments);
  std::string word;
  int64_t steps = 0;
  while (std::cin >> word >> steps) {
    if (word == "parts") {
      PrintParts(bench, steps);
    } else if (word == "report") {
      PrintReport(bench, steps);
    } else {
      PrintSteps(bench, steps);
    }
  }
  return 0;
}
