"""Extras: optional packages by imported name, and the command that installs each."""

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
"""The extra of a package, by the name that is imported."""


def extra_of(module: str) -> str:
    """The extra that contains a module; '' for a module of every installation."""
    return EXTRAS.get(module.partition(".")[0], "")


def extra_command(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install 'explorer-nn[{extra}]'"
