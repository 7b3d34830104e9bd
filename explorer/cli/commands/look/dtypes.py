"""`explorer dtypes`: element types of what a model stores."""

from __future__ import annotations

from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import OPENING, TABLE
from explorer.cli.output.answer import Answer
from explorer.cli.output.model_answer import about
from explorer.cli.output.progress import ProgressLine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from explorer.facts import Info
    from explorer.facts.dtypes import DTypes
    from explorer.report.text.model import Block

__all__ = ["COMMAND"]


def _text(info: Info, fact: DTypes) -> list[Block]:
    from explorer.report.layout import Column, Table

    columns = (Column("dtype"), Column("tensors", "right"))
    return [Table(columns, [(share.dtype, f"{share.tensors:,}") for share in fact.dtypes])]


def _run(given: ParsedArgs, progress: ProgressLine) -> Answer:
    return about(given, progress, lambda session, info: (info, session.dtypes()), "dtypes", _text, "dtypes")


COMMAND = Command(
    "dtypes",
    "element types of what a model stores",
    ("MODEL",),
    (*OPENING, *TABLE),
    ("explorer dtypes resnet18",),
    _run,
    usage="dtypes MODEL",
    manual="how many stored tensors there are of each element type",
)
