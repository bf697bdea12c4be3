"""The peer: the model of train_single under DistributedDataParallel on gloo. Usage: torchrun ... ddp_torch.py MODEL BATCH_PER_RANK
SEQ DTYPE STEPS. Rank 0 prints a JSON line with the seconds of each step."""
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "train_single"))
from peer_torch import CONFIGS, Gpt  # noqa: E402

CONFIGS["small"]["vocab"] = 288  # the byte tokenizer needs 257
name, batch, seq, dtype, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(1234)
model = DDP(Gpt(**CONFIGS[name]))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
generator = torch.Generator().manual_seed(1 + dist.get_rank())
seconds = []
for _ in range(steps):
    data = torch.randint(0, CONFIGS[name]["vocab"], (batch, seq + 1), generator=generator)
    start = time.perf_counter()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16"):
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
