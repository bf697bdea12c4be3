// One worker on one GPU through the real programs, beside the same job on a CPU worker.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "tests/integration/cluster.h"

namespace muster {
namespace {

using nlohmann::json;

// The losses of a run of `spec` by `muster local`, by iteration.
std::vector<double> LossesOf(const TempFolder& folder, const std::string& device, json spec) {
  spec["resources"]["device"] = device;
  spec["parallel"]["distributed_backend"] = device == "cuda" ? "nccl" : "gloo";
  const std::string path = folder / (device + ".json"), metrics = folder / (device + ".jsonl");
  std::remove(metrics.c_str());
  std::ofstream(path) << spec.dump(2);
  const Result run =
      RunCommand(folder.path(), {Binary("muster"), "local", path, "--metrics", metrics});
  EXPECT_EQ(run.code, 0) << run.out << run.err;
  std::vector<double> losses;
  std::ifstream lines(metrics);
  for (std::string line; std::getline(lines, line);) {
    losses.push_back(json::parse(line)["lm_loss"].get<double>());
  }
  return losses;
}

TEST(GpuTrainingTest, OneGpuStartsAndLearnsLikeTheCpu) {
  const TempFolder folder;
  const json spec = SmallSpec(1, 10);
  const std::vector<double> cpu = LossesOf(folder, "cpu", spec);
  const std::vector<double> gpu = LossesOf(folder, "cuda", spec);
  ASSERT_EQ(cpu.size(), 10u);
  ASSERT_EQ(gpu.size(), 10u);
  // The initial weights are drawn by another generator there: the first losses are both near the
  // uniform guess, and both runs learn.
  EXPECT_NEAR(gpu.front(), cpu.front(), 0.1);
  EXPECT_LT(gpu.back(), gpu.front() + 0.05);
}

TEST(GpuTrainingTest, Bf16StaysNearFp32) {
  const TempFolder folder;
  json spec = SmallSpec(1, 5);
  const std::vector<double> fp32 = LossesOf(folder, "cuda", spec);
  spec["training"]["bf16"] = true;
  const std::vector<double> bf16 = LossesOf(folder, "cuda", spec);
  ASSERT_EQ(fp32.size(), 5u);
  ASSERT_EQ(bf16.size(), 5u);
  for (size_t i = 0; i < fp32.size(); ++i) EXPECT_NEAR(bf16[i], fp32[i], 0.05) << i;
}

}  // namespace
}  // namespace muster
