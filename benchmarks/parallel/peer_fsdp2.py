"""The peer: the same model under PyTorch's FSDP2 (fully_shard) on gloo. Usage: torchrun ... peer_fsdp2.py RESHARD_AFTER_FORWARD
BATCH_PER_RANK STEPS. Rank 0 prints a JSON line with the seconds of each step.

Each layer is a unit, the rest (embeddings, last norm, output layer) belongs to the root, as in our own. Gloo cannot average, so that
gradients are summed and then divided.
"""
import json
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from layouts import MODEL
from models import UntiedGpt

reshard, batch, steps = bool(int(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(1234)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = UntiedGpt()
for unit in [*model.layers, model]:
    fully_shard(unit, mesh=mesh, reshard_after_forward=reshard)
    unit.set_force_sum_reduction_for_comms(True)
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
