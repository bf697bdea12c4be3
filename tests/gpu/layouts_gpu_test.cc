// The parity matrix over NCCL: each layout that this machine has GPUs for, beside one GPU.
#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <vector>

#include "tests/integration/layout_runs.h"

namespace muster {
namespace {

// The driver keeps a folder for each.
int NumGpus() {
  std::error_code none;
  const std::filesystem::directory_iterator folders("/proc/driver/nvidia/gpus", none);
  return none ? 0 : static_cast<int>(std::distance(begin(folders), end(folders)));
}

using nlohmann::json;

// Each of `layouts` that there are GPUs for, beside one GPU.
void ExpectNumbersOfOneGpu(const std::vector<RealLayout>& layouts, const json& model, int gpus) {
  LayoutRuns runs("cuda", {{"fp64", true}}, model);
  const LayoutRuns::Records one = runs.Run({"one GPU", 1, json::object()});
  for (const RealLayout& layout : layouts) {
    if (layout.world_size > gpus) continue;
    SCOPED_TRACE(layout.name);
    runs.ExpectSame(runs.Run(layout), one, 1e-9);
  }
}

class GpuLayoutsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (gpus_ < 2) GTEST_SKIP() << "needs two GPUs or more, there are " << gpus_;
  }
  const int gpus_ = NumGpus();
};

TEST_F(GpuLayoutsTest, GiveTheNumbersOfOneGpu) {
  std::vector<RealLayout> layouts = RealLayouts();
  layouts.push_back(
      {"cp2, keys gathered", 2, {{"context_parallel_size", 2}, {"cp_comm_type", "all_gather"}}});
  ExpectNumbersOfOneGpu(layouts, json::object(), gpus_);
}

TEST_F(GpuLayoutsTest, OfExpertsGiveTheNumbersOfOneGpu) {
  ExpectNumbersOfOneGpu(RealExpertLayouts(), ExpertModel(), gpus_);
}

TEST_F(GpuLayoutsTest, OfGatheredExpertsGiveTheNumbersOfOneGpu) {
  json model = ExpertModel();
  model["moe_token_dispatcher_type"] = "allgather";
  ExpectNumbersOfOneGpu({{"ep2", 2, {{"expert_model_parallel_size", 2}}}}, model, gpus_);
}

}  // namespace
}  // namespace muster
