"""What a fault costs: recoveries beside torchrun and torchft, subjects in turn; a coordinator that is away; silence and hangs that
must be known, and that nothing is taken for one on a busy machine."""
import os
import statistics
import sys
import time

import parts
from ours import Elastic, InPlace, Spare
from peers import Torchft, Torchrun
from processes import Failed
from report import aim, print_aims, quantile, spread

ROUNDS = int(os.environ.get("MUSTER_BENCH_ROUNDS", "10"))
WORKERS = [int(n) for n in os.environ.get("MUSTER_BENCH_WORKERS", "2 4").split()]
PARTS = os.environ.get("MUSTER_BENCH_PARTS", "recovery coordinator detection alarms").split()
SITTING = 5  # kills before the next subject's turn
SUBJECTS = {
    "in_place": InPlace,
    "spare": Spare,
    "elastic": Elastic,
    "torchrun": Torchrun,
    "torchft": lambda: Torchft("torchft, default", 5000, 100),
    "torchft_tuned": lambda: Torchft("torchft, heartbeat limit 1 s", 1000, 20),
}
CHOSEN = os.environ.get("MUSTER_BENCH_SUBJECTS", " ".join(SUBJECTS)).split()
VERBOSE = bool(os.environ.get("MUSTER_BENCH_VERBOSE"))


def sit(subject, workers, kills):
    """So many recoveries of one job."""
    results = []
    try:
        subject.start(workers)
        for _ in range(kills):
            results.append(subject.kill())
            if VERBOSE:
                print(f"  {subject.name}: {results[-1]}", file=sys.stderr, flush=True)
    finally:
        subject.stop()
    return results


def recovery(workers):
    results, missing = {name: [] for name in CHOSEN}, {}
    for first in range(0, ROUNDS, SITTING):
        for name in CHOSEN:
            if name in missing:
                continue
            try:
                results[name] += sit(SUBJECTS[name](), workers, min(SITTING, ROUNDS - first))
            except (Failed, OSError, StopIteration) as e:
                missing[name] = str(e) or type(e).__name__
    print(f"\n{workers} workers, medians of {ROUNDS} (least-most), seconds from SIGKILL of one worker")
    print(f"  {'':<30}{'a survivor steps':>22}{'full width':>24}{'steps lost':>20}{'known, ms':>20}{'a step, ms':>12}")
    for name in CHOSEN:
        rows, title = results[name], SUBJECTS[name]().name
        if rows:
            known = [r["known_s"] for r in rows if "known_s" in r]
            print(f"  {title:<30}{spread([r['survivor_s'] for r in rows]):>22}{spread([r['full_s'] for r in rows]):>24}"
                  f"{spread([r['lost'] for r in rows]):>20}{spread(known, 1000) if known else '-':>20}"
                  f"{1000 * statistics.median(r['step_s'] for r in rows):>12.1f}")
        if name in missing:
            print(f"  {title:<30} {missing[name]}")
    for ours in ("in_place", "spare", "elastic"):
        ratios = []
        for peer in ("torchrun", "torchft", "torchft_tuned"):
            if results.get(ours) and results.get(peer):
                for what, key in (("a survivor", "survivor_s"), ("full width", "full_s")):
                    ratio = statistics.median(r[key] for r in results[peer]) / statistics.median(r[key] for r in results[ours])
                    ratios.append(f"{ratio:.1f} x {peer} ({what})")
        if ratios:
            print(f"  {SUBJECTS[ours]().name} is faster: {', '.join(ratios)}")
    note_aims(workers, results)
    for name in ("in_place", "spare", "elastic"):
        if results.get(name):
            print(f"  the last one of {SUBJECTS[name]().name}: {results[name][-1]['text']}")
    sys.stdout.flush()


def note_aims(workers, results):
    """Of medians, but for what must hold every time."""
    def median(name, key):
        return statistics.median(row[key] for row in results[name])
    if results.get("elastic"):
        aim(f"{workers} workers, elastic: survivors step again", median("elastic", "survivor_s"), 0.15)
    if results.get("spare"):
        aim(f"{workers} workers, warm spare: full width", median("spare", "full_s"), 0.5)
    rows = [row for name in ("in_place", "spare", "elastic") for row in results.get(name, [])]
    if rows:
        aim(f"{workers} workers, replicated state: steps lost at most", max(row["lost"] for row in rows), 0, "steps")
        aim(f"{workers} workers: a dead process is known, p99 of {len(rows)}", quantile([row["known_s"] for row in rows], 0.99), 0.05)


def main():
    start = time.monotonic()
    if "recovery" in PARTS:
        for workers in WORKERS:
            recovery(workers)
    for part in ("coordinator", "detection", "alarms"):
        if part in PARTS:
            try:
                getattr(parts, part)(ROUNDS)
            except (Failed, OSError) as e:
                print(f"\n{part}: {e}")
    print_aims()
    print(f"\n{time.monotonic() - start:.0f} s in all")


main()
