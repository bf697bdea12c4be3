"""The median step of a job on one worker, with its results validated and with reruns and checks off, in turns; and the share that the
validation's own time (bench-rerun) has of that step."""
import json
import os
import statistics
import subprocess
import tempfile

BIN = os.path.join(os.environ.get("MUSTER_BUILD", "build"), "bin")
STEPS = int(os.environ.get("MUSTER_BENCH_STEPS", "60"))
ROUNDS = 3
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
    for _ in range(ROUNDS):
        on.append(median_step_ms([]))
        off.append(median_step_ms(OFF))
    step = statistics.median(on)
    own = json.loads(subprocess.run([os.path.join(BIN, "bench-rerun"), str(step)], check=True, capture_output=True, text=True).stdout)
    print(f"step {step:.2f} ms validated, {statistics.median(off):.2f} ms not, ratio {step / statistics.median(off):.4f}; "
          f"the validation itself takes {own['median_us']:.1f} us, {100 * own['share']:.3f} % of the step (aim: under 0.5 %)")


main()
