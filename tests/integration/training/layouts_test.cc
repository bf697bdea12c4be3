// Layouts of the parity matrix through the real programs: ranks are processes that exchange tensors
// through shared memory, and over gloo where that is off.
#include <gtest/gtest.h>

#include "tests/integration/layout_runs.h"

namespace muster {
namespace {

using nlohmann::json;

const RealLayout kOneProcess = {"one process", 1, json::object()};

TEST(RealLayoutsTest, GiveTheNumbersOfOneProcess) {
  LayoutRuns runs("cpu", {{"fp64", true}});
  const LayoutRuns::Records one = runs.Run(kOneProcess);
  for (const RealLayout& layout : RealLayouts()) {
    SCOPED_TRACE(layout.name);
    runs.ExpectSame(runs.Run(layout), one, 1e-10);
  }
  SCOPED_TRACE("without shared memory");
  RealLayout over_gloo = RealLayouts().front();
  over_gloo.parallel["shared_memory"] = false;
  runs.ExpectSame(runs.Run(over_gloo), one, 1e-10);
}

TEST(RealLayoutsTest, OfExpertsGiveTheNumbersOfOneProcess) {
  LayoutRuns runs("cpu", {{"fp64", true}}, ExpertModel());
  const LayoutRuns::Records one = runs.Run(kOneProcess);
  for (const RealLayout& layout : RealExpertLayouts()) {
    SCOPED_TRACE(layout.name);
    runs.ExpectSame(runs.Run(layout), one, 1e-10);
  }
}

}  // namespace
}  // namespace muster
