"""Answers about one model: opens a session, gets the facts, and prints or writes them."""

from __future__ import annotations

from contextlib import contextmanager

import explorer
from explorer.base.errors import BadModel, ExplorerError, UnknownShape
from explorer.base.units import dims_text
from explorer.cli.output.answer import REPORT, Answer, document, load_presenter, name_tool
from explorer.cli.output.progress import ProgressLine
from explorer.host.output_files import check_target, write_atomically

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

    from explorer.cli.arguments.command import ParsedArgs
    from explorer.facts import Diff, Info
    from explorer.report.blocks import Block
    from explorer.session import Session


def open_and_answer(
    args: ParsedArgs,
    progress: ProgressLine,
    ask: Callable[[Session, Info], tuple[Any, ...]],
    *,
    build: str | Callable[..., dict[str, Any]],
    presenter: str | Callable[..., list[Block]],
    rows: str = "",
    open_model: Callable[[Session, ProgressLine], Info] | None = None,
    package: str = REPORT,
    partial: bool = False,
    csv: Callable[..., Iterable[Mapping[str, Any]]] | None = None,
) -> Answer:
    """Open the model and return an answer about it.

    Args:
        args: Parsed arguments.
        progress: Progress callback.
        ask: Function that takes the session and the model's totals, and returns the facts.
        build: Function that creates the JSON document, or the name of a function in
            `explorer.report.document`. If that module lacks the name, its `build_document` is called.
        presenter: Function that creates the blocks, or the name of a module in `package`. The function of
            that module is named as `build`, which must then be a name.
        rows: Key of the list that `--csv` prints; see `Answer`.
        open_model: Function that opens the model and returns its totals; by default `Session.open`.
        package: Package of the presenters: the report's package, or a feature's.
        partial: Whether to answer even if the model's code fails.
        csv: Function that creates the rows of `--csv` from the facts; see `Answer`.
    """
    options = {**args.opening, "partial": True} if partial else args.opening
    with explorer.Session(args.models[0], **options) as session:
        info = session.open(on_progress=progress) if open_model is None else open_model(session, progress)
        facts = ask(session, info)
        digest = session.sha256() if args.json else None
    return Answer(
        lambda: (build if callable(build) else getattr(document(), build, document().build_document))(
            *facts, name_tool(), digest
        ),
        lambda: (
            presenter(*facts)
            if callable(presenter)
            else getattr(load_presenter(presenter, package), str(build))(*facts)
        ),
        rows,
        csv=None if csv is None else lambda: csv(*facts),
    )


def compute_changes(session: Session, progress: ProgressLine) -> tuple[Diff | None, str]:
    """Return the changes of the model and '', or None and the reason why they cannot be computed.

    Commands call this function after they have written their output file, so an error must not end them.
    """
    try:
        return session.diff(on_progress=progress), ""
    except ExplorerError as error:
        return None, f"what changed cannot be shown: {error}"


@contextmanager
def suggest_no_verify(args: ParsedArgs, does: str) -> Iterator[None]:
    """Within this context, suggest `--no-verify` with each `BadModel` error that has no hint.

    The proof runs a model before and after a change, and fails if the runtime cannot run it.

    Args:
        args: Parsed arguments.
        does: What the command does, such as 'folds the model'.

    Raises:
        BadModel: The error of the command, with the suggestion unless the error has another hint or the
            user typed `--no-verify`.
    """
    try:
        yield
    except BadModel as error:
        if args.no_verify or error.hint:
            raise
        hint = f"nothing was written; --no-verify {does} without proving the result"
        raise BadModel(error.what, where=error.where, hint=hint) from None


def open_or_count_stored(session: Session, progress: ProgressLine) -> Info:
    """Open a model and return its totals; without input shapes, only those of its stored weights."""
    try:
        return session.open(on_progress=progress)
    except UnknownShape:
        return session.stored()


def describe_fixed_sizes(info: Info, args: ParsedArgs) -> str:
    """Describe the sizes that an exported program leaves open and its ONNX graph fixes, or return ''.

    Sizes that the user bound with `--dim` are left out; with `--input-shape`, the result is ''.
    """
    if info.model.format != "torch.export" or args.input_shape:
        return ""
    sizes = {name: size for name, size in info.assumptions["dims"].items() if name not in args.dim}
    if not sizes:
        return ""
    return (
        f"the graph fixes open sizes of the exported program ({dims_text(sizes)}); --dim binds another size"
    )


def write_output(
    args: ParsedArgs,
    progress: ProgressLine,
    ask: Callable[[Session, Info], Any],
    write: Callable[[Info, Any, str], None],
) -> Answer:
    """Write a file about one model. The path is checked before any work is done.

    Args:
        args: Parsed arguments.
        progress: Progress callback.
        ask: Function that takes the session and the model's totals, and returns the fact.
        write: Function that takes the totals, the fact and a path, and writes the file.
    """
    source, output = args.models[0], args.output
    check_target(output, overwrite=args.force, models=[source], weights=())
    with explorer.Session(source, **args.opening) as session:
        info = session.open(on_progress=progress)
        fact = ask(session, info)
        with write_atomically(output, overwrite=args.force) as temporary:
            write(info, fact, temporary)
    return Answer(
        lambda: document().output_file(info, output, name_tool()),
        lambda: load_presenter("figures").report_written(output),
    )
