"""Faults that are not a worker's death: a coordinator that is away, silence, hangs, and a machine that is only busy."""
import os
import signal
import statistics
import sys
import time

from cluster import Cluster, Job
from processes import end, start, wait_for

ALARM_S = int(os.environ.get("MUSTER_BENCH_ALARM_S", "600"))
ALARMS = ("recovering", "rank_failed", "worker_lost", "hang", "probe")


def _gaps(job, since, until):
    times = [at for at, _, _ in job.poll() if since <= at <= until]
    return [b - a for a, b in zip(times, times[1:])]


def coordinator(rounds):
    """SIGKILL, away for a second, started again on the same folder: how many steps were late, and the longest of them."""
    cluster = Cluster(2)
    job = Job(cluster, 2)
    try:
        stalled, longest, quiet = [], [], []
        for _ in range(rounds):
            job.wait_steps(100, job.poll()[-1][0])
            end_of_quiet = time.time()
            usual = _gaps(job, end_of_quiet - 1.5, end_of_quiet)
            os.kill(cluster.coordinator.pid, signal.SIGKILL)
            end(cluster.coordinator)
            time.sleep(1)
            cluster.start_coordinator()
            time.sleep(0.5)
            gaps = _gaps(job, end_of_quiet, time.time())
            limit = max(5 * statistics.median(usual), 0.1)
            stalled.append(sum(gap > limit for gap in gaps))
            longest.append(max(gaps))
            quiet.append(max(usual))
            wait_for("the agents", lambda: sum(w["state"] == "ALIVE" for w in cluster.json("workers")) == 2)
        status = job.status()
        print(f"\ncoordinator killed, away for 1 s and started again, {rounds} times: {sum(stalled)} stalled steps, "
              f"{status['restarts']} restarts (aim 0, 0); longest step {1000 * max(longest):.0f} ms, in quiet times {1000 * max(quiet):.0f} ms",
              flush=True)
    finally:
        cluster.stop()


def _p99(job):
    gaps = sorted(_gaps(job, job.steps[0][0] + 1, time.time()))
    return gaps[int(0.99 * (len(gaps) - 1))]


def detection(rounds):
    """SIGSTOP of an agent and of a trainer: from the signal to the moment that the coordinator knows."""
    cluster = Cluster(2)
    job = Job(cluster, 2)
    try:
        job.wait_steps(300)
        silent = []
        for _ in range(rounds):
            pid = cluster.agents["node1"].pid
            stopped = time.time()
            os.kill(pid, signal.SIGSTOP)
            wait_for("the silence to be known", lambda: next(
                w for w in cluster.json("workers") if w["worker"] == "node1")["state"] != "ALIVE", 20, 0.02)
            silent.append(time.time() - stopped)
            os.kill(pid, signal.SIGCONT)
            wait_for("the agent", lambda: all(w["state"] == "ALIVE" for w in cluster.json("workers")), 20)
            job.wait_steps(20, time.time())
        print(f"\na stopped agent is known after {statistics.median(silent):.2f} s ({min(silent):.2f}-{max(silent):.2f}), {rounds} times "
              f"(aim 1.5 s); {job.status()['restarts']} restarts for it", flush=True)
        hung, bounds = [], []
        for _ in range(rounds):
            job.wait_steps(100, time.time())
            worker = job.worker_of(1)
            pid = job.trainer_of(worker)
            bounds.append(3 * _p99(job) + 1)
            stopped = time.time()
            os.kill(pid, signal.SIGSTOP)
            hung.append(job.event(stopped, "recovering", "hang", "rank_failed")["at"] - stopped)
            job.event(stopped, "recovered")
        print(f"a stopped trainer is known as hung after {statistics.median(hung):.2f} s ({min(hung):.2f}-{max(hung):.2f}), {rounds} times "
              f"(aim 3 x p99 + 1 s = {statistics.median(bounds):.2f} s, and the probe's answer)", flush=True)
    finally:
        cluster.stop()


def alarms(_):
    """Twice as many busy loops as cores beside a job: nothing may be taken for dead, hung or silent."""
    cluster = Cluster(2)
    job = Job(cluster, 2)
    burners = []
    try:
        burners = [start([sys.executable, "-c", "while True: pass"], os.devnull) for _ in range(os.cpu_count() * 2)]
        began, first = time.time(), job.status()["iteration"]
        while time.time() - began < ALARM_S:
            time.sleep(min(5, ALARM_S))
            job.check()
        status = job.status()
        false = [e for e in job.events() if e["at"] > began and e["kind"] in ALARMS]
        print(f"\n{ALARM_S} s with all cores saturated: {len(false)} false alarms (aim 0), {status['restarts']} restarts, "
              f"{status['iteration'] - first} steps", flush=True)
        for event in false[:5]:
            print(f"  {event['kind']}: {event['text'][:200]}")
    finally:
        for process in burners:
            end(process, 0)
        cluster.stop()


