# shellcheck shell=bash
# The Python environments of the programs that benchmarks and golden files compare with: their versions stand here, once.
# Nothing that builds, tests or runs Muster needs them. Sourced after common.sh.

PEER_TORCH=torch==2.11.0
PEER_MEGATRON=megatron-core==0.16.1
BENCH_VENV=$DEPS/bench-venv
MEGATRON_VENV=$DEPS/megatron-venv

# PyTorch, for benchmarks.
bench_venv() {
  [ ! -x "$BENCH_VENV/bin/torchrun" ] || return 0
  install_packages python3-venv
  say "making a virtual environment with PyTorch for the peers"
  python3 -m venv "$BENCH_VENV"
  "$BENCH_VENV/bin/pip" install --quiet "$PEER_TORCH" numpy || fail "could not install PyTorch for the peers: check the network"
}

# Megatron-core, in an environment of its own that sees the PyTorch of the one above. Fails when it cannot be had.
megatron_venv() {
  bench_venv
  [ ! -e "$MEGATRON_VENV/.complete-$PEER_MEGATRON" ] || return 0
  say "making a virtual environment with Megatron-core"
  python3 -m venv --clear "$MEGATRON_VENV"
  "$MEGATRON_VENV/bin/pip" install --quiet --no-deps "$PEER_MEGATRON" packaging==25.0 einops==0.8.1 || return 1
  local site
  site=$("$BENCH_VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  realpath "$site" >"$("$MEGATRON_VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/bench-venv.pth"
  touch "$MEGATRON_VENV/.complete-$PEER_MEGATRON"
}
