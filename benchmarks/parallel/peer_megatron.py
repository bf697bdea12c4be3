"""The peer: the same model in Megatron-core, on the CPU over gloo. Usage: torchrun ... peer_megatron.py TP PP VIRTUAL
SEQUENCE_PARALLEL [EXPERT_PARALLEL DISPATCHER] MICRO_BATCH GLOBAL_BATCH STEPS. With a dispatcher each layer has a mixture of experts
(layouts.py). Rank 0 prints a JSON line with the seconds of each step.

In its favour: PyTorch's fused AdamW instead of Megatron's own optimizer (which has no fused form on the CPU), and clipping by each
rank's own norm without a reduction. Its data-parallel wrapper runs only where there are replicas.
"""
import json
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "golden"))
import megatron_cpu  # noqa: E402, F401
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from megatron.core import parallel_state as ps  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402

from layouts import EXPERTS, MODEL  # noqa: E402

tp, pp, virtual, sequence_parallel = (int(a) for a in sys.argv[1:5])
expert_parallel, dispatcher = (int(sys.argv[5]), sys.argv[6]) if len(sys.argv) == 10 else (1, None)
micro_batch, global_batch, steps = (int(a) for a in sys.argv[-3:])
torch.set_num_threads(1)
dist.init_process_group("gloo")
ps.initialize_model_parallel(tp, pp, virtual if virtual > 1 else None, expert_model_parallel_size=expert_parallel)
replicas = ps.get_data_parallel_world_size()
seq, microbatches = MODEL["seq"], global_batch // micro_batch // replicas
experts = {}
if dispatcher:
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    moe_utils.te_general_gemm = None  # asked for without Transformer Engine too
    torch.cuda.Stream = lambda *args, **kwargs: None

    def on_host(dispatcher, point, counts=None):  # in place of the copies from a GPU
        for name in ("input_splits", "output_splits"):
            if isinstance(getattr(dispatcher, name), torch.Tensor):
                setattr(dispatcher, name, getattr(dispatcher, name).tolist())
        return counts

    token_dispatcher.MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize = on_host
    experts = dict(num_moe_experts=EXPERTS["num_experts"], moe_router_topk=EXPERTS["moe_router_topk"],
                   moe_ffn_hidden_size=EXPERTS["moe_ffn_hidden_size"], add_bias_linear=False, moe_token_dispatcher_type=dispatcher,
                   moe_router_load_balancing_type="none", expert_model_parallel_size=expert_parallel)
torch.manual_seed(1234)
config = TransformerConfig(
    num_layers=MODEL["layers"], hidden_size=MODEL["hidden"], num_attention_heads=MODEL["heads"], ffn_hidden_size=4 * MODEL["hidden"],
    hidden_dropout=0.0, attention_dropout=0.0, activation_func=F.gelu, tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp,
    sequence_parallel=bool(sequence_parallel), virtual_pipeline_model_parallel_size=virtual if virtual > 1 else None,
    pipeline_dtype=torch.float32, use_cpu_initialization=True,
    gradient_accumulation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False, bias_activation_fusion=False,
    persist_layer_norm=False, batch_p2p_comm=False, overlap_p2p_comm=virtual > 1, deallocate_pipeline_outputs=virtual == 1, **experts)
layer = get_gpt_layer_local_spec(num_experts=experts.get("num_moe_experts"))
chunks = []
for chunk in range(virtual):
    stage = dict(vp_stage=chunk) if virtual > 1 else {}
    chunks.append(GPTModel(config, layer, MODEL["vocab"], seq,
                           pre_process=ps.is_pipeline_first_stage(ignore_virtual=False, **stage),
                           post_process=ps.is_pipeline_last_stage(ignore_virtual=False, **stage),
                           share_embeddings_and_output_weights=False, **stage))
if replicas > 1:
    chunks = [DistributedDataParallel(config, DistributedDataParallelConfig(), chunk) for chunk in chunks]
    config.finalize_model_grads_func = finalize_model_grads
parameters = [p for chunk in chunks for p in chunk.parameters()]
optimizer = torch.optim.AdamW(parameters, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
forward_backward = get_forward_backward_func()
positions = torch.arange(seq).expand(micro_batch, seq)
masked = torch.triu(torch.ones(1, 1, seq, seq, dtype=torch.bool), 1)


def forward_step(iterator, model):
    sample = next(iterator)
    output = model(sample[:, :-1].contiguous(), positions, masked, labels=sample[:, 1:].contiguous())
    return output, lambda losses: (losses.mean(), {"loss": losses.detach().mean()})


generator = torch.Generator().manual_seed(3 + ps.get_data_parallel_rank())
seconds = []
for _ in range(steps):
    data = torch.randint(0, MODEL["vocab"], (microbatches, micro_batch, seq + 1), generator=generator)
    start = time.perf_counter()
    if replicas > 1:
        for chunk in chunks:
            chunk.zero_grad_buffer()
    iterators = [iter(data) for _ in chunks]
    forward_backward(forward_step_func=forward_step, data_iterator=iterators if virtual > 1 else iterators[0],
                     model=chunks if virtual > 1 else chunks[0], num_microbatches=microbatches, seq_length=seq,
                     micro_batch_size=micro_batch, decoder_seq_length=seq, forward_only=False)
    if replicas > 1:
        for parameter in parameters:
            parameter.grad = parameter.main_grad
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    seconds.append(time.perf_counter() - start)
everyone = [None] * dist.get_world_size()
dist.all_gather_object(everyone, seconds)
if dist.get_rank() == 0:
    # A stage that is done early starts its next step early: the mean over ranks is the step.
    print(json.dumps({"seconds": [sum(step) / len(step) for step in zip(*everyone)]}), flush=True)
dist.barrier()
dist.destroy_process_group()
