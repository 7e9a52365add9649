"""Replace the output layer of an existing model: three lines, and what it does to memory.

    python bench/examples/replace_linear.py [--labels 670091] [--fan-in 32]

A model that ends in ``nn.Linear(hidden, labels)`` needs weight, gradient and two Adam moments of that size.
Needs torch: ``pip install '.[nn]' -c constraints.txt``.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from xmc_fast.nn.fanin import FixedFanInLinear


class TheirModel(nn.Module):
    """Stands for any model with a large output layer."""

    def __init__(self, vocabulary: int, hidden: int, labels: int, device: str) -> None:
        super().__init__()
        self.encoder = nn.EmbeddingBag(vocabulary, hidden, device=device)
        self.classifier = nn.Linear(hidden, labels, device=device)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.classifier(torch.relu(self.encoder(tokens)))


def training_bytes(model: nn.Module) -> int:
    """Weights, gradients and two Adam moments; and the buffers."""
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    return 4 * parameters + sum(b.numel() * b.element_size() for b in model.buffers())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--labels", type=int, default=670_091)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--fan-in", type=int, default=32)
    options = parser.parse_args()

    # "meta": the dense layer is only described, it may not fit
    model = TheirModel(1000, options.hidden, options.labels, device="meta")
    before = training_bytes(model)

    # the three lines
    old = model.classifier
    model.classifier = FixedFanInLinear(old.in_features, old.out_features, fan_in=options.fan_in)
    model.encoder.to_empty(device="cpu").reset_parameters()

    after = training_bytes(model)
    tokens = torch.randint(1000, (8, 16))
    loss = model(tokens).square().mean()
    loss.backward()
    gradients = all(p.grad is not None for p in model.parameters())
    print(f"loss {loss.item():.4f}, every parameter has a gradient: {gradients}")
    print(f"training memory (weights, gradients, Adam): {before / 2**20:.0f} MiB -> {after / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
