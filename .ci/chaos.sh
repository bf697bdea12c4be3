#!/usr/bin/env bash
# chaos.sh [SECONDS [SEED]]: real processes are killed, stopped and started again under one seed after the other, until the time
# is up (600 s) or a run differs from the unbroken one; then the seed that does it again is the last one printed.
set -euo pipefail
. .ci/common.sh
[ $# -le 2 ] || fail "usage: ./dev chaos [SECONDS [SEED]]"
case "${1:-1}${2:-1}" in *[!0-9]*) fail "usage: ./dev chaos [SECONDS [SEED]]" ;; esac
keep=$LOGS/chaos
rm -rf "$keep" && mkdir -p "$keep"
export MUSTER_CHAOS_SECONDS=${1:-600} MUSTER_CHAOS_KEEP=$PWD/$keep
[ $# -lt 2 ] || export MUSTER_CHAOS_SEED=$2
build/tests/chaos_test --gtest_filter='LongChaosTest.*' || fail "the logs of the failed run are in $keep"
