// What a training step's validation costs when nothing is wrong: the losses of its microbatches are
// read and checked, the norms of its gradient buckets are checked, its data is kept for a rerun. On
// one thread. Prints JSON, with the share of a step of `step_ms` milliseconds.
// usage: bench-rerun [step_ms [microbatches [buckets]]]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/full.h>

#include "absl/strings/str_cat.h"
#include "common/spec/job_spec.h"
#include "worker/comm/op_log.h"
#include "worker/train/step_rerun.h"

namespace muster {
namespace {

// Gradients whose norms are known already: finding them belongs to the reduction.
class KnownNorms final : public DataParallel {
 public:
  explicit KnownNorms(int buckets) {
    for (int i = 0; i < buckets; ++i) {
      names_.push_back(absl::StrCat("decoder.layers.", i, ".mlp.linear_fc1.weight"));
    }
  }
  std::vector<LocalNorm> LocalNorms() const override {
    std::vector<LocalNorm> norms;
    for (size_t i = 0; i < names_.size(); ++i) {
      norms.push_back({absl::StrCat("bucket ", i, " of chunk 0, which begins with ", names_[i]),
                       1 + static_cast<double>(i)});
    }
    return norms;
  }
  absl::Status StartGradSync(int) override { return absl::OkStatus(); }
  absl::Status FinishGradSync(int) override { return absl::OkStatus(); }
  void ZeroGradBuffer() override {}
  void ScaleGradients(double) override {}
  absl::Status BroadcastParams() override { return absl::OkStatus(); }
  std::vector<OwnedShard> shards() const override { return {}; }
  absl::Status StartParamSync(int) override { return absl::OkStatus(); }
  absl::Status SyncParams() override { return absl::OkStatus(); }
  bool gathers_behind_forward() const override { return false; }
  void EnableForwardPreHook() override {}
  absl::Status DisableForwardPreHook(bool) override { return absl::OkStatus(); }
  bool forward_pre_hook_enabled() const override { return false; }
  void ForgetUnfinished() override {}
  int num_chunks() const override { return 1; }

 private:
  void SetLastMicrobatch(bool) override {}
  std::vector<std::string> names_;
};

class Batches final : public DataIterator {
 public:
  Batches() {
    batch_.tokens = batch_.labels = batch_.position_ids = at::full({4, 256}, 1, at::kLong);
  }
  absl::StatusOr<Batch> Next() override { return batch_; }

 private:
  Batch batch_;
};

// One step's share of the rerun machine.
void Step(StepRerun& rerun, const std::vector<PassResult>& passes, const DataParallel& ddp,
          const DataIterators& data, int64_t completed) {
  RerunMachine& machine = rerun.machine();
  machine.SetCompleted(completed);
  if (!machine.ShouldRun({}).ok()) std::abort();
  ReplayedData replayed(data);
  for (size_t i = 0; i < passes.size(); ++i) {
    if (!replayed.iterators()[0]->Next().ok()) std::abort();
  }
  if (!rerun.Validate(passes, ddp).ok() || machine.flags().rerun != 0) std::abort();
  if (!machine.ShouldRun({}).ok()) std::abort();
}

int Run(double step_ms, int microbatches, int buckets) {
  JobSpec spec;
  spec.rerun.check_for_spiky_loss = true;
  auto rerun = StepRerun::Create({.spec = spec, .event = [](const std::string&) {}}, nullptr);
  if (!rerun.ok()) std::abort();
  std::vector<PassResult> passes;
  for (int i = 0; i < microbatches; ++i)
    passes.push_back({.loss_sum = at::full({}, 5.0 + 0.01 * i)});
  const KnownNorms ddp(buckets);
  DataIterators data;
  data.push_back(std::make_unique<Batches>());
  constexpr int kSteps = 2000;
  std::vector<double> nanos;
  for (int i = 0; i < kSteps; ++i) {
    const int64_t begin = SteadyNanos();
    Step(**rerun, passes, ddp, data, i + 1);
    nanos.push_back(static_cast<double>(SteadyNanos() - begin));
  }
  std::sort(nanos.begin(), nanos.end());
  const double median = nanos[nanos.size() / 2];
  std::printf(
      "{\"microbatches\": %d, \"buckets\": %d, \"median_us\": %.1f, \"p99_us\": %.1f, \"step_ms\": "
      "%.1f, \"share\": %.6f}\n",
      microbatches, buckets, median / 1e3, nanos[nanos.size() * 99 / 100] / 1e3, step_ms,
      median / (step_ms * 1e6));
  return 0;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  const auto argument = [&](int i, double otherwise) {
    return argc > i ? std::max(1.0, std::atof(argv[i])) : otherwise;
  };
  return muster::Run(argument(1, 3150), static_cast<int>(argument(2, 8)),
                     static_cast<int>(argument(3, 16)));
}
