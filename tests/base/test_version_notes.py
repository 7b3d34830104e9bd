"""Notes of versions: a failure names the library that it comes from, where that lies outside of its range."""

from __future__ import annotations

import types
from pathlib import Path

import numpy as np
import pytest

from explorer.base import tested_versions
from explorer.base.errors import BadModel, ExplorerError
from explorer.base.version_notes import add_notes, build_internal_error, explain_failure, unmet
from explorer.cli.main import main

NOTE = "tested with numpy 2.0 to 2.5; 2.99 is installed"


@pytest.fixture
def new_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    known = tested_versions.read_installed_version
    monkeypatch.setattr(
        tested_versions,
        "read_installed_version",
        lambda package: "2.99" if package == "numpy" else known(package),
    )


def failure() -> Exception:
    with pytest.raises(np.linalg.LinAlgError) as raised:
        np.linalg.inv(np.zeros((2, 2)))
    return raised.value


def renamed() -> Exception:
    """A call with an argument that a library no longer has: no frame of the library's is in the traceback."""
    with pytest.raises(TypeError) as raised:
        call(np.linalg.matrix_rank)
    return raised.value


def call(function: types.FunctionType) -> None:
    function(np.zeros((2, 2)), no_such_argument=1)


@pytest.mark.usefixtures("new_numpy")
@pytest.mark.parametrize("make", [failure, renamed])
def test_a_bug_and_a_clear_error_name_the_library_that_is_too_new(make: types.FunctionType) -> None:
    error = make()
    assert str(build_internal_error(error)).count(NOTE) == 1
    assert explain_failure(error).hint.endswith(NOTE)
    with pytest.raises(BadModel) as bad:
        raise BadModel("it cannot be read", hint="save it again") from error
    assert str(explain_failure(explain_failure(bad.value))) == f"it cannot be read; save it again; {NOTE}"


def test_inside_the_range_and_without_a_cause_nothing_is_added() -> None:
    assert "tested with" not in str(explain_failure(failure()))
    assert add_notes(BadModel("no such file")).hint == ""


@pytest.mark.usefixtures("new_numpy")
def test_an_error_of_the_programs_own_names_no_library() -> None:
    with pytest.raises(BadModel) as inner:
        check_sizes(np.zeros(2))
    with pytest.raises(BadModel) as outer:
        raise BadModel("the models have other inputs") from inner.value
    assert str(explain_failure(outer.value)) == "the models have other inputs"


def check_sizes(array: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    raise BadModel(f"the size {array.size} does not fit")


@pytest.mark.usefixtures("new_numpy")
def test_the_command_line_says_so_in_its_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from explorer import Session

    def broken(*_: object, **__: object) -> None:
        raise failure()

    monkeypatch.setattr(Session, "__init__", broken)
    sample = Path(__file__).parents[2] / "sample_models" / "lenet.onnx"
    assert main(["info", str(sample)]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "internal error: LinAlgError" in err
    assert NOTE in err


def test_python_itself_is_named_where_no_library_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tested_versions, "read_installed_version", lambda package: "3.15.0" if package == "python" else ""
    )
    note = tested_versions.build_version_note("python")
    assert note.startswith("tested with Python 3.11 to 3.")
    assert note in str(build_internal_error(ValueError("x")))
    assert "Python" not in str(explain_failure(BadModel("of a file")))


def test_a_note_that_cannot_be_made_keeps_no_failure_from_being_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(package: str) -> str:
        raise OSError(f"no metadata of {package}")

    monkeypatch.setattr(tested_versions, "read_installed_version", broken)
    assert str(add_notes(BadModel("it cannot be read"), failure())) == "it cannot be read"


def test_what_is_no_longer_there_is_one_clear_error() -> None:
    with pytest.raises(ExplorerError, match=r"for this: it has no x; install numpy 2\.0 to"):
        with unmet("numpy", "it has no x"):
            np.no_x  # noqa: B018
    with pytest.raises(ValueError), unmet("numpy", "it has no x"):
        raise ValueError("of another kind")
