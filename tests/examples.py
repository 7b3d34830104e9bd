"""Examples: the notebooks of the manual. `python -m tests.examples [NAME ...]` stores their outputs anew."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from explorer import manual

FOLDER = Path(manual.__file__).parent / "examples"


def played(path: Path, folder: Path) -> Any:
    """A notebook after a run of its cells in a folder. A cell that fails raises an error."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}
    ).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran
    for name in [*notebook.metadata]:
        if name not in ("kernelspec", "language_info"):
            del notebook.metadata[name]
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def outputs(notebook: Any) -> list[list[str]]:
    """Texts of the outputs of each cell, without what differs from run to run and with versions of torch."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [[_text(output) for output in cell.outputs] for cell in cells]


def _text(output: Any) -> str:
    data = output.get("data", {})
    text = output.get("text") or data.get("text/html") or data.get("text/plain") or ""
    return re.sub(
        r"torch [\d.]+|\d+(\.\d+)?(e-\d\d)? ?(ms|s|u|dB)\b|\d\.\d+e-\d\d|seconds=[\d.]+", "#", "".join(text)
    )


def main(names: list[str]) -> None:
    """Runs the notebooks, all or those that are named, and stores them."""
    import nbformat

    for path in sorted(FOLDER.glob("*.ipynb")):
        if not names or path.stem in names:
            with tempfile.TemporaryDirectory() as folder:
                nbformat.write(played(path, Path(folder)), path)


if __name__ == "__main__":
    main(sys.argv[1:])
