# shellcheck shell=bash
# What every command of ./dev shares: messages, setup, configure, build, tests.

say() { printf '\033[1m==>\033[0m %s\n' "$*"; }
fail() { printf 'dev: %s\n' "$*" >&2; exit 1; }

JOBS=${MUSTER_JOBS:-$(nproc)}
DEPS=.deps
LOGS=$DEPS/log
mkdir -p "$LOGS"

# Debian 12's versions: gRPC 1.51, Protocol Buffers 3.21, Abseil 20220623, nlohmann-json 3.11, GoogleTest 1.12.
# libgloo-dev gives headers only; gloo itself is inside libtorch_cpu.
PACKAGES=(
  g++ cmake ninja-build ccache mold git python3 python3-pip pkg-config ca-certificates
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libabsl-dev libc-ares-dev
  nlohmann-json3-dev libgtest-dev libgmock-dev libbenchmark-dev libsqlite3-dev libgloo-dev
  bible-kjv bible-kjv-text strace iproute2
)
# What only `./dev ci`, `fmt` and `tidy` use.
CHECK_PACKAGES=(clang-format-14 clang-tidy-14 clang-14 libclang-rt-14-dev shellcheck systemd prometheus)

missing_packages() {
  local package
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || printf '%s ' "$package"
  done
}

install_packages() {
  local missing
  missing=$(missing_packages "$@")
  [ -z "$missing" ] && return 0
  command -v apt-get >/dev/null || fail "these packages are missing and there is no apt-get (Debian 12 is needed): $missing"
  [ "$(id -u)" = 0 ] || fail "these packages are missing and only root can install them; run as root: apt-get install -y $missing"
  mkdir -p "$LOGS"
  say "installing Debian packages: $missing"
  apt-get update -qq >"$LOGS/apt.log" 2>&1 ||
    fail "apt-get update failed ($(grep -m1 -E '^(E|W):' "$LOGS/apt.log" || tail -n1 "$LOGS/apt.log")); check the network and the package sources, then run this again"
  # shellcheck disable=SC2086
  DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing >>"$LOGS/apt.log" 2>&1 ||
    fail "apt-get install failed ($(grep -m1 '^E:' "$LOGS/apt.log" || tail -n1 "$LOGS/apt.log")); the whole output is in $LOGS/apt.log"
}

need_tools() {
  local new
  new=$(missing_packages prometheus)
  install_packages "${CHECK_PACKAGES[@]}"
  # Only promtool is wanted of it: where systemd runs, the package has just started a server.
  [ -z "$new" ] || [ ! -d /run/systemd/system ] || systemctl disable --now --quiet prometheus
}

# fetch_wheel NAME==VERSION SHA256 FOLDER MEMBERS...: a wheel from the Python package index, checked and unpacked into .deps/FOLDER.
fetch_wheel() {
  local requirement=$1 hash=$2 folder=$3
  shift 3
  [ -f "$DEPS/$folder/.complete-$hash" ] && return 0
  local free_mb
  free_mb=$(df -Pm . | awk 'NR==2 {print $4}')
  [ "$free_mb" -ge 3000 ] || fail "only $free_mb MB are free here; LibTorch needs 3000 MB: make room, then run this again"
  mkdir -p "$DEPS/wheels" "$LOGS"
  say "fetching $requirement"
  printf '%s --hash=sha256:%s\n' "$requirement" "$hash" >"$DEPS/wheels/$folder.txt"
  python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.11 --implementation cp --abi cp311 --abi none \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_25_x86_64 --platform manylinux2014_x86_64 \
    --platform manylinux_2_17_x86_64 --platform manylinux_2_18_x86_64 --require-hashes -d "$DEPS/wheels" -r "$DEPS/wheels/$folder.txt" >"$LOGS/pip.log" 2>&1 ||
    fail "could not download $requirement ($(grep -m1 ERROR "$LOGS/pip.log" || tail -n1 "$LOGS/pip.log")); check the network, then run this again"
  say "unpacking $requirement into $DEPS/$folder"
  python3 - "$DEPS/wheels" "$requirement" "$DEPS/$folder" "$@" <<'EOF' || fail "could not unpack $requirement into $DEPS/$folder: is the disk full?"
import glob, os, sys, zipfile
wheels, requirement, folder, *wanted = sys.argv[1:]
name, version = requirement.split("==")
path = glob.glob(os.path.join(wheels, name.replace("-", "_") + "-" + version + "-*.whl"))[0]
with zipfile.ZipFile(path) as wheel:
    for member in wheel.namelist():
        if any(member.startswith(prefix) for prefix in wanted):
            wheel.extract(member, folder)
os.unlink(path)
EOF
  touch "$DEPS/$folder/.complete-$hash"
}

setup() {
  [ "$(uname -m)" = x86_64 ] || fail "this machine is $(uname -m); Muster builds on x86_64"
  install_packages "${PACKAGES[@]}"
  fetch_wheel torch==2.11.0 7aa2f9bbc6d4595ba72138026b2074be1233186150e9292865e04b7a63b8c67a torch-2.11.0 \
    torch/include torch/lib torch/share torch/version.py
  # libtorch_cpu of the CUDA wheel needs these two at run time, with or without a GPU.
  fetch_wheel nvidia-cuda-runtime==13.0.96 7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548 cuda-runtime-13.0 \
    nvidia/cu13/lib/libcudart.so.13
  fetch_wheel nvidia-cuda-cupti==13.0.85 4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8 cuda-runtime-13.0 \
    nvidia/cu13/lib/libcupti.so.13
}

# The cuda preset's headers and NCCL, where the machine has no toolkit: the versions that torch's metadata pins.
setup_cuda() {
  command -v nvcc >/dev/null && return 0
  [ ! -e /usr/local/cuda ] || return 0
  fetch_wheel nvidia-cuda-runtime==13.0.96 7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548 cuda-toolkit-13.0 nvidia/cu13/include
  fetch_wheel nvidia-cuda-crt==13.0.88 2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4 cuda-toolkit-13.0 nvidia/cu13/include
  fetch_wheel nvidia-nccl-cu13==2.28.9 e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42 cuda-toolkit-13.0 nvidia/nccl
}

# configure PRESET: runs CMake when the preset changed or was never configured.
configure() {
  local preset=$1 folder=build
  case "$preset" in dev | cuda) ;; *) folder=build-$preset ;; esac
  [ "$preset" != cuda ] || setup_cuda
  if [ ! -f "$folder/build.ninja" ] || [ "$(cat "$folder/.preset" 2>/dev/null)" != "$preset" ]; then
    say "configuring preset $preset in $folder/"
    cmake --preset "$preset" >"$DEPS/configure-$preset.log" 2>&1 ||
      { tail -n 15 "$DEPS/configure-$preset.log" >&2; fail "CMake failed; the whole output is in $DEPS/configure-$preset.log"; }
    echo "$preset" >"$folder/.preset"
  fi
}

# build [TARGET...]: everything by default; keeps the preset (dev or cuda) that build/ was configured with.
build() {
  [ -f build/build.ninja ] || configure dev
  say "building ${*:-all} (${JOBS} at a time; the first time takes some minutes)"
  NINJA_STATUS='[%f/%t %es] ' cmake --build build -j "$JOBS" --target "${@:-all}" ||
    fail "the build failed: the first error is above"
}

# run_tests [REGEX]: everything but the labels that need a GPU or hours.
run_tests() {
  local filter=()
  [ $# -gt 0 ] && filter=(-R "$1")
  ctest --test-dir build --output-on-failure --no-tests=error -j "$JOBS" -LE 'gpu|nightly|bench' "${filter[@]}"
}
