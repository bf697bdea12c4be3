#!/usr/bin/env bash
# metrics.sh: promtool (Debian's package prometheus) over the metrics of a coordinator with a running job.
set -euo pipefail
. .ci/common.sh
need_tools
test=build/tests/coordinator_server_test
[ -x "$test" ] || build coordinator_server_test
text=$(mktemp)
trap 'rm -f "$text"' EXIT
MUSTER_WRITE_METRICS="$text" "$test" --gtest_filter=HttpPagesTest.MetricsShowARunningJobAndTheServerItself >/dev/null ||
  fail "no metrics: $test --gtest_filter=HttpPagesTest.Metrics* fails"
output=$(promtool check metrics <"$text" 2>&1) || fail "promtool check metrics: $output"
[ -z "$output" ] || fail "promtool check metrics: $output"
say "metrics: $(grep -c '^# TYPE' "$text") families are as Prometheus wants them"
