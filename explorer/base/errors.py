"""Errors of the program, each printed as one line.

Every failure that a user can cause or meet is an `ExplorerError` with the fault, the place, and the next
step. The command line prints it and exits with 2 (130 if the user stopped the job), the screen shows it in a
dialog, and the engine's process sends it through its pipe. `version_notes.explain_failure` converts any other
exception.
"""

from __future__ import annotations

from explorer.base.extras import EXTRAS, format_extra_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Literal, Protocol

    ErrorCode = Literal["", "drop_option", "no_step", "open_sizes", "other_machine", "other_model", "untimed"]
    """Codes for callers that react to an error, so that no caller parses its text.

    drop_option: the hint asks to leave out an option. no_step: the model has no decode step for one token.
    open_sizes: a size of the model is open, and the hint shows how to bind it. other_machine and other_model:
    a mapping file is for another machine or another model. untimed: the model has no timing for a split by
    time.
    """

    class ModelRow(Protocol):
        """A row of a table of models, with figures of a model or the reason why it has none."""

        @property
        def model(self) -> str:
            """Name of the model, as the user typed it."""

        @property
        def error(self) -> str:
            """Reason why the row has no figures, or ''."""


class SignalExit(SystemExit):
    """A signal ends the program. Code of a model may raise SystemExit itself, which is a failure."""


class ExplorerError(Exception):
    """A failure with its place and the next step.

    Args:
        what: Description of the fault, without a full stop.
        where: File, layer, option or dimension; '' if there is none.
        hint: Next step for the user; '' without a useful one.
        code: Code for callers; '' if no caller needs one.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "", code: ErrorCode = "") -> None:
        what, where, hint = _cut_text(what), _cut_text(where), _cut_text(hint)
        super().__init__(what, where, hint)
        self.what = what
        self.where = where
        self.hint = hint
        self.code: ErrorCode = code

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.where, self.hint, self.code))

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        if self.hint:
            text = f"{text if text.endswith('...') else text.rstrip('.')}; {self.hint}"
        return " ".join(text.split())


_MAX_PART_LENGTH = 600
"""Largest number of characters of each part of a message, because a name in a file may have a million."""


def _cut_text(text: str) -> str:
    half = _MAX_PART_LENGTH // 2
    return text if len(text) <= _MAX_PART_LENGTH else f"{text[: half - 3]} ... {text[2 - half :]}"


def _rebuild(
    error_class: type[ExplorerError], what: str, where: str, hint: str, code: ErrorCode = ""
) -> ExplorerError:
    error = error_class(what, where=where, hint=hint)
    error.code = code
    return error


class BadModel(ExplorerError):
    """The model file is missing, broken, hostile, or not a model."""


class Misuse(ExplorerError):
    """An option, name or path of the user cannot be used."""


class MemoryTooSmall(Misuse):
    """A memory of a machine is too small for every mapping of a matrix product."""


class UnknownShape(Misuse):
    """The sizes of a model's inputs are unknown: neither the model nor the user gives them."""


class MissingExtra(ExplorerError):
    """A required package is not installed, too old or broken; the hint repairs it."""


class Cancelled(ExplorerError):
    """The user stopped the job."""

    def __init__(self, what: str = "stopped", *, where: str = "", hint: str = "") -> None:
        super().__init__(what, where=where, hint=hint)


class EngineDied(ExplorerError):
    """The engine's process ended without an answer (crash, out of memory, killed)."""


def format_install_command(package: str = "torch") -> str:
    """Returns the command that installs an optional package."""
    return format_extra_command(EXTRAS[package])


def explain_broken(error: BaseException, where: str = "") -> MissingExtra | None:
    """Builds the error for a failure that a missing, broken or old package explains, or returns None.

    Args:
        error: Failure to explain.
        where: Place that needs the package.
    """
    from explorer.base.installation import find_import_fault  # only needed after a failure

    fault = find_import_fault(error)
    return None if fault is None else MissingExtra(fault.message, where=where, hint=fault.hint)


def explain_missing(error: ModuleNotFoundError, package: str = "", where: str = "") -> MissingExtra:
    """Builds the error for a package that is not installed.

    Args:
        error: Failed import.
        package: Optional package that was imported, if the missing package is one that it needs.
        where: Place that needs the package.
    """
    name = (error.name or package).partition(".")[0]
    command = format_install_command(package or name)
    return MissingExtra(f"this needs {name}, which is not installed", where=where, hint=f"type: {command}")


def find_failed_models(rows: Iterable[ModelRow]) -> dict[str, str]:
    """Finds the models without a single row of figures. Returns the reason by model name."""
    measured: set[str] = set()
    error_by_model: dict[str, str] = {}
    for row in rows:
        if row.error:
            error_by_model.setdefault(row.model, row.error)
        else:
            measured.add(row.model)
    return {model: why for model, why in error_by_model.items() if model not in measured}


_MIN_SIMILARITY = 0.75
"""Minimum similarity of a suggestion to the typed text, from 0 to 1, as `difflib` counts it."""
_MAX_LISTED_NAMES = 12
"""Maximum number of names in a hint. A longer list is shortened, with a count."""


def suggest_name(name: str, candidates: Iterable[str], *, listing: str = "") -> str:
    """Builds a hint with the name that is closest to a mistyped `name`.

    Args:
        name: Name as the user typed it.
        candidates: Valid names, in the order of the hint. A set is sorted.
        listing: Command that prints all names. The hint names it if it shortens the list.

    Returns:
        `did you mean 'x'?`, or `choose from: a, b, c` if no name is close, or '' if there are no names.
    """
    names = sorted(candidates) if isinstance(candidates, set | frozenset) else list(dict.fromkeys(candidates))
    if close := suggest_only_near(name, names):
        return close
    if len(names) <= _MAX_LISTED_NAMES:
        return format_choices(names) if names else ""
    first_count = _MAX_LISTED_NAMES // 2
    command_text = f"; {listing} lists all" if listing else ""
    return f"{format_choices(names[:first_count])} and {len(names) - first_count:,} more{command_text}"


def format_choices(names: Iterable[str]) -> str:
    """Formats the hint that lists all valid `names`: `choose from: a, b, c`."""
    return f"choose from: {', '.join(names)}"


def suggest_only_near(
    name: str, candidates: Iterable[str], full_names: Mapping[str, str] | None = None
) -> str:
    """Builds the hint `did you mean 'x'?`, or returns '' if no candidate is close.

    Args:
        name: Name as the user typed it.
        candidates: Texts that `name` is compared with.
        full_names: Valid name by candidate, for candidates that are only a part of a valid name, such as the
            name of a file without its ending.
    """
    close = find_near_name(name, candidates)
    return f"did you mean '{(full_names or {}).get(close, close)}'?" if close else ""


def find_near_name(name: str, candidates: Iterable[str]) -> str:
    """Returns the candidate that is closest to a mistyped `name`, or '' if none is close.

    The dashes before an option do not make it similar to other options.
    """
    import difflib

    by_text = {candidate.lstrip("-"): candidate for candidate in candidates}
    close = difflib.get_close_matches(name.lstrip("-"), list(by_text), n=1, cutoff=_MIN_SIMILARITY)
    return by_text[close[0]] if close else ""
