#!/usr/bin/env bash
# demo.sh: the newcomer's first look. Real text in, a trained model out, through coordinator, workers and CLI.
set -euo pipefail
. .ci/common.sh

build muster muster-coordinator muster-worker muster-trainer
bin=build/bin
run=demo-run
mkdir -p "$run/data"

if [ ! -s "$run/data/kjv.txt" ]; then
  say "writing the text of the King James Bible to $run/data/kjv.txt"
  bible gen1:1-rev22:21 >"$run/data/kjv.txt.part"
  mv "$run/data/kjv.txt.part" "$run/data/kjv.txt"
fi
if [ ! -s "$run/data/kjv_text_document.idx" ]; then
  say "tokenizing it, a byte a token"
  "$bin/muster" data preprocess --input "$run/data/kjv.txt" --output-prefix "$run/data/kjv" --tokenizer-type byte
fi

# A demo starts from nothing each time; what an earlier one left is moved aside, not deleted.
if [ -d "$run/checkpoints" ]; then
  mv "$run/checkpoints" "$run/checkpoints.$(date +%Y%m%d-%H%M%S)"
fi
say "training: a coordinator and two CPU workers, data parallel (ctrl-C checkpoints and exits)"
"$bin/muster" local examples/demo.json --workers 2 --state-dir "$run/state" --metrics "$run/metrics.jsonl"

say "what it learned:"
prompt="And God said"
"$bin/muster" generate --checkpoint "$run/checkpoints" --prompt "$prompt" --max-new-tokens 300 --temperature 0.8 --seed 1

loss=$(python3 - "$run/state" <<'PY'
import glob, json, sys
state = json.load(open(sys.argv[1] + "/status.json"))
losses = [e["lm_loss"] for e in state["evaluations"] if e["split"] == "valid"]
print(losses[-1])
PY
)
awk -v loss="$loss" 'BEGIN { exit !(loss < 1.7) }' ||
  fail "the final validation loss is $loss nats a byte; 1.7 or less was expected: something is wrong with this build"
say "done: final validation loss $loss nats a byte (1.7 or less expected)"
say "look around: $bin/muster ckpt inspect $run/checkpoints, $run/metrics.jsonl, $run/state"
