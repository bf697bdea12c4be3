#!/usr/bin/env bash
# fmt.sh [--check]: clang-format 14 over our sources.
set -euo pipefail
. .ci/common.sh
mapfile -t files < <(git ls-files -co --exclude-standard '*.h' '*.cc' '*.cu' | while read -r f; do [ -f "$f" ] && echo "$f"; done)
if [ "${1:-}" = --check ]; then
  clang-format-14 --dry-run --Werror "${files[@]}" 2>"$LOGS/fmt.log" && { say "fmt: ${#files[@]} files are formatted"; exit 0; }
  grep -oE '^[^:]+' "$LOGS/fmt.log" | grep -E '\.(h|cc|cu)$' | sort -u >&2
  fail "the files above are not formatted: run ./dev fmt"
fi
clang-format-14 -i "${files[@]}"
say "fmt: ${#files[@]} files"
