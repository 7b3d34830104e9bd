"""Notes of versions on errors: a library outside of its tested range is a likely cause of what fails in it."""

from __future__ import annotations

from explorer.base.errors import BadModel, ExplorerError
from explorer.base.tested_versions import installed_version, origins, version_note, version_range

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["notes_of", "unmet", "with_note"]


class unmet:  # noqa: N801 - called like a function
    """One clear error in the place of that of a library which is not as it was when it was tried.

    Args:
        package: The library, as pip knows it.
        what: What it does not do any more, as a sentence.

    Raises:
        BadModel: Something that is read inside is not there.
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
        row = version_range(self.package)
        said = f"{self.package} {installed_version(self.package)} cannot be used for this: {self.what}"
        hint = f"install {self.package} {row.lowest} to {row.highest}" if row else ""
        raise BadModel(said, hint=hint) from error


def notes_of(error: BaseException) -> list[str]:
    """Notes like `tested with torch 2.9 to 2.15; 2.16 is installed`, of libraries that an error comes from."""
    return [note for package in origins(error) if (note := version_note(package))]


def with_note(error: ExplorerError, cause: BaseException | None = None) -> ExplorerError:
    """The error, which also tells the tested range of each library that it comes from and that lies outside.

    Args:
        error: What a user is told.
        cause: What it was made of; by default its cause. An error without one comes from no library.
    """
    cause = cause if cause is not None else error.__cause__
    notes = notes_of(cause) if cause is not None else []
    error.hint = "; ".join(filter(None, [error.hint, *(note for note in notes if note not in error.hint)]))
    return error
