"""A torchft replica group of one process. Usage: torchrun --nproc-per-node 1 ... peer_torchft.py GROUP FOLDER"""
import os
import sys
from datetime import timedelta

from model import BATCH, SEQ, VOCAB, Log, torch_model

group, folder = int(sys.argv[1]), sys.argv[2]
log = Log(os.path.join(folder, "steps.log"), group)
log.write("process")

import torch  # noqa: E402
from torchft import Manager, Optimizer, ProcessGroupGloo  # noqa: E402

bare, plain = torch_model()


def load(state):
    bare.load_state_dict(state["model"])
    plain.load_state_dict(state["optimizer"])


manager = Manager(pg=ProcessGroupGloo(timeout=timedelta(seconds=30)), min_replica_size=1, replica_id=f"group{group}",
                  hostname="127.0.0.1", load_state_dict=load, timeout=timedelta(seconds=30),
                  state_dict=lambda: {"model": bare.state_dict(), "optimizer": plain.state_dict()})
optimizer = Optimizer(manager, plain)
generator = torch.Generator()
while True:
    before = manager.current_step()
    generator.manual_seed(1_000_003 * before + group)
    data = torch.randint(0, VOCAB, (BATCH, SEQ + 1), generator=generator)
    optimizer.zero_grad()
    loss = bare(data[:, :-1].contiguous(), data[:, 1:].contiguous())
    loss.backward()
    # By hand: the hook of its DistributedDataParallel (0.2.0) ends a survivor's process by an assertion, which costs 6 s.
    grads = [p.grad for p in bare.parameters()]
    flat = torch._utils._flatten_dense_tensors(grads)
    manager.allreduce(flat).wait()
    torch._foreach_copy_(grads, torch._utils._unflatten_dense_tensors(flat, grads))
    optimizer.step()
    after = manager.current_step()
    log.write("step" if after > before else "aborted", after, manager.num_participants())
