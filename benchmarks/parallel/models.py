"""The model of the PyTorch peers: peer_torch's GPT with an output layer of its own, in the size of layouts.py."""
import os
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "train_single"))
from peer_torch import Gpt  # noqa: E402

from layouts import MODEL  # noqa: E402


class UntiedGpt(Gpt):
    def __init__(self):
        super().__init__(MODEL["layers"], MODEL["hidden"], MODEL["heads"], MODEL["vocab"], MODEL["seq"])
        self.output = nn.Linear(MODEL["hidden"], MODEL["vocab"], bias=False)
        nn.init.normal_(self.output.weight, std=0.02)

    def forward(self, tokens, labels):
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        logits = self.output(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.reshape(-1))
