#!/usr/bin/env bash
# what muster trace costs: nanoseconds a place with and without a recorder, and steps of a job that are traced beside those that are not
# MUSTER_BENCH_STEPS=60 steps of tp2 x pp2 on 4 workers, a third of them traced
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
. .ci/common.sh
"${MUSTER_BUILD:-build}/bin/bench-trace"
exec python3 benchmarks/trace/steps.py
