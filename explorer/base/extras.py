"""Extras: optional packages, by what is imported, and the command that installs each."""

from __future__ import annotations

EXTRAS = {
    "matplotlib": "plot",
    **dict.fromkeys(("torch", "torchvision", "torchinfo", "onnxscript"), "torch"),
    "transformers": "transformers",
    "torchao": "torchao",
    **dict.fromkeys(("tensorflow", "tf2onnx"), "tensorflow"),
    **dict.fromkeys(("dask", "distributed"), "sweep"),
    "lightning": "train",
    "tensorboardX": "tensorboard",
    "textual_serve": "serve",
}
"""The extra that brings a package, by the name that is imported."""


def extra_of(module: str) -> str:
    """The extra that brings a module; '' for what every installation has."""
    return EXTRAS.get(module.partition(".")[0], "")


def extra_command(extra: str) -> str:
    """What installs an extra."""
    return f"pip install 'explorer-nn[{extra}]'"
