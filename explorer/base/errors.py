"""Errors: every failure in one line.

Every failure that a user can cause or meet is an `ExplorerError`: the fault, the place, and the next
step. The command line prints it and exits with 2, the screen shows it in a dialog, the worker
sends it across its pipe. Any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

from explorer.base.extras import EXTRAS, extra_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal, Protocol

    ErrorCode = Literal["", "drop_option", "no_step", "open_sizes", "untimed"]
    """Codes for callers, so that no caller reads the words of an error.

    drop_option: the hint asks to leave out an option.
    no_step: the model has no step of one token.
    open_sizes: a size of the model is open, and the hint shows how to bind it.
    untimed: a split by time, of a model without a timing.
    """

    class ModelRow(Protocol):
        """A row of a table of models: figures of a model, or why it has none ('' if it has figures)."""

        @property
        def model(self) -> str:
            """The user's name of the model."""

        @property
        def error(self) -> str:
            """Why there are no figures."""


class ExplorerError(Exception):
    """A failure with a place and a next step.

    Args:
        what: The fault, without a full stop at the end.
        where: The file, layer, option or dimension; empty if there is none.
        hint: The next step for the user; empty without a useful one.
        code: A code for callers; empty if no caller needs one.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "", code: ErrorCode = "") -> None:
        what, where, hint = _cut(what), _cut(where), _cut(hint)
        super().__init__(what, where, hint)
        self.what = what
        self.where = where
        self.hint = hint
        self.code: ErrorCode = code

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.where, self.hint, self.code))

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        text = f"{text}; {self.hint}" if self.hint else text
        return " ".join(text.split())


_LONGEST = 600
"""Most characters of each part of a message: a name in a file may have a million."""


def _cut(text: str) -> str:
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[: half - 3]} ... {text[2 - half :]}"


def _rebuild(
    kind: type[ExplorerError], what: str, where: str, hint: str, code: ErrorCode = ""
) -> ExplorerError:
    error = kind(what, where=where, hint=hint)
    error.code = code
    return error


class BadModel(ExplorerError):
    """The model file is missing, broken, hostile, or not a model."""


class Misuse(ExplorerError):
    """An option, name or path of the user cannot be used."""


class UnknownShape(Misuse):
    """The sizes of a model's inputs are unknown: neither the model nor the user gives them."""


class MissingExtra(ExplorerError):
    """A required package is not installed, too old or broken; the hint repairs it."""


class Cancelled(ExplorerError):
    """The user stopped the job; nothing was written."""

    def __init__(self, what: str = "stopped", *, where: str = "", hint: str = "") -> None:
        super().__init__(what, where=where, hint=hint)


class EngineDied(ExplorerError):
    """The engine's process ended without an answer (crash, out of memory, killed)."""


def install_command(package: str = "torch") -> str:
    """The command that installs an optional package."""
    return extra_command(EXTRAS[package])


def broken_package(error: BaseException, where: str = "") -> MissingExtra | None:
    """The error for a failure that a missing, broken or old package explains; None for other failures.

    Args:
        error: The failure.
        where: The place that needs the package.
    """
    from explorer.base.installation import import_fault  # only needed after a failure

    fault = import_fault(error)
    return None if fault is None else MissingExtra(fault.what, where=where, hint=fault.hint)


def missing(error: ModuleNotFoundError, package: str = "", where: str = "") -> MissingExtra:
    """The error for a package that is not installed.

    Args:
        error: The failed import.
        package: The optional package that was imported, if it is another one that misses this one.
        where: The place that needs it.
    """
    name = (error.name or package).partition(".")[0]
    command = install_command(package or name)
    return MissingExtra(f"this needs {name}, which is not installed", where=where, hint=f"type: {command}")


def failed_models(rows: Iterable[ModelRow]) -> dict[str, str]:
    """By model: why it has no figures; for models without a single row of figures."""
    measured: set[str] = set()
    error_by_model: dict[str, str] = {}
    for row in rows:
        if row.error:
            error_by_model.setdefault(row.model, row.error)
        else:
            measured.add(row.model)
    return {model: why for model, why in error_by_model.items() if model not in measured}


_SIMILAR = 0.75
"""Least similarity of a suggestion to what was typed, from 0 to 1, as `difflib` counts it."""
_LISTED = 12
"""Most names in a hint; longer lists are shortened, with a count."""


def nearest(name: str, candidates: Iterable[str]) -> str:
    """A hint that names the closest of `candidates` to a mistyped `name`.

    Args:
        name: The user's input.
        candidates: The valid names, in the order of the hint; a set is sorted.

    Returns:
        `did you mean 'x'?`, or `there is: a, b, c` if no name is similar, or an empty string if there are
        no candidates.
    """
    names = sorted(candidates) if isinstance(candidates, set | frozenset) else list(dict.fromkeys(candidates))
    if close := nearest_alone(name, names):
        return close
    if not names:
        return ""
    shown = names if len(names) <= _LISTED else names[: _LISTED // 2]
    more = f" and {len(names) - len(shown):,} more" if len(shown) < len(names) else ""
    return f"there is: {', '.join(shown)}{more}"


def nearest_alone(name: str, candidates: Iterable[str]) -> str:
    """The hint of `nearest` if a name is similar, else an empty string."""
    import difflib

    close = difflib.get_close_matches(name, list(dict.fromkeys(candidates)), n=1, cutoff=_SIMILAR)
    return f"did you mean '{close[0]}'?" if close else ""
