#!/usr/bin/env bash
# from SIGKILL of one worker to the survivors' next step and to full width, steps lost: in place, spare, elastic; beside torchrun and torchft
# MUSTER_BENCH_ROUNDS=10 kills each; MUSTER_BENCH_PARTS="recovery coordinator detection alarms", MUSTER_BENCH_WORKERS="2 4",
# MUSTER_BENCH_SUBJECTS="in_place spare elastic torchrun torchft torchft_tuned"; MUSTER_BUILD=DIR takes binaries built elsewhere.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
python=.deps/bench-venv/bin/python
# torchft with what its Python side needs; without it its columns stay empty.
$python -c 'import torchft' 2>/dev/null || .deps/bench-venv/bin/pip install --quiet torchft==0.2.0 ||
  echo "torchft could not be installed: its rows stay empty" >&2
exec $python benchmarks/recovery/recovery.py
