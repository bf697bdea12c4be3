"""Writes the reference numbers of the GPT tests: a GPT-2-like and a Llama-like tiny model in plain PyTorch,
with Megatron-core's parameter names and layouts.

Usage: python make_gpt_goldens.py OUTPUT_DIR     (CPU, PyTorch only; versions are recorded in the files)

For each configuration a pair of files:
  gpt_<name>.json   configuration, versions, table of tensors, losses of ten AdamW steps in fp64 and in fp32
  gpt_<name>.bin    the tensors, little endian, contiguous, in the table's order
Tensors: batch.tokens/labels (int64); param.<name> (fp32, the start of both runs); logits, losses, grad.<name>
(fp64 run, first step); final.<name> (fp32 run, after ten steps).
"""
import json
import math
import platform
import sys

import torch
import torch.nn.functional as F

CONFIGS = {
    "gpt2": dict(layers=2, hidden=32, heads=4, groups=4, ffn=64, vocab=64, seq=32, batch=2, norm="LayerNorm",
                 positions="learned_absolute", swiglu=False, bias=True, tied=True, rotary_percent=1.0, eps=1e-5),
    "llama": dict(layers=2, hidden=32, heads=4, groups=2, ffn=48, vocab=64, seq=32, batch=2, norm="RMSNorm",
                  positions="rope", swiglu=True, bias=False, tied=False, rotary_percent=1.0, eps=1e-5),
}
ADAMW = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
STEPS = 10


def make_params(c, dtype):
    """Name -> tensor, in Megatron's registration order; norms and biases away from 1 and 0 so that their use shows."""
    g = torch.Generator().manual_seed(1234)
    p = {}

    def normal(name, *shape, std=0.05, mean=0.0):
        p[name] = (torch.randn(*shape, generator=g, dtype=torch.float64) * std + mean).float().to(dtype)

    h, d = c["hidden"], c["hidden"] // c["heads"]

    def norm(name):
        normal(name + ".weight", h, std=0.1, mean=1.0)
        if c["norm"] == "LayerNorm":
            normal(name + ".bias", h, std=0.1)

    def linear(name, out, inp):
        normal(name + ".weight", out, inp)
        if c["bias"]:
            normal(name + ".bias", out, std=0.02)

    normal("embedding.word_embeddings.weight", c["vocab"], h)
    if c["positions"] == "learned_absolute":
        normal("embedding.position_embeddings.weight", c["seq"], h)
    for i in range(c["layers"]):
        n = f"decoder.layers.{i}."
        norm(n + "input_layernorm")
        linear(n + "self_attention.linear_proj", h, c["heads"] * d)
        linear(n + "self_attention.linear_qkv", (c["heads"] + 2 * c["groups"]) * d, h)
        norm(n + "pre_mlp_layernorm")
        linear(n + "mlp.linear_fc1", c["ffn"] * (2 if c["swiglu"] else 1), h)
        linear(n + "mlp.linear_fc2", h, c["ffn"])
    norm("decoder.final_layernorm")
    if not c["tied"]:
        normal("output_layer.weight", c["vocab"], h)
    return p


def rotate(x, c):
    """x (B, heads, S, D): channel i turns with channel i + rot/2; angles computed in fp32 unless x is fp64."""
    rot = int(x.shape[-1] * c["rotary_percent"])
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    inv = 1.0 / (10000.0 ** (torch.arange(0, rot, 2, dtype=wide) / rot))
    angle = torch.outer(torch.arange(x.shape[2], dtype=wide), inv)
    cos, sin = torch.cos(angle).to(x.dtype), torch.sin(angle).to(x.dtype)
    a, b, rest = x[..., : rot // 2], x[..., rot // 2 : rot], x[..., rot:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


def logits_of(p, c, tokens):
    h, heads, groups = c["hidden"], c["heads"], c["groups"]
    d, r = h // heads, heads // groups
    batch, seq = tokens.shape

    def norm(x, name):
        if c["norm"] == "LayerNorm":
            return F.layer_norm(x, (h,), p[name + ".weight"], p[name + ".bias"], c["eps"])
        return F.rms_norm(x, (h,), p[name + ".weight"], c["eps"])

    def linear(x, name):
        return F.linear(x, p[name + ".weight"], p.get(name + ".bias"))

    x = p["embedding.word_embeddings.weight"][tokens]
    if c["positions"] == "learned_absolute":
        x = x + p["embedding.position_embeddings.weight"][torch.arange(seq)]
    causal = torch.ones(seq, seq, dtype=torch.bool).tril()
    for i in range(c["layers"]):
        n = f"decoder.layers.{i}."
        qkv = linear(norm(x, n + "input_layernorm"), n + "self_attention.linear_qkv").view(batch, seq, groups, r + 2, d)
        q = qkv[:, :, :, :r].reshape(batch, seq, heads, d).transpose(1, 2)
        k = qkv[:, :, :, r].repeat_interleave(r, dim=2).transpose(1, 2)
        v = qkv[:, :, :, r + 1].repeat_interleave(r, dim=2).transpose(1, 2)
        if c["positions"] == "rope":
            q, k = rotate(q, c), rotate(k, c)
        scores = (q @ k.transpose(2, 3)) / math.sqrt(d)
        a = torch.softmax(scores.masked_fill(~causal, float("-inf")), dim=-1) @ v
        x = x + linear(a.transpose(1, 2).reshape(batch, seq, h), n + "self_attention.linear_proj")
        u = linear(norm(x, n + "pre_mlp_layernorm"), n + "mlp.linear_fc1")
        if c["swiglu"]:
            gate, up = u.chunk(2, dim=-1)
            u = F.silu(gate) * up
        else:
            u = F.gelu(u)
        x = x + linear(u, n + "mlp.linear_fc2")
    head = p["embedding.word_embeddings.weight"] if c["tied"] else p["output_layer.weight"]
    return F.linear(norm(x, "decoder.final_layernorm"), head)


def token_losses(logits, labels):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), reduction="none").view(labels.shape)


def decays(name, tensor):
    return tensor.dim() > 1 and not name.endswith(".bias")  # Megatron's no-weight-decay condition


def batch_of(c):
    g = torch.Generator().manual_seed(4321)
    data = torch.randint(0, c["vocab"], (c["batch"], c["seq"] + 1), generator=g)
    return data[:, :-1].contiguous(), data[:, 1:].contiguous()


def run(c, dtype):
    """Ten AdamW steps -> (mean losses, logits and token losses and gradients of step 0, parameters)."""
    p = {k: v.requires_grad_() for k, v in make_params(c, dtype).items()}
    tokens, labels = batch_of(c)
    groups = [
        dict(params=[v for k, v in p.items() if decays(k, v)], weight_decay=ADAMW["weight_decay"]),
        dict(params=[v for k, v in p.items() if not decays(k, v)], weight_decay=0.0),
    ]
    opt = torch.optim.AdamW(groups, lr=ADAMW["lr"], betas=ADAMW["betas"], eps=ADAMW["eps"])
    means, first = [], {}
    for step in range(STEPS):
        logits = logits_of(p, c, tokens)
        losses = token_losses(logits, labels)
        loss = losses.mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        if step == 0:
            first["logits"], first["losses"] = logits.detach(), losses.detach()
            first.update({"grad." + k: v.grad.clone() for k, v in p.items()})
        means.append(loss.item())
        opt.step()
    return means, first, p


def gradient_error(first, exact):
    """Worst |a - b| / max(|b|, 1e-3 global norm) over all gradients: how far fp32 rounding alone takes PyTorch."""
    grads = [k for k in exact if k.startswith("grad.")]
    floor = 1e-3 * sum(exact[k].square().sum() for k in grads) ** 0.5
    return max(((first[k].double() - exact[k]).abs() / exact[k].abs().clamp_min(floor)).max().item() for k in grads)


def write(out_dir, name):
    c = CONFIGS[name]
    tokens, labels = batch_of(c)
    means64, first64, _ = run(c, torch.float64)
    means32, first32, final32 = run(c, torch.float32)
    tensors = {"batch.tokens": tokens, "batch.labels": labels}
    tensors.update({"param." + k: v for k, v in make_params(c, torch.float32).items()})
    tensors.update(first64)
    tensors.update({"final." + k: v.detach() for k, v in final32.items()})
    table, offset = [], 0
    with open(f"{out_dir}/gpt_{name}.bin", "wb") as f:
        for key, t in tensors.items():
            raw = t.contiguous().numpy().tobytes()
            table.append(dict(name=key, dtype=str(t.dtype).removeprefix("torch."), shape=list(t.shape), offset=offset))
            offset += len(raw)
            f.write(raw)
    doc = dict(config=c, adamw=dict(ADAMW, betas=list(ADAMW["betas"])), step_losses_fp64=means64,
               step_losses_fp32=means32, fp32_gradient_error=gradient_error(first32, first64),
               versions=dict(torch=torch.__version__, python=platform.python_version()),
               tensors=table)
    with open(f"{out_dir}/gpt_{name}.json", "w") as f:
        json.dump(doc, f, indent=None)
        f.write("\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for config in CONFIGS:
        write(sys.argv[1], config)
