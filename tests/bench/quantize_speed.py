"""Speed and noise of `quantize --to int8` in stock onnxruntime, beside float32 and `quantize_static`.

    python -m tests.bench quantize_speed --folder FOLDER

Models run on one thread, one after the other, in many short rounds, and the shortest run of each counts: a
ratio of shortest runs holds on a machine that others load. Weights are random, with batch statistics of
random images.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from tests.bench.tile import Line, ms

SIZES = {"resnet18": 224, "mobilenet_v3_small": 224, "unet": 128}
_SECONDS, _LEAST = 15.0, 5


def export(name: str, path: Path) -> None:
    """A model of torchvision's, or a U-Net, after it has seen batches of random images."""
    import torch

    torch.manual_seed(0)
    model = unet() if name == "unet" else _of_torchvision(name)
    size = SIZES[name]
    with torch.no_grad():
        for _ in range(3):
            model.train()(torch.randn(4, 3, size, size))
    image = torch.randn(1, 3, size, size)
    names: dict[str, Any] = {"input_names": ["x"], "output_names": ["y"]}
    torch.onnx.export(model.eval(), (image,), str(path), opset_version=17, dynamo=False, **names)


def _of_torchvision(name: str) -> Any:
    import torchvision

    return torchvision.models.get_model(name, weights=None)


def unet(width: int = 16) -> Any:
    """Three halvings with pooling, three doublings with transposed convolutions, concatenations between."""
    import torch
    from torch import nn

    def block(inner: int, outer: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for channels in (inner, outer):
            layers += [nn.Conv2d(channels, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU()]
        return nn.Sequential(*layers)

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = [width << at for at in range(4)]
            self.down = nn.ModuleList(map(block, (3, *widths), widths))
            pairs = [*zip(widths[:0:-1], widths[-2::-1], strict=True)]
            self.up = nn.ModuleList(nn.ConvTranspose2d(wide, narrow, 2, 2) for wide, narrow in pairs)
            self.after = nn.ModuleList(block(wide, narrow) for wide, narrow in pairs)
            self.pool, self.head = nn.MaxPool2d(2), nn.Conv2d(width, 2, 1)

        def forward(self, x: Any) -> Any:
            kept = []
            for layer in self.down:
                x = layer(self.pool(x) if kept else x)
                kept.append(x)
            for up, after, other in zip(self.up, self.after, kept[-2::-1], strict=True):
                x = after(torch.cat([up(x), other], 1))
            return self.head(x)

    return UNet()


def _static(source: Path, target: Path, kind: str) -> None:
    """onnxruntime's own, per channel, all else its default, on the inputs that `quantize` draws."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    ready = target.with_suffix(".ready.onnx")
    quant_pre_process(str(source), str(ready))

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter(_samples(ready))

        def get_next(self) -> Any:
            return next(self.left, None)

    quantize_static(str(ready), str(target), Reader(), quant_format=QuantFormat[kind], per_channel=True)


def _samples(path: Path) -> list[dict[str, Any]]:
    from explorer.engine.formats.onnx import reader
    from explorer.engine.runtime.samples import random_samples

    return [dict(feeds) for feeds in random_samples(reader.read(str(path)), 4)]


def _session(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def files(name: str, folder: Path) -> dict[str, Path]:
    """The model as float32, as the command line quantizes it, and as `quantize_static` does in both forms."""
    made = {kind: folder / f"{name}_{kind}.onnx" for kind in ("float32", "int8", "QDQ", "QOperator")}
    if not made["float32"].exists():
        export(name, made["float32"])
    words = ["-m", "explorer", "quantize", made["float32"], "-o", made["int8"], "--force"]
    command = [sys.executable, *map(str, words), "--to", "int8", "--no-report"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for kind in ("QDQ", "QOperator"):
        if not made[kind].exists():
            _static(made["float32"], made[kind], kind)
    return made


def measured(made: dict[str, Path]) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of the shortest run, and decibels beside float32, of each file in stock onnxruntime."""
    feeds = _samples(made["float32"])
    sessions = {kind: _session(path) for kind, path in made.items()}
    outputs = {
        kind: np.concatenate([session.run(None, each)[0] for each in feeds]).astype(np.float64)
        for kind, session in sessions.items()
    }
    best = dict.fromkeys(sessions, float("inf"))
    until, rounds = time.perf_counter() + _SECONDS, 0
    while rounds < _LEAST or time.perf_counter() < until:
        rounds += 1
        slow = 3 * best["float32"] if rounds > _LEAST else float("inf")
        for kind, session in sessions.items():
            if best[kind] > slow and rounds % 5:
                continue  # rounds that others can use
            began = time.perf_counter()
            session.run(None, feeds[0])
            best[kind] = min(best[kind], time.perf_counter() - began)
    exact = outputs.pop("float32")
    snr = {
        kind: 10 * float(np.log10((exact**2).sum() / ((output - exact) ** 2).sum()))
        for kind, output in outputs.items()
    }
    return best, snr


def cases(folder: Path) -> Iterator[Line]:
    """ResNet18 beside float32; MobileNetV3 and a U-Net beside `quantize_static`."""
    for name in SIZES:
        seconds, snr = measured(files(name, folder))
        ours = seconds["int8"]
        if name == "resnet18":
            ratio = ours / seconds["float32"]
            yield f"{name}: int8 / float32", ms(ours), ms(seconds["float32"]), 0.6, ratio, "x"
        for kind in ("QDQ", "QOperator"):
            theirs = seconds[kind]
            yield f"{name}: int8 / quantize_static {kind}", ms(ours), ms(theirs), 1.0, ours / theirs, "x"
            gap, a, b = snr[kind] - snr["int8"], f"{snr['int8']:.1f} dB", f"{snr[kind]:.1f} dB"
            yield f"{name}: decibels that {kind} has more", a, b, 0.0, gap, "dB"
