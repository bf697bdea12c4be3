#!/usr/bin/env bash
# gpu.sh: what needs a GPU, in under five minutes on one: the tests with label gpu, then a training step's speed beside PyTorch's.
# One line an item, with what was skipped and why; the whole output lies in .deps/log/gpu-*.log.
#   MUSTER_BUILD=DIR        binaries built elsewhere with preset cuda (DIR/bin, DIR/tests): nothing is built here
#   MUSTER_PYTHON=PYTHON    a Python that has torch, for the peer's figures
#   MUSTER_GPU_LIMIT=290    seconds for all items together
#   MUSTER_PEAK_TFLOPS=N    the GPU's dense bf16 peak, where the benchmark does not know it by name
# Exit status: 0 all passed, 1 something failed, 2 there is no GPU.
set -euo pipefail
. .ci/common.sh

gpus=0
for gpu in /proc/driver/nvidia/gpus/*; do [ ! -e "$gpu" ] || gpus=$((gpus + 1)); done
if [ "$gpus" = 0 ] && command -v nvidia-smi >/dev/null; then gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true); fi
if [ "$gpus" = 0 ]; then
  echo "gpu: this machine has no NVIDIA GPU (no /proc/driver/nvidia/gpus, no answer of nvidia-smi): nothing was run" >&2
  exit 2
fi

tests=(worker_comm_gpu_test worker_optim_gpu_test worker_model_gpu_test worker_train_gpu_test gpu_test)
bench="bench-train-single-cuda"
if [ -z "${MUSTER_BUILD:-}" ]; then
  setup
  configure cuda
  build all
fi
# gpu_test starts the programs that it finds here.
MUSTER_BUILD=$(realpath "${MUSTER_BUILD:-build}")
export MUSTER_BIN_DIR=$MUSTER_BUILD/bin

limit=${MUSTER_GPU_LIMIT:-290} start=$SECONDS failed=0
left() { echo $((limit - (SECONDS - start))); }
item() { printf '%-38s %-8s %4ss  %s\n' "$@"; }
fails() { item "$1" FAILED "$2" "$3"; failed=1; }

# limited SECONDS COMMAND...: with that limit, or what is left of the whole.
limited() {
  local seconds=$1 rest
  shift
  rest=$(left)
  [ "$seconds" -le "$rest" ] || seconds=$rest
  timeout --kill-after=5 "$seconds" "$@"
}

run_test() {
  local name=$1 seconds=$2 log=$LOGS/gpu-$1.log begin=$SECONDS status=0 passed skipped
  [ -x "$MUSTER_BUILD/tests/$name" ] || { fails "$name" 0 "$MUSTER_BUILD/tests/$name is not there: build preset cuda"; return; }
  [ "$(left)" -gt 0 ] || { fails "$name" 0 "no time left of $limit s (MUSTER_GPU_LIMIT)"; return; }
  limited "$seconds" "$MUSTER_BUILD/tests/$name" >"$log" 2>&1 || status=$?
  passed=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log")
  # The line before each "[  SKIPPED ]" of a case says why.
  skipped=$(awk '/^\[ RUN/ {why = ""} /^\[  SKIPPED \].*ms\)/ {print $4 ": " why} NF {why = $0}' "$log" | paste -sd';')
  # A driver that LibTorch cannot use must not pass for a proof.
  if [ $status = 0 ] && [ "${passed:-0}" = 0 ]; then status=skipped; fi
  case $status in
    0) item "$name" passed $((SECONDS - begin)) "${passed:-0} cases${skipped:+; skipped $skipped}" ;;
    skipped) fails "$name" $((SECONDS - begin)) "every case was skipped: $skipped" ;;
    124 | 137) fails "$name" $((SECONDS - begin)) "not done in its time; $log" ;;
    *) fails "$name" $((SECONDS - begin)) "$(grep -c '^\[  FAILED  \].*ms)$' "$log" || true) cases; $log" ;;
  esac
}

# The peer's Python: one whose torch sees the GPU.
find_python() {
  local python
  for python in "${MUSTER_PYTHON:-}" "$DEPS/bench-venv/bin/python" python3; do
    if [ -z "$python" ] || ! command -v "$python" >/dev/null; then continue; fi
    if limited 30 "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' >/dev/null 2>&1; then
      echo "$python"
      return
    fi
  done
}

run_bench() {
  local case=$1 python=$2 log=$LOGS/gpu-bench-${1//:/-}.log begin=$SECONDS status=0 model batch seq dtype
  local peak=(${MUSTER_PEAK_TFLOPS:+--peak-tflops "$MUSTER_PEAK_TFLOPS"})
  [ -x "$MUSTER_BUILD/bin/$bench" ] || { fails "train_single $case" 0 "$MUSTER_BUILD/bin/$bench is not there"; return; }
  [ "$(left)" -gt 0 ] || { fails "train_single $case" 0 "no time left of $limit s (MUSTER_GPU_LIMIT)"; return; }
  if [ -n "$python" ]; then
    limited 60 "$python" benchmarks/train_single/run.py "$MUSTER_BUILD/bin/$bench" --python "$python" --device cuda --rounds 20 \
      "${peak[@]}" "$case" >"$log" 2>&1 || status=$?
  else
    IFS=: read -r model batch seq dtype <<<"$case"
    limited 60 "$MUSTER_BUILD/bin/$bench" "$model" "$batch" "$seq" "$dtype" "$JOBS" cuda "${peak[@]}" >"$log" 2>&1 \
      <<<"report 20" || status=$?
  fi
  if [ $status = 0 ] && grep -q '^{' "$log"; then
    item "train_single $case" "done" $((SECONDS - begin)) "$(grep '^{' "$log" | tail -n 1)"
  else
    fails "train_single $case" $((SECONDS - begin)) "status $status; $(tail -n 1 "$log"); $log"
  fi
}

say "$gpus GPU(s), binaries of $MUSTER_BUILD, at most $limit s"
[ "$gpus" -gt 1 ] || echo "skipped: layouts over several GPUs, NCCL between ranks (one GPU here)"
# gpu_test runs the layouts over several GPUs, as processes: a few seconds each.
for name in "${tests[@]}"; do run_test "$name" "$([ "$name" = gpu_test ] && echo 160 || echo 80)"; done
python=$(find_python)
[ -n "$python" ] || echo "skipped: the peer's figures (no Python whose torch sees the GPU; MUSTER_PYTHON names one)"
for case in gpt2:8:1024:bf16 gpt2:8:1024:fp16; do run_bench "$case" "$python"; done
say "done in $((SECONDS - start)) s"
exit $failed
