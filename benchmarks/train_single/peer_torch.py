"""The same training step in PyTorch, eager or compiled; driven by run.py like bench-train-single.

Usage: python peer_torch.py MODEL(gpt2|small) BATCH SEQ DTYPE(fp32|bf16|fp16) THREADS MODE(eager|compile) [DEVICE(cpu|cuda)]
Pre-LN GPT with learned positions, exact GELU, tied output, causal SDPA, fused AdamW, clipping; bf16 and fp16 by
autocast over fp32 weights, fp16 with a loss scale. Lines "step N" on standard input, one JSON line each on standard output.
"""
import json
import math
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

CONFIGS = {
    "gpt2": dict(layers=12, hidden=768, heads=12, vocab=50304, positions=1024),
    "small": dict(layers=6, hidden=384, heads=6, vocab=256, positions=256),
}

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Layer(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.fc1, self.fc2 = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        b, s, h = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(h, dim=2))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, s, h))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, layers, hidden, heads, vocab, positions):
        super().__init__()
        self.words, self.positions = nn.Embedding(vocab, hidden), nn.Embedding(positions, hidden)
        self.layers = nn.ModuleList(Layer(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                out = name.endswith(("proj.weight", "fc2.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * layers) if out else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, tokens, labels):
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(self.norm(x), self.words.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), labels.reshape(-1))


def main():
    name, batch, seq, dtype, threads, mode = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:7]
    device = sys.argv[7] if len(sys.argv) > 7 else "cpu"
    torch.set_num_threads(int(threads))
    torch.manual_seed(1234)
    model = Gpt(**CONFIGS[name]).to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    run = torch.compile(model) if mode == "compile" else model
    scaler = torch.amp.GradScaler(device, init_scale=1024, enabled=dtype == "fp16")
    generator = torch.Generator().manual_seed(1)

    def step():
        data = torch.randint(0, CONFIGS[name]["vocab"], (batch, seq + 1), generator=generator).to(device)
        with torch.autocast(device, dtype=HALF.get(dtype, torch.bfloat16), enabled=dtype in HALF):
            loss = run(data[:, :-1].contiguous(), data[:, 1:].contiguous())
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad(set_to_none=True)
        return loss.item()

    for line in sys.stdin:
        seconds, cpu_seconds = [], []
        for _ in range(int(line.split()[1])):
            start, cpu_start = time.perf_counter(), time.process_time()
            loss = step()
            seconds.append(time.perf_counter() - start)
            cpu_seconds.append(time.process_time() - cpu_start)
        answer = dict(seconds=seconds, cpu_seconds=cpu_seconds, loss=loss)
        if device == "cuda":
            answer["peak_memory_bytes"] = torch.cuda.max_memory_allocated()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
