"""The median step of a job on one worker, with its results validated and with reruns and checks off, in turns (each pair gives a ratio); and the
share that the validation's own time (bench-rerun: checks, copies of random states, norms of buckets) has of that step."""
import json
import os
import statistics
import subprocess
import tempfile

BIN = os.path.join(os.environ.get("MUSTER_BUILD", "build"), "bin")
STEPS = int(os.environ.get("MUSTER_BENCH_STEPS", "60"))
ROUNDS = int(os.environ.get("MUSTER_BENCH_ROUNDS", "5"))
LIMIT_S = 600
OFF = ["rerun.mode=disabled", "rerun.check_for_nan_in_loss=false"]


def median_step_ms(settings):
    with tempfile.TemporaryDirectory() as folder:
        state, metrics = os.path.join(folder, "state"), os.path.join(folder, "metrics.jsonl")
        settings = settings + [f"training.train_iters={STEPS}", "training.log_interval=1000", "evaluation.eval_iters=0",
                               "checkpoint.save=null", "checkpoint.save_interval=null", "data.dataset_provider=mock", "data.data_path=[]"]
        command = [os.path.join(BIN, "muster"), "local", "examples/demo.json", "--state-dir", state, "--metrics", metrics]
        subprocess.run(command + [x for s in settings for x in ("--set", s)], check=True, stdout=subprocess.DEVNULL, timeout=LIMIT_S)
        return statistics.median([json.loads(line)["elapsed_ms"] for line in open(metrics)][2:])


def main():
    on, off = [], []
    for turn in range(ROUNDS):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            (on, off)[which].append(median_step_ms([[], OFF][which]))
    step = statistics.median(on)
    ratios = sorted(a / b for a, b in zip(on, off))
    own = json.loads(subprocess.run([os.path.join(BIN, "bench-rerun"), str(step)], check=True, capture_output=True, text=True).stdout)
    print(f"step {step:.2f} ms validated, {statistics.median(off):.2f} ms not; ratio of pairs {statistics.median(ratios):.4f} "
          f"({ratios[0]:.4f} to {ratios[-1]:.4f})")
    print(f"the validation itself: checks {own['checks_us']:.1f} us, random states {own['random_states_us']:.1f} us: {100 * own['share']:.3f} % of the step; "
          f"with replicas norms take {own['norms_us']:.1f} us more: {100 * own['share_with_replicas']:.3f} % (aim: under 0.5 %)")


main()
