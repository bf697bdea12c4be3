"""The peer: the same model under PyTorch's DistributedDataParallel on gloo. Usage: torchrun ... peer_ddp.py BATCH_PER_RANK STEPS.
Rank 0 prints a JSON line with the seconds of each step."""
import sys

from torch.nn.parallel import DistributedDataParallel as DDP

import peer_steps

peer_steps.run(lambda model: DDP(model, gradient_as_bucket_view=True), int(sys.argv[1]), int(sys.argv[2]))
