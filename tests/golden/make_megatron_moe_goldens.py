"""Writes the reference numbers of layouts with experts: a Llama-like model with MoE layers in Megatron-core, on the CPU over gloo, with
its own router, dispatchers, sequential experts, DDP, finalize_model_grads, optimizer and schedule.

Usage: python make_megatron_moe_goldens.py OUTPUT_DIR    (needs megatron-core; versions are recorded in the file)

A pair of files as those of make_megatron_goldens.py, megatron_moe.{json,bin}. Data-parallel rank r of d takes the microbatches r, r + d,
... of a step. "side_losses" of a layout: by step, as Megatron logs them, where it does so in the same way on every layout (its z-loss is
not averaged over ranks: only of one process).
"""
import json
import os
import platform
import subprocess
import sys
import tempfile
from contextlib import nullcontext

import torch

from make_megatron_goldens import ADAMW, CLIP_GRAD, MICRO_BATCH_SIZE, MICROBATCHES, STEPS, make_batches, slice_of

MODEL = dict(layers=2, hidden=32, heads=4, groups=2, ffn=48, vocab=64, seq=32, norm="RMSNorm", positions="rope", swiglu=True, bias=False,
             tied=False, rotary_percent=1.0, eps=1e-5, experts=4, topk=2, aux_loss_coeff=0.05, z_loss_coeff=0.01)
# name -> tensor parallel (with sequence parallelism where > 1), expert parallel, expert tensor parallel, data parallel, dispatcher
LAYOUTS = {
    "one": (1, 1, 1, 1, "alltoall"),
    "one_allgather": (1, 1, 1, 1, "allgather"),
    "ep2": (1, 2, 1, 2, "alltoall"),
    "ep2_allgather": (1, 2, 1, 2, "allgather"),
    "tp2_ep2": (2, 2, 1, 1, "alltoall"),
    "tp2_ep2_allgather": (2, 2, 1, 1, "allgather"),
    # Here all-to-all would gather unequal parts over tp, which gloo's all-gather cannot.
    "tp2_ep2_etp2_dp2": (2, 2, 2, 2, "allgather"),
}


def make_params(c):
    """Name -> whole tensor; norms away from 1, router weights large enough that choices are clear."""
    generator = torch.Generator().manual_seed(1234)
    params = {}

    def normal(name, *shape, std, mean=0.0):
        params[name] = (torch.randn(*shape, generator=generator, dtype=torch.float64) * std + mean).float()

    hidden, width = c["hidden"], c["hidden"] // c["heads"]
    normal("embedding.word_embeddings.weight", c["vocab"], hidden, std=0.2)
    for layer in range(c["layers"]):
        prefix = f"decoder.layers.{layer}."
        normal(prefix + "input_layernorm.weight", hidden, std=0.1, mean=1.0)
        normal(prefix + "self_attention.linear_proj.weight", hidden, c["heads"] * width, std=0.1)
        normal(prefix + "self_attention.linear_qkv.weight", (c["heads"] + 2 * c["groups"]) * width, hidden, std=0.1)
        normal(prefix + "pre_mlp_layernorm.weight", hidden, std=0.1, mean=1.0)
        normal(prefix + "mlp.router.weight", c["experts"], hidden, std=0.3)
        for expert in range(c["experts"]):
            normal(f"{prefix}mlp.experts.local_experts.{expert}.linear_fc1.weight", 2 * c["ffn"], hidden, std=0.1)
            normal(f"{prefix}mlp.experts.local_experts.{expert}.linear_fc2.weight", hidden, c["ffn"], std=0.1)
    normal("decoder.final_layernorm.weight", hidden, std=0.1, mean=1.0)
    normal("output_layer.weight", c["vocab"], hidden, std=0.2)
    return params


class NoStream:
    """Stands for the stream on which the dispatcher copies its counts: on the CPU everything is in order."""

    def wait_stream(self, _):
        pass

    def record_event(self):
        return self

    def synchronize(self):
        pass


def whole_name(name, first_expert):
    """Megatron-core counts a rank's experts from 0."""
    head, mark, tail = name.partition("local_experts.")
    if not mark:
        return name
    number, _, rest = tail.partition(".")
    return f"{head}{mark}{int(number) + first_expert}.{rest}"


def run_rank(layout, out_path):
    import megatron_cpu  # noqa: F401
    import torch.distributed as dist
    import torch.nn.functional as F

    torch.cuda.Stream = lambda *args, **kwargs: NoStream()
    torch.cuda.stream = lambda _: nullcontext()
    from megatron.core import __version__ as megatron_version
    from megatron.core import parallel_state as ps
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer, get_standard_config_overrides
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    moe_utils.te_general_gemm = None  # Megatron-core forgets to say so where Transformer Engine is missing
    # Of a tensor on a GPU it makes the numbers that all-to-all takes; one on the CPU it leaves a tensor.
    token_dispatcher.maybe_move_tensor_to_cpu = lambda tensor, as_numpy=False, record_stream=False: (
        tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor)
    torch.set_num_threads(1)
    c = MODEL
    tp, ep, etp, dp, dispatcher = LAYOUTS[layout]
    dist.init_process_group("gloo")
    ps.initialize_model_parallel(tp, expert_model_parallel_size=ep, expert_tensor_parallel_size=etp)
    assert ps.get_data_parallel_world_size() == dp
    config = TransformerConfig(
        num_layers=c["layers"], hidden_size=c["hidden"], num_attention_heads=c["heads"], num_query_groups=c["groups"],
        ffn_hidden_size=c["ffn"], normalization=c["norm"], layernorm_epsilon=c["eps"], add_bias_linear=False, gated_linear_unit=True,
        activation_func=F.silu, hidden_dropout=0.0, attention_dropout=0.0, tensor_model_parallel_size=tp, sequence_parallel=tp > 1,
        expert_model_parallel_size=ep, expert_tensor_parallel_size=etp, num_moe_experts=c["experts"], moe_router_topk=c["topk"],
        moe_ffn_hidden_size=c["ffn"], moe_router_load_balancing_type="aux_loss", moe_aux_loss_coeff=c["aux_loss_coeff"],
        moe_z_loss_coeff=c["z_loss_coeff"], moe_token_dispatcher_type=dispatcher, moe_permute_fusion=False,
        use_cpu_initialization=True, gradient_accumulation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False,
        bias_activation_fusion=False, apply_rope_fusion=False, persist_layer_norm=False)
    spec = get_gpt_layer_local_spec(num_experts=c["experts"], moe_grouped_gemm=False, normalization=c["norm"])
    model = GPTModel(config, spec, c["vocab"], c["seq"], share_embeddings_and_output_weights=False,
                     position_embedding_type=c["positions"], rotary_percent=c["rotary_percent"])
    params = make_params(c)
    first_expert = ps.get_expert_model_parallel_rank() * (c["experts"] // ep)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            rank, size = ps.get_tensor_model_parallel_rank(), tp
            if "local_experts" in name:
                rank, size = ps.get_expert_tensor_parallel_rank(), etp
            parameter.copy_(slice_of(params[whole_name(name, first_expert)], parameter, "linear_fc1" in name, rank, size))
    chunk = DistributedDataParallel(config, DistributedDataParallelConfig(), model)
    optimizer_config = OptimizerConfig(optimizer="adam", lr=ADAMW["lr"], weight_decay=ADAMW["weight_decay"], adam_beta1=ADAMW["betas"][0],
                                       adam_beta2=ADAMW["betas"][1], adam_eps=ADAMW["eps"], clip_grad=CLIP_GRAD,
                                       use_distributed_optimizer=False)
    optimizer = get_megatron_optimizer(optimizer_config, [chunk], get_standard_config_overrides(optimizer_config))
    for group in optimizer.param_groups:
        group["lr"], group["weight_decay"] = ADAMW["lr"], ADAMW["weight_decay"] * group.get("wd_mult", 1.0)
    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss

    positions = torch.arange(c["seq"]).expand(MICRO_BATCH_SIZE, c["seq"])
    masked = torch.triu(torch.ones(1, 1, c["seq"], c["seq"], dtype=torch.bool), 1)

    def forward_step(iterator, model):
        sample = next(iterator)
        output = model(sample[:, :-1].contiguous(), positions, masked, labels=sample[:, 1:].contiguous())
        return output, lambda losses: (losses.mean(), {"loss": losses.detach().mean()})

    forward_backward = get_forward_backward_func()
    losses, norms, side_losses, first_grads = [], [], [], {}
    for step, batch in enumerate(make_batches(c)):
        chunk.zero_grad_buffer()
        optimizer.zero_grad()
        mine = batch[ps.get_data_parallel_rank()::dp]
        reported = forward_backward(forward_step_func=forward_step, data_iterator=iter(mine), model=chunk, num_microbatches=MICROBATCHES // dp,
                                    seq_length=c["seq"], micro_batch_size=MICRO_BATCH_SIZE, decoder_seq_length=c["seq"],
                                    forward_only=False)
        if step == 0 and layout == "one":
            first_grads = {"grad." + name: p.main_grad.clone() for name, p in chunk.module.named_parameters()}
        success, norm, _ = optimizer.step()
        assert success
        norms.append(float(norm))
        loss = torch.stack([r["loss"] for r in reported]).double().mean()
        dist.all_reduce(loss)
        losses.append(float(loss) / dist.get_world_size())
        logged = {}
        moe_utils.track_moe_metrics(dp / MICROBATCHES, step, total_loss_dict=logged, num_layers=c["layers"])
        side_losses.append({name: float(value) for name, value in logged.items() if name != "z_loss" or dist.get_world_size() == 1})
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (losses, norms, side_losses))
    if dist.get_rank() == 0:
        assert all(other == everyone[0] for other in everyone)
        result = dict(losses=losses, grad_norms=norms, side_losses=side_losses, versions=dict(
            megatron_core=megatron_version, torch=str(torch.__version__), python=platform.python_version()))
        if layout == "one":
            finals = {"final." + name: p.detach() for name, p in chunk.module.named_parameters()}
            result["tensors"] = {**first_grads, **finals}
        torch.save(result, out_path)
    dist.barrier()
    dist.destroy_process_group()


def run_layout(layout):
    tp, _, _, dp, _ = LAYOUTS[layout]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.pt")
        subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(tp * dp), __file__, "--rank",
                        layout, path], check=True, env={**os.environ, "CUDA_DEVICE_MAX_CONNECTIONS": "1"})
        return torch.load(path)


def write(out_dir):
    results = {layout: run_layout(layout) for layout in LAYOUTS}
    tensors = {"batch": make_batches(MODEL)}
    tensors.update({"param." + key: value for key, value in make_params(MODEL).items()})
    tensors.update(results["one"]["tensors"])
    table, offset = [], 0
    with open(f"{out_dir}/megatron_moe.bin", "wb") as f:
        for key, tensor in tensors.items():
            raw = tensor.contiguous().numpy().tobytes()
            table.append(dict(name=key, dtype=str(tensor.dtype).removeprefix("torch."), shape=list(tensor.shape), offset=offset))
            offset += len(raw)
            f.write(raw)
    layouts = {layout: dict(zip(("tp", "ep", "etp", "dp", "dispatcher"), LAYOUTS[layout]), losses=result["losses"],
                            grad_norms=result["grad_norms"], side_losses=result["side_losses"]) for layout, result in results.items()}
    doc = dict(config=MODEL, adamw=dict(ADAMW, betas=list(ADAMW["betas"])), clip_grad=CLIP_GRAD, versions=results["one"]["versions"],
               layouts=layouts, tensors=table)
    with open(f"{out_dir}/megatron_moe.json", "w") as f:
        json.dump(doc, f, indent=None)
        f.write("\n")


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        run_rank(*sys.argv[2:])
    else:
        write(sys.argv[1])
