"""Answers about one model: it is opened in a session, asked, and what was found is printed or drawn."""

from __future__ import annotations

from contextlib import contextmanager

import explorer
from explorer.base.errors import BadModel, ExplorerError, UnknownShape
from explorer.base.units import dims_text
from explorer.cli.output.answer import REPORT, Answer, document, present, tool
from explorer.cli.output.progress import ProgressLine
from explorer.host.output_files import atomic_write, check_target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from explorer.cli.arguments.command import ParsedArgs
    from explorer.facts import Diff, Info
    from explorer.report.blocks import Block
    from explorer.session import Session


def about(
    args: ParsedArgs,
    progress: ProgressLine,
    ask: Callable[[Session, Info], tuple[Any, ...]],
    name: str | Callable[..., dict[str, Any]],
    subject: str | Callable[..., list[Block]],
    rows: str = "",
    opening: Callable[[Session, ProgressLine], Info] | None = None,
    package: str = REPORT,
) -> Answer:
    """An answer about one model.

    Args:
        args: What was typed.
        progress: Told where the job stands.
        ask: Gets the facts.
        name: Of the function that makes them a document (without one the document is that of `info` and the
            fact's own fields), and of the one in `subject` that makes them blocks; or the former itself.
        subject: Module of `package`, or a function that makes the blocks.
        rows: See `Answer`.
        opening: Makes the totals that `ask` gets, where those of `Session.open` are not what is wanted.
        package: Of the report, or of a feature.
    """
    with explorer.Session(args.models[0], **args.opening) as session:
        info = session.open(on_progress=progress) if opening is None else opening(session, progress)
        facts = ask(session, info)
        digest = session.sha256() if args.json else None
    return Answer(
        lambda: (name if callable(name) else getattr(document(), name, document().of_fact))(
            *facts, tool(), digest
        ),
        lambda: (
            subject(*facts) if callable(subject) else getattr(present(subject, package), str(name))(*facts)
        ),
        rows,
    )


def change_of(session: Session, progress: ProgressLine) -> tuple[Diff | None, str]:
    """What changed; from here on the file exists, so no failure may say that nothing was written."""
    try:
        return session.diff(on_progress=progress), ""
    except ExplorerError as error:
        return None, f"what changed cannot be shown: {error}"


@contextmanager
def proving(args: ParsedArgs, does: str) -> Iterator[None]:
    """Says how to do without the proof, where the runtime cannot run what could be written.

    Args:
        args: What was typed.
        does: What the verb does, as in 'folds'.

    Raises:
        BadModel: The runtime refuses the model.
    """
    try:
        yield
    except BadModel as error:
        if args.no_verify or error.hint:
            raise
        hint = f"nothing was written; --no-verify {does} it without the proof"
        raise BadModel(error.what, where=error.where, hint=hint) from None


def open_or_stored(session: Session, progress: ProgressLine) -> Info:
    """Totals of a model; of one that does not say what it takes only what it stores, which needs no input."""
    try:
        return session.open(on_progress=progress)
    except UnknownShape:
        return session.stored()


def fixed_sizes(info: Info, args: ParsedArgs) -> str:
    """Sizes that a program leaves open and its graph has fixed, unless they were asked for; '' for none."""
    if info.model.format != "torch.export" or args.input_shape:
        return ""
    sizes = {name: size for name, size in info.assumptions["dims"].items() if name not in args.dim}
    if not sizes:
        return ""
    return f"the graph is for {dims_text(sizes)} as the program was exported; --dim binds another size"


def output_file(
    args: ParsedArgs,
    progress: ProgressLine,
    ask: Callable[[Session, Info], Any],
    write: Callable[[Info, Any, str], None],
) -> Answer:
    """A file about one model; the target is refused before any work is done.

    Args:
        args: What was typed.
        progress: Told where the job stands.
        ask: Gets the fact.
        write: Writes it to a path.
    """
    source, output = args.models[0], args.output
    check_target(output, overwrite=args.force, models=[source], weights=())
    with explorer.Session(source, **args.opening) as session:
        info = session.open(on_progress=progress)
        fact = ask(session, info)
        with atomic_write(output, overwrite=args.force) as temporary:
            write(info, fact, temporary)
    return Answer(
        lambda: document().output_file(info, output, tool()), lambda: present("figures").written(output)
    )
