"""Writes the reference numbers of context parallelism's tests: PyTorch's scaled_dot_product_attention in float64, its
output and its gradients, for a whole sequence that the tests then spread over ranks.

Usage: python make_cp_goldens.py OUTPUT_FILE     (CPU, PyTorch only; versions are recorded)

Inputs are not stored: element i of a tensor in row-major order is sin(a i + b), which both sides compute.
"""
import json
import platform
import sys

import torch

BATCH, SEQ, CHANNELS = 2, 16, 2
# a, b of sin(a i + b): queries, keys, values, and the output's gradient
WAVES = {"q": (0.37, 0.1), "k": (0.53, 0.7), "v": (0.71, 0.2), "dout": (0.29, 0.5)}
DOCUMENT_ENDS = (4, 10)  # tokens before which a new document begins, in the masked cases


def wave(name, heads):
    a, b = WAVES[name]
    count = BATCH * SEQ * heads * CHANNELS
    x = torch.sin(a * torch.arange(count, dtype=torch.float64) + b)
    return x.view(BATCH, SEQ, heads, CHANNELS)  # as the activations of the model lie


def case(heads, groups, masked):
    q, k, v = (wave(name, n).requires_grad_(True) for name, n in (("q", heads), ("k", groups), ("v", groups)))
    attend = dict(is_causal=True)
    if masked:
        visible = torch.ones(SEQ, SEQ, dtype=torch.bool).tril()
        for end in DOCUMENT_ENDS:
            visible[end:, :end] = False
        attend = dict(attn_mask=visible)
    out = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), enable_gqa=heads != groups, **attend).transpose(1, 2)
    out.backward(wave("dout", heads))
    return dict(heads=heads, groups=groups, masked=masked,
                **{name: [round(x, 15) for x in tensor.flatten().tolist()]
                   for name, tensor in (("out", out), ("dq", q.grad), ("dk", k.grad), ("dv", v.grad))})


def main():
    document = dict(
        versions=dict(torch=torch.__version__, python=platform.python_version()), batch=BATCH, seq=SEQ,
        channels=CHANNELS, waves=WAVES, document_ends=DOCUMENT_ENDS,
        cases=[case(4, 4, False), case(4, 2, False), case(4, 2, True)])
    with open(sys.argv[1], "w") as f:
        json.dump(document, f, indent=None, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
