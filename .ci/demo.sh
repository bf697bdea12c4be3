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
  say "tokenizing it: a byte a token, a chapter a document"
  "$bin/muster" data preprocess "$run/data/kjv.txt" --format paragraphs --output-prefix "$run/data/kjv_text_document"
fi

# A demo starts from nothing each time; what an earlier one left is moved aside, not deleted.
if [ -d "$run/checkpoints" ]; then
  mv "$run/checkpoints" "$run/checkpoints.$(date +%Y%m%d-%H%M%S)"
fi
rm -f "$run/metrics.jsonl"
say "training: a coordinator and two CPU workers, data parallel (ctrl-C checkpoints and exits)"
"$bin/muster" local examples/demo.json --workers 2 --state-dir "$run/state" --metrics "$run/metrics.jsonl"

say "what it learned, after 'And God said':"
"$bin/muster" generate --checkpoint "$run/checkpoints" --prompt "And God said" --max-new-tokens 300 --temperature 0.7 --seed 1

loss=$(python3 - "$run/state/status.json" <<'PY'
import json, sys
evaluations = json.load(open(sys.argv[1]))["evaluations"]
print([e["lm_loss"] for e in evaluations if e["split"] == "valid"][-1])
PY
)
awk -v loss="$loss" 'BEGIN { exit !(loss < 1.7) }' ||
  fail "the final validation loss is $loss nats a byte; 1.7 or less was expected: something is wrong with this build"
say "done: final validation loss $loss nats a byte (1.7 or less was expected)"
say "look around: $run/metrics.jsonl, $run/state (logs, status.json), $run/checkpoints"
