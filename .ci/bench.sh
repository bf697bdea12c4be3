#!/usr/bin/env bash
# bench.sh [NAME|all]: a benchmark is a folder of benchmarks/ with a run.sh that runs ours and the peer side by side, interleaved,
# and prints the ratio. Peers get virtual environments of their own in .deps (peers.sh).
set -euo pipefail
. .ci/common.sh
. .ci/peers.sh
[ $# -gt 0 ] || { say "benchmarks (./dev bench NAME):"; for d in benchmarks/*/run.sh; do printf '  %s\t%s\n' "$(basename "$(dirname "$d")")" "$(sed -n '2s/^# *//p' "$d")"; done; exit 0; }
bench_venv
names=("$@")
[ "$1" != all ] || { names=(); for d in benchmarks/*/run.sh; do names+=("$(basename "$(dirname "$d")")"); done; }
for name in "${names[@]}"; do
  [ -x "benchmarks/$name/run.sh" ] || fail "no benchmark '$name': ./dev bench lists them"
  say "benchmark $name"
  "benchmarks/$name/run.sh"
done
