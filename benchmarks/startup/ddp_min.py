"""The peer's job: a small model under DistributedDataParallel on gloo, one step after another. Prints when a step is done."""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(torch.nn.Sequential(torch.nn.Embedding(288, 64), torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 288)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(1, 4):
    tokens = torch.randint(0, 256, (2, 65))
    loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"step {step} done", flush=True)
dist.destroy_process_group()
