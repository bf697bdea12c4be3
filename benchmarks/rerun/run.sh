#!/usr/bin/env bash
# what validating a step's results costs when nothing is wrong: its own time, and its share of the steps of a small job
# MUSTER_BENCH_STEPS=60 steps of the job, MUSTER_BENCH_ROUNDS=5 pairs of jobs
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
. .ci/common.sh
exec python3 benchmarks/rerun/steps.py
