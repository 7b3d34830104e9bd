"""Session method that returns the code or the SSA graph of a module of a TorchScript file."""

from __future__ import annotations

from explorer.base.checked import Natural
from explorer.base.errors import Misuse
from explorer.facts.graph.module_code import ModuleCode
from explorer.host.optional_packages import require
from explorer.session import headers
from explorer.session.methods.facade import Facade


def module_code(session: Facade, module: str | Natural = "", *, ssa: bool = False) -> ModuleCode:
    """Return the code of a module of a TorchScript file, or its graph in SSA form.

    The code is read as data. torch prints the graph, and runs code of the file to load it: open the session
    with `trust`.

    Args:
        module: Path of the module, or '' for the whole model. The id of a row selects the module that
            contains the row.
        ssa: Whether to return the graph in SSA form instead of the code.

    Raises:
        Misuse: The file is not TorchScript, it has no such module, or the graph needs `trust`.
        BadModel: The file is broken, or torch cannot load it.
        MissingExtra: The graph needs torch, which is not installed.
    """
    models = session.parts.models
    source = models.source
    if models.module is not None:
        raise Misuse(
            "an nn.Module object is not a TorchScript file",
            where=source,
            hint="save it with torch.jit.save, and open the file",
        )
    path = _find_module(session, module) if isinstance(module, int) else module
    facts = dict(headers.read_code(source, path).facts)
    text = facts["code"]
    if ssa:
        if not models.options["trust"]:
            raise Misuse(
                "torch runs code of the file to print its graph",
                where=source,
                hint="add --trust if you trust the author of the file",
            )
        require("torch", source)
        from explorer.engine.models.torch.script_graph import load_ssa_graph  # imports torch

        text = load_ssa_graph(source, path)
    return ModuleCode(source, path, facts["class"], text, ssa)


def _find_module(session: Facade, row: int) -> str:
    """Return the path of the innermost module around a row; '' for the model. A function is no module."""
    layers = session.analysis().layers
    current_row: int | None = row
    while current_row is not None:
        try:
            headers.read_code(session.parts.models.source, layers[current_row].path)
        except Misuse:
            current_row = layers[current_row].parent
        else:
            return layers[current_row].path
    return ""
