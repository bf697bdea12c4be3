"""Writes the reference numbers of the optimizer tests: ten steps of PyTorch's AdamW and SGD.

Usage: python make_optimizer_goldens.py OUTPUT_FILE     (CPU, PyTorch only; versions are recorded)

Every case starts from the same parameters and gets the same gradients and learning rates. 2-D parameters decay,
1-D ones do not. The "bf16" case keeps fp32 main parameters: its gradients are rounded to bf16, and the model's
values are the main parameters rounded to bf16.
"""
import json
import platform
import sys

import torch

SHAPES = {"linear.weight": (3, 5), "linear.bias": (3,), "norm.weight": (4,), "head.weight": (2, 4)}
STEPS = 10
WEIGHT_DECAY = 0.1
ADAM = dict(betas=(0.9, 0.95), eps=1e-8)
SGD = dict(momentum=0.9)
LRS = [1e-2 * min(1.0, (t + 1) / 4) * (1 - 0.05 * t) for t in range(STEPS)]
CASES = {  # name: (optimizer, dtype, gradients in bf16, clip_grad)
    "adam_fp64": ("adam", torch.float64, False, 0.0),
    "adam_fp64_clipped": ("adam", torch.float64, False, 1.0),
    "adam_fp32": ("adam", torch.float32, False, 1.0),
    "adam_bf16": ("adam", torch.float32, True, 1.0),
    "sgd_fp64": ("sgd", torch.float64, False, 0.0),
    "sgd_fp32": ("sgd", torch.float32, False, 1.0),
}


def start_and_grads():
    g = torch.Generator().manual_seed(42)
    # fp32 values, so that all cases start from the same numbers; the bf16 case rounds them first.
    start = {n: torch.randn(s, generator=g) for n, s in SHAPES.items()}
    grads = [{n: torch.randn(s, generator=g) * (0.05 if t % 3 == 2 else 1.0) for n, s in SHAPES.items()}
             for t in range(STEPS)]
    return start, grads


def run(kind, dtype, bf16, clip, start, grads):
    def cast(x):
        return (x.bfloat16() if bf16 else x).to(dtype)

    params = {n: torch.nn.Parameter(cast(v).clone()) for n, v in start.items()}
    groups = [dict(params=[p for p in params.values() if p.dim() == 2], weight_decay=WEIGHT_DECAY),
              dict(params=[p for p in params.values() if p.dim() == 1], weight_decay=0.0)]
    optimizer = (torch.optim.AdamW(groups, lr=0.0, **ADAM) if kind == "adam" else torch.optim.SGD(groups, lr=0.0, **SGD))
    norms = []
    for t in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = LRS[t]
        for n, p in params.items():
            p.grad = cast(grads[t][n]).clone()
        norms.append(torch.nn.utils.clip_grad_norm_(params.values(), clip if clip > 0 else float("inf")).item())
        optimizer.step()
    return {"final": {n: p.detach().flatten().tolist() for n, p in params.items()}, "grad_norms": norms}


def main():
    start, grads = start_and_grads()
    flat = lambda tensors: {n: v.flatten().tolist() for n, v in tensors.items()}
    out = {
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "shapes": SHAPES, "weight_decay": WEIGHT_DECAY, "lrs": LRS,
        "adam": {"beta1": ADAM["betas"][0], "beta2": ADAM["betas"][1], "eps": ADAM["eps"]}, "sgd": SGD,
        "start": flat(start), "grads": [flat(g) for g in grads],
        "cases": {name: dict(optimizer=c[0], dtype=str(c[1]).split(".")[1], bf16=c[2], clip_grad=c[3],
                             **run(*c, start, grads)) for name, c in CASES.items()},
    }
    with open(sys.argv[1], "w") as f:
        json.dump(out, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
