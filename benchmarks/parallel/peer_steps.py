"""The steps of a data-parallel PyTorch peer on gloo, each timed: AdamW, clipping, random tokens."""
import json
import time

import torch
import torch.distributed as dist

from layouts import MODEL
from models import UntiedGpt


def run(wrap, batch, steps):
    """wrap(model) is trained for `steps` steps of `batch` samples a rank; rank 0 prints a JSON line with the seconds of each."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1234)
    model = wrap(UntiedGpt())
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
