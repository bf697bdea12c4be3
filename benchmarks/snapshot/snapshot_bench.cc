// What snapshots cost a training step: a job of one rank, GPT-2 124M in bf16 on the CPU, through
// RunTraining, with a memory as the agent gives it. Steps that follow a snapshot have its copy
// under them; the others of the same run are what they are compared with, so that a change of the
// machine's speed hits both.
//
// Usage: bench-snapshot STEPS BATCH SEQ THREADS [small]   (small: a tenth of the model, to try it)

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Parallel.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
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
    if (const auto* step = std::get_if<StepMessage>(&message)) ms.push_back(step->elapsed_ms);
    if (const auto* event = std::get_if<EventMessage>(&message)) {
      std::cerr << event->kind << ": " << event->text << "\n";
    }
  }
  std::vector<Directive> TakeDirectives() override { return {}; }
  bool ExitSignalReceived() override { return false; }

  std::vector<double> ms;  // of step 1, 2, ...
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

// Step k + 1 runs over the copy of step k's state; step k + 2 sees that it has counted.
void Every(const Setting& setting) {
  const std::vector<double> ms = StepsOf(setting);
  std::vector<double> without, with;
  for (size_t i = 0; i < ms.size(); ++i) {
    const auto before = static_cast<int64_t>(i);  // steps done before this one
    if (before < 2) continue;
    if (before % setting.interval != 0) {
      without.push_back(ms[i]);
    } else if (before / setting.interval > kFirst) {
      with.push_back(ms[i]);
    }
  }
  const double plain = Median(without), copied = Median(with);
  const double mean = (static_cast<double>(setting.interval - 1) * plain + copied) /
                      static_cast<double>(setting.interval);
  std::cout << absl::StrFormat(
      "interval %d: steps without a copy %.1f ms (%d), with one %.1f ms (%d), ratio over the "
      "interval %.4f\n",
      setting.interval, plain, without.size(), copied, with.size(), mean / plain);
}

// A snapshot is begun once the one before it counts: after each step, or after every second one
// where the copy takes longer than the passes.
void Always(Setting setting) {
  setting.interval = 0;
  const double plain = Median([&] {
    std::vector<double> ms = StepsOf(setting);
    ms.erase(ms.begin(), ms.begin() + 2);
    return ms;
  }());
  setting.interval = 1;
  std::vector<double> ms = StepsOf(setting);
  ms.erase(ms.begin(),
           ms.begin() + std::min<int64_t>(2 * kFirst + 2, static_cast<int64_t>(ms.size()) - 1));
  double sum = 0;
  for (const double one : ms) sum += one;
  const double mean = sum / static_cast<double>(ms.size());
  std::cout << absl::StrFormat(
      "interval 1: steps of a run without %.1f ms, with %.1f ms, ratio %.4f\n", plain, mean,
      mean / plain);
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
  MUSTER_CHECK_MSG(setting.steps > 10 * (kFirst + 1), "at least 41 steps");
  at::set_num_threads(std::atoi(argv[4]));
  std::cout << absl::StrFormat("%s, bf16, %d x %d tokens, %s threads\n",
                               small ? "a small GPT" : "GPT-2 124M (1.74 GB a snapshot)",
                               setting.batch, setting.seq, argv[4])
            << std::flush;
  Every(setting);
  Setting always = setting;
  always.steps = std::max<int64_t>(12, setting.steps / 4);
  Always(always);
  return 0;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) { return muster::Main(argc, argv); }
