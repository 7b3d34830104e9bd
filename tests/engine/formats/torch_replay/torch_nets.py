"""Small modules that the tests of TorchScript files and exported programs save and open again."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn

from explorer.engine.costs.torch.analyse import examine_module
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.facts import Analysis, Layer


class Recurrent(nn.Module):
    """Words to classes, by a bidirectional LSTM of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.rnn = nn.LSTM(16, 32, 2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(64, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.rnn(self.embed(tokens))
        return self.out(states[:, -1])


class Transformer(nn.Module):
    """An encoder of two layers whose output weight is the embedding's."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(tokens)))


class Small(nn.Module):
    """A convolution with its norm, a linear layer that runs twice, and a functional product."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.twice = nn.Linear(16, 16)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(16, 3)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(image))).flatten(2)
        x = x @ x.transpose(1, 2)
        x = self.twice(self.twice(x.flatten(1)))
        return self.out(self.drop(x))


class Looping(nn.Module):
    """Branches on a flag and on a size, and loops: what only a script keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(8, 8)
        self.last = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, steps: int = 3) -> torch.Tensor:
        seen: list[torch.Tensor] = []
        for i in range(steps):
            x = self.step(x)
            if i % 2 == 0:
                seen.append(x)
        if x.size(0) > 1:
            x = torch.stack(seen).sum(0)
        assert x.dim() == 2, "two dimensions"
        return self.last(x)


@torch.jit.script
class Box:
    """A class of the model's own, as detectors have them."""

    def __init__(self, left: torch.Tensor, scale: float) -> None:
        self.left = left
        self.scale = scale

    def scaled(self) -> torch.Tensor:
        return self.left * self.scale


class Detector(nn.Module):
    """Takes a list of images of any sizes and keeps a class of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 3)

    def forward(self, images: list[torch.Tensor]) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for image in images:
            box = Box(self.conv(image.unsqueeze(0)), 2.0)
            found.append(box.scaled())
        return found


class Pair(nn.Module):
    """Two inputs; nothing in it says how large they are."""

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left @ right


IMAGE = torch.zeros(1, 3, 224, 224)
WORDS = torch.zeros(2, 7, dtype=torch.int64)
SMALL = torch.zeros(2, 1, 8, 8)


def resnet() -> nn.Module:
    """A ResNet with each kind of block once: a plain one, and one that makes pictures smaller."""
    block = torchvision.models.resnet.BasicBlock
    return torchvision.models.ResNet(block, [1, 1, 1, 1])


def mobilenet() -> nn.Module:
    """A MobileNetV2 with each kind of block once: without a wider middle, smaller behind it, and added up."""
    return torchvision.models.mobilenet_v2(inverted_residual_setting=[[1, 16, 1, 1], [6, 24, 2, 2]])


MODELS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "resnet": (resnet, IMAGE),
    "mobilenet": (mobilenet, IMAGE),
    "recurrent": (Recurrent, WORDS),
    "transformer": (Transformer, WORDS),
    "small": (Small, SMALL),
}


def by_module(module: nn.Module, *args: torch.Tensor) -> Analysis:
    """The analysis of the module itself."""
    loaded = LoadedModule("net", lambda: module, "", trained=True)
    return examine_module(loaded.meta(), [a.to("meta") for a in args]).analysis


def saved_script(module: nn.Module, args: tuple[Any, ...], path: Path, *, scripted: bool = False) -> str:
    """The module as a TorchScript file."""
    module.eval()
    # with gradients, or attention would be traced as one fused operator
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")
        made = torch.jit.script(module) if scripted else torch.jit.trace(module, args, check_trace=False)
        torch.jit.save(made, str(path))
    return str(path)


def saved_program(module: nn.Module, args: tuple[Any, ...], path: Path, **options: Any) -> str:
    """The module as an exported program."""
    module.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(module, args, **options), str(path))
    return str(path)


def rewritten(
    source: str,
    target: Path,
    change: Mapping[str, bytes | None],
    *,
    packed: bool = False,
    added: Mapping[str, bytes] | None = None,
) -> str:
    """A copy of an archive with entries replaced (their name without the folder), left out by None, or
    added.
    """
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for entry in old.infolist():
            name = entry.filename.partition("/")[2]
            content = change.get(name, old.read(entry))
            if content is not None:
                method = zipfile.ZIP_DEFLATED if packed and name in change else zipfile.ZIP_STORED
                new.writestr(entry.filename, content, method)
        for name, content in (added or {}).items():
            new.writestr(f"{Path(source).stem}/{name}", content)
    return str(target)


def rows(analysis: Analysis) -> dict[str, tuple[Any, ...]]:
    """What must be equal of every module that owns parameters or multiplies, by its path."""
    return {
        layer.path: _row(layer)
        for layer in analysis.layers
        if not layer.group and (layer.params or layer.macs)
    }


def _row(layer: Layer) -> tuple[Any, ...]:
    return layer.kind, layer.calls, layer.params, layer.macs, layer.shared_with
