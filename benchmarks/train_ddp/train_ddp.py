"""Two data-parallel CPU workers against PyTorch DDP over gloo: the same model, batch a rank and threads, one program after the
other, several rounds; the first two steps of each run are left out. Prints tokens/s and the ratio."""
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROUNDS, STEPS = int(sys.argv[1]), int(sys.argv[2])
HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = {"gpt2": dict(layers=12, hidden=768, heads=12, vocab=50304, positions=1024),
          "small": dict(layers=6, hidden=384, heads=6, vocab=288, positions=256)}
CASES = [tuple(c.split(":")) for c in os.environ.get("MUSTER_BENCH_CASES", "small:8:256:fp32 small:8:256:bf16 gpt2:2:256:fp32").split()]


def spec(name, batch, seq, dtype):
    m = MODELS[name]
    return {
        "name": "bench-ddp",
        "model": {"num_layers": m["layers"], "hidden_size": m["hidden"], "num_attention_heads": m["heads"], "seq_length": seq,
                  "max_position_embeddings": m["positions"], "vocab_size": m["vocab"], "make_vocab_size_divisible_by": 32,
                  "add_qkv_bias": True, "attention_dropout": 0.0, "hidden_dropout": 0.0},
        "parallel": {"overlap_grad_reduce": True, "ddp_bucket_size": 6553600},
        "data": {"dataset_provider": "mock"},
        "training": {"micro_batch_size": batch, "global_batch_size": 2 * batch, "train_iters": STEPS, "bf16": dtype == "bf16",
                     "num_threads": 1},
        "optimizer": {"lr": 3e-4, "weight_decay": 0.1, "adam_beta2": 0.95},
        "evaluation": {"eval_iters": 0},
        "resources": {"world_size": 2, "device": "cpu"},
    }


def muster(name, batch, seq, dtype, folder):
    path, metrics = os.path.join(folder, "spec.json"), os.path.join(folder, "metrics.jsonl")
    json.dump(spec(name, batch, seq, dtype), open(path, "w"))
    if os.path.exists(metrics):
        os.unlink(metrics)
    run = subprocess.run([os.path.join("build", "bin", "muster"), "local", path, "--metrics", metrics], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"muster local ended with {run.returncode}:\n{run.stdout}{run.stderr}")
    return [json.loads(line)["elapsed_ms"] / 1000 for line in open(metrics)][2:]


def torch_ddp(name, batch, seq, dtype, folder):
    torchrun = os.path.join(os.path.dirname(sys.executable), "torchrun")
    run = subprocess.run([torchrun, "--standalone", "--nproc-per-node", "2", os.path.join(HERE, "ddp_torch.py"), name, str(batch),
                          str(seq), dtype, str(STEPS)], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"torchrun ended with {run.returncode}:\n{run.stdout}{run.stderr}")
    return json.loads(run.stdout.strip().splitlines()[-1])["seconds"][2:]


def main():
    print(f"{'model, batch a rank x tokens, dtype':<36} {'muster':>10} {'DDP':>10} tokens/s   muster / DDP")
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        for name, batch, seq, dtype in CASES:
            batch, seq = int(batch), int(seq)
            ours, peers = [], []
            for _ in range(ROUNDS):
                ours.append(statistics.median(muster(name, batch, seq, dtype, folder)))
                peers.append(statistics.median(torch_ddp(name, batch, seq, dtype, folder)))
            tokens = 2 * batch * seq
            ratio = statistics.median(p / o for o, p in zip(ours, peers))
            print(f"{name} {batch} x {seq} {dtype:<24} {tokens / statistics.median(ours):10.0f} "
                  f"{tokens / statistics.median(peers):10.0f}            {ratio:.2f}", flush=True)


main()
