"""A DDP worker on gloo that saves every SAVE_EVERY steps and goes on from there. Usage: torchrun ... peer_torchrun.py FOLDER"""
import os
import sys

from model import BATCH, SAVE_EVERY, SEQ, VOCAB, Log, torch_model

folder, rank, world = sys.argv[1], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
log = Log(os.path.join(folder, "steps.log"), rank)
log.write("process")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

dist.init_process_group("gloo")
bare, optimizer = torch_model()
model = DDP(bare)
path, step = os.path.join(folder, "checkpoint.pt"), 0
if os.path.exists(path):
    saved = torch.load(path)
    bare.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
log.write("loaded", step)
generator = torch.Generator()
while True:
    generator.manual_seed(1_000_003 * step + rank)
    data = torch.randint(0, VOCAB, (BATCH, SEQ + 1), generator=generator)
    loss = model(data[:, :-1].contiguous(), data[:, 1:].contiguous())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    step += 1
    log.write("step", step, world)
    if step % SAVE_EVERY == 0 and rank == 0:
        torch.save({"model": bare.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path + ".new")
        os.replace(path + ".new", path)
