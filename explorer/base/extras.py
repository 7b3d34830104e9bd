"""Optional packages by import name, and the command that installs the extra of each."""

from __future__ import annotations

EXTRAS = {
    **dict.fromkeys(("jinja2", "matplotlib"), "plot"),
    **dict.fromkeys(("torch", "torchvision", "torchinfo", "onnxscript"), "torch"),
    "transformers": "transformers",
    "torchao": "torchao",
    **dict.fromkeys(("tensorflow", "tf2onnx", "keras", "h5py"), "tensorflow"),
    **dict.fromkeys(("dask", "distributed"), "sweep"),
    "lightning": "train",
    "tensorboardX": "tensorboard",
    "textual_serve": "serve",
}
"""Extra of each package, by import name."""


def find_extra(module: str) -> str:
    """Finds the extra that contains a module, or returns '' for a module of every installation."""
    return EXTRAS.get(module.partition(".")[0], "")


def format_extra_command(extra: str) -> str:
    """Returns the command that installs an extra."""
    return f"pip install 'explorer-nn[{extra}]'"
