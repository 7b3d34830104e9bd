"""Files that a session writes of itself: its states, and what was done to them as a script."""

from __future__ import annotations

from explorer.base.checked import PathText
from explorer.session.methods.facade import Facade
from explorer.session.parts.export import Exporter
from explorer.session.parts.models import OnProgress


def save(session: Facade, path: PathText, *, overwrite: bool = False, on_progress: OnProgress = None) -> str:
    """Writes the current model to `path` as ONNX.

    Returns:
        The path.

    Raises:
        Misuse: The file exists and `overwrite` is False, it is the opened model, or it cannot be
            written.
    """
    return session.parts.of(Exporter).save(path, overwrite, on_progress)


def check_output(session: Facade, path: PathText, *, overwrite: bool = False) -> None:
    """Refuses, before anything is worked out, a file that the current model could not be written to.

    Raises:
        Misuse: The file exists and `overwrite` is False, it is one that is read, or its ending is that of
            another kind of file.
    """
    session.parts.of(Exporter).check(path, overwrite)


def script(
    session: Facade,
    path: PathText,
    *,
    index: int | None = None,
    branches: bool = False,
    overwrite: bool = False,
) -> str:
    """Writes the commands that make a state, and those that lead to it, as a shell script.

    Run in an empty folder it makes files that are the session's, byte for byte.

    Args:
        path: Of the script.
        index: Which state of the history; None is the current one.
        branches: Every state, those of all branches.
        overwrite: Whether an existing file may be replaced.

    Returns:
        The path.

    Raises:
        Misuse: Nothing was done yet, no command can open the model, or `path` cannot be written.
    """
    return session.parts.of(Exporter).script(path, index, branches, overwrite)


def script_text(session: Facade, index: int | None = None, *, branches: bool = False) -> str:
    """What `script` writes; it opens no model that is not ONNX, so nothing of its code runs.

    Raises:
        Misuse: Nothing was done yet, or no command can open the model.
    """
    return session.parts.of(Exporter).script_text(index, branches)
