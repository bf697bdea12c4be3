#!/usr/bin/env bash
# from the command to the first finished step of a 2-worker job: muster on a running cluster, muster local, torchrun
# MUSTER_BENCH_ROUNDS=5 rounds, the three in turn; times are of this machine, the ratio is what counts.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
exec .deps/bench-venv/bin/python benchmarks/startup/startup.py "${MUSTER_BENCH_ROUNDS:-5}"
