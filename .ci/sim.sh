#!/usr/bin/env bash
# sim.sh [CASE SEED]: the simulations, or one case with one seed and its trace. A failure prints both.
set -euo pipefail
if [ $# -eq 2 ]; then
  MUSTER_SIM_SEED=$2 MUSTER_SIM_TRACE=1 exec build/tests/sim_test --gtest_filter="$1"
fi
exec build/tests/sim_test
