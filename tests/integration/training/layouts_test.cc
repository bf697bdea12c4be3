// Six layouts of the parity matrix through the real programs: ranks are processes over gloo.
#include <gtest/gtest.h>

#include "tests/integration/layout_runs.h"

namespace muster {
namespace {

TEST(RealLayoutsTest, GiveTheNumbersOfOneProcess) {
  LayoutRuns runs("cpu", {{"fp64", true}});
  const LayoutRuns::Records one = runs.Run({"one process", 1, nlohmann::json::object()});
  for (const RealLayout& layout : RealLayouts()) {
    SCOPED_TRACE(layout.name);
    runs.ExpectSame(runs.Run(layout), one, 1e-10);
  }
}

}  // namespace
}  // namespace muster
