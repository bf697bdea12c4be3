"""The model and the layouts that benchmarks/parallel compares, and the bytes that each must move."""

# Untied, so that pipeline stages need no gradients of each other's embedding: what all peers can do.
MODEL = dict(layers=8, hidden=384, heads=6, vocab=512, seq=256)
GLOBAL_BATCH = 8  # samples a step


def layout(name, world, micro_batch, peer=None, **parallel):
    """`peer`: "ddp" or "megatron TP PP V SP", what the same work is compared with."""
    return dict(name=name, world=world, micro_batch=micro_batch, peer=peer, parallel=parallel)


ONE = layout("one worker", 1, 4)
LAYOUTS = [
    layout("dp2", 2, 4, "ddp", overlap_grad_reduce=True),
    layout("dp2, distributed optimizer", 2, 4, "ddp", use_distributed_optimizer=True, overlap_grad_reduce=True,
           overlap_param_gather=True),
    layout("tp2", 2, 4, "megatron 2 1 1 0", tensor_model_parallel_size=2),
    layout("tp2, sequence parallel", 2, 4, "megatron 2 1 1 1", tensor_model_parallel_size=2, sequence_parallel=True),
    layout("pp2", 2, 1, "megatron 1 2 1 0", pipeline_model_parallel_size=2),
    layout("pp2, 2 virtual stages", 2, 1, "megatron 1 2 2 0", pipeline_model_parallel_size=2, num_layers_per_virtual_pipeline_stage=2),
    layout("dp4", 4, 2, "ddp", overlap_grad_reduce=True),
    layout("dp4, distributed optimizer", 4, 2, "ddp", use_distributed_optimizer=True, overlap_grad_reduce=True,
           overlap_param_gather=True),
    layout("dp2 x tp2", 4, 4, None, tensor_model_parallel_size=2, overlap_grad_reduce=True),
    layout("tp2 x pp2", 4, 1, "megatron 2 2 1 0", tensor_model_parallel_size=2, pipeline_model_parallel_size=2),
    layout("pp4", 4, 1, "megatron 1 4 1 0", pipeline_model_parallel_size=4),
    layout("pp4, 2 virtual stages", 4, 1, "megatron 1 4 2 0", pipeline_model_parallel_size=4, num_layers_per_virtual_pipeline_stage=1),
]


def spec(entry, steps, **training):
    m = MODEL
    return {
        "name": "bench-parallel",
        "model": {"num_layers": m["layers"], "hidden_size": m["hidden"], "num_attention_heads": m["heads"], "seq_length": m["seq"],
                  "max_position_embeddings": m["seq"], "vocab_size": m["vocab"], "make_vocab_size_divisible_by": 1,
                  "untie_embeddings_and_output_weights": True, "attention_dropout": 0.0, "hidden_dropout": 0.0},
        "parallel": {"distributed_backend": "gloo", **entry["parallel"]},
        "data": {"dataset_provider": "mock"},
        "training": {"micro_batch_size": entry["micro_batch"], "global_batch_size": GLOBAL_BATCH, "train_iters": steps,
                     "num_threads": 1, **training},
        "optimizer": {"lr": 3e-4, "weight_decay": 0.1, "adam_beta2": 0.95},
        "evaluation": {"eval_iters": 0},
        "resources": {"world_size": entry["world"], "device": "cpu"},
    }


def shape(entry):
    """tp, pp, v, dp, microbatches a step."""
    p = entry["parallel"]
    tp, pp = p.get("tensor_model_parallel_size", 1), p.get("pipeline_model_parallel_size", 1)
    per_stage = p.get("num_layers_per_virtual_pipeline_stage")
    v = MODEL["layers"] // pp // per_stage if per_stage else 1
    dp = entry["world"] // tp // pp
    return tp, pp, v, dp, GLOBAL_BATCH // dp // entry["micro_batch"]


def formula_bytes(entry, parameters):
    """Of each pipeline stage: group -> bytes that a rank sends a step, at least (fp32). `parameters`: elements, by rank of the job
    (stages are the slowest axis)."""
    tp, pp, v, dp, m = shape(entry)
    sequence_parallel = entry["parallel"].get("sequence_parallel", False)
    hidden = 4 * entry["micro_batch"] * MODEL["seq"] * MODEL["hidden"]  # one activation, bytes
    ranks = []
    for stage in range(pp):
        sent = {}
        # Gradients are all-reduced, or reduce-scattered and the parameters gathered: the same.
        sent["dp"] = 2 * (dp - 1) / dp * 4 * parameters[stage * tp * dp]
        # A layer all-reduces the outputs of its two row-parallel products and, backwards, the inputs' gradients of its two
        # column-parallel ones; so do the embedding (forward) and the output layer (backward). With sequence parallelism each
        # all-reduce is a reduce-scatter and an all-gather, and the backward pass gathers the columns' inputs once more.
        columns = 2 * MODEL["layers"] // pp + (stage == pp - 1)
        rows = 2 * MODEL["layers"] // pp + (stage == 0)
        share = (tp - 1) / tp
        sent["tp"] = m * share * hidden * 2 * (columns + rows)
        if sequence_parallel:
            # Learned positions need the embedding's all-reduce whole; its gradient is gathered all the same. Norms and the biases
            # that are added to a slice have gradients to sum, once a step.
            sliced = (6 * MODEL["layers"] // pp + 2 * (stage == pp - 1)) * MODEL["hidden"]
            sent["tp"] += m * share * hidden * (columns + (stage == 0)) + 2 * share * 4 * sliced
        # Each chunk but the last sends an activation on, each but the first a gradient back, every microbatch.
        chunks = 2 * v - (stage == 0) - (stage == pp - 1)
        sent["pp"] = m * chunks * hidden / (tp if sequence_parallel else 1) if pp > 1 else 0
        ranks.append(sent)
    return ranks
