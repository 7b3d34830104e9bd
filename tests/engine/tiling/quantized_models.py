"""An 8-bit ResNet18 as onnxruntime's quantiser makes it of torchvision's, of random weights."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["quantized_resnet18"]


class _Random:
    """Calibration data."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._left: Iterator[dict[str, np.ndarray]] = iter(
            {"x": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)} for seed in range(2)
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)


def quantized_resnet18(folder: Path, kind: str, *, size: int = 64) -> str:
    """Writes it; returns its path.

    Args:
        folder: Where.
        kind: 'QOperator' or 'QDQ'.
        size: Of the images.
    """
    import torch
    import torchvision
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    torch.manual_seed(0)
    model = torchvision.models.resnet18(weights=None).eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            # every channel with a scale of its own
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.normal_(module.bias, 0, 0.2)
            torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
    floats, integers = str(folder / "floats.onnx"), str(folder / f"resnet18_{kind}.onnx")
    shape = (1, 3, size, size)

    class Reader(_Random, CalibrationDataReader):  # type: ignore[misc, unused-ignore]
        """What the quantiser asks for."""

    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            options: dict[str, Any] = {"opset_version": 17, "input_names": ["x"], "output_names": ["y"]}
            torch.onnx.export(model, (torch.zeros(shape),), floats, dynamo=False, **options)
            quantize_static(
                floats, integers, Reader(shape), quant_format=getattr(QuantFormat, kind), per_channel=True
            )
    finally:
        logging.disable(logging.NOTSET)
    return integers
