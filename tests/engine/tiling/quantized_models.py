"""An 8-bit ResNet18 as onnxruntime's quantizer makes it of torchvision's, of random weights."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["quantized", "resnet18"]


class _Random:
    """Calibration data."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._left: Iterator[dict[str, np.ndarray]] = iter(
            {"x": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)} for seed in range(2)
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)


_SHAPE = (1, 3, 64, 64)


def resnet18(folder: Path) -> str:
    """Writes the model of floats; returns its path."""
    import torch
    import torchvision

    torch.manual_seed(0)
    model = torchvision.models.resnet18(weights=None).eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            # every channel with a scale of its own
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.normal_(module.bias, 0, 0.2)
            torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
    path = str(folder / "floats.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options: dict[str, Any] = {"opset_version": 17, "input_names": ["x"], "output_names": ["y"]}
        torch.onnx.export(model, (torch.zeros(_SHAPE),), path, dynamo=False, **options)
    return path


def quantized(floats: str, folder: Path, kind: str) -> str:
    """Writes it quantized, as 'QOperator' or 'QDQ'; returns its path."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Reader(_Random, CalibrationDataReader):  # type: ignore[misc, unused-ignore]
        """What the quantizer asks for."""

    integers = str(folder / f"resnet18_{kind}.onnx")
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            form = getattr(QuantFormat, kind)
            quantize_static(floats, integers, Reader(_SHAPE), quant_format=form, per_channel=True)
    finally:
        logging.disable(logging.NOTSET)
    return integers
