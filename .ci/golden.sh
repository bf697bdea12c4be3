#!/usr/bin/env bash
# golden.sh: rewrites text goldens and generated documents; the diff is for review. The numeric goldens that come from
# PyTorch have generators of their own (tests/golden/make_*.py, with the versions inside).
set -euo pipefail
. .ci/common.sh
MUSTER_UPDATE_GOLDENS=1 ctest --test-dir build -j "$JOBS" -R 'Golden|SpecReference|Reference' --output-on-failure || true
git --no-pager diff --stat -- docs tests/golden
say "golden: review the diff above, then commit it"
