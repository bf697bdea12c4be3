// The parity matrix over NCCL: each layout that this machine has GPUs for, beside one GPU.
#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>

#include "tests/integration/layout_runs.h"

namespace muster {
namespace {

// The driver keeps a folder for each.
int NumGpus() {
  std::error_code none;
  const std::filesystem::directory_iterator folders("/proc/driver/nvidia/gpus", none);
  return none ? 0 : static_cast<int>(std::distance(begin(folders), end(folders)));
}

TEST(GpuLayoutsTest, GiveTheNumbersOfOneGpu) {
  const int gpus = NumGpus();
  if (gpus < 2) GTEST_SKIP() << "needs two GPUs or more, there are " << gpus;
  LayoutRuns runs("cuda", {{"fp64", true}});
  const LayoutRuns::Records one = runs.Run({"one GPU", 1, nlohmann::json::object()});
  for (const RealLayout& layout : RealLayouts()) {
    if (layout.world_size > gpus) continue;
    SCOPED_TRACE(layout.name);
    runs.ExpectSame(runs.Run(layout), one, 1e-9);
  }
}

}  // namespace
}  // namespace muster
