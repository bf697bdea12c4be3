"""Megatron-core on the CPU over gloo: import this before anything of megatron.core.

Megatron-core asks CUDA for its device, streams and random states in many places; here those calls are pointed at the CPU. Nothing
of its mathematics is replaced, but for the norm's class under sequence parallelism (Megatron's wrapper of PyTorch's norms refuses
it, only because it does not mark the parameters whose gradients must be summed: here they are marked).
"""
from contextlib import nullcontext

import torch

CPU = torch.device("cpu")


def _on_cpu(factory):
    def make(*args, **kwargs):
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = CPU
        return factory(*args, **kwargs)

    return make


for _name in ("empty", "full", "ones", "rand", "tensor", "zeros"):
    setattr(torch, _name, _on_cpu(getattr(torch, _name)))
torch.cuda.current_device = lambda: CPU
torch.cuda.synchronize = lambda *args, **kwargs: None
torch.cuda.current_stream = lambda *args, **kwargs: None
torch.Tensor.cuda = lambda self, *args, **kwargs: self
_type = torch.Tensor.type
# The optimizer checks that gradients are "torch.cuda.FloatTensor".
torch.Tensor.type = lambda self, *args, **kwargs: (_type(self, *args, **kwargs) if args or kwargs
                                                   else _type(self).replace("torch.", "torch.cuda."))

from megatron.core.tensor_parallel import random as _random  # noqa: E402


class _NoTracker:
    """The CUDA random states: nothing here draws from them (no dropout, weights are set by name)."""

    def fork(self, *args, **kwargs):
        return nullcontext()

    def is_initialized(self):
        return True

    def add(self, *args, **kwargs):
        pass


_random._CUDA_RNG_STATE_TRACKER = _NoTracker()
_random._CUDA_RNG_STATE_TRACKER_INITIALIZED = True
_random.initialize_rng_tracker = lambda *args, **kwargs: None

from megatron.core.models import backends as _backends  # noqa: E402
from megatron.core.models.gpt import gpt_layer_specs as _specs  # noqa: E402
from megatron.core.transformer import torch_norm as _torch_norm  # noqa: E402


class Norm:
    """torch.nn.LayerNorm or RMSNorm, as WrappedTorchNorm picks them, with the mark of sequence parallelism."""

    def __new__(cls, config, hidden_size, eps=1e-5, **_):
        kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
        norm = kind(normalized_shape=hidden_size, eps=eps)
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return norm


import megatron.core.transformer.transformer_block as _block  # noqa: E402

_torch_norm.WrappedTorchNorm = Norm
for _module in (_backends, _specs, _block):
    for _attribute in ("WrappedTorchNorm", "LNImpl", "LayerNormImpl"):
        if hasattr(_module, _attribute):
            setattr(_module, _attribute, Norm)
