"""The peer: the same model under PyTorch's FSDP2 (fully_shard) on gloo. Usage: torchrun ... peer_fsdp2.py RESHARD_AFTER_FORWARD
BATCH_PER_RANK STEPS. Rank 0 prints a JSON line with the seconds of each step.

Each layer is a unit, the rest (embeddings, last norm, output layer) belongs to the root, as in our own. Gloo cannot average, so that
gradients are summed and then divided.
"""
import sys

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import peer_steps


def shard(model):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for unit in [*model.layers, model]:
        fully_shard(unit, mesh=mesh, reshard_after_forward=bool(int(sys.argv[1])))
        unit.set_force_sum_reduction_for_comms(True)
    return model


peer_steps.run(shard, int(sys.argv[2]), int(sys.argv[3]))
