"""Actions that show the code and the SSA graph of the TorchScript module under the cursor."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from explorer.base.errors import Misuse
from explorer.tui.dialogs.dialogs import PageDialog
from explorer.tui.text.lines import Line, escape_name, text_line, wrap

if TYPE_CHECKING:
    from explorer.facts.graph.module_code import ModuleCode
    from explorer.tui.commands.context import CommandContext


def show_code(context: CommandContext) -> None:
    """Show the code of the module under the cursor."""
    context.open_view("Code", _show_dialog(context, ssa=False))


def show_graph(context: CommandContext) -> None:
    """Show the graph of the module under the cursor in SSA form."""
    context.open_view("SSA graph", _show_dialog(context, ssa=True))


async def _show_dialog(context: CommandContext, *, ssa: bool) -> None:
    layer = context.tree.current_layer
    if context.store.can_compare:
        raise Misuse("only the model as opened has code", hint="press H, and go back to the first state")
    row = "" if layer is None else layer.id
    fact: ModuleCode = await context.jobs.run("reading the code", "module_code", row, ssa=ssa)
    title = f"{'SSA graph' if ssa else 'Code'} of {fact.module or 'the model'}"
    context.ask(PageDialog(title, partial(_draw_page, fact), copy=fact.text))


def _draw_page(fact: ModuleCode, width: int) -> list[Line]:
    """Return lines: the class of the module, then its text. Continuation lines are indented."""
    lines = [text_line(escape_name(fact.module_class), "dim"), text_line("")]
    for content in fact.text.splitlines():
        indent = len(content) - len(content.lstrip()) + _INDENT
        lines += wrap(text_line(escape_name(content)), width - 1, indent)
    return lines


_INDENT = 4
"""Indentation of the continuation lines relative to the first line, in cells."""
