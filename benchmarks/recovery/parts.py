"""Faults that are not a worker's death: a coordinator that is away, silence, hangs, and a machine that is only busy."""
import os
import signal
import statistics
import sys
import time

from cluster import KNOWN, Cluster, Job, kill_trainer
from network import cuttable
from processes import Failed, end, start, wait_for
from report import aim, quantile, spread

ALARM_S = int(os.environ.get("MUSTER_BENCH_ALARM_S", "600"))
DEATHS = 10  # a round: the tail is what is asked for
_TICKS_S = 0.1  # the coordinator looks every 50 ms, and its verdict is an event at the next look
# Whatever says that somebody is dead, silent, hung or slow.
ALARMS = ("trainer_exited", "rank_failed", "worker_lost", "agent_lost", "node_lost", "suspect", "hang", "condemned", "overdue", "recovering",
          "restarting", "quarantined", "spare_lost", "spare_exited")


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
            wait_for("the agents", lambda: cluster.alive() == 2)
        restarts = job.status()["restarts"]
        print(f"\ncoordinator killed, away for 1 s and started again, {rounds} times: {sum(stalled)} stalled steps "
              f"({aim('coordinator killed and restarted: stalled steps', sum(stalled), 0, 'steps')}), {restarts} restarts "
              f"({aim('coordinator killed and restarted: restarts', restarts, 0, 'restarts')}); longest step, ms, {spread(longest, 1000)}, "
              f"in quiet times {spread(quiet, 1000)}", flush=True)
    finally:
        cluster.stop()


def _known(job, since, kinds, limit_s=20):
    return job.event(since, *kinds, limit_s=limit_s)["at"] - since


def _deaths(rounds):
    """Of trainers, both ranks in turns."""
    cluster = Cluster(2)
    job = Job(cluster, 2)
    try:
        known = []
        for kill in range(DEATHS * rounds):
            killed = kill_trainer(job.trainer_of(job.worker_of(kill % 2)))
            known.append(_known(job, killed, KNOWN))
            job.wait_steps(10, job.event(killed, "recovered")["at"])
        p99 = quantile(known, 0.99)
        print(f"\na killed trainer is known after, ms: p50 {1000 * quantile(known, 0.5):.1f}, p99 {1000 * p99:.1f}, most "
              f"{1000 * max(known):.1f}, {len(known)} times ({aim('a dead process is known, p99 of ' + str(len(known)), p99, 0.05)})", flush=True)
    finally:
        cluster.stop()


def _silence(rounds):
    """An agent that is stopped, one that is cut off, and one that is killed."""
    cluster = Cluster(2, network=cuttable)
    job = Job(cluster, 2)

    def back():
        wait_for("the agent", lambda: cluster.alive() == 2, 30)
        job.wait_steps(20, time.time())

    try:
        job.wait_steps(100)
        rows = {"a stopped agent": [], f"an agent that is cut off ({cluster.network.name})": []}
        for _ in range(rounds):
            stopped = time.time()
            os.kill(cluster.agents["node1"].pid, signal.SIGSTOP)
            rows["a stopped agent"].append(_known(job, stopped, ("suspect",)))
            os.kill(cluster.agents["node1"].pid, signal.SIGCONT)
            back()
        restarts = job.status()["restarts"]
        for _ in range(rounds):
            # Where trainers talk over that port too, the job cannot go on meanwhile. Should this script be slow to mend the cut, the
            # step's limit passes, and the node is given up, as it should: such recoveries are shown below.
            stopped = time.time()
            cluster.network.cut(cluster.host_of("node1"), True)
            rows[f"an agent that is cut off ({cluster.network.name})"].append(_known(job, stopped, ("suspect",)))
            cluster.network.cut(cluster.host_of("node1"), False)
            back()
        for what, known in rows.items():
            print(f"\n{what} is known after, s: {spread(known)}, {rounds} times ({aim(what + ' is known', max(known), 1.5)})", flush=True)
        print(f"  restarts for a stopped agent: {restarts} ({aim('restarts for a stopped agent', restarts, 0, 'restarts')}), for one that is cut "
              f"off: {job.status()['restarts'] - restarts}", flush=True)
        for event in job.events():
            if event["kind"] in ("recovering", "condemned"):
                print(f"    {event['kind']}: {event['text'][:300]}", flush=True)
        suspect, lost, again = [], [], []
        for _ in range(rounds):
            killed = time.time()
            os.kill(cluster.agents["node1"].pid, signal.SIGKILL)
            suspect.append(_known(job, killed, ("suspect",)))
            lost.append(_known(job, killed, ("agent_lost", "node_lost")))
            end(cluster.agents["node1"], 0)
            started = time.time()
            cluster.start_agent("node1")
            again.append(job.event(killed, "recovered", limit_s=60)["at"] - started)
            back()
        print(f"\na killed agent is known after, s: {spread(suspect)}, given up after {spread(lost)}; from its successor's start to the next step "
              f"{spread(again)}, {rounds} times ({aim('a killed agent is known', max(suspect), 1.5)})", flush=True)
    finally:
        cluster.stop()


def _hangs(rounds):
    cluster = Cluster(2)
    job = Job(cluster, 2)
    try:
        job.wait_steps(300)
        hung, bounds = [], []
        for _ in range(rounds):
            job.wait_steps(100, time.time())
            pid = job.trainer_of(job.worker_of(1))
            bounds.append(3 * job.p99_s() + 1)
            stopped = time.time()
            os.kill(pid, signal.SIGSTOP)
            hung.append(_known(job, stopped, ("hang",)))
            job.event(stopped, "recovered")
        late = max(h - b for h, b in zip(hung, bounds))
        print(f"\na stopped trainer is known as hung after, s: {spread(hung)}, {rounds} times; 3 x p99 of its steps + 1 s: {spread(bounds)} "
              f"({aim('a hung step is known: beyond 3 x its p99 + 1 s', late, _TICKS_S)})", flush=True)
    finally:
        cluster.stop()


def detection(rounds):
    """From a fault to the coordinator's event that says so, by one clock."""
    for part in (_deaths, _silence, _hangs):
        try:
            part(rounds)
        except (Failed, OSError) as e:
            print(f"\n{part.__name__[1:]}: {e}", flush=True)


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
        # The signs of life that a job's events tell of are those of its agents, so all are here.
        false = [e for e in job.events() if e["at"] > began and e["kind"] in ALARMS]
        longest = max(_gaps(job, began, time.time()), default=0)
        print(f"\n{ALARM_S} s with all cores saturated: {len(false)} false alarms "
              f"({aim(f'false alarms in {ALARM_S} s of saturation', len(false), 0, 'alarms')}), {status['restarts']} restarts, "
              f"{status['iteration'] - first} steps, the longest {longest:.2f} s", flush=True)
        for event in false[:20]:
            print(f"  {event['at'] - began:7.1f} s {event['kind']}: {event['text'][:200]}")
    finally:
        for process in burners:
            end(process, 0)
        cluster.stop()
