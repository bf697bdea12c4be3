#!/usr/bin/env bash
# tokens/s of two data-parallel CPU workers, through coordinator and agents, beside PyTorch DDP over gloo
# MUSTER_BENCH_ROUNDS=3 rounds of MUSTER_BENCH_STEPS=12 steps, one program after the other
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
exec .deps/bench-venv/bin/python benchmarks/train_ddp/train_ddp.py "${MUSTER_BENCH_ROUNDS:-3}" "${MUSTER_BENCH_STEPS:-12}"
