"""Tokens a second of one Muster worker beside PyTorch, interleaved in one run: a step of each in turn, so that whatever
else the machine does hits all of them.

Usage: python run.py BENCH_BINARY [--python PYTHON] [--modes eager,compile] [--rounds N] [--threads N] [--device cuda]
    [--peak-tflops N] [CASE ...]
CASE: MODEL:BATCH:SEQ:DTYPE, default small:16:256 and gpt2:4:256 in fp32 and bf16. PYTHON must have torch.
TFLOP/s are the model's, as `muster plan` counts them; MFU is their share of the device's peak for dense bf16 products, which the
binary knows by the device's name (or --peak-tflops). Both and the peak memory are printed on a GPU.
"""
import argparse
import json
import statistics
import subprocess
import sys

DEFAULT = ["small:16:256:fp32", "small:16:256:bf16", "gpt2:4:256:fp32", "gpt2:4:256:bf16"]


class Runner:
    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.seconds, self.cpu_seconds, self.last = [], [], {}

    def step(self, count, keep=True):
        self.process.stdin.write(f"step {count}\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        self.last = answer
        if keep:
            self.seconds += answer["seconds"]
            self.cpu_seconds += answer["cpu_seconds"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--modes", default="eager")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", default="2")
    parser.add_argument("--device", default="cpu", help="cuda: with bench-train-single-cuda of the cuda preset")
    parser.add_argument("--peak-tflops", default=None)
    parser.add_argument("cases", nargs="*", default=DEFAULT)
    args = parser.parse_intermixed_args()
    peer = __file__.replace("run.py", "peer_torch.py")
    for case in args.cases:
        model, batch, seq, dtype = case.split(":")
        peak = ["--peak-tflops", args.peak_tflops] if args.peak_tflops else []
        runners = {"muster": Runner([args.binary, model, batch, seq, dtype, args.threads, args.device, *peak])}
        for mode in args.modes.split(","):
            runners[mode] = Runner([args.python, peer, model, batch, seq, dtype, args.threads, mode, args.device])
        for runner in runners.values():
            runner.step(2, keep=False)  # warm-up
        for _ in range(args.rounds):
            for runner in runners.values():
                runner.step(1)
        tokens = int(batch) * int(seq)
        line = dict(case=case, threads=int(args.threads), rounds=args.rounds)
        for name, runner in runners.items():
            runner.close()
            line[name + "_tokens_per_s"] = round(tokens / statistics.median(runner.seconds), 1)
            line[name + "_best_tokens_per_s"] = round(tokens / min(runner.seconds), 1)
            # With one thread and a busy machine this is the figure to compare.
            line[name + "_cpu_s_a_step"] = round(min(runner.cpu_seconds), 4)
            line[name + "_loss"] = runner.last["loss"]
            if args.device == "cuda":
                ours = runners["muster"].last
                tflops = ours["flops"] / statistics.median(runner.seconds) / 1e12
                line[name + "_tflops"] = round(tflops, 1)
                if "peak_tflops" in ours:
                    line[name + "_mfu"] = round(tflops / ours["peak_tflops"], 4)
                line[name + "_peak_memory_mib"] = round(runner.last["peak_memory_bytes"] / 2**20)
        for mode in args.modes.split(","):
            line["ratio_to_" + mode] = round(line["muster_tokens_per_s"] / line[mode + "_tokens_per_s"], 3)
            line["best_ratio_to_" + mode] = round(
                line["muster_best_tokens_per_s"] / line[mode + "_best_tokens_per_s"], 3)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
