# shellcheck shell=bash
# phase NAME COMMAND...: runs it, prints its minutes, notes them in $MUSTER_PHASES when that is set.
phase() {
  local name=$1 start=$SECONDS status=0
  shift
  say "phase $name"
  # A subshell with its own -e: `if` or `||` around the command would switch errexit off inside it.
  set +e
  (set -e; "$@")
  status=$?
  set -e
  local line
  line=$(awk -v s=$((SECONDS - start)) -v n="$name" 'BEGIN {printf "phase %-12s %5.1f min", n, s / 60}')
  [ $status = 0 ] || line="$line FAILED"
  say "$line"
  [ -z "${MUSTER_PHASES:-}" ] || echo "$line" >>"$MUSTER_PHASES"
  [ $status = 0 ] || exit $status
}
