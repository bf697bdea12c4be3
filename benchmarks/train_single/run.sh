#!/usr/bin/env bash
# tokens/s of one worker beside PyTorch eager and torch.compile, a step of each in turn
# MUSTER_BENCH_CASES="small:16:256:fp32 gpt2:4:256:bf16", MUSTER_BENCH_MODES=eager,compile, MUSTER_BENCH_ROUNDS=8
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
read -r -a cases <<<"${MUSTER_BENCH_CASES:-small:16:256:fp32 small:16:256:bf16 gpt2:4:256:fp32 gpt2:4:256:bf16 gpt2:2:1024:fp32 gpt2:2:1024:bf16}"
python3 benchmarks/train_single/run.py build/bin/bench-train-single --python .deps/bench-venv/bin/python \
  --modes "${MUSTER_BENCH_MODES:-eager,compile}" --rounds "${MUSTER_BENCH_ROUNDS:-8}" "${cases[@]}"
echo "where the time of a step goes:"
for case in "${cases[@]}"; do
  IFS=: read -r model batch seq dtype <<<"$case"
  echo "$case"
  echo "parts 3" | build/bin/bench-train-single "$model" "$batch" "$seq" "$dtype" 2
done
