"""Seconds from starting the command to the line that says the first step is done: `muster submit --watch` on a running
cluster, `muster local` with nothing running, and torchrun with a minimal DDP script."""
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROUNDS = int(sys.argv[1])
HERE = os.path.dirname(os.path.abspath(__file__))
BIN = os.path.join("build", "bin")
MUSTER = os.path.join(BIN, "muster")
SPEC = {
    "name": "startup",
    "model": {"num_layers": 1, "hidden_size": 64, "num_attention_heads": 2, "seq_length": 64, "vocab_size": 257,
              "make_vocab_size_divisible_by": 32, "attention_dropout": 0.0, "hidden_dropout": 0.0},
    "data": {"dataset_provider": "mock"},
    "training": {"micro_batch_size": 2, "train_iters": 3, "log_interval": 1},
    "optimizer": {"lr": 0.001},
    "evaluation": {"eval_iters": 0},
    "resources": {"world_size": 2, "device": "cpu"},
}


def seconds_to(command, marks, limit=120):
    """Runs the command to its end; seconds until a line holds one of the marks."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    found, lines = None, []
    for line in process.stdout:
        lines.append(line)
        if found is None and any(mark in line for mark in marks):
            found = time.monotonic() - start
        if time.monotonic() - start > limit:
            os.killpg(process.pid, signal.SIGKILL)
    if process.wait() != 0 or found is None:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}:\n{''.join(lines)}")
    return found


class Cluster:
    def __init__(self, folder):
        self.folder = folder
        self.processes = [subprocess.Popen([os.path.join(BIN, "muster-coordinator"), "--listen", "127.0.0.1:0", "--http",
                                            "127.0.0.1:0", "--state-dir", os.path.join(folder, "coordinator")],
                                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)]
        path = os.path.join(folder, "coordinator", "coordinator.json")
        while not os.path.exists(path):
            time.sleep(0.01)
        self.address = json.load(open(path))["address"]
        self.processes.append(subprocess.Popen([os.path.join(BIN, "muster-worker"), "--coordinator", self.address, "--device", "cpu",
                                                "--slots", "2", "--state-dir", os.path.join(folder, "worker")],
                                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        for _ in range(500):
            out = subprocess.run([MUSTER, "workers", "--json", "--coordinator", self.address], capture_output=True, text=True)
            if out.returncode == 0 and out.stdout.count('"ALIVE"') >= 2:
                return
            time.sleep(0.02)
        self.stop()
        sys.exit("the workers did not register")

    def stop(self):
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.wait(10)


def main():
    folder = tempfile.mkdtemp(prefix="muster-startup-")
    spec = os.path.join(folder, "spec.json")
    json.dump(SPEC, open(spec, "w"))
    cluster = Cluster(folder)
    torchrun = os.path.join(os.path.dirname(sys.executable), "torchrun")
    times = {"muster submit (warm)": [], "muster local (cold)": [], "torchrun": []}
    try:
        for i in range(ROUNDS + 1):  # the first round warms the page cache
            row = {
                "muster submit (warm)": seconds_to([MUSTER, "submit", "--watch", "--coordinator", cluster.address, spec], ["iteration 1/"]),
                "muster local (cold)": seconds_to([MUSTER, "local", spec], ["iteration 1/"]),
                "torchrun": seconds_to([torchrun, "--standalone", "--nproc-per-node", "2",
                                        os.path.join(HERE, "ddp_min.py")], ["step 1 done"]),
            }
            if i > 0:
                for name, value in row.items():
                    times[name].append(value)
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{'from the command to the first finished step':<44} {'min':>7} {'median':>7} {'max':>7} s   against torchrun")
    for name, values in times.items():
        ratio = statistics.median(t / v for t, v in zip(times["torchrun"], values))
        print(f"{name:<44} {min(values):7.3f} {statistics.median(values):7.3f} {max(values):7.3f}     {ratio:.1f} x faster")


main()
