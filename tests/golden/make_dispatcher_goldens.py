"""Writes the reference numbers of the token dispatchers: Megatron-core's permute, unpermute and sort_chunks_by_idxs, and its
all-gather and all-to-all dispatchers on the CPU over gloo with two processes, as ep2 and as expert tensor parallelism of two.

Usage: python make_dispatcher_goldens.py OUTPUT.json    (needs megatron-core; versions are recorded in the file)

Everything is fp64. Experts hand on each row, times its weight and (expert's number in the layer + 1); with expert tensor
parallelism each rank gives half of that. The loss is the sum of the combined rows times `loss_weights`.
"""
import json
import platform
import subprocess
import sys
import tempfile

import torch

TOKENS, HIDDEN, EXPERTS, TOPK = 6, 4, 4, 2
# name -> dispatcher, ep, etp, routing. Gloo gathers equal parts only, so that uneven ones over etp are left out.
CASES = {"allgather_ep2": ("allgather", 2, 1, "topk"), "alltoall_ep2": ("alltoall", 2, 1, "topk"),
         "alltoall_ep2_dropped": ("alltoall", 2, 1, "dropped"), "alltoall_ep2_padded": ("alltoall", 2, 1, "padded"),
         "allgather_etp2": ("allgather", 1, 2, "topk"), "alltoall_etp2_padded": ("alltoall", 1, 2, "padded")}


def inputs(rank, routing):
    """This rank's x, probs, map and loss weights."""
    g = torch.Generator().manual_seed(100 + rank)
    scores = torch.rand(TOKENS, EXPERTS, generator=g)
    chosen = torch.zeros(TOKENS, EXPERTS, dtype=torch.bool)
    if routing == "padded":  # capacity factor 1: 3 tokens an expert
        chosen.scatter_(0, scores.topk(TOKENS * TOPK // EXPERTS, dim=0).indices, True)
    else:
        chosen.scatter_(1, scores.topk(TOPK, dim=1).indices, True)
    if routing == "dropped":
        chosen &= torch.rand(TOKENS, EXPERTS, generator=g) < 0.6

    def real(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    return real(TOKENS, HIDDEN), real(TOKENS, EXPERTS) * chosen, chosen, real(TOKENS, HIDDEN)


def on_host(dispatcher, point, counts=None):
    """In place of the copies from a GPU to the host."""
    for name in ("input_splits", "output_splits"):
        splits = getattr(dispatcher, name)
        if isinstance(splits, torch.Tensor):
            setattr(dispatcher, name, splits.tolist())
    return counts


def run_rank(case, out_path):
    import megatron_cpu  # noqa: F401
    import torch.distributed as dist
    from megatron.core import parallel_state as ps
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.moe import token_dispatcher as td
    from megatron.core.transformer.moe.moe_utils import get_default_pg_collection

    torch.cuda.Stream = lambda *args, **kwargs: None
    td.MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize = on_host
    torch.set_num_threads(1)
    dispatcher_type, ep, etp, routing = CASES[case]
    dist.init_process_group("gloo")
    ps.initialize_model_parallel(etp, 1, expert_model_parallel_size=ep, expert_tensor_parallel_size=etp)
    padded = routing == "padded"
    capacity = dict(moe_expert_capacity_factor=1.0, moe_pad_expert_input_to_capacity=padded) if routing != "topk" else {}
    config = TransformerConfig(
        num_layers=1, hidden_size=HIDDEN, num_attention_heads=2, num_moe_experts=EXPERTS, moe_router_topk=TOPK,
        moe_token_dispatcher_type=dispatcher_type, tensor_model_parallel_size=etp, sequence_parallel=etp > 1,
        expert_model_parallel_size=ep, expert_tensor_parallel_size=etp, add_bias_linear=False, use_cpu_initialization=True,
        bias_activation_fusion=False, **capacity)
    local = EXPERTS // ep
    first = ps.get_expert_model_parallel_rank() * local
    cls = td.MoEAllGatherTokenDispatcher if dispatcher_type == "allgather" else td.MoEAlltoAllTokenDispatcher
    dispatcher = cls(local, list(range(first, first + local)), config, pg_collection=get_default_pg_collection())

    x, probs, chosen, loss_weights = inputs(dist.get_rank(), routing)
    x.requires_grad_(True), probs.requires_grad_(True)
    hidden, weights = dispatcher.dispatch_preprocess(x, chosen, probs)
    hidden, weights = dispatcher.token_dispatch(hidden, weights)
    tokens, counts, weights = dispatcher.dispatch_postprocess(hidden, weights)
    factors = torch.cat([torch.full((int(n),), float(first + e + 1), dtype=torch.float64) for e, n in enumerate(counts)])
    outputs = tokens * (weights * factors).unsqueeze(1) / etp
    combined = dispatcher.combine_postprocess(dispatcher.token_combine(dispatcher.combine_preprocess(outputs)))
    (combined * loss_weights).sum().backward()
    result = dict(x=x, probs=probs, map=chosen.long(), loss_weights=loss_weights, tokens=tokens, weights=weights,
                  rows_per_expert=counts, combined=combined, dx=x.grad, dprobs=probs.grad)
    with open(f"{out_path}.{dist.get_rank()}", "w") as file:
        json.dump({name: value.tolist() for name, value in result.items()}, file)
    dist.barrier()
    dist.destroy_process_group()


def functions():
    """permute, unpermute and sort_chunks_by_idxs by themselves."""
    import megatron_cpu  # noqa: F401
    from megatron.core.transformer.moe.moe_utils import permute, sort_chunks_by_idxs, unpermute

    x, probs, chosen, _ = inputs(7, "dropped")
    rows, weights, token = permute(x, chosen, probs=probs)
    restored = unpermute(rows * weights.unsqueeze(1), token, x.shape, routing_map=chosen)
    chunk_rows, order = [3, 0, 1, 2, 2, 4], [0, 2, 4, 1, 3, 5]
    long = torch.arange(sum(chunk_rows), dtype=torch.float64)
    ordered, _ = sort_chunks_by_idxs(long, torch.tensor(chunk_rows), torch.tensor(order))
    result = dict(x=x, probs=probs, map=chosen.long(), rows=rows, weights=weights, token=token, restored=restored,
                  chunk_rows=torch.tensor(chunk_rows), chunk_order=torch.tensor(order), ordered=ordered)
    return {name: value.tolist() for name, value in result.items()}


def main(out_path):
    from megatron.core import __version__ as megatron_version

    document = dict(versions=dict(python=platform.python_version(), torch=torch.__version__, megatron_core=megatron_version),
                    sizes=dict(tokens=TOKENS, hidden=HIDDEN, experts=EXPERTS, topk=TOPK), functions=functions(), cases={})
    with tempfile.TemporaryDirectory() as folder:
        for case, (dispatcher, ep, etp, routing) in CASES.items():
            path = f"{folder}/{case}"
            subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", __file__,
                            "--rank", case, path], check=True)
            ranks = []
            for rank in range(2):
                with open(f"{path}.{rank}") as file:
                    ranks.append(json.load(file))
            document["cases"][case] = dict(dispatcher=dispatcher, ep=ep, etp=etp, padded=routing == "padded",
                                           dropped=routing == "dropped", ranks=ranks)
    with open(out_path, "w") as file:
        json.dump(document, file)
        file.write("\n")


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        run_rank(sys.argv[2], sys.argv[3])
    else:
        main(sys.argv[1])
