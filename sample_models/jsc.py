"""The jet classifiers of the sample models as nn.Modules: `explorer info sample_models/jsc.py:jsc_tiny`.

They train on jets_train.npz in a minute: `explorer train sample_models/jsc.py:jsc_tiny_x10 --data
sample_models/jets_train.npz -o jsc.ckpt`. Their layers are called as in the .onnx files.
"""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["jsc_tiny", "jsc_tiny_x10"]


class Classifier(nn.Module):
    """Layers one after the other, from 16 features to scores of five classes."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def jsc_tiny() -> tuple[nn.Module, torch.Tensor]:
    """BatchNorm1d, ReLU, Linear, ReLU, and an example of its input."""
    net = Classifier(nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5), nn.ReLU())
    return net, torch.zeros(1, 16)


def jsc_tiny_x10() -> tuple[nn.Module, torch.Tensor]:
    """Three of BatchNorm1d, ReLU, Linear."""
    sizes = ((16, 40), (40, 25), (25, 5))
    layers = [part for a, b in sizes for part in (nn.BatchNorm1d(a), nn.ReLU(), nn.Linear(a, b))]
    return Classifier(*layers), torch.zeros(1, 16)
