// What a training step's validation costs when nothing is wrong, in parts, on one thread:
//   checks         the losses of its microbatches are read and checked, the norms of its gradient
//                  buckets are checked, its data is kept for a rerun
//   random_states  of all regions are copied at its beginning
//   norms          of the buckets: with one replica they are sums that the optimizer's norm needs
//                  anyway, and cost nothing; with more they are found while the gradients are
//                  scaled, and what that takes beyond scaling is counted
// Prints JSON, with the share of a step of `step_ms` milliseconds on a rank with `parameters`.
// usage: bench-rerun [step_ms [microbatches [buckets [parameters]]]]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>

#include "absl/strings/str_cat.h"
#include "common/spec/job_spec.h"
#include "worker/comm/op_log.h"
#include "worker/parallel/flat_ops.h"
#include "worker/parallel/rng.h"
#include "worker/train/step_rerun.h"

namespace muster {
namespace {

// Gradients whose norms are known already: see TimeOfNorms.
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

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

template <typename Body>
double MedianNanos(int times, const Body& body) {
  std::vector<double> nanos;
  for (int i = 0; i < times; ++i) {
    const int64_t begin = SteadyNanos();
    body();
    nanos.push_back(static_cast<double>(SteadyNanos() - begin));
  }
  return Median(std::move(nanos));
}

double TimeOfRandomStates() {
  const auto tracker = RngTracker::Create(1, {}, /*data_parallel_random_init=*/false,
                                          /*cuda=*/false);
  if (!tracker.ok()) std::abort();
  return MedianNanos(2000, [&] { RngSnapshot snapshot(tracker->Generators()); });
}

// Scaling and norm in one pass, less scaling alone; in turns, as the machine's speed changes.
double TimeOfNorms(int64_t parameters) {
  constexpr double kScale = 0.9999;
  at::Tensor gradients = at::full({parameters}, 1e-3, at::kFloat);
  std::vector<double> difference;
  double sum = 0;
  for (int i = 0; i < 41; ++i) {
    const int64_t begin = SteadyNanos();
    gradients.mul_(kScale);
    const int64_t middle = SteadyNanos();
    sum += ScaleAndSumOfSquares(gradients, kScale);
    const int64_t end = SteadyNanos();
    difference.push_back(static_cast<double>((end - middle) - (middle - begin)));
  }
  if (!(sum > 0)) std::abort();
  return std::max(0.0, Median(std::move(difference)));
}

int Run(double step_ms, int microbatches, int buckets, int64_t parameters) {
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
  const double checks = nanos[nanos.size() / 2], random_states = TimeOfRandomStates(),
               norms = TimeOfNorms(parameters);
  const double step = step_ms * 1e6;
  std::printf(
      "{\"microbatches\": %d, \"buckets\": %d, \"parameters\": %lld, \"checks_us\": %.1f, "
      "\"checks_p99_us\": %.1f, \"random_states_us\": %.1f, \"norms_us\": %.1f, \"step_ms\": %.1f, "
      "\"share\": %.6f, \"share_with_replicas\": %.6f}\n",
      microbatches, buckets, static_cast<long long>(parameters), checks / 1e3,
      nanos[nanos.size() * 99 / 100] / 1e3, random_states / 1e3, norms / 1e3, step_ms,
      (checks + random_states) / step, (checks + random_states + norms) / step);
  return 0;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  const auto argument = [&](int i, double otherwise) {
    return argc > i ? std::max(1.0, std::atof(argv[i])) : otherwise;
  };
  at::set_num_threads(1);
  return muster::Run(argument(1, 3150), static_cast<int>(argument(2, 8)),
                     static_cast<int>(argument(3, 16)), static_cast<int64_t>(argument(4, 2.5e6)));
}
