#!/usr/bin/env bash
# sim.sh [CASE SEED]: the simulations, or one case (Small, Middling, ...) with one seed and its trace. A failure prints
# both.
set -euo pipefail
. .ci/common.sh
simulation=build/tests/sim_test
if [ $# -eq 0 ]; then exec "$simulation"; fi
[ $# -eq 2 ] || fail "usage: ./dev sim [CASE SEED]"
"$simulation" --gtest_list_tests --gtest_filter="*$1*" | grep -q '^  ' ||
  fail "no case is named like $1; there are: $("$simulation" --gtest_list_tests --gtest_filter='SimTest.*' | sed -n 's/^  //p' | tr '\n' ' ')"
MUSTER_SIM_SEED=$2 MUSTER_SIM_TRACE=1 exec "$simulation" --gtest_filter="*$1*"
