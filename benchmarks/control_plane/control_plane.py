"""The coordinator under load beside a bare gRPC server (the floor), TCPStore, JAX's coordination service and torchft's lighthouse:
in each round one after the other, servers on one core, clients on another. Prints a table a case with ratios and aims."""
import os
import statistics
import sys
import time
from collections import namedtuple

import subjects
from processes import CLIENT_CORE, SERVER_CORE, Unavailable, end_all, raise_descriptor_limit

Case = namedtuple("Case", "workers share barriers directives jobs")
ROUNDS = int(os.environ.get("MUSTER_BENCH_ROUNDS", "1"))
CASES = os.environ.get("MUSTER_BENCH_CASES", "64 1024 1024/8 4096 4096/8 16384/8").split()
VERBOSE = bool(os.environ.get("MUSTER_BENCH_VERBOSE"))
SUBJECTS = os.environ.get("MUSTER_BENCH_SUBJECTS", "floor muster tcpstore jax torchft").split()

# figure, unit, factor, larger is better, what it says
FIGURES = [
    ("registrations_s", "/s", 1, True, "workers registered (connected, one call)"),
    ("streams_s", "/s", 1, True, "workers with an open, welcomed stream"),
    ("barrier_together_s", "ms", 1e3, False, "barrier, all enter at once: last one out"),
    ("barrier_half_s", "ms", 1e3, False, "barrier, from the last one in: half are out"),
    ("barrier_all_s", "ms", 1e3, False, "barrier, from the last one in: all are out"),
    ("unique_id_s", "ms", 1e3, False, "rank 0's unique ID to all nodes"),
    ("exchange_s", "ms", 1e3, False, "each rank sets a key and reads all"),
    ("submit_s", "ms", 1e3, False, "submit to all assigned"),
    ("directive_p50_s", "ms", 1e3, False, "directive to all, acknowledged, p50"),
    ("directive_p99_s", "ms", 1e3, False, "directive to all, acknowledged, p99"),
    ("step_ack_s", "ms", 1e3, False, "step report acknowledged"),
    ("kill_s", "ms", 1e3, False, "cancel to all workers idle"),
    ("lose_s", "ms", 1e3, False, "1 % die at once: all hold the new assignment"),
    ("lose_step_s", "ms", 1e3, False, "1 % die at once: the next step"),
    ("lose_cpu_s", "ms", 1e3, False, "server CPU for that"),
    ("lose_memory_kb", "KB", 1, False, "server memory a worker, after that"),
    ("cpu_us_heartbeat", "us", 1, False, "server CPU a heartbeat"),
    ("cores_heartbeats", "core", 1, False, "all workers' heartbeats every 0.5 s"),
    ("memory_kb", "KB", 1, False, "server memory a worker"),
    ("cli_status_s", "ms", 1e3, False, "muster status JOB, whole command"),
    ("cli_list_s", "ms", 1e3, False, "muster list, whole command"),
    ("readopt_s", "s", 1, False, "kill -9 and restart to all adopted"),
]


def aims(case):
    """figure -> (text, test of (ours, row of all subjects))."""
    out = {
        "registrations_s": ("0.7 x floor", lambda v, r: v >= 0.7 * r["floor"]),
        "cpu_us_heartbeat": ("1.3 x floor", lambda v, r: v <= 1.3 * r["floor"]),
        "cli_status_s": ("30 ms", lambda v, r: v <= 0.030),
        "cli_list_s": ("30 ms", lambda v, r: v <= 0.030),
        "memory_kb": ("1.2 x floor", lambda v, r: v <= 1.2 * r["floor"]) if case.share == 1 else ("8 KB", lambda v, r: v <= 8),
    }
    if case.share == 1 and case.workers == 1024:
        out["barrier_half_s"] = ("15 ms", lambda v, r: v <= 0.015)
    if case.share == 1 and case.workers == 4096:
        out["barrier_half_s"] = ("60 ms", lambda v, r: v <= 0.060)
        out["readopt_s"] = ("3 s", lambda v, r: v <= 3)
    if case.share == 1:
        out["registrations_s"] = ("0.7 x floor, past JAX", lambda v, r: v >= 0.7 * r["floor"] and v > (r["jax"] or 0))
    if case.workers == 1024:
        out["directive_p99_s"] = ("10 ms", lambda v, r: v <= 0.010)
    if case.workers == 16384:
        out["cores_heartbeats"] = ("0.25 core", lambda v, r: v <= 0.25)
    return out


def parse(text):
    workers, _, share = text.partition("/")
    workers, share = int(workers), int(share or 1)
    large = workers > 1024
    return Case(workers, share, barriers=3 if large else 7, directives=20 if large else 50, jobs=2 if large else 4)


def run(case):
    """subject -> figure -> median of the rounds; and why a subject is missing."""
    rows, missing = {}, {}
    names = [name for name in SUBJECTS if case.share == 1 or name in ("floor", "muster")]
    for _ in range(ROUNDS):
        for name in names:
            if name in missing:
                continue
            start = time.monotonic()
            try:
                rows.setdefault(name, []).append(getattr(subjects, name)(case))
            except (Unavailable, StopIteration, OSError) as e:
                missing[name] = str(e)
            finally:
                end_all()
            if VERBOSE:
                print(f"  {name}: {time.monotonic() - start:.1f} s", file=sys.stderr)
    medians = {}
    for name, rounds in rows.items():
        figures = {figure for row in rounds for figure in row}
        values = {figure: [row[figure] for row in rounds if row.get(figure) is not None] for figure in figures}
        medians[name] = {figure: statistics.median(v) if v else None for figure, v in values.items()}
    return medians, missing


def show(value, factor):
    if value is None:
        return "-"
    value *= factor
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(case, medians, missing):
    nodes = "a connection and stream each" if case.share == 1 else f"{case.workers // case.share:,} nodes of {case.share}, a stream a node"
    print(f"\n{case.workers:,} workers, {nodes}")
    print(f"  {'':<46}{'':<5}{'muster':>9}{'floor':>9}{'ratio':>7}{'TCPStore':>10}{'JAX':>9}{'torchft':>9}   aim")
    for figure, unit, factor, _, text in FIGURES:
        row = {name: medians.get(name, {}).get(figure) for name in ("muster", "floor", "tcpstore", "jax", "torchft")}
        if all(value is None for value in row.values()) and figure != "readopt_s":
            continue
        ours, floor = row["muster"], row["floor"]
        ratio = f"{ours / floor:.2f}" if ours is not None and floor else "-"
        aim, met = aims(case).get(figure, ("", None))
        verdict = "" if met is None else f"   {aim}: " + ("n/a" if ours is None or (floor is None and "floor" in aim) else "yes" if met(ours, row) else "no")
        print(f"  {text:<46}{unit:<5}{show(ours, factor):>9}{show(floor, factor):>9}{ratio:>7}{show(row['tcpstore'], factor):>10}"
              f"{show(row['jax'], factor):>9}{show(row['torchft'], factor):>9}{verdict}")
    for name, why in missing.items():
        print(f"  {name}: {why}")
    sys.stdout.flush()


def main():
    os.sched_setaffinity(0, {CLIENT_CORE})
    start = time.monotonic()
    if CLIENT_CORE == SERVER_CORE:
        print("only one core may be used here: servers and clients share it, and every figure is worse for it")
    print(f"servers on core {SERVER_CORE}, clients on core {CLIENT_CORE}; medians of {ROUNDS} rounds; ratio: muster / floor")
    for case in map(parse, CASES):
        try:
            raise_descriptor_limit(case.workers // case.share)
            table(case, *run(case))
        except Unavailable as e:
            print(f"\n{case.workers:,} workers in nodes of {case.share}: {e}")
    print(f"\n{time.monotonic() - start:.0f} s in all")


main()
