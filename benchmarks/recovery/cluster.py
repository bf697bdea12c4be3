"""Our side: a coordinator, an agent a worker, one job; what is killed is found through /proc and the commands' JSON."""
import calendar
import copy
import glob
import json
import os
import re
import signal
import subprocess
import time

from model import BATCH, SPEC
from network import Loopback
from processes import Failed, Lines, children, end, folder, start, wait_for

BIN = os.path.join(os.environ.get("MUSTER_BUILD", "build"), "bin")
# Events by which a trainer's death is known: its end, or what another rank noticed of it.
KNOWN = ("trainer_exited", "rank_failed", "recovering")
_LINE = re.compile(r"^(\S+)Z I trainer r(\d+)\s+iteration\s+(\d+)/")


def seconds(rfc3339):
    """Of the epoch, from "2026-01-02T03:04:05.678901234+00:00" or without the zone."""
    whole, _, rest = rfc3339.partition(".")
    fraction = re.match(r"\d*", rest).group()
    return calendar.timegm(time.strptime(whole[:19], "%Y-%m-%dT%H:%M:%S")) + (float("0." + fraction) if fraction else 0.0)


class Cluster:
    def __init__(self, workers, extra=0, network=None):
        """`network`: of a folder and a number of hosts (network.py)."""
        self.folder = folder()
        self.network = network(self.folder, 1 + workers + extra) if network else Loopback()
        self.agents, self.token = {}, []
        if self.network.needs_token:
            self.token = ["--token-file", os.path.join(self.folder, "token")]
            with open(os.open(self.token[1], os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
                f.write("a-token-of-this-benchmark\n")
        self.address = self.network.address(0) + ":0"
        self.start_coordinator()
        self.names = [f"node{i}" for i in range(workers + extra)]
        for name in self.names:
            self.start_agent(name)
        wait_for("workers to register", lambda: self.alive() == len(self.names))

    def start_coordinator(self):
        described = os.path.join(self.folder, "coordinator", "coordinator.json")
        if os.path.exists(described):
            os.unlink(described)
        self.coordinator = start(self.network.on(0, [
            os.path.join(BIN, "muster-coordinator"), "--listen", self.address, "--http", "127.0.0.1:0", "--state-dir",
            os.path.join(self.folder, "coordinator"), *self.token]), os.path.join(self.folder, "coordinator.log"))

        def address():
            try:
                with open(described) as f:
                    return json.load(f)["address"]
            except (OSError, ValueError):
                return None
        self.address = wait_for("the coordinator", address)

    def start_agent(self, name):
        host = self.host_of(name)
        self.agents[name] = start(self.network.on(host, [
            os.path.join(BIN, "muster-worker"), "--coordinator", self.network.way_to(self.address, host), "--device", "cpu", "--name", name,
            "--advertise", self.network.address(host), "--state-dir", os.path.join(self.folder, name), *self.token]),
            os.path.join(self.folder, name + ".log"))

    def stop(self):
        for process in [*self.agents.values(), self.coordinator]:
            end(process, 5)
        self.network.stop()

    def host_of(self, name):
        return 1 + self.names.index(name)

    def alive(self):
        return sum(w["state"] == "ALIVE" for w in self.json("workers"))

    def command(self, *words):
        return subprocess.run(self.network.on(0, [os.path.join(BIN, "muster"), *words, "--coordinator", self.address, *self.token]),
                              capture_output=True, text=True)

    def json(self, *words):
        run = self.command(*words, "--json")
        if run.returncode != 0:
            raise Failed(f"muster {' '.join(words)}: {run.stderr.strip()[-300:]}")
        return json.loads(run.stdout)

    def json_lines(self, *words):
        run = self.command(*words, "--json")
        if run.returncode != 0:
            raise Failed(f"muster {' '.join(words)}: {run.stderr.strip()[-300:]}")
        return [json.loads(line) for line in run.stdout.splitlines()]


class Job:
    """A job that trains until it is cancelled."""

    def __init__(self, cluster, workers, **recovery):
        self.cluster, self.workers = cluster, workers
        spec = copy.deepcopy(SPEC)
        spec["training"]["global_batch_size"] = BATCH * workers
        spec["resources"]["world_size"] = workers
        spec["resources"]["spares"] = recovery.pop("spares", 0)
        spec["recovery"].update(recovery)
        path = os.path.join(cluster.folder, "spec.json")
        with open(path, "w") as f:
            json.dump(spec, f)
        self.id = cluster.json("submit", path)["job_id"]
        self.files, self.steps, self.noted = {}, [], 0
        self.wait_steps(20)

    def poll(self):
        """(time, rank, iteration) of the steps that trainers have logged, in order of time: the trainer's own clock, when it ended."""
        new = []
        for path in glob.glob(os.path.join(self.cluster.folder, "*", "logs", self.id, "rank-*.log")):
            for line in self.files.setdefault(path, Lines(path)).new():
                found = _LINE.match(line)
                if found:
                    new.append((seconds(found[1]), int(found[2]), int(found[3])))
        if new:
            self.steps = sorted(self.steps + new)
        return self.steps

    def wait_steps(self, count, after=0.0):
        def there():
            self.check()
            return sum(at > after for at, _, _ in self.poll()) >= count
        wait_for(f"{count} steps", there, 60)

    def check(self):
        """A job that has ended has failed; asked now and then."""
        if time.monotonic() - self.noted > 1:
            status = self.status()
            self.noted = time.monotonic()
            if status["exit_code"] is not None:
                raise Failed(f"the job is {status['state']}: {status['reason']}")

    def status(self):
        return self.cluster.json("status", self.id)

    def events(self, *words):
        return [dict(event, at=seconds(event["time"])) for event in self.cluster.json_lines("events", self.id, *words)]

    def event(self, after, *kinds, limit_s=60):
        def there():
            self.check()
            return next((e for e in self.events("--tail", "100") if e["at"] > after and e["kind"] in kinds), None)
        return wait_for(f"event {' or '.join(kinds)}", there, limit_s, 0.05)

    def worker_of(self, rank):
        return wait_for(f"the worker of rank {rank}", lambda: next(
            (w["worker"] for w in self.cluster.json("workers") if w["rank"] == rank and w["job_id"] == self.id), None))

    def p99_s(self):
        """Of its steps, as it has learned it itself."""
        return next(p["p99_ms"] for p in self.status()["phase_limits"] if p["phase"] == "step") / 1000

    def trainer_of(self, worker):
        """Its process: the one child of that worker's agent that is a trainer."""
        for pid in children(self.cluster.agents[worker].pid):
            try:
                with open(f"/proc/{pid}/cmdline") as f:
                    if "muster-trainer" in f.read():
                        return pid
            except OSError:
                pass
        raise Failed(f"no trainer on {worker}")

    def step_s(self, before):
        times = [at for at, _, _ in self.steps if at <= before][-21:]
        gaps = sorted(b - a for a, b in zip(times, times[1:]))
        return gaps[len(gaps) // 2]

    def next_step(self, after):
        return next((at for at, _, _ in self.steps if at > after), None)


def kill_trainer(pid):
    killed = time.time()
    os.kill(pid, signal.SIGKILL)
    return killed
