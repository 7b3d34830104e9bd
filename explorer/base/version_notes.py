"""Version notes in errors: a library outside of its tested range is a likely cause of its failure."""

from __future__ import annotations

import sys

from explorer.base.errors import BadModel, ExplorerError
from explorer.base.failures import build_internal, find_known_failure
from explorer.base.tested_versions import (
    build_version_note,
    find_package,
    find_version_range,
    iterate_causes,
    list_failing_packages,
    read_installed_version,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

__all__ = [
    "list_used_packages",
    "explain_failure",
    "build_internal_error",
    "list_notes",
    "unmet",
    "add_notes",
]


class unmet:  # noqa: N801 - called like a function
    """Context manager for code that relies on a property of a library: it reports a missing property clearly.

    Args:
        package: Name of the library for pip.
        what: Sentence that says which property is missing.

    Raises:
        BadModel: The block raised AttributeError, ImportError or KeyError.
    """

    def __init__(self, package: str, what: str) -> None:
        self.package, self.what = package, what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, (AttributeError, ImportError, KeyError)):
            return
        row = find_version_range(self.package)
        message = (
            f"{self.package} {read_installed_version(self.package)} cannot be used for this: {self.what}"
        )
        hint = f"install {self.package} {row.lowest} to {row.highest}" if row else ""
        raise BadModel(message, hint=hint) from error


def list_notes(error: BaseException) -> list[str]:
    """Builds a note for each library that may have caused an error, if its version is not tested.

    A note is, for example, `tested with torch 2.9 to 2.15; 2.16 is installed`. If a library removed an
    argument, the call fails in the caller's code, and the error names no library. Then the libraries that the
    failing function uses are checked.
    """
    for packages in (list_failing_packages(error), list_used_packages(error)):
        notes = [note for package in packages if (note := build_version_note(package))]
        if notes:
            return notes
    return []


def list_used_packages(error: BaseException) -> list[str]:
    """Lists the packages of the table that the failing function uses."""
    names: list[str] = []
    for cause in iterate_causes(error):
        step = cause.__traceback__
        while step is not None and step.tb_next is not None:
            step = step.tb_next
        if step is not None:
            frame = step.tb_frame
            names += [
                _find_home_module(value) for value in (*frame.f_locals.values(), *frame.f_globals.values())
            ]
    return list(dict.fromkeys(package for name in names if (package := find_package(name))))


def _find_home_module(value: object) -> str:
    """Returns the name of a value's module.

    It is the value itself, the module that defines the value, or the module of its class; '' without one.
    """
    try:
        name = vars(value).get("__name__") if isinstance(value, type(sys)) else value.__module__
    except (AttributeError, TypeError):
        name = type(value).__module__
    return name if isinstance(name, str) else ""


def add_notes(error: ExplorerError, cause: BaseException | None = None) -> ExplorerError:
    """Adds notes to an error for each library behind it that is outside of its tested range.

    Args:
        error: Error for the user.
        cause: Original error, or None for the error's own cause or context.
    """
    notes = _build_notes(cause or error.__cause__ or error.__context__)
    error.hint = "; ".join(filter(None, [error.hint, *(note for note in notes if note not in error.hint)]))
    return error


def _build_notes(cause: BaseException | None) -> list[str]:
    """Builds the version notes of an error. Errors of Explorer's own show nothing about a library."""
    own_package = __name__.partition(".")[0]
    if cause is None or all(
        type(cause_error).__module__.partition(".")[0] == own_package for cause_error in iterate_causes(cause)
    ):
        return []
    try:
        return list_notes(cause)
    except Exception:  # a broken installation must not hide the original failure
        return []


def explain_failure(error: BaseException) -> ExplorerError:
    """Builds the error for any failure, or returns an `ExplorerError` itself, with version notes.

    Other failures with a known next step get no notes.
    """
    if isinstance(error, ExplorerError):
        return add_notes(error)
    failure = find_known_failure(error)
    if failure is None:
        return build_internal_error(error)
    return failure if failure.hint else add_notes(failure, error)


def build_internal_error(error: BaseException) -> ExplorerError:
    """Builds the error for a bug of the program, with version notes that include Python's."""
    failure = add_notes(build_internal(error), error)
    note = build_version_note("python")
    if note and not _build_notes(error):
        failure.hint = f"{failure.hint}; {note}"
    return failure
