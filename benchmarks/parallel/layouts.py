"""The model and the layouts that benchmarks/parallel compares, and the bytes that each must move."""

# Untied, so that pipeline stages need no gradients of each other's embedding: what all peers can do.
MODEL = dict(layers=8, hidden=384, heads=6, vocab=512, seq=256)
GLOBAL_BATCH = 8  # samples a step


# The same with a mixture of experts in each layer; a token's two experts are as wide together as the dense model's feed-forward block.
EXPERTS = dict(num_experts=8, moe_router_topk=2, moe_ffn_hidden_size=2 * MODEL["hidden"], add_bias_linear=False)


def layout(name, world, micro_batch, peer=None, model=None, **parallel):
    """`peer`: what the same work is compared with: "ddp", "fsdp2 RESHARD_AFTER_FORWARD" or
    "megatron TP PP VIRTUAL SEQUENCE_PARALLEL [EP DISPATCHER]". `model`: settings beside MODEL."""
    return dict(name=name, world=world, micro_batch=micro_batch, peer=peer, model=model or {}, parallel=parallel)


def experts(name, world, micro_batch, dispatcher, grouped_gemm=True, **parallel):
    """Megatron-core has no grouped product on the CPU: its experts are a loop."""
    ep = parallel.get("expert_model_parallel_size", 1)
    model = dict(EXPERTS, moe_token_dispatcher_type=dispatcher, moe_grouped_gemm=grouped_gemm)
    return layout(name, world, micro_batch, f"megatron 1 1 1 0 {ep} {dispatcher}", model, overlap_grad_reduce=world > 1, **parallel)


def megatron_fsdp(strategy, world, micro_batch):
    return layout(f"dp{world}, fsdp {strategy}", world, micro_batch, "ddp" if strategy == "no_shard" else "fsdp2 1", use_megatron_fsdp=True,
                  data_parallel_sharding_strategy=strategy, overlap_grad_reduce=True, overlap_param_gather=strategy != "no_shard")


def fsdp2(world, micro_batch, reshard):
    return layout(f"dp{world}, torch fsdp2" + ("" if reshard else ", no reshard"), world, micro_batch, f"fsdp2 {int(reshard)}",
                  use_torch_fsdp2=True, torch_fsdp2_reshard_after_forward=reshard)


STRATEGIES = ("no_shard", "optim", "optim_grads", "optim_grads_params")
ONE = layout("one worker", 1, 4)
ONE_WITH_EXPERTS = experts("one worker, experts", 1, 4, "allgather")
LAYOUTS = [
    layout("dp2", 2, 4, "ddp", overlap_grad_reduce=True),
    layout("dp2, distributed optimizer", 2, 4, "ddp", use_distributed_optimizer=True, overlap_grad_reduce=True,
           overlap_param_gather=True),
    layout("tp2", 2, 4, "megatron 2 1 1 0", tensor_model_parallel_size=2),
    layout("tp2, sequence parallel", 2, 4, "megatron 2 1 1 1", tensor_model_parallel_size=2, sequence_parallel=True),
    layout("pp2", 2, 1, "megatron 1 2 1 0", pipeline_model_parallel_size=2),
    layout("pp2, 2 virtual stages", 2, 1, "megatron 1 2 2 0", pipeline_model_parallel_size=2, num_layers_per_virtual_pipeline_stage=2),
    # Neither peer has context parallelism on the CPU.
    *(layout(f"cp2, {kind}", 2, 4, None, context_parallel_size=2, cp_comm_type=kind, overlap_grad_reduce=True)
      for kind in ("p2p", "all_gather", "a2a")),
    experts("ep2, allgather", 2, 4, "allgather", expert_model_parallel_size=2),
    experts("ep2, alltoall", 2, 4, "alltoall", expert_model_parallel_size=2),
    experts("ep2, alltoall, loop", 2, 4, "alltoall", grouped_gemm=False, expert_model_parallel_size=2),
    *(megatron_fsdp(strategy, 2, 4) for strategy in STRATEGIES),
    fsdp2(2, 4, True),
    fsdp2(2, 4, False),
    layout("dp4", 4, 2, "ddp", overlap_grad_reduce=True),
    layout("dp4, distributed optimizer", 4, 2, "ddp", use_distributed_optimizer=True, overlap_grad_reduce=True,
           overlap_param_gather=True),
    layout("dp2 x tp2", 4, 4, None, tensor_model_parallel_size=2, overlap_grad_reduce=True),
    layout("tp2 x pp2", 4, 1, "megatron 2 2 1 0", tensor_model_parallel_size=2, pipeline_model_parallel_size=2),
    layout("pp4", 4, 1, "megatron 1 4 1 0", pipeline_model_parallel_size=4),
    layout("pp4, 2 virtual stages", 4, 1, "megatron 1 4 2 0", pipeline_model_parallel_size=4, num_layers_per_virtual_pipeline_stage=1),
    layout("cp4, p2p", 4, 4, None, context_parallel_size=4, overlap_grad_reduce=True),
    layout("tp2 x cp2", 4, 4, None, tensor_model_parallel_size=2, context_parallel_size=2, overlap_grad_reduce=True),
    experts("ep4, allgather", 4, 2, "allgather", expert_model_parallel_size=4),
    experts("ep4, alltoall", 4, 2, "alltoall", expert_model_parallel_size=4),
    *(megatron_fsdp(strategy, 4, 2) for strategy in STRATEGIES),
    fsdp2(4, 2, True),
    fsdp2(4, 2, False),
]


def one_worker(entry):
    """What a layout's speed-up is counted from."""
    return ONE_WITH_EXPERTS if entry["model"] else ONE


def spec(entry, steps, shared_memory=True, **training):
    m = MODEL
    return {
        "name": "bench-parallel",
        "model": {"num_layers": m["layers"], "hidden_size": m["hidden"], "num_attention_heads": m["heads"], "seq_length": m["seq"],
                  "max_position_embeddings": m["seq"], "vocab_size": m["vocab"], "make_vocab_size_divisible_by": 1,
                  "untie_embeddings_and_output_weights": True, "attention_dropout": 0.0, "hidden_dropout": 0.0, **entry["model"]},
        "parallel": {"distributed_backend": "gloo", "shared_memory": shared_memory, **entry["parallel"]},
        "data": {"dataset_provider": "mock"},
        "training": {"micro_batch_size": entry["micro_batch"], "global_batch_size": GLOBAL_BATCH, "train_iters": steps,
                     "num_threads": 1, **training},
        "optimizer": {"lr": 3e-4, "weight_decay": 0.1, "adam_beta2": 0.95},
        "evaluation": {"eval_iters": 0},
        "resources": {"world_size": entry["world"], "device": "cpu"},
    }


def shape(entry):
    """tp, pp, v, cp x dp, microbatches a step."""
    p = entry["parallel"]
    tp, pp = p.get("tensor_model_parallel_size", 1), p.get("pipeline_model_parallel_size", 1)
    per_stage = p.get("num_layers_per_virtual_pipeline_stage")
    v = MODEL["layers"] // pp // per_stage if per_stage else 1
    dp = entry["world"] // tp // pp
    return tp, pp, v, dp, GLOBAL_BATCH * p.get("context_parallel_size", 1) // dp // entry["micro_batch"]


def gathered_bytes(entry, parameters, dp, m):
    """What data parallelism reduces and gathers a step, in all: bytes of tensors that n ranks exchange as (n - 1) / n. `parameters`:
    that a rank holds, its shard where they are sharded."""
    p = entry["parallel"]
    strategy = p.get("data_parallel_sharding_strategy")
    if p.get("use_torch_fsdp2") or strategy == "optim_grads_params":
        parameters *= dp
    root = 4 * MODEL["hidden"] * (2 * MODEL["vocab"] + MODEL["seq"] + 2)  # embeddings, last norm, output layer
    units = 4 * parameters - root
    if p.get("use_torch_fsdp2"):  # gradients; parameters forward and, where they are freed, backward
        return m * (4 * parameters + root + (2 if p["torch_fsdp2_reshard_after_forward"] else 1) * units)
    if strategy == "optim_grads_params":  # the root stays gathered through the step
        return m * (4 * parameters + 2 * units) + root
    if strategy == "optim_grads":
        return (m + 1) * 4 * parameters
    # All-reduced; or reduce-scattered once, and the parameters gathered: the same.
    return 2 * 4 * parameters


def context_bytes(entry, tp, layers, m):
    """Keys and values, forward and backward."""
    p = entry["parallel"]
    cp = p.get("context_parallel_size", 1)
    part = 4 * entry["micro_batch"] * MODEL["seq"] * MODEL["hidden"] / cp / tp  # of one of Q, K, V
    if p.get("cp_comm_type") == "a2a":  # Q, K, V and the output, and the gradients of the four
        return m * layers * 8 * (cp - 1) / cp * part
    # Round the ring, or gathered: K and V forward; both again and their gradients backward.
    return m * layers * 3 * (cp - 1) * 2 * part


def expert_bytes(entry, m):
    """Tokens there and back, forward and backward, and their weights, if the router spreads them evenly."""
    ep, e = entry["parallel"].get("expert_model_parallel_size", 1), entry["model"]
    if ep == 1:
        return 0
    tokens, experts = entry["micro_batch"] * MODEL["seq"], e["num_experts"]
    if e["moe_token_dispatcher_type"] == "alltoall":
        layer = (ep - 1) / ep * tokens * e["moe_router_topk"] * 4 * (4 * MODEL["hidden"] + 2)
    else:  # map (a byte a place), weights and tokens, gathered and reduce-scattered
        layer = (ep - 1) * tokens * (4 * (4 * MODEL["hidden"] + 2 * experts) + experts)
    return m * MODEL["layers"] * layer


def formula_bytes(entry, parameters):
    """Of each pipeline stage: group -> bytes that a rank sends a step, at least (fp32). `parameters`: elements, by rank of the job
    (stages are the slowest axis)."""
    tp, pp, v, dp, m = shape(entry)
    sequence_parallel = entry["parallel"].get("sequence_parallel", False)
    cp, ep = (entry["parallel"].get(f"{name}_parallel_size", 1) for name in ("context", "expert_model"))
    layers = MODEL["layers"] // pp
    hidden = 4 * entry["micro_batch"] * MODEL["seq"] // cp * MODEL["hidden"]  # one activation, bytes
    ranks = []
    for stage in range(pp):
        sent = {}
        own = parameters[stage * tp * dp]
        of_experts = 0
        if ep > 1:
            of_experts = layers * entry["model"]["num_experts"] // ep * 2 * MODEL["hidden"] * entry["model"]["moe_ffn_hidden_size"]
        sent["dp"] = (dp - 1) / dp * gathered_bytes(entry, own - of_experts, dp, m)
        sent["dp"] += 2 * (dp // ep - 1) / (dp // ep) * 4 * of_experts
        sent["cp"] = context_bytes(entry, tp, layers, m)
        sent["ep"] = expert_bytes(entry, m)
        # A layer all-reduces the outputs of its two row-parallel products and, backwards, the inputs' gradients of its two
        # column-parallel ones; so do the embedding (forward) and the output layer (backward). With sequence parallelism each
        # all-reduce is a reduce-scatter and an all-gather, and the backward pass gathers the columns' inputs once more.
        columns = 2 * layers + (stage == pp - 1)
        rows = 2 * layers + (stage == 0)
        share = (tp - 1) / tp
        sent["tp"] = m * share * hidden * 2 * (columns + rows)
        if sequence_parallel:
            # Learned positions need the embedding's all-reduce whole; its gradient is gathered all the same. Norms and the biases
            # that are added to a slice have gradients to sum, once a step.
            sliced = (6 * layers + 2 * (stage == pp - 1)) * MODEL["hidden"]
            sent["tp"] += m * share * hidden * (columns + (stage == 0)) + 2 * share * 4 * sliced
        # Each chunk but the last sends an activation on, each but the first a gradient back, every microbatch.
        chunks = 2 * v - (stage == 0) - (stage == pp - 1)
        sent["pp"] = m * chunks * hidden / (tp if sequence_parallel else 1) if pp > 1 else 0
        ranks.append(sent)
    return ranks
