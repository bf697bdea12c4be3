"""Many blocking clients of a peer in one Python process: a thread each, released by one event. Commands and answers as JSON lines. The calls let go of the
interpreter while they wait."""
import json
import os
import sys
import threading
import time

SETTLE_S = 0.3  # and a millisecond a client: until those who wait are all in
threading.stack_size(256 * 1024)


def summary(values):
    values = sorted(values)
    return {"p50": values[(len(values) - 1) // 2], "p99": values[int(0.99 * (len(values) - 1))], "max": values[-1]}


def released_together(size, work, last_alone=False):
    """Seconds from the release to the end of each client's work(i), sorted. last_alone: the last client comes when the others
    wait, and the time starts with it."""
    gates = [threading.Event(), threading.Event()]
    ends, failures = [0.0] * size, []
    ready = threading.Barrier(size + 1)

    def run(i):
        ready.wait()
        gates[last_alone and i == size - 1].wait()
        try:
            work(i)
        except Exception as e:  # whatever the peer's own error type is
            failures.append(f"client {i}: {e}")
        ends[i] = time.monotonic()

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(size)]
    for thread in threads:
        thread.start()
    ready.wait()
    start = time.monotonic()
    gates[0].set()
    if last_alone:
        time.sleep(SETTLE_S + size / 1000)
        start = time.monotonic()
        gates[1].set()
    for thread in threads:
        thread.join()
    if failures:
        sys.exit(f"{len(failures)} of {size} failed: {failures[0][:200]}")
    return sorted(end - start for end in ends)


def serve_commands(size, register, barrier, beat):
    """register(i), barrier(i, round): one client's part; beat(): answers {"messages", "seconds"}. The commands are those of
    bench-control-load: "register", "beat", "barriers K" (all at once), "releases K" (the last one alone)."""
    rounds = 0
    for line in sys.stdin:
        name, *numbers = line.split()
        if name == "register":
            answer = summary(released_together(size, register))
        elif name == "beat":
            answer = beat()
        else:
            halves, alls = [], []
            for _ in range(int(numbers[0])):
                rounds += 1
                out = released_together(size, lambda i: barrier(i, rounds), last_alone=name == "releases")
                halves.append(out[len(out) // 2])
                alls.append(out[-1])
            answer = {"half": summary(halves), "all": summary(alls)}
        print(json.dumps(answer), flush=True)
    os._exit(0)
