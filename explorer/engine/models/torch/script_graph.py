"""Loads the SSA graph of a TorchScript module, as torch prints it.

torch.jit.load runs code of the file: it calls `__setstate__` of classes while it loads. All other reading of
such files goes without torch.jit (`formats.torch_replay`).
"""

from __future__ import annotations

from typing import Any

import torch

from explorer.base.errors import BadModel
from explorer.host import input_files
from explorer.host.optional_packages import format_error, silence


def load_ssa_graph(source: str, module: str) -> str:
    """Loads a TorchScript file with torch, and returns the graph of one module's forward in SSA form.

    Args:
        source: Path of a TorchScript file, whose code may run.
        module: Path of a module that the file has, or '' for the whole model.

    Raises:
        BadModel: torch cannot load the file, or the module has no forward.
    """
    input_files.check(source)
    jit: Any = torch.jit  # its functions have no types
    try:
        with silence():
            target = jit.load(source, map_location="cpu")
            for name in module.split(".") if module else ():
                target = getattr(target, name)
            return str(target.graph).rstrip()
    except (Exception, SystemExit) as error:
        part = f"the graph of '{module}'" if module else "its graph"
        raise BadModel(f"torch cannot print {part} ({format_error(error)})", where=source) from error
