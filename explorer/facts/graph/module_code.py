"""Facts about the text of a TorchScript module: its code, or its graph in SSA form."""

from __future__ import annotations

from explorer.base.fact import Fact

__all__ = ["ModuleCode"]


class ModuleCode(Fact, frozen=True):
    """The text of one module of a TorchScript file.

    Attributes:
        source: Path of the file.
        module: Path of the module, or '' for the whole model.
        module_class: Qualified class name of the module.
        text: Code of the module as the file contains it, or its graph as torch prints it.
        ssa: Whether the text is the graph in SSA form. It is the code otherwise.
    """

    source: str
    module: str
    module_class: str
    text: str
    ssa: bool = False
