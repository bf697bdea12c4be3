"""The peer: the same model under PyTorch's DistributedDataParallel on gloo. Usage: torchrun ... peer_ddp.py BATCH_PER_RANK STEPS.
Rank 0 prints a JSON line with the seconds of each step."""
import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "train_single"))
from peer_torch import Gpt  # noqa: E402

from layouts import MODEL  # noqa: E402


class UntiedGpt(Gpt):
    def __init__(self):
        super().__init__(MODEL["layers"], MODEL["hidden"], MODEL["heads"], MODEL["vocab"], MODEL["seq"])
        self.output = nn.Linear(MODEL["hidden"], MODEL["vocab"], bias=False)
        nn.init.normal_(self.output.weight, std=0.02)

    def forward(self, tokens, labels):
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        logits = self.output(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.reshape(-1))


batch, steps = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(1234)
model = DDP(UntiedGpt(), gradient_as_bucket_view=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
generator = torch.Generator().manual_seed(1 + dist.get_rank())
seconds = []
for _ in range(steps):
    data = torch.randint(0, MODEL["vocab"], (batch, MODEL["seq"] + 1), generator=generator)
    start = time.perf_counter()
    loss = model(data[:, :-1].contiguous(), data[:, 1:].contiguous())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    loss.item()
    seconds.append(time.perf_counter() - start)
if dist.get_rank() == 0:
    print(json.dumps({"seconds": seconds}), flush=True)
dist.destroy_process_group()
