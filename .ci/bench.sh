#!/usr/bin/env bash
# bench.sh [NAME|all]: a benchmark is a folder of benchmarks/ with a run.sh that runs ours and the peer side by side, interleaved,
# and prints the ratio. Peers get a virtual environment of their own in .deps/bench-venv.
set -euo pipefail
. .ci/common.sh
[ $# -gt 0 ] || { say "benchmarks (./dev bench NAME):"; for d in benchmarks/*/run.sh; do printf '  %s\t%s\n' "$(basename "$(dirname "$d")")" "$(sed -n '2s/^# *//p' "$d")"; done; exit 0; }
if [ ! -x $DEPS/bench-venv/bin/torchrun ]; then
  install_packages python3-venv
  say "making a virtual environment with PyTorch for the peers"
  python3 -m venv $DEPS/bench-venv
  $DEPS/bench-venv/bin/pip install --quiet torch==2.11.0 numpy || fail "could not install PyTorch for the peers: check the network"
fi
names=("$@")
[ "$1" != all ] || { names=(); for d in benchmarks/*/run.sh; do names+=("$(basename "$(dirname "$d")")"); done; }
for name in "${names[@]}"; do
  [ -x "benchmarks/$name/run.sh" ] || fail "no benchmark '$name': ./dev bench lists them"
  say "benchmark $name"
  "benchmarks/$name/run.sh"
done
