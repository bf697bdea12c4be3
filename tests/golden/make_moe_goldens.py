"""Writes the reference numbers of the MoE router: Megatron-core's TopKRouter.routing on the CPU, in one process.

Usage: python make_moe_goldens.py OUTPUT_FILE    (needs megatron-core; versions are recorded in the file)

Every case is one router in fp32 and in fp64, given logits (S, B, E) of one or two microbatches and the gradient of its probs; the file
holds what it gives back: probs and map (T, E), T = S B in (S, B) order; the gradient of the logits, side losses included, under the
scale SCALE; what it logged; its expert counts and the updated expert bias.

Megatron-core computes scores in fp32 whatever the logits' type. For the fp64 cases its conversions are undone, so that all of its
mathematics is in fp64 and can be compared to the last digits.
"""
import json
import platform
import sys
from contextlib import nullcontext

import megatron_cpu  # noqa: F401
import torch
import torch.distributed as dist
from megatron.core import __version__ as megatron_version
from megatron.core import parallel_state as ps
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.router import TopKRouter

SEQ, BATCH, EXPERTS = 4, 2, 8
SCALE = 0.375
ALL_LOSSES = dict(moe_router_load_balancing_type=["aux_loss", "seq_aux_loss", "global_aux_loss"], moe_aux_loss_coeff=[0.3, 0.2, 0.1])
SIGMOID = dict(moe_router_score_function="sigmoid")
BIASED = dict(**SIGMOID, moe_router_enable_expert_bias=True)
GROUPS = dict(moe_router_num_groups=4, moe_router_group_topk=2, moe_router_topk=4)

# name -> Megatron's settings; "microbatches", "padded", "training", "batch" are ours
CASES = {
    "softmax": {},
    "softmax_k3_scaled": dict(moe_router_topk=3, moe_router_topk_scaling_factor=2.5),
    "pre_softmax": dict(moe_router_pre_softmax=True),
    "pre_softmax_k1": dict(moe_router_pre_softmax=True, moe_router_topk=1),
    "sigmoid": SIGMOID,
    "sigmoid_k1": dict(**SIGMOID, moe_router_topk=1),
    "sigmoid_bias": BIASED,
    "softmax_groups": GROUPS,
    "pre_softmax_groups": dict(**GROUPS, moe_router_pre_softmax=True),
    "sigmoid_bias_groups_scaled": dict(**BIASED, **GROUPS, moe_router_topk_scaling_factor=2.5),
    "sinkhorn_k1": dict(moe_router_load_balancing_type="sinkhorn", moe_router_topk=1),
    "sinkhorn_k2": dict(moe_router_load_balancing_type="sinkhorn", moe_z_loss_coeff=0.01),
    "sinkhorn_not_training": dict(moe_router_load_balancing_type="sinkhorn", training=False),
    "aux_loss": dict(moe_aux_loss_coeff=0.3),
    "aux_loss_sigmoid": dict(**SIGMOID, moe_aux_loss_coeff=0.3),
    "seq_aux_loss": dict(moe_router_load_balancing_type="seq_aux_loss", moe_aux_loss_coeff=0.3),
    "seq_aux_loss_sigmoid": dict(**SIGMOID, moe_router_load_balancing_type="seq_aux_loss", moe_aux_loss_coeff=0.3),
    "global_aux_loss": dict(moe_router_load_balancing_type="global_aux_loss", moe_aux_loss_coeff=0.3, microbatches=2),
    "z_loss": dict(moe_z_loss_coeff=0.01),
    "z_loss_sigmoid": dict(**SIGMOID, moe_z_loss_coeff=0.01),
    "all_losses": dict(**ALL_LOSSES, moe_z_loss_coeff=0.01, microbatches=2),
    "all_losses_pre_softmax_groups": dict(**ALL_LOSSES, **GROUPS, moe_router_pre_softmax=True),
    "all_losses_sigmoid_bias": dict(**ALL_LOSSES, **BIASED, moe_z_loss_coeff=0.01, microbatches=2),
    "all_losses_not_training": dict(**ALL_LOSSES, moe_z_loss_coeff=0.01, training=False),
    "all_losses_padded": dict(**ALL_LOSSES, moe_z_loss_coeff=0.01, padded=True, microbatches=2),
    "all_losses_sigmoid_padded": dict(**ALL_LOSSES, **SIGMOID, moe_z_loss_coeff=0.01, padded=True),
    # With more sequences than one Megatron-core 0.16 multiplies seq_aux_loss by the tokens of one of them.
    "per_token": dict(**ALL_LOSSES, moe_z_loss_coeff=0.01, calculate_per_token_loss=True, batch=1),
    "per_token_padded": dict(**ALL_LOSSES, moe_z_loss_coeff=0.01, calculate_per_token_loss=True, padded=True, batch=1),
    "capacity": dict(moe_expert_capacity_factor=0.75),
    "capacity_position": dict(moe_expert_capacity_factor=0.75, moe_token_drop_policy="position"),
    "capacity_padded": dict(moe_expert_capacity_factor=0.75, moe_pad_expert_input_to_capacity=True),
    "capacity_position_padded": dict(moe_expert_capacity_factor=1.0, moe_token_drop_policy="position",
                                     moe_pad_expert_input_to_capacity=True),
    "capacity_for_all": dict(moe_expert_capacity_factor=8.0),
    "capacity_for_all_padded": dict(moe_expert_capacity_factor=8.0, moe_pad_expert_input_to_capacity=True),
    "capacity_sigmoid_bias_losses": dict(**BIASED, moe_expert_capacity_factor=0.75, moe_aux_loss_coeff=0.3),
}


class WholePrecision:
    """Within it Megatron's casts of fp64 to fp32 do nothing, and quotients of counts are fp64."""

    def __enter__(self):
        self.softmax, self.float = torch.softmax, torch.Tensor.float
        torch.softmax = lambda x, dim, dtype=None: self.softmax(x, dim=dim, dtype=None if x.dtype == torch.float64 else dtype)
        torch.set_default_dtype(torch.float64)
        torch.Tensor.float = lambda x: x if x.dtype == torch.float64 else self.float(x)

    def __exit__(self, *_):
        torch.set_default_dtype(torch.float32)
        torch.softmax, torch.Tensor.float = self.softmax, self.float


def run(settings, dtype):
    settings = dict(settings)
    microbatches, padded = settings.pop("microbatches", 1), settings.pop("padded", False)
    training, batch = settings.pop("training", True), settings.pop("batch", BATCH)
    config = TransformerConfig(num_layers=1, hidden_size=EXPERTS, num_attention_heads=1, add_bias_linear=False, use_cpu_initialization=True,
                               num_moe_experts=EXPERTS, **settings)
    router = TopKRouter(config, moe_utils.get_default_pg_collection())
    router.set_layer_number(1)
    router.train(training)
    generator = torch.Generator().manual_seed(2024)
    if router.expert_bias is not None:
        router.expert_bias.copy_(torch.randn(EXPERTS, generator=generator, dtype=torch.float32) * 0.1)
    moe_utils.MoEAuxLossAutoScaler.main_loss_backward_scale = torch.tensor(SCALE, dtype=torch.float64)
    tracker = moe_utils.get_moe_layer_wise_logging_tracker()
    tracker.clear()
    result = dict(microbatches=[])
    if router.expert_bias is not None:
        result["expert_bias"] = router.expert_bias.tolist()
    for _ in range(microbatches):
        # fp32 numbers in both cases, so that both route the same.
        logits = torch.randn(SEQ, batch, EXPERTS, generator=generator, dtype=torch.float32).to(dtype).requires_grad_()
        upstream = torch.randn(SEQ * batch, EXPERTS, generator=generator, dtype=torch.float32).to(dtype)
        padding = None
        if padded:
            padding = torch.rand(SEQ, batch, generator=generator, dtype=torch.float32) < 0.3
        probs, routing_map = router.routing(logits, padding_mask=padding)
        probs.backward(upstream)
        entry = dict(logits=logits.detach(), upstream=upstream, probs=probs.detach(), map=routing_map.int(), dlogits=logits.grad)
        if padding is not None:
            entry["padding"] = padding.int()
        result["microbatches"].append({key: numbers(value) for key, value in entry.items()})
    result["logged"] = {name: float(entry["values"][0]) for name, entry in tracker.items()}
    if router.expert_bias is not None:
        counts = router.local_tokens_per_expert
        result["counts"] = counts.tolist()
        result["updated_bias"] = moe_utils.get_updated_expert_bias(counts, router.expert_bias, 1e-3).tolist()
    return result


def numbers(tensor):
    """The shortest decimals that give back the same number in the tensor's type."""
    values = tensor.flatten().tolist()
    if tensor.dtype == torch.float32:
        return [float(f"{value:.9g}") for value in values]
    return values


def main(path):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    ps.initialize_model_parallel()
    cases = []
    for name, settings in CASES.items():
        for dtype in ("float32", "float64"):
            with WholePrecision() if dtype == "float64" else nullcontext():
                cases.append(dict(name=name, dtype=dtype, settings=settings, **run(settings, getattr(torch, dtype))))
    versions = dict(megatron_core=megatron_version, torch=str(torch.__version__), python=platform.python_version())
    with open(path, "w") as f:
        head = dict(seq=SEQ, batch=BATCH, experts=EXPERTS, scale=SCALE, versions=versions)
        f.write(json.dumps(head)[:-1] + ', "cases": [\n' + ",\n".join(json.dumps(case) for case in cases) + "\n]}\n")


if __name__ == "__main__":
    main(sys.argv[1])
