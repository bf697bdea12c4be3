// bench-parallel-traffic SPEC: trains the job with its ranks as threads of this process, over
// communicators that count. Prints one JSON object: for each rank, per step, the operations and
// bytes by group, the seconds spent waiting for other ranks, the processor's seconds, and the peak
// of its live tensors.
//
// Messages between threads cost next to nothing, so that waiting is waiting for another rank's
// work: with as many cores as ranks it is the pipeline's bubble. The first two steps are left out.

#include <time.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>

#include "absl/strings/str_cat.h"
#include "benchmarks/parallel/counting_communicator.h"
#include "common/files/file_ops.h"
#include "common/runtime/clock.h"
#include "common/spec/spec_json.h"
#include "nlohmann/json.hpp"
#include "worker/comm/thread_communicator.h"
#include "worker/model/caching_allocator.h"
#include "worker/model/tensor_memory.h"
#include "worker/provider/builtin.h"
#include "worker/train/training.h"

namespace muster {
namespace {

constexpr int64_t kLeftOut = 2;  // steps

double WallSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double ThreadSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Takes the rank's figures between the end of step kLeftOut and that of the last step.
class MeasuringHost final : public TrainerHost {
 public:
  MeasuringHost(int64_t last_step, std::shared_ptr<TrafficCounter> counter)
      : last_step_(last_step), counter_(std::move(counter)) {}

  void Send(TrainerToAgent message) override {
    const auto* step = std::get_if<StepMessage>(&message);
    if (step == nullptr || step->iteration <= kLeftOut) return;
    const std::lock_guard<std::mutex> lock(mu_);
    for (const auto& [name, ms] : step->timers_ms) timers_ms_[name] += ms;
  }
  void NoteProgress(int64_t, int64_t iteration) override {
    if (iteration == kLeftOut) {
      counter_->Clear();
      wall_ = WallSeconds();
      cpu_ = ThreadSeconds();
    }
    if (iteration != last_step_) return;
    const double steps = static_cast<double>(last_step_ - kLeftOut);
    result_["step_s"] = (WallSeconds() - wall_) / steps;
    result_["cpu_s"] = (ThreadSeconds() - cpu_) / steps;
    result_["wait_s"] = counter_->wait_seconds() / steps;
    for (const auto& [name, operations] : counter_->operations()) {
      result_["operations"][name] = {{"count", static_cast<double>(operations.count) / steps},
                                     {"bytes", operations.bytes / steps}};
    }
  }
  std::vector<Directive> TakeDirectives() override { return {}; }
  bool ExitSignalReceived() override { return false; }

  nlohmann::json Result() {
    const std::lock_guard<std::mutex> lock(mu_);
    // Of the rank that reports the steps.
    for (const auto& [name, ms] : timers_ms_) {
      result_["timers_s"][name] = ms / 1000 / static_cast<double>(last_step_ - kLeftOut);
    }
    return result_;
  }

 private:
  const int64_t last_step_;
  const std::shared_ptr<TrafficCounter> counter_;
  double wall_ = 0, cpu_ = 0;
  nlohmann::json result_ = {{"operations", nlohmann::json::object()}};
  std::mutex mu_;
  std::map<std::string, double> timers_ms_;
};

int Main(const std::string& path) {
  const auto text = ReadWholeFile(path);
  if (!text.ok()) {
    std::cerr << text.status() << "\n";
    return 2;
  }
  const ParsedSpec parsed = ParseJobSpec(*text);
  for (const SpecProblem& problem : parsed.problems) std::cerr << problem.ToString() << "\n";
  if (!parsed.problems.empty()) return 2;
  const int64_t last_step = parsed.spec.training.train_iters.value_or(0);
  if (last_step <= kLeftOut) {
    std::cerr << "training.train_iters must be given and above " << kLeftOut << "\n";
    return 2;
  }
  at::set_num_threads(1);
  InstallCachingCpuAllocator();  // as the trainer does; it counts
  ProviderRegistry providers;
  RegisterBuiltinProviders(providers);
  RealClock clock;
  const auto worlds = MakeThreadWorld(static_cast<int>(parsed.spec.resources.world_size));
  std::vector<std::unique_ptr<MeasuringHost>> hosts;
  std::vector<absl::Status> results(worlds.size());
  // Outlive every tensor.
  std::vector<MemoryCounter>& memory = *new std::vector<MemoryCounter>(worlds.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < worlds.size(); ++rank) {
    auto counter = std::make_shared<TrafficCounter>();
    hosts.push_back(std::make_unique<MeasuringHost>(last_step, counter));
    threads.emplace_back([&, rank, counter, host = hosts.back().get()] {
      SetCpuMemoryCounter(&memory[rank]);
      results[rank] = RunTraining({.spec = parsed.spec,
                                   .world = CountTraffic(worlds[rank], counter),
                                   .host = *host,
                                   .providers = providers,
                                   .clock = clock,
                                   .epoch = 1})
                          .status();
      if (!results[rank].ok()) worlds[rank]->Abort(std::string(results[rank].message()));
    });
  }
  for (std::thread& thread : threads) thread.join();
  nlohmann::json document;
  for (size_t rank = 0; rank < worlds.size(); ++rank) {
    if (!results[rank].ok()) {
      std::cerr << "rank " << rank << ": " << results[rank] << "\n";
      return 1;
    }
    nlohmann::json result = hosts[rank]->Result();
    result["memory_bytes"] = memory[rank].Read().peak_bytes;
    document["ranks"].push_back(result);
  }
  std::cout << document.dump() << "\n";
  return 0;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: bench-parallel-traffic SPEC\n";
    return 2;
  }
  return muster::Main(argv[1]);
}
