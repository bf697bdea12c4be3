#!/usr/bin/env bash
# exchanges between the CPU ranks of one node: shared memory beside gloo over loopback, 4 KiB to 64 MiB
# MUSTER_BENCH_WORLDS="2 4" ranks, MUSTER_BENCH_ROUNDS=5 rounds, of which the median counts
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
for world in ${MUSTER_BENCH_WORLDS:-2 4}; do
  build/bin/bench-shared-memory "$world" "${MUSTER_BENCH_ROUNDS:-5}"
done
