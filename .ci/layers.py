"""Checks every include line against the layer rule: who may include whom, and which outside headers a folder may see.

The table is the rule; a folder that is not in it is an error. Run by `./dev layers`."""
import pathlib
import re
import subprocess
import sys

# folder: (folders of ours that it may include, outside groups that it may see)
BASE = ["common/base"]
PURE1 = ["common/spec", "common/topology", "common/schedule", "common/rerun", "common/ckpt", "common/control", "common/recovery"]
FILES = ["common/files", "common/dataset", "common/tokenizer"]  # torch-free libraries over files
RUNTIME = ["common/runtime"]
RULES = {
    "common/base": ([], []),
    "common/runtime": (BASE, ["threads"]),
    "common/spec": (BASE + ["common/topology"], ["json"]),
    "common/topology": (BASE, []),
    "common/schedule": (BASE + ["common/spec", "common/topology"], []),
    "common/rerun": (BASE, ["json"]),
    "common/files": (BASE, ["files"]),
    "common/ckpt": (BASE + ["common/files"], ["json", "files"]),
    "common/control": (BASE, ["json"]),
    "common/recovery": (BASE + ["common/control", "common/spec", "common/topology"], ["json"]),
    "common/tokenizer": (BASE, ["json", "files"]),
    "common/dataset": (BASE + ["common/files", "common/tokenizer"], ["json", "files"]),
    "common/preflight": (BASE + ["common/spec"], ["files"]),
    "common/rpc": (BASE + RUNTIME + PURE1, ["grpc", "proto", "threads", "files"]),
    "coordinator/core": (BASE + PURE1, ["json"]),
    "coordinator/engine": (BASE + PURE1 + RUNTIME + ["coordinator/core"], ["threads", "files", "sqlite"]),
    "coordinator/server": (BASE + PURE1 + RUNTIME + ["common/rpc", "coordinator/core", "coordinator/engine"],
                           ["grpc", "proto", "threads", "files", "json"]),
    "worker/core": (BASE + PURE1, []),
    "worker/agent": (BASE + PURE1 + RUNTIME + ["common/rpc", "common/dataset", "common/preflight", "worker/core"],
                     ["grpc", "proto", "threads", "files", "json"]),
    "cli": (BASE + PURE1 + RUNTIME + FILES + ["common/preflight", "common/rpc"], ["grpc", "proto", "threads", "files", "json"]),
}
TENSOR = ["torch", "threads", "files"]
COMMON = BASE + PURE1 + RUNTIME + FILES
RULES |= {
    "worker/comm": (COMMON, TENSOR + ["gloo", "nccl"]),
    "worker/parallel": (COMMON + ["worker/comm"], TENSOR),
    "worker/ops": (COMMON + ["worker/comm"], TENSOR),
    "worker/moe": (COMMON + ["worker/comm", "worker/parallel", "worker/ops"], TENSOR),
    "worker/model": (COMMON + ["worker/comm", "worker/parallel", "worker/ops", "worker/moe", "worker/data"], TENSOR),
    "worker/cuda": (COMMON + ["worker/comm", "worker/parallel", "worker/ops", "worker/model"], TENSOR),
    "worker/optim": (COMMON + ["worker/comm", "worker/parallel"], TENSOR),
    "worker/data": (COMMON + ["worker/comm", "worker/parallel"], TENSOR),
    "worker/provider": (COMMON + ["worker/comm", "worker/parallel", "worker/ops", "worker/data", "worker/model"], TENSOR),
    "worker/checkpoint": (COMMON + ["worker/comm", "worker/parallel"], TENSOR + ["json"]),
    "worker/snapshot": (COMMON + ["worker/comm", "worker/parallel", "worker/checkpoint"], TENSOR + ["json"]),
    "worker/train": (COMMON + ["worker/comm", "worker/parallel", "worker/ops", "worker/moe", "worker/model", "worker/cuda", "worker/optim", "worker/data",
                               "worker/provider", "worker/checkpoint", "worker/snapshot"], TENSOR + ["json"]),
}
# Outside headers that only some folders may see; what matches none of these is open to all.
GROUPS = [
    ("torch", re.compile(r"^(ATen|torch|c10|caffe2)/")),
    ("gloo", re.compile(r"^(gloo/|torch/csrc/distributed/c10d/)")),
    ("nccl", re.compile(r"^(nccl|cuda|cuda_runtime|cuda_runtime_api|cuda_bf16)\.h$")),
    ("grpc", re.compile(r"^(grpc|grpcpp)/")),
    ("proto", re.compile(r"^(google/protobuf/|.*\.pb\.h$)")),
    ("json", re.compile(r"^nlohmann/")),
    ("sqlite", re.compile(r"^sqlite3\.h$")),
    ("threads", re.compile(r"^(thread|mutex|condition_variable|shared_mutex|future|pthread\.h|stop_token|semaphore|latch|barrier)$")),
    ("files", re.compile(r"^(fstream|filesystem|unistd\.h|fcntl\.h|sys/(stat|mman|socket|types|wait|file|uio|un|prctl|syscall)\.h|"
                         r"dirent\.h|netdb\.h|arpa/inet\.h|netinet/.*|poll\.h|spawn\.h|signal\.h)$")),
]
# Where a group is seen by one file kind only: NCCL headers stay behind the seam, gloo in one file.
ONLY_IN = {"nccl": re.compile(r"worker/comm/(nccl|cuda)\w*\.(h|cc|cu)$"), "gloo": re.compile(r"worker/comm/gloo\w*\.(h|cc)$")}
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]')
# The seam's exemptions, each with its reason.
EXEMPT = {
    "common/runtime": {"files": "logging writes to a file descriptor"},
}


def folder_of(path, folders):
    best = ""
    for folder in folders:
        if (path == folder or path.startswith(folder + "/")) and len(folder) > len(best):
            best = folder
    return best


def main():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.h", "*.cc", "*.cu"], capture_output=True,
                            text=True, check=True).stdout.split()
    problems, seen = [], 0
    for name in sorted(listed):
        if name.startswith(("tests/", "benchmarks/", "examples/")) or not pathlib.Path(name).exists():
            continue
        folder = folder_of(name, RULES)
        if not folder:
            problems.append(f"{name}: its folder has no row in .ci/layers.py")
            continue
        seen += 1
        ours, outside = RULES[folder]
        lines = pathlib.Path(name).read_text().splitlines()
        groups_seen = set()
        for number, line in enumerate(lines, 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            quote, header = match.groups()
            where = f"{name}:{number}"
            target = folder_of(header, RULES) if quote == '"' else ""
            if target:
                if target != folder and target not in ours:
                    problems.append(f"{where}: {folder} may not include {target} ({header})")
                continue
            for group, pattern in GROUPS:
                if not pattern.match(header):
                    continue
                if group == "torch" and "c10d/" in header:
                    continue
                groups_seen.add(group)
                if group in EXEMPT.get(folder, {}):
                    continue
                if group not in outside:
                    problems.append(f"{where}: {folder} may not see {group} headers (<{header}>)")
                elif group in ONLY_IN and not ONLY_IN[group].search(name):
                    problems.append(f"{where}: {group} headers stay in {ONLY_IN[group].pattern}")
        if "torch" in groups_seen and groups_seen & {"grpc", "proto"}:
            problems.append(f"{name}: torch and protobuf headers meet in one file")
    for problem in problems:
        print(problem)
    print(f"layers: {seen} files, {len(problems)} broken rules")
    return 1 if problems else 0


sys.exit(main())
