#!/usr/bin/env bash
# what snapshots cost: the step time of GPT-2 124M on the CPU with one every 10 steps and every step, beside its steps without
# MUSTER_BENCH_STEPS=121 steps at interval 10, an eighth of them six times at interval 1 and without; MUSTER_BENCH_BATCH=4 samples of MUSTER_BENCH_SEQ=256 tokens
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
. .ci/common.sh
exec "${MUSTER_BUILD:-build}/bin/bench-snapshot" "${MUSTER_BENCH_STEPS:-121}" "${MUSTER_BENCH_BATCH:-4}" "${MUSTER_BENCH_SEQ:-256}" "$(nproc)"
