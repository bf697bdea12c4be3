"""Writes the reference numbers of the parallel layouts: a GPT-2-like and a Llama-like model of four layers in Megatron-core, on the
CPU over gloo, with its own DDP, finalize_model_grads, optimizer (AdamW, clipping at the norm over the model-parallel group) and
pipeline schedules.

Usage: python make_megatron_goldens.py OUTPUT_DIR    (needs megatron-core; versions are recorded in the files)

For each model a pair of files:
  megatron_<name>.json   configuration, versions, table of tensors; "layouts": name -> ten losses, ten gradient norms (before
                         clipping) and, for one process, the first step's gradients are among the tensors
  megatron_<name>.bin    the tensors, little endian, contiguous, in the table's order
Tensors: batch (int64: steps, microbatches, samples, tokens + 1); param.<name> (fp32, the start of all runs, whole: each layout
takes its slices and layers); grad.<name> (of one process, first step, before clipping); final.<name> (of one process).
"""
import json
import os
import platform
import subprocess
import sys
import tempfile

import torch

MODELS = {
    "gpt2": dict(layers=4, hidden=32, heads=4, groups=4, ffn=64, vocab=64, seq=32, norm="LayerNorm", positions="learned_absolute",
                 swiglu=False, bias=True, tied=True, rotary_percent=1.0, eps=1e-5),
    "llama": dict(layers=4, hidden=32, heads=4, groups=2, ffn=48, vocab=64, seq=32, norm="RMSNorm", positions="rope", swiglu=True,
                  bias=False, tied=False, rotary_percent=1.0, eps=1e-5),
}
# name -> tensor parallel, sequence parallel, pipeline stages, virtual stages a rank
LAYOUTS = {"one": (1, False, 1, 1), "tp2": (2, False, 1, 1), "tp2_sp": (2, True, 1, 1), "pp2": (1, False, 2, 1),
           "pp2_v2": (1, False, 2, 2), "tp2_pp2": (2, False, 2, 1)}
ADAMW = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
CLIP_GRAD = 1.0
STEPS, MICROBATCHES, MICRO_BATCH_SIZE = 10, 4, 2


def make_params(c):
    """Name -> whole tensor; norms and biases away from 1 and 0 so that their use shows."""
    generator = torch.Generator().manual_seed(1234)
    params = {}

    def normal(name, *shape, std=0.05, mean=0.0):
        params[name] = (torch.randn(*shape, generator=generator, dtype=torch.float64) * std + mean).float()

    hidden, width = c["hidden"], c["hidden"] // c["heads"]

    def norm(name):
        normal(name + ".weight", hidden, std=0.1, mean=1.0)
        if c["norm"] == "LayerNorm":
            normal(name + ".bias", hidden, std=0.1)

    def linear(name, outputs, inputs):
        normal(name + ".weight", outputs, inputs, std=0.1)
        if c["bias"]:
            normal(name + ".bias", outputs, std=0.02)

    normal("embedding.word_embeddings.weight", c["vocab"], hidden, std=0.2)
    if c["positions"] == "learned_absolute":
        normal("embedding.position_embeddings.weight", c["seq"], hidden)
    for layer in range(c["layers"]):
        prefix = f"decoder.layers.{layer}."
        norm(prefix + "input_layernorm")
        linear(prefix + "self_attention.linear_proj", hidden, c["heads"] * width)
        linear(prefix + "self_attention.linear_qkv", (c["heads"] + 2 * c["groups"]) * width, hidden)
        norm(prefix + "pre_mlp_layernorm")
        linear(prefix + "mlp.linear_fc1", c["ffn"] * (2 if c["swiglu"] else 1), hidden)
        linear(prefix + "mlp.linear_fc2", hidden, c["ffn"])
    norm("decoder.final_layernorm")
    if not c["tied"]:
        normal("output_layer.weight", c["vocab"], hidden, std=0.2)
    return params


def make_batches(c):
    generator = torch.Generator().manual_seed(4321)
    return torch.randint(0, c["vocab"], (STEPS, MICROBATCHES, MICRO_BATCH_SIZE, c["seq"] + 1), generator=generator)


# ---- one rank of a layout, with Megatron-core

def whole_name(name, layer_offset):
    """Megatron-core counts a chunk's layers from 0; a last stage's copy of the tied embedding is its output layer."""
    if name.startswith("decoder.layers."):
        head, tail = name[len("decoder.layers."):].split(".", 1)
        return f"decoder.layers.{int(head) + layer_offset}.{tail}"
    return name


def slice_of(whole, parameter, swiglu_fc1, rank, size):
    """What a tensor-parallel rank holds: along partition_dim its part, of gate and of up each in SwiGLU's first product."""
    if not getattr(parameter, "tensor_model_parallel", False) or size == 1:
        return whole
    blocks = whole.chunk(2 if swiglu_fc1 else 1, dim=parameter.partition_dim)
    return torch.cat([block.chunk(size, dim=parameter.partition_dim)[rank] for block in blocks], dim=parameter.partition_dim)


def run_rank(model_name, layout, out_path):
    import megatron_cpu  # noqa: F401
    import torch.distributed as dist
    import torch.nn.functional as F
    from megatron.core import __version__ as megatron_version
    from megatron.core import parallel_state as ps
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer, get_standard_config_overrides
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.transformer import TransformerConfig

    torch.set_num_threads(1)
    c = MODELS[model_name]
    tp, sequence_parallel, pp, virtual = LAYOUTS[layout]
    dist.init_process_group("gloo")
    ps.initialize_model_parallel(tp, pp, virtual if virtual > 1 else None)
    config = TransformerConfig(
        num_layers=c["layers"], hidden_size=c["hidden"], num_attention_heads=c["heads"], num_query_groups=c["groups"],
        ffn_hidden_size=c["ffn"], normalization=c["norm"], layernorm_epsilon=c["eps"], add_bias_linear=c["bias"],
        gated_linear_unit=c["swiglu"], activation_func=F.silu if c["swiglu"] else F.gelu, hidden_dropout=0.0, attention_dropout=0.0,
        tensor_model_parallel_size=tp, sequence_parallel=sequence_parallel, pipeline_model_parallel_size=pp,
        virtual_pipeline_model_parallel_size=virtual if virtual > 1 else None, pipeline_dtype=torch.float32,
        use_cpu_initialization=True, gradient_accumulation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False,
        bias_activation_fusion=False, apply_rope_fusion=False, persist_layer_norm=False, batch_p2p_comm=False,
        overlap_p2p_comm=virtual > 1,
        # With overlap an output would lose its memory while gloo still reads it (CUDA's streams order the two).
        deallocate_pipeline_outputs=virtual == 1)
    params = make_params(c)
    chunks = []
    for chunk in range(virtual):
        stage = dict(vp_stage=chunk) if virtual > 1 else {}
        first = ps.is_pipeline_first_stage(ignore_virtual=False, **stage)
        last = ps.is_pipeline_last_stage(ignore_virtual=False, **stage)
        model = GPTModel(config, get_gpt_layer_local_spec(normalization=c["norm"]), c["vocab"], c["seq"], pre_process=first,
                         post_process=last, share_embeddings_and_output_weights=c["tied"], position_embedding_type=c["positions"],
                         rotary_percent=c["rotary_percent"], **stage)
        offset = model.decoder.layers[0].layer_number - 1
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                name = whole_name(name, offset)
                if c["tied"] and name == "output_layer.weight":
                    name = "embedding.word_embeddings.weight"
                parameter.copy_(slice_of(params[name], parameter, c["swiglu"] and "linear_fc1" in name,
                                         ps.get_tensor_model_parallel_rank(), tp))
        chunks.append(DistributedDataParallel(config, DistributedDataParallelConfig(), model))
    optimizer_config = OptimizerConfig(optimizer="adam", lr=ADAMW["lr"], weight_decay=ADAMW["weight_decay"], adam_beta1=ADAMW["betas"][0],
                                       adam_beta2=ADAMW["betas"][1], adam_eps=ADAMW["eps"], clip_grad=CLIP_GRAD,
                                       use_distributed_optimizer=False)
    optimizer = get_megatron_optimizer(optimizer_config, chunks, get_standard_config_overrides(optimizer_config))
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
    losses, norms, first_grads = [], [], {}
    for step, batch in enumerate(make_batches(c)):
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        iterators = [iter(batch) for _ in chunks]
        reported = forward_backward(forward_step_func=forward_step, data_iterator=iterators if virtual > 1 else iterators[0],
                                    model=chunks if virtual > 1 else chunks[0], num_microbatches=MICROBATCHES, seq_length=c["seq"],
                                    micro_batch_size=MICRO_BATCH_SIZE, decoder_seq_length=c["seq"], forward_only=False)
        if step == 0 and layout == "one":
            first_grads = {"grad." + name: p.main_grad.clone() for name, p in chunks[0].module.named_parameters()}
        success, norm, _ = optimizer.step()
        assert success
        norms.append(float(norm))
        if reported:
            losses.append(float(torch.stack([r["loss"] for r in reported]).double().mean()))
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (losses, norms))
    if dist.get_rank() == 0:
        assert all(n == norms for _, n in everyone)
        result = dict(losses=next(known for known, _ in everyone if known), grad_norms=norms, versions=dict(
            megatron_core=megatron_version, torch=str(torch.__version__), python=platform.python_version()))
        if layout == "one":
            finals = {"final." + name: p.detach() for name, p in chunks[0].module.named_parameters()}
            result["tensors"] = {**first_grads, **finals}
        torch.save(result, out_path)
    dist.barrier()
    dist.destroy_process_group()


# ---- all layouts of a model

def run_layout(model_name, layout):
    tp, _, pp, _ = LAYOUTS[layout]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.pt")
        subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(tp * pp), __file__,
                        "--rank", model_name, layout, path], check=True, env={**os.environ, "CUDA_DEVICE_MAX_CONNECTIONS": "1"})
        return torch.load(path)


def write(out_dir, name):
    c = MODELS[name]
    results = {layout: run_layout(name, layout) for layout in LAYOUTS}
    tensors = {"batch": make_batches(c)}
    tensors.update({"param." + key: value for key, value in make_params(c).items()})
    tensors.update(results["one"]["tensors"])
    table, offset = [], 0
    with open(f"{out_dir}/megatron_{name}.bin", "wb") as f:
        for key, tensor in tensors.items():
            raw = tensor.contiguous().numpy().tobytes()
            table.append(dict(name=key, dtype=str(tensor.dtype).removeprefix("torch."), shape=list(tensor.shape), offset=offset))
            offset += len(raw)
            f.write(raw)
    doc = dict(config=c, adamw=dict(ADAMW, betas=list(ADAMW["betas"])), clip_grad=CLIP_GRAD, versions=results["one"]["versions"],
               layouts={layout: dict(zip(("tp", "sequence_parallel", "pp", "vpp"), LAYOUTS[layout]), losses=result["losses"],
                                     grad_norms=result["grad_norms"]) for layout, result in results.items()},
               tensors=table)
    with open(f"{out_dir}/megatron_{name}.json", "w") as f:
        json.dump(doc, f, indent=None)
        f.write("\n")


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        run_rank(*sys.argv[2:])
    else:
        for model in MODELS:
            write(sys.argv[1], model)
