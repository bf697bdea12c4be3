#!/usr/bin/env bash
# checks.sh: what `./dev ci` adds to the tests. Each phase prints its minutes; the first that fails ends the run.
set -euo pipefail
. .ci/common.sh
. .ci/phases.sh

format() { need_tools; .ci/fmt.sh --check; }
layers() { python3 .ci/layers.py; }
# What the pages name is there.
docs() { python3 .ci/failures.py; }
deploy_files() {
  shellcheck -x dev .ci/*.sh .ci/run cmake/*.sh
  [ ! -d deploy/slurm ] || shellcheck deploy/slurm/*.sbatch
  [ ! -d deploy/systemd ] || .ci/systemd.sh
}
metrics() { .ci/metrics.sh; }
cuda() { configure cuda; build all; configure dev; }
# AddressSanitizer over the pure layers, readers, RPC, and one run of the trainer. Simulations run a tenth of their seeds
# under a sanitizer; the tests' own build runs all of them.
asan() {
  configure asan
  NINJA_STATUS='[%f/%t %es] ' cmake --build build-asan -j "$JOBS" --target asan_tests
  # libtorch is not instrumented: leaks inside it are not ours to report.
  MUSTER_SIM_SEEDS=100 ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0 UBSAN_OPTIONS=print_stacktrace=1 \
    ctest --test-dir build-asan --output-on-failure --no-tests=error -j "$JOBS" -L asan -LE 'gpu|nightly|slow'
}
# ThreadSanitizer over what links neither torch nor gRPC (Debian's are not instrumented).
tsan() {
  configure tsan
  NINJA_STATUS='[%f/%t %es] ' cmake --build build-tsan -j "$JOBS" --target tsan_tests
  MUSTER_SIM_SEEDS=100 ctest --test-dir build-tsan --output-on-failure --no-tests=error -j "$JOBS" -L tsan -LE 'gpu|nightly|slow'
}
tidy() { need_tools; configure dev; cmake --build build --target muster_proto >/dev/null; .ci/tidy.sh; }

phase format format
phase layers layers
phase docs docs
phase deploy deploy_files
phase metrics metrics
phase cuda cuda
phase asan asan
phase tsan tsan
phase tidy tidy
