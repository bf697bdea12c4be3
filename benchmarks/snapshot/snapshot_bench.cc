// What snapshots cost a training step: a job of one rank, GPT-2 124M in bf16 on the CPU, through
// RunTraining, with a memory as the agent gives it. A step's time is that between two reports by
// the wall clock, so that whatever is done between steps counts too.
//
// Interval 10: steps that run over a copy are compared with the other steps of the same ten, so
// that a change of the machine's speed hits both. The same arithmetic over two steps without any
// copy says how far the machine alone is off. Interval 1: runs with and without, in turns.
//
// Usage: bench-snapshot STEPS BATCH SEQ THREADS [small]   (small: a tenth of the model, to try it)

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/Parallel.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/runtime/clock.h"
#include "common/runtime/fd.h"
#include "common/spec/spec_json.h"
#include "worker/comm/self_communicator.h"
#include "worker/provider/builtin.h"
#include "worker/snapshot/snapshotter.h"
#include "worker/train/training.h"

namespace muster {
namespace {

class StepTimes final : public TrainerHost {
 public:
  void Send(TrainerToAgent message) override {
    if (std::holds_alternative<StepMessage>(message)) {
      const absl::Time now = absl::Now();
      if (last_.has_value()) ms.push_back(absl::ToDoubleMilliseconds(now - *last_));
      last_ = now;
    }
    if (const auto* event = std::get_if<EventMessage>(&message)) {
      std::cerr << event->kind << ": " << event->text << "\n";
    }
  }
  std::vector<Directive> TakeDirectives() override { return {}; }
  bool ExitSignalReceived() override { return false; }

  std::vector<double> ms;  // of step 2, 3, ...: the first has no report before it

 private:
  std::optional<absl::Time> last_;
};

struct Setting {
  int64_t steps = 0, batch = 0, seq = 0, interval = 0;
  int64_t layers = 12, heads = 12, vocab = 50257;
};

std::string SpecText(const Setting& setting) {
  return absl::StrFormat(
      R"({"name": "snapshots",
          "model": {"num_layers": %d, "hidden_size": %d, "num_attention_heads": %d,
                    "seq_length": %d, "max_position_embeddings": 1024, "vocab_size": %d,
                    "hidden_dropout": 0, "attention_dropout": 0},
          "parallel": {"distributed_backend": "gloo"},
          "data": {"dataset_provider": "mock", "split": "1,0,0"},
          "training": {"micro_batch_size": %d, "global_batch_size": %d, "train_iters": %d, "bf16": true,
                       "log_interval": 100000},
          "optimizer": {"lr": 0.0001},
          "schedule": {"lr_decay_style": "constant"},
          "evaluation": {"eval_iters": 0},
          "recovery": {"snapshot_interval": %d},
          "resources": {"world_size": 1}})",
      setting.layers, 64 * setting.heads, setting.heads, setting.seq, setting.vocab, setting.batch,
      setting.batch, setting.steps, setting.interval);
}

std::vector<double> StepsOf(const Setting& setting) {
  const Fd memory(memfd_create("snapshots", MFD_CLOEXEC));
  MUSTER_CHECK(memory.open());
  const ParsedSpec parsed = ParseJobSpec(SpecText(setting));
  MUSTER_CHECK_MSG(parsed.problems.empty(), parsed.problems[0].ToString());
  ProviderRegistry providers;
  RegisterBuiltinProviders(providers);
  RealClock clock;
  StepTimes host;
  AttemptState kept;
  kept.job_id = "bench";
  kept.snapshotter = std::make_unique<Snapshotter>(
      SnapshotterOptions{.job_id = "bench",
                         .memory = absl::StrCat("/proc/self/fd/", memory.get()),
                         .interval = setting.interval});
  const auto result = RunTraining({.spec = parsed.spec,
                                   .world = MakeSelfCommunicator("world", 0),
                                   .host = host,
                                   .providers = providers,
                                   .clock = clock,
                                   .process_start = clock.Steady(),
                                   .kept = &kept});
  MUSTER_CHECK_MSG(result.ok(), result.status().ToString());
  return host.ms;
}

double Median(std::vector<double> values) {
  MUSTER_CHECK(!values.empty());
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// Pages of a slot are new in its first snapshot, so those are left out.
constexpr int64_t kFirst = 3;
// Step 10 k + 1 runs over the copy of the state of step 10 k, the next one over what is left of it,
// and sees that it counts.
constexpr int64_t kOverCopy = 2;

// The time of the `interval` steps, if only those from `first` on cost more than the others, over
// that of as many of the others. Those over a copy are never among the others.
double RatioOfBlock(const std::vector<double>& block, int64_t first) {
  std::vector<double> others, measured;
  for (int64_t i = 0; i < static_cast<int64_t>(block.size()); ++i) {
    if (i >= first && i < first + kOverCopy) {
      measured.push_back(block[i]);
    } else if (i >= kOverCopy) {
      others.push_back(block[i]);
    }
  }
  const double plain = Median(others);
  double extra = 0;
  for (const double one : measured) extra += one - plain;
  return 1 + extra / (static_cast<double>(block.size()) * plain);
}

std::string Spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return absl::StrFormat("%.4f (%.4f-%.4f)", Median(values), values.front(), values.back());
}

void Every(const Setting& setting) {
  const std::vector<double> ms = StepsOf(setting);
  std::vector<double> ratios, noise, plain, copied;
  for (int64_t k = kFirst + 1; (k + 1) * setting.interval <= setting.steps; ++k) {
    // Iteration i is ms[i - 2].
    const auto first = ms.begin() + k * setting.interval - 1;
    const std::vector<double> block(first, first + setting.interval);
    ratios.push_back(RatioOfBlock(block, 0));
    noise.push_back(RatioOfBlock(block, setting.interval / 2));
    copied.push_back(block[0]);
    plain.push_back(Median({block.begin() + kOverCopy, block.end()}));
  }
  std::cout << absl::StrFormat(
      "interval %d: a step %.1f ms, one over a copy %.1f ms; ratio over the interval %s, aim 1.03: "
      "%s; the same over steps without a copy (noise) %s; %d snapshots\n",
      setting.interval, Median(plain), Median(copied), Spread(ratios),
      Median(ratios) <= 1.03 ? "met" : "NOT MET", Spread(noise), ratios.size());
}

double MeanWithoutTheFirst(std::vector<double> ms) {
  ms.erase(ms.begin(),
           ms.begin() + std::min<int64_t>(2 * kFirst + 1, static_cast<int64_t>(ms.size()) - 1));
  double sum = 0;
  for (const double one : ms) sum += one;
  return sum / static_cast<double>(ms.size());
}

// A snapshot is begun once the one before it counts: after each step, or after every second one
// where the copy takes longer than the passes.
void Always(Setting setting) {
  constexpr int kTurns = 3;
  std::vector<double> without, with, ratios, noise;
  for (int turn = 0; turn < kTurns; ++turn) {
    setting.interval = 0;
    without.push_back(MeanWithoutTheFirst(StepsOf(setting)));
    setting.interval = 1;
    with.push_back(MeanWithoutTheFirst(StepsOf(setting)));
    ratios.push_back(with.back() / without.back());
    noise.push_back(without.back() / without.front());
  }
  std::cout << absl::StrFormat(
      "interval 1: runs without %.1f ms a step, with %.1f ms, in %d turns; ratio %s; runs without "
      "to the first of them (noise) %s\n",
      Median(without), Median(with), kTurns, Spread(ratios), Spread(noise));
}

int Main(int argc, char** argv) {
  const bool small = argc == 6 && std::string(argv[5]) == "small";
  if (argc != 5 && !small) {
    std::cerr << "usage: bench-snapshot STEPS BATCH SEQ THREADS [small]\n";
    return 2;
  }
  Setting setting{.steps = std::atoll(argv[1]),
                  .batch = std::atoll(argv[2]),
                  .seq = std::atoll(argv[3]),
                  .interval = 10};
  if (small) setting.layers = setting.heads = 6, setting.vocab = 512;
  MUSTER_CHECK_MSG(setting.steps > 10 * (kFirst + 2), "at least 51 steps");
  at::set_num_threads(std::atoi(argv[4]));
  std::cout << absl::StrFormat("%s, bf16, %d x %d tokens, %s threads\n",
                               small ? "a small GPT" : "GPT-2 124M (1.74 GB a snapshot)",
                               setting.batch, setting.seq, argv[4])
            << std::flush;
  Every(setting);
  Setting always = setting;
  always.steps = std::max<int64_t>(16, setting.steps / 8);
  Always(always);
  return 0;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) { return muster::Main(argc, argv); }
