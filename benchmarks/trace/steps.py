"""Median seconds of the steps of one job that were traced and of those that were not. The traced ones are the middle third."""
import json
import os
import statistics
import subprocess
import tempfile
import time

BIN = os.path.join(os.environ.get("MUSTER_BUILD", "build"), "bin")
STEPS = int(os.environ.get("MUSTER_BENCH_STEPS", "60"))
LIMIT_S = 300


def wait_for(what, condition):
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise RuntimeError(f"{what}: nothing after {LIMIT_S} s")


def records(path):
    if not os.path.exists(path):
        return []
    return [json.loads(line) for line in open(path) if line.endswith("\n")]


def main():
    with tempfile.TemporaryDirectory() as folder:
        state, metrics, trace = (os.path.join(folder, name) for name in ("state", "metrics.jsonl", "trace.json"))
        settings = [f"training.train_iters={STEPS}", "training.log_interval=1000", "evaluation.eval_iters=0", "checkpoint.save=null",
                    "checkpoint.save_interval=null", "data.dataset_provider=mock", "data.data_path=[]"]
        command = [os.path.join(BIN, "muster"), "local", "examples/tp2-pp2.json", "--state-dir", state, "--metrics", metrics]
        job = subprocess.Popen(command + [x for s in settings for x in ("--set", s)], stdout=subprocess.DEVNULL)
        try:
            wait_for("the job's first steps", lambda: len(records(metrics)) >= STEPS // 3 or job.poll() is not None)
            cluster = json.load(open(os.path.join(state, "cluster.json")))
            muster = [os.path.join(BIN, "muster")]
            address = ["--coordinator", cluster["address"]]
            subprocess.run(muster + ["trace", cluster["job_id"], "--iterations", str(STEPS // 3), "--output", trace] + address, check=True,
                           stdout=subprocess.DEVNULL, timeout=LIMIT_S)
            job.wait(LIMIT_S)
        finally:
            job.kill()
            job.wait()
        names = {event.get("name", "") for event in json.load(open(trace))["traceEvents"]}
        seconds = {True: [], False: []}
        for record in records(metrics)[3:]:
            seconds[f"iteration {record['iteration']}" in names].append(record["elapsed_ms"] / 1000)
        on, off = statistics.median(seconds[True]), statistics.median(seconds[False])
        print(f"tp2 x pp2: {len(seconds[False])} steps without {off * 1e3:.2f} ms, {len(seconds[True])} traced {on * 1e3:.2f} ms, "
              f"ratio {on / off:.3f}")


main()
