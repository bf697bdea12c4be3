"""Our ways of recovery as subjects: the same process again (in place), a warm spare, fewer replicas (elastic)."""
import re

from cluster import KNOWN, Cluster, Job, kill_trainer
from processes import wait_for

# What is under way when a worker dies may still end: two steps' time is left to that, as with the peers.
_STEPS_UNDER_WAY = 2


class Ours:
    spares, options = 0, {}

    def start(self, workers):
        self.workers = workers
        self.cluster = Cluster(workers, self.spares)
        self.job = Job(self.cluster, workers, spares=self.spares, **self.options)

    def stop(self):
        self.cluster.stop()

    def kill(self):
        worker = self.job.worker_of(self.workers - 1)
        pid = self.job.trainer_of(worker)
        self.before(worker)
        self.job.wait_steps(20 + pid % 10, self.job.poll()[-1][0])  # anywhere between two snapshots
        killed = kill_trainer(pid)
        recovered = self.job.event(killed, "recovered")
        known = next(e for e in self.job.events() if e["at"] > killed and e["kind"] in KNOWN)
        step_s = self.job.step_s(killed)
        wait_for("the next step", lambda: self.job.poll() and self.job.next_step(killed + _STEPS_UNDER_WAY * step_s))
        survivor = self.job.next_step(killed + _STEPS_UNDER_WAY * step_s)
        full = self.to_full_width(worker, survivor)
        self.job.wait_steps(20, full)
        redone = re.search(r"steps_redone=(\d+)", recovered["text"])
        return {"step_s": step_s, "survivor_s": survivor - killed, "full_s": full - killed, "lost": int(redone[1]) if redone else 0,
                "known_s": known["at"] - killed, "text": recovered["text"]}

    def before(self, worker):
        pass

    def to_full_width(self, worker, survivor):
        return survivor  # no step is done before


class InPlace(Ours):
    name = "muster, in place"


class Spare(Ours):
    """The worker is cordoned, so its trainer is not started again there."""
    name, spares = "muster, warm spare", 1

    def before(self, worker):
        self.cluster.command("cordon", worker)

    def to_full_width(self, worker, survivor):
        self.cluster.command("uncordon", worker)  # it is the next spare
        return survivor


# JobOptions::growth_interval: an elastic job does not grow again sooner after it has grown. That is a rule against jobs that shrink
# and grow all the time and no part of a growth's cost, so each kill comes when it has passed.
_GROWTH_INTERVAL_S = 10


class Elastic(Ours):
    name, options = "muster, elastic", {"elastic": True}
    grown_at = 0.0

    def before(self, worker):
        self.job.wait_steps(1, self.grown_at + _GROWTH_INTERVAL_S)
        self.cluster.command("cordon", worker)

    def to_full_width(self, worker, survivor):
        self.cluster.command("uncordon", worker)
        self.grown_at = self.job.event(survivor, "reformed", limit_s=90)["at"]
        return self.grown_at
