#!/usr/bin/env bash
# the coordinator under 64 to 16,384 simulated workers, beside a bare gRPC server, TCPStore, JAX's coordination service and torchft's lighthouse
# MUSTER_BENCH_CASES="64 1024 1024/8 4096 4096/8 16384/8" (workers/workers a node), MUSTER_BENCH_ROUNDS=1, MUSTER_BENCH_SUBJECTS="floor muster tcpstore jax torchft"
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
python=.deps/bench-venv/bin/python
# The coordination peers, pinned; a figure whose wheel cannot be had is left out and says so.
$python -c 'import importlib.metadata as m, sys; sys.exit(m.version("jaxlib") != "0.10.2" or m.version("torchft") != "0.2.0")' 2>/dev/null ||
  .deps/bench-venv/bin/pip install --quiet --no-deps --only-binary=:all: jaxlib==0.10.2 ml_dtypes==0.6.0 torchft==0.2.0 ||
  echo "jaxlib or torchft could not be installed: their columns stay empty" >&2
exec $python benchmarks/control_plane/control_plane.py
