#!/usr/bin/env bash
# nightly.sh: the long forms: every test label but gpu, with more rounds and seeds, then all benchmarks.
set -euo pipefail
. .ci/common.sh
. .ci/phases.sh
long_tests() {
  MUSTER_ROUNDS=1000 MUSTER_SIM_SEEDS=5000 ctest --test-dir build --output-on-failure --no-tests=error --timeout 7200 -LE gpu
}
phase tests long_tests
phase chaos .ci/chaos.sh 3600
phase bench .ci/bench.sh all
