// What a rank holds between steps in each form of data parallelism, counted by the allocator,
// against the formula (reference 15.1: what is sharded), and what unit buffers add to it while
// steps run.

#include <map>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/spec/spec_json.h"
#include "tests/worker/parallel/thread_ranks.h"
#include "tests/worker/train/train_test_util.h"
#include "worker/model/caching_allocator.h"
#include "worker/model/tensor_memory.h"
#include "worker/provider/builtin.h"
#include "worker/train/job_state.h"

namespace muster {
namespace {

// Padding and the odd scalar stay far below the parameters.
const Settings kModel = {"model.num_layers=4",   "model.hidden_size=64",
                         "model.vocab_size=512", "model.num_attention_heads=4",
                         "model.seq_length=32",  "model.untie_embeddings_and_output_weights=true"};

struct Form {
  const char* name;
  Settings settings;
  bool parameters, gradients, optimizer;  // sharded?
};
const std::vector<Form>& Forms() {
  const auto megatron = [](const char* strategy) {
    return Settings{"parallel.use_megatron_fsdp=true",
                    absl::StrCat("parallel.data_parallel_sharding_strategy=", strategy)};
  };
  static const auto& forms = *new std::vector<Form>{
      {"ddp", {}, false, false, false},
      {"no_shard", megatron("no_shard"), false, false, false},
      {"distributed optimizer", {"parallel.use_distributed_optimizer=true"}, false, false, true},
      {"optim", megatron("optim"), false, false, true},
      {"optim_grads", megatron("optim_grads"), false, true, true},
      {"optim_grads_params", megatron("optim_grads_params"), true, true, true},
      {"fsdp2", {"parallel.use_torch_fsdp2=true"}, true, true, true}};
  return forms;
}

struct Held {
  int64_t bytes = 0;       // of all tensors, after the job's build
  int64_t parameters = 0;  // elements of the model
  int64_t units = 0;       // bytes of values that the build lent to units of different sizes
};

std::vector<Held> Build(const TrainTestRoot& root, const Settings& settings) {
  InstallCountingCpuAllocator();
  const JobSpec spec = ParseJobSpec(root.Spec(settings)).spec;
  std::vector<Held> held(static_cast<size_t>(spec.resources.world_size));
  RunRanks(static_cast<int>(held.size()), [&](CommunicatorPtr world) -> absl::Status {
    auto* counter = new MemoryCounter;  // tensors may outlive the thread
    SetCpuMemoryCounter(counter);
    ProviderRegistry providers;
    RegisterBuiltinProviders(providers);
    const auto rank = static_cast<size_t>(world->rank());
    ASSIGN_OR_RETURN(auto state, BuildJobState(spec, providers, world, c10::kCPU));
    Held& mine = held[rank];
    mine.bytes = counter->Read().current_bytes;
    std::map<int, int64_t> units;
    for (const ParameterPtr& p : ParametersOf(*state)) {
      mine.parameters += p->data.numel();
      units[spec.parallel.use_torch_fsdp2 && p->unit < 0
                ? -1 - (p->name[0] == 'e') - 2 * (p->name[0] == 'o')
                : p->unit] += p->data.numel();
    }
    std::map<int64_t, int64_t> sizes;
    for (const auto& [unit, numel] : units) sizes[numel] = numel;
    for (const auto& [numel, same] : sizes) mine.units += same * (spec.training.bf16 ? 2 : 4);
    return absl::OkStatus();
  });
  return held;
}

TEST(FsdpMemoryTest, WhatARankHoldsIsTheFormula) {
  TrainTestRoot root;
  for (const bool bf16 : {false, true}) {
    for (const int dp : {2, 4}) {
      for (const Form& form : Forms()) {
        SCOPED_TRACE(absl::StrCat(form.name, " dp", dp, bf16 ? " bf16" : " fp32"));
        const auto held =
            Build(root, kModel + form.settings +
                            Settings{absl::StrCat("resources.world_size=", dp),
                                     absl::StrCat("training.bf16=", bf16 ? "true" : "false")});
        for (const Held& rank : held) {
          const auto share = [&](bool sharded) {
            return static_cast<double>(rank.parameters) / (sharded ? dp : 1);
          };
          // Two moments; with bf16 a main parameter too, and gradients in fp32.
          const double formula = (bf16 ? 2 : 4) * share(form.parameters) +
                                 4 * share(form.gradients) +
                                 (bf16 ? 12 : 8) * share(form.optimizer) +
                                 (form.parameters ? static_cast<double>(rank.units) : 0.0);
          EXPECT_NEAR(static_cast<double>(rank.bytes) / formula, 1.0, 0.02)
              << rank.bytes << " bytes, by the formula " << formula;
        }
      }
    }
  }
}

// Peaks of whole steps: a deep model, whose units are small against what is sharded.
TEST(FsdpMemoryTest, PeaksFallWithEachStrategyAndWithTheRanks) {
  TrainTestRoot root;
  const Settings deep = kModel + Settings{"model.num_layers=12", "training.micro_batch_size=1",
                                          "training.global_batch_size=4", "training.train_iters=2"};
  std::map<std::string, std::map<int, int64_t>> peaks;
  for (const Form& form : Forms()) {
    for (const int dp : {2, 4}) {
      int64_t& peak = peaks[form.name][dp];
      for (const RankRun& rank : RunJob(root.Spec(
               deep + form.settings + Settings{absl::StrCat("resources.world_size=", dp)}))) {
        ASSERT_TRUE(rank.status.ok()) << form.name << ": " << rank.status;
        peak = std::max(peak, rank.peak_memory_bytes);
      }
    }
  }
  for (const int dp : {2, 4}) {
    EXPECT_EQ(peaks["ddp"][dp], peaks["no_shard"][dp]);
    EXPECT_EQ(peaks["distributed optimizer"][dp], peaks["optim"][dp]);
    EXPECT_LT(peaks["optim"][dp], peaks["no_shard"][dp]);
    EXPECT_LT(peaks["optim_grads"][dp], peaks["optim"][dp]);
    EXPECT_LT(peaks["optim_grads_params"][dp], peaks["optim_grads"][dp]);
  }
  for (const char* form : {"optim", "optim_grads", "optim_grads_params", "fsdp2"})
    EXPECT_LT(peaks[form][4], peaks[form][2]) << form;
}

}  // namespace
}  // namespace muster
