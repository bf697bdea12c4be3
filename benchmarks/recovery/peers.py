"""The peers as subjects: start(workers), kill() of one worker -> a measured recovery, stop()."""
import os
import signal
import socket
import sys
import time

from processes import Failed, Lines, Step, end, folder, start, wait_for

HERE = os.path.dirname(os.path.abspath(__file__))
BIN = os.path.dirname(sys.executable)


class Peer:
    """Steps come from the file that its workers write."""

    def start(self, workers):
        self.workers, self.folder = workers, folder()
        self.lines, self.steps, self.events, self.processes = Lines(os.path.join(self.folder, "steps.log")), [], [], []
        self.launch()
        self.wait_steady(0)

    def stop(self):
        for process in self.processes:
            end(process)

    def poll(self):
        for line in self.lines.new():
            at, rank, pid, event, step, width = line.split()
            row = Step(float(at), int(rank), int(pid), int(step), int(width))
            (self.steps if event == "step" else self.events).append(row if event == "step" else (event, row))
        for process in self.processes:
            if process.poll() is not None:
                raise Failed(f"ended with {process.returncode}: see {self.folder}")
        return self.steps

    def wait_steady(self, after):
        """Twenty steps of all workers, whose width is the whole."""
        def steady():
            done = [s for s in self.poll() if s.time > after and s.width == self.workers]
            return all(sum(s.rank == rank for s in done) >= 20 for rank in range(self.workers))
        wait_for("twenty steps of all", steady, 90)

    def kill(self):
        victim = self.workers - 1
        pid = [s.pid for s in self.poll() if s.rank == victim][-1]
        begun = len(self.steps)
        wait_for("more steps", lambda: len(self.poll()) >= begun + self.workers * (pid % 10))  # anywhere between two checkpoints
        killed = time.time()
        os.kill(pid, signal.SIGKILL)
        self.wait_steady(killed + 0.05)
        return self.measure(killed, pid)

    def measure(self, killed, pid):
        mine = [s for s in self.steps if s.rank == 0]
        before = [s.time for s in mine if s.time <= killed][-20:]
        step_s = sorted(b - a for a, b in zip(before, before[1:]))[len(before) // 2 - 1]
        # What was under way when the worker died may still have ended: two steps' time is left to that.
        next_step = next(s for s in mine if s.time > killed + 2 * step_s)
        joined = [s.time for s in self.steps if s.rank == self.workers - 1 and s.pid != pid and s.time > killed]
        whole = next(s for s in mine if s.width == self.workers and s.time >= joined[0] - step_s)
        return {"step_s": step_s, "survivor_s": next_step.time - killed, "full_s": whole.time - killed,
                "lost": self.steps_lost(killed, mine)}


class Torchrun(Peer):
    """Restarts all workers, which load the last checkpoint."""
    name = "torchrun, from its checkpoint"

    def launch(self):
        # Without the variable a worker that is started again reads the old attempt's addresses.
        self.processes = [start([os.path.join(BIN, "torchrun"), "--standalone", "--nproc-per-node", str(self.workers), "--max-restarts",
                                 "1000", os.path.join(HERE, "peer_torchrun.py"), self.folder], os.path.join(self.folder, "out"),
                                TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")]

    def steps_lost(self, killed, mine):
        last = max(s.step for s in mine if s.time <= killed)
        return last - next(row.step for event, row in self.events if event == "loaded" and row.time > killed)


class Torchft(Peer):
    """A replica group a worker, a lighthouse; torchrun starts a group's process again."""

    def __init__(self, name, heartbeat_timeout_ms, quorum_tick_ms):
        self.name, self.options = name, ["--heartbeat_timeout_ms", str(heartbeat_timeout_ms), "--quorum_tick_ms", str(quorum_tick_ms)]

    def launch(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        out = os.path.join(self.folder, "out")
        self.processes = [start([os.path.join(BIN, "torchft_lighthouse"), "--bind", f"127.0.0.1:{port}", "--min_replicas", "1", *self.options],
                                out, RUST_LOG="warn")]
        for group in range(self.workers):
            self.processes.append(start([os.path.join(BIN, "torchrun"), "--standalone", "--nproc-per-node", "1", "--max-restarts", "1000",
                                         os.path.join(HERE, "peer_torchft.py"), str(group), self.folder], out,
                                        TORCHFT_LIGHTHOUSE=f"http://127.0.0.1:{port}", RUST_LOG="warn"))

    def steps_lost(self, killed, mine):
        return 0  # a step that was not committed is run again and none else
