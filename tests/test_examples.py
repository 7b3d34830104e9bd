"""Examples of the manual: each notebook runs, and its stored outputs are those of the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import examples

NOTEBOOKS = sorted(examples.FOLDER.glob("*.ipynb"))


def test_there_are_three_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["look", "quantize", "tile_and_map"]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_is_stored(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("torchvision")
    import nbformat

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    stored = nbformat.read(path, as_version=4)
    outputs = examples.outputs(stored)
    assert all(outputs[1:]), "each cell after the imports has an output"
    assert examples.outputs(examples.played(path, tmp_path)) == outputs, "python -m tests.examples"
