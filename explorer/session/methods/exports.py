"""Methods of a session that write files: its states, and its history as a script."""

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
        Misuse: The file exists and `overwrite` is False, it is the opened model, or it cannot be written.
    """
    return session.parts.get_part(Exporter).save(path, overwrite, on_progress)


def check_output(session: Facade, path: PathText, *, overwrite: bool = False) -> None:
    """Refuses an output path before any work starts, if the current model cannot be written to it.

    Raises:
        Misuse: The file exists and `overwrite` is False, it is an input, or its extension belongs to another
            format.
    """
    session.parts.get_part(Exporter).check(path, overwrite)


def script(
    session: Facade,
    path: PathText,
    *,
    index: int | None = None,
    branches: bool = False,
    overwrite: bool = False,
) -> str:
    """Writes a shell script with the commands that make a state and the states before it.

    Run in an empty folder, the script makes the same files as the session, byte for byte.

    Args:
        path: Path of the script.
        index: Index of the state in the history, or None for the current one.
        branches: Whether to include all states of all branches.
        overwrite: Whether to replace an existing file.

    Returns:
        The path.

    Raises:
        Misuse: The model was not changed yet, no command can open it, or `path` cannot be written.
    """
    return session.parts.get_part(Exporter).script(path, index, branches, overwrite)


def script_text(session: Facade, index: int | None = None, *, branches: bool = False) -> str:
    """Returns the text that `script` writes. It opens only ONNX files, so no code of the model runs.

    Raises:
        Misuse: The model was not changed yet, or no command can open it.
    """
    return session.parts.get_part(Exporter).script_text(index, branches)
