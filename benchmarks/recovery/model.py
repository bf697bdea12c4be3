"""What all subjects train: a small GPT of some milliseconds a step, in fp32, one thread and as many samples a worker; and the line
that a peer's worker writes at each thing that is timed."""
import os
import sys
import time

LAYERS, HIDDEN, HEADS, SEQ, VOCAB, BATCH = 2, 128, 4, 64, 288, 2  # BATCH: samples a worker and step
SAVE_EVERY = 10  # steps between two snapshots (ours) or checkpoints (torchrun's)

SPEC = {
    "name": "bench-recovery",
    "model": {"num_layers": LAYERS, "hidden_size": HIDDEN, "num_attention_heads": HEADS, "seq_length": SEQ, "vocab_size": VOCAB,
              "make_vocab_size_divisible_by": 32, "add_qkv_bias": True, "attention_dropout": 0.0, "hidden_dropout": 0.0},
    "data": {"dataset_provider": "mock"},
    "training": {"micro_batch_size": 1, "train_iters": 200_000, "num_threads": 1, "log_interval": 1},
    "optimizer": {"lr": 3e-4, "weight_decay": 0.1, "adam_beta2": 0.95},
    "evaluation": {"eval_iters": 0},
    "recovery": {"snapshot_interval": SAVE_EVERY, "max_restarts": 1000},
    "resources": {"device": "cpu"},
}


def torch_model():
    import torch
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "train_single"))
    from peer_torch import Gpt
    torch.set_num_threads(1)
    torch.manual_seed(1234)
    model = Gpt(LAYERS, HIDDEN, HEADS, VOCAB, SEQ)
    return model, torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


class Log:
    """Lines "TIME RANK PID EVENT STEP WIDTH" in a file that all workers append to."""

    def __init__(self, path, rank):
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.rank = rank

    def write(self, event, step=-1, width=0):
        os.write(self.file, f"{time.time():.6f} {self.rank} {os.getpid()} {event} {step} {width}\n".encode())
