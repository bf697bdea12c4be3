"""Writes the reference numbers of Muon's tests: ten steps of a few matrices, written out with PyTorch in float64.

Usage: python make_muon_goldens.py OUTPUT_FILE     (CPU, PyTorch only; versions are recorded)

Nothing here is shared with the C++ code but the formulas of Muon (Jordan et al. 2024) and Megatron's choices: momentum
as a running mean, decoupled weight decay, an update scaled by the matrix's shape, a fused query-key-value weight taken
apart. What is no matrix, and the embedding, goes to AdamW.
"""
import itertools
import json
import math
import platform
import sys

import torch

HEADS, GROUPS, CHANNELS = 4, 2, 2
QKV_ROWS = (HEADS // GROUPS * CHANNELS, CHANNELS, CHANNELS)  # of each query group: queries, key, value
SHAPES = {
    "wide.weight": (3, 7), "tall.weight": (9, 4), "square.weight": (5, 5),
    "self_attention.linear_qkv.weight": (GROUPS * sum(QKV_ROWS), 6),
    "norm.weight": (4,), "word_embeddings.weight": (8, 3),
}
BY_ADAM = ("norm.weight", "word_embeddings.weight")
STEPS = 10
WEIGHT_DECAY = 0.1
ADAM = dict(betas=(0.9, 0.95), eps=1e-8)
LRS = [1e-2 * min(1.0, (t + 1) / 4) * (1 - 0.05 * t) for t in range(STEPS)]
COEFFICIENTS = {
    "simple": [(3.4445, -4.7750, 2.0315)],
    "quintic": [(4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037),
                (2.8769, -3.1427, 1.2046), (2.8366, -3.0525, 1.2012)],
}
CASES = {
    "defaults": dict(momentum=0.9, nesterov=False, ns_steps=5, coefficients="quintic", scale="spectral", extra=1.0,
                     split_qkv=True),
    "nesterov_unit_rms": dict(momentum=0.95, nesterov=True, ns_steps=5, coefficients="quintic", scale="unit_rms_norm",
                              extra=0.2, split_qkv=True),
    "simple_shape_scaling": dict(momentum=0.8, nesterov=True, ns_steps=4, coefficients="simple", scale="shape_scaling",
                                 extra=1.5, split_qkv=False),
    "seven_steps": dict(momentum=0.9, nesterov=False, ns_steps=7, coefficients="quintic", scale="spectral", extra=1.0,
                        split_qkv=False),
}


def orthogonalise(d, case):
    """By singular values: the iteration is an odd polynomial of the matrix, which acts on them alone."""
    u, s, vt = torch.linalg.svd(d, full_matrices=False)
    s = s / max(torch.linalg.norm(d).item(), 1e-15)
    for a, b, c in itertools.islice(itertools.cycle(COEFFICIENTS[case["coefficients"]]), case["ns_steps"]):
        s = a * s + b * s**3 + c * s**5
    return u @ torch.diag(s) @ vt


def scaled(d, case):
    rows, cols = d.shape
    scale = {"spectral": math.sqrt(max(rows, cols)), "unit_rms_norm": math.sqrt(rows / cols),
             "shape_scaling": math.sqrt(max(1.0, rows / cols))}[case["scale"]]
    return scale * case["extra"] * orthogonalise(d, case)


def update_of(name, d, case):
    if not (case["split_qkv"] and name.endswith("linear_qkv.weight")):
        return scaled(d, case)
    out = torch.empty_like(d)
    per_group = sum(QKV_ROWS)
    first = 0
    for count in QKV_ROWS:
        rows = [g * per_group + first + i for g in range(GROUPS) for i in range(count)]
        out[rows] = scaled(d[rows], case)
        first += count
    return out


def run(case, start, grads):
    params = {n: v.clone() for n, v in start.items()}
    momentum = {n: torch.zeros_like(v) for n, v in start.items()}
    adam_params = {n: torch.nn.Parameter(params[n].clone()) for n in BY_ADAM}
    adam = torch.optim.AdamW([dict(params=[p], weight_decay=WEIGHT_DECAY if p.dim() == 2 else 0.0)
                              for p in adam_params.values()], lr=0.0, **ADAM)
    for t in range(STEPS):
        for n in SHAPES:
            if n in BY_ADAM:
                adam_params[n].grad = grads[t][n].clone()
                continue
            beta, g = case["momentum"], grads[t][n]
            momentum[n] = beta * momentum[n] + (1 - beta) * g
            d = (1 - beta) * g + beta * momentum[n] if case["nesterov"] else momentum[n]
            params[n] = params[n] * (1 - LRS[t] * WEIGHT_DECAY) - LRS[t] * update_of(n, d, case)
        for group in adam.param_groups:
            group["lr"] = LRS[t]
        adam.step()
    params.update({n: p.detach() for n, p in adam_params.items()})
    return {n: v.flatten().tolist() for n, v in params.items()}


def main():
    generator = torch.Generator().manual_seed(7)
    draw = lambda shape: torch.randn(shape, generator=generator, dtype=torch.float64)
    start = {n: draw(s) for n, s in SHAPES.items()}
    grads = [{n: draw(s) for n, s in SHAPES.items()} for _ in range(STEPS)]
    flat = lambda tensors: {n: v.flatten().tolist() for n, v in tensors.items()}
    out = {
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "shapes": SHAPES, "qkv_rows": QKV_ROWS, "weight_decay": WEIGHT_DECAY, "lrs": LRS,
        "adam": {"beta1": ADAM["betas"][0], "beta2": ADAM["betas"][1], "eps": ADAM["eps"]},
        "start": flat(start), "grads": [flat(g) for g in grads],
        "cases": {name: dict(case, final=run(case, start, grads)) for name, case in CASES.items()},
    }
    with open(sys.argv[1], "w") as f:
        json.dump(out, f)
        f.write("\n")


if __name__ == "__main__":
    main()
