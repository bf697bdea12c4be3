#!/usr/bin/env bash
# tokens/s of 2 and 4 CPU workers in every parallel layout, beside PyTorch DDP, FSDP2 and Megatron-core; shared memory, bubble, bytes, memory
# MUSTER_BENCH_WORLDS="2 4", MUSTER_BENCH_ROUNDS=2 rounds of MUSTER_BENCH_STEPS=8 steps,
# MUSTER_BENCH_PARTS="speed shared_memory bubble bytes memory", MUSTER_BENCH_LAYOUTS=part of a layout's name
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
. .ci/common.sh
. .ci/peers.sh
megatron_venv || echo "Megatron-core could not be installed: its columns stay empty" >&2
exec .deps/bench-venv/bin/python benchmarks/parallel/parallel.py
