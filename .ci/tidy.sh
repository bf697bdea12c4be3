#!/usr/bin/env bash
# tidy.sh [FILE...]: clang-tidy 14. By default every torch-free file, and the torch files that changed against the
# main branch's previous commit (they take ten times as long).
set -euo pipefail
. .ci/common.sh
if [ $# -gt 0 ]; then
  files=("$@")
else
  mapfile -t sources < <(git ls-files '*.cc' | grep -vE '^(tests|benchmarks|examples)/')
  mapfile -t changed < <(git diff --name-only "${MUSTER_TIDY_BASE:-HEAD}" -- '*.cc' 2>/dev/null)
  files=()
  for file in "${sources[@]}"; do
    [[ "$file" == worker/* && "$file" != worker/core/* && "$file" != worker/agent/* ]] && ! printf '%s\n' "${changed[@]}" | grep -qx "$file" && continue
    grep -q "\"[^\"]*/$file\"" build/compile_commands.json && files+=("$file")
  done
fi
say "tidy: ${#files[@]} files"
printf '%s\n' "${files[@]}" | xargs -P "$JOBS" -n 4 clang-tidy-14 -p build --quiet >"$LOGS/tidy.log" 2>&1 ||
  { grep -E '(error|warning):' "$LOGS/tidy.log" | sort -u | head -n 40 >&2; fail "clang-tidy found the above; the whole output is in $LOGS/tidy.log"; }
say "tidy: clean"
