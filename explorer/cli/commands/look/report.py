"""`explorer report`: writes a page with all facts as HTML or Markdown."""

from __future__ import annotations

import explorer
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import MACHINE, OPENING, PRINTING, Option
from explorer.cli.arguments.records import read_machine
from explorer.cli.output.answer import Answer, name_tool
from explorer.cli.output.model_answer import write_output
from explorer.cli.output.progress import ProgressLine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from explorer.facts import Info
    from explorer.session import Session


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    from explorer.report.html import page  # imported on demand: it loads rich

    page.check(args.output)
    machine = read_machine(args)

    def ask(session: Session, info: Info) -> Any:
        measured = explorer.ProfileSpec(steps=args.steps) if args.measured else None
        return page.gather(session, page.PageRequest(machine, args.batch, args.optimizer, measured))

    return write_output(args, progress, ask, lambda info, fact, path: page.write(fact, path, name_tool()))


COMMAND = Command(
    "report",
    "write one page with all results, as HTML or Markdown",
    ("MODEL",),
    (
        "--output",
        "--force",
        Option("--measured", "run the model, and add measured times in pictures and tables"),
        Option("--steps", "for --measured: timed runs (default: until the median is stable)", "N", least=1),
        "--batch",
        "--optimizer",
        *MACHINE,
        *OPENING,
        *PRINTING,
    ),
    (
        "explorer report resnet18 -o resnet18.html",
        "explorer report model.onnx -o model.html --measured --machine here",
        "explorer report model.onnx -o model.md",
    ),
    _run,
    usage="report MODEL -o FILE.html",
    manual="one page with all figures, sortable tables and pictures, as HTML or Markdown (`.md`)",
    required=("--output",),
    group="look",
)
