"""Text of the code or the SSA graph of a TorchScript module."""

from __future__ import annotations

from collections.abc import Iterator

from explorer.base.units import printable
from explorer.facts.graph.module_code import ModuleCode


def list_code_lines(fact: ModuleCode) -> Iterator[str]:
    """Yield lines: the file, the module and its class, then the text."""
    kind = "TorchScript, the graph in SSA form" if fact.ssa else "TorchScript"
    yield f"{printable(fact.source)}   {kind}\n"
    yield f"{printable(fact.module) or '(model)'}   {printable(fact.module_class)}\n\n"
    for line in fact.text.splitlines():
        yield f"{printable(line)}\n"
