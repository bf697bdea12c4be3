#!/usr/bin/env bash
# golden.sh [numbers]: rewrites text goldens and generated documents; with "numbers" also the reference numbers that
# PyTorch and Megatron-core compute (tests/golden/make_*.py). The diff is for review.
set -euo pipefail
. .ci/common.sh
. .ci/peers.sh
case "${1:-}" in
  "") ;;
  numbers)
    megatron_venv || fail "could not install Megatron-core: check the network"
    say "computing reference numbers with $PEER_TORCH and $PEER_MEGATRON (some minutes)"
    "$BENCH_VENV/bin/python" tests/golden/make_gpt_goldens.py tests/golden/gpt
    "$BENCH_VENV/bin/python" tests/golden/make_optimizer_goldens.py tests/golden/optimizer/optimizer.json
    "$BENCH_VENV/bin/python" tests/golden/make_muon_goldens.py tests/golden/optimizer/muon.json
    "$BENCH_VENV/bin/python" tests/golden/make_cp_goldens.py tests/golden/context/attention.json
    for script in "make_megatron_goldens.py megatron" "make_megatron_moe_goldens.py megatron" "make_moe_goldens.py moe/router.json"; do
      "$MEGATRON_VENV/bin/python" -W ignore "tests/golden/${script% *}" "tests/golden/${script#* }" 2>"$LOGS/megatron-goldens.log" ||
        fail "Megatron-core failed; its output is in $LOGS/megatron-goldens.log"
    done
    ;;
  *) fail "golden takes nothing or 'numbers', not '$1'" ;;
esac
MUSTER_UPDATE_GOLDENS=1 ctest --test-dir build -j "$JOBS" -R 'Golden|SpecReference|Reference' --output-on-failure || true
git --no-pager diff --stat -- docs tests/golden
say "golden: review the diff above, then commit it"
