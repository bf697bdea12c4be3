"""Every parallel layout on CPU workers of one thread each, in five parts: tokens/s beside one worker and beside the peer that does
the same work (one program after the other, several rounds, the first two steps of each run left out); the same with shared memory
off; the pipeline's bubble; bytes moved; peak memory. See README.md for how each is measured."""
import json
import os
import statistics
import subprocess
import sys
import tempfile

from layouts import GLOBAL_BATCH, LAYOUTS, MODEL, formula_bytes, layout, one_worker, shape, spec

HERE = os.path.dirname(os.path.abspath(__file__))
ENV = os.environ.get
WORLDS = [int(w) for w in ENV("MUSTER_BENCH_WORLDS", "2 4").split()]
ROUNDS, STEPS = int(ENV("MUSTER_BENCH_ROUNDS", "2")), int(ENV("MUSTER_BENCH_STEPS", "8"))
PARTS = ENV("MUSTER_BENCH_PARTS", "speed shared_memory bubble bytes memory").split()
ONLY = ENV("MUSTER_BENCH_LAYOUTS", "")  # part of a layout's name
BIN = os.path.join(ENV("MUSTER_BUILD", "build"), "bin")
LEFT_OUT = 2
TOKENS = GLOBAL_BATCH * MODEL["seq"]
BENCH_PYTHON = os.path.join(".deps", "bench-venv", "bin", "python")
MEGATRON_PYTHON = os.path.join(".deps", "megatron-venv", "bin", "python")


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def write_spec(folder, document):
    path = os.path.join(folder, "spec.json")
    with open(path, "w") as f:
        json.dump(document, f)
    return path


def muster_steps(entry, folder, **training):
    """The metrics records of the steps that count."""
    metrics = os.path.join(folder, "metrics.jsonl")
    if os.path.exists(metrics):
        os.unlink(metrics)
    run([os.path.join(BIN, "muster"), "local", write_spec(folder, spec(entry, STEPS, **training)), "--metrics", metrics])
    return [json.loads(line) for line in open(metrics)][LEFT_OUT:]


def muster_seconds(entry, folder, **training):
    return statistics.median(step["elapsed_ms"] / 1000 for step in muster_steps(entry, folder, **training))


def peer_seconds(entry):
    kind, *arguments = entry["peer"].split()
    if kind in ("ddp", "fsdp2"):
        python, script, arguments = BENCH_PYTHON, f"peer_{kind}.py", [*arguments, str(GLOBAL_BATCH // entry["world"])]
    else:
        python, script, arguments = MEGATRON_PYTHON, "peer_megatron.py", [*arguments, str(entry["micro_batch"]), str(GLOBAL_BATCH)]
    if not os.path.exists(python):
        return None
    out = run([python, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(entry["world"]),
               os.path.join(HERE, script), *arguments, str(STEPS)], env={**os.environ, "OMP_NUM_THREADS": "1"})
    return statistics.median(json.loads(out.strip().splitlines()[-1])["seconds"][LEFT_OUT:])


def plan(entry, folder):
    return json.loads(run([os.path.join(BIN, "muster"), "plan", write_spec(folder, spec(entry, STEPS)), "--json"]))


def traffic(entry, folder, steps=6):
    return json.loads(run([os.path.join(BIN, "bench-parallel-traffic"), write_spec(folder, spec(entry, steps))]))["ranks"]


def speed(folder, entries):
    print(f"\ntokens/s, {MODEL['layers']} layers of {MODEL['hidden']}, {GLOBAL_BATCH} x {MODEL['seq']} tokens a step, fp32, one thread a "
          f"worker, {os.cpu_count()} cores\n{'layout':<30} {'muster':>8} {'/ one worker':>13} {'peer':>8} {'muster / peer':>14}", flush=True)
    names = {one_worker(e)["name"]: one_worker(e) for e in entries}
    one, ours, peers = {name: [] for name in names}, {e["name"]: [] for e in entries}, {e["name"]: [] for e in entries}
    for _ in range(ROUNDS):
        for name, entry in names.items():
            one[name].append(muster_seconds(entry, folder))
        for entry in entries:
            ours[entry["name"]].append(muster_seconds(entry, folder))
            if entry["peer"]:
                peers[entry["name"]].append(peer_seconds(entry))
    for name, seconds in one.items():
        print(f"{name:<30} {TOKENS / statistics.median(seconds):8.0f}", flush=True)
    for entry in entries:
        mine, theirs = ours[entry["name"]], peers[entry["name"]]
        line = (f"{entry['name']:<30} {TOKENS / statistics.median(mine):8.0f} "
                f"{statistics.median(a / b for a, b in zip(one[one_worker(entry)['name']], mine)):13.2f}")
        if theirs and theirs[0]:
            line += (f" {TOKENS / statistics.median(theirs):8.0f} {statistics.median(b / a for a, b in zip(mine, theirs)):14.2f}"
                     f"  {entry['peer']}")
        print(line, flush=True)


def shared_memory(folder, entries):
    """The same job with the ranks' exchanges through shared memory and through gloo."""
    print(f"\ntokens/s with exchanges through shared memory and over gloo's loopback\n"
          f"{'layout':<30} {'shared':>8} {'gloo':>8} {'ratio':>6}", flush=True)
    for entry in entries:
        rounds = [[muster_seconds(entry, folder, shared_memory=on) for on in (True, False)] for _ in range(ROUNDS)]
        on, off = (statistics.median(seconds) for seconds in zip(*rounds))
        print(f"{entry['name']:<30} {TOKENS / on:8.0f} {TOKENS / off:8.0f} {statistics.median(b / a for a, b in rounds):6.2f}", flush=True)


def bubble(folder, _):
    """Waiting and work of each rank, ranks as threads. Only where every rank has a core: else a waiting rank's core is lent on."""
    print(f"\npipeline bubble: idle time / work, ranks as threads\n{'layout':<30} {'m':>3} {'measured':>9} {'(p-1)/(v m)':>12}", flush=True)
    for pp in (p for p in (2, 4) if p <= (os.cpu_count() or 1) and p in WORLDS):
        for per_stage, micro_batch in ((None, 2), (None, 1), (MODEL["layers"] // pp // 2, 1), (MODEL["layers"] // pp // 4, 1)):
            if per_stage == 0:
                continue
            extra = dict(num_layers_per_virtual_pipeline_stage=per_stage) if per_stage else {}
            entry = layout("", pp, micro_batch, pipeline_model_parallel_size=pp, **extra)
            _, _, v, _, m = shape(entry)
            name = f"pp{pp}" + (f", {v} virtual stages" if v > 1 else "")
            ranks = traffic(entry, folder)
            # The optimizer's work is no part of the pipeline.
            optimizer = sum(r.get("timers_s", {}).get("optimizer", 0) for r in ranks) * len(ranks)
            idle = sum(r["wait_s"] for r in ranks)
            work = sum(r["step_s"] - r["wait_s"] for r in ranks) - optimizer
            print(f"{name:<30} {m:3} {idle / work:9.3f} {(pp - 1) / (v * m):12.3f}", flush=True)


GROUP_OF = {"dp": "dp", "dp_cp": "dp", "intra_dp_cp": "dp", "expert_dp": "dp", "intra_expert_dp": "dp", "tp": "tp", "pp": "pp", "cp": "cp",
            "ep": "ep", "tp_ep": "ep"}


def moved_bytes(folder, entries):
    print(f"\nMB that a rank sends a step (the busiest rank): counted at the communicators, and by formula\n"
          f"{'layout':<30} {'group':>5} {'counted':>9} {'formula':>9} {'ratio':>6}", flush=True)
    for entry in entries:
        formula = formula_bytes(entry, plan(entry, folder)["parameters"]["per_rank"])
        ranks = traffic(entry, folder, steps=4)
        counted = []
        for rank in ranks:
            sums = {}
            for name, operations in rank["operations"].items():
                group = GROUP_OF.get(name.split()[0], "other")
                sums[group] = sums.get(group, 0) + operations["bytes"]
            counted.append(sums)
        for group in ("dp", "tp", "pp", "cp", "ep", "other"):
            have = max(c.get(group, 0) for c in counted) / 1e6
            want = max(f.get(group, 0) for f in formula) / 1e6
            if have > 0.01 or want > 0:
                print(f"{entry['name']:<30} {group:>5} {have:9.2f} {want:9.2f} {have / want if want else float('nan'):6.2f}", flush=True)


def memory(folder, entries):
    print(f"\npeak memory of a rank, MB (the rank that needs most, and the rank whose plan is farthest off)\n"
          f"{'layout':<30} {'counted':>8} {'plan':>8} {'ratio':>6} {'farthest':>9}", flush=True)
    ones = {one_worker(e)["name"]: one_worker(e) for e in entries}
    for entry in [*ones.values(), *entries]:
        counted = [rank["memory_bytes"] for rank in traffic(entry, folder, steps=4)]
        planned = [rank["total"] for rank in plan(entry, folder)["bytes_per_rank"]]
        farthest = max((h / w for h, w in zip(counted, planned)), key=lambda ratio: abs(ratio - 1))
        print(f"{entry['name']:<30} {max(counted) / 1e6:8.1f} {max(planned) / 1e6:8.1f} {max(counted) / max(planned):6.2f} "
              f"{farthest:9.2f}", flush=True)


def main():
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        for part in PARTS:
            if part == "speed":  # by the number of workers: what is compared runs close together
                for world in WORLDS:
                    speed(folder, [e for e in LAYOUTS if e["world"] == world and ONLY in e["name"]])
                continue
            entries = [e for e in LAYOUTS if e["world"] in WORLDS and ONLY in e["name"]]
            {"shared_memory": shared_memory, "bubble": bubble, "bytes": moved_bytes, "memory": memory}[part](folder, entries)


try:
    main()
except RuntimeError as error:
    sys.exit(str(error))
