"""A module whose own code fails is refused with layer and shapes; a partial session has what ran before."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from explorer import Session  # noqa: E402
from explorer.base.errors import BadModel  # noqa: E402
from explorer.cli.main import main  # noqa: E402
from explorer.facts.external.machine import Machine  # noqa: E402

SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.rest = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))

    def forward(self, x):
        return self.rest(self.first(x))
"""
RIGHT, WRONG = ["--input-shape", "x:1,3,8,8"], ["--input-shape", "x:1,3,9,9"]


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "failing_net.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "failing_net:Net"


@pytest.mark.parametrize(
    "words",
    [
        *(["info"], ["layers"], ["ops"], ["memory"], ["roofline", "--machine", "h100"]),
        *(["training"], ["activations"], ["layers", "--csv"], ["info", "--json"], ["plan"]),
    ],
    ids=" ".join,
)
def test_a_wrong_shape_is_exit_2_with_layer_shapes_and_message(
    words: list[str], source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    verb, *options = words
    assert main([verb, source, *WRONG, *options]) == 2
    out, err = capsys.readouterr()
    assert not out
    (line,) = err.strip().splitlines()[-1:]
    assert "failed in rest.2 (Linear), input float32 [1, 196]: RuntimeError" in line
    assert "--input-shape" in line
    assert "--partial" in line
    assert main([verb, source, *RIGHT, *options, "--quiet"]) == 0


@pytest.mark.parametrize("verb", ["info", "layers", "ops", "memory", "training"])
def test_partial_prints_what_ran_before_the_failed_layer(
    verb: str, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, source, *WRONG, "--partial", "--json"]) == 0
    text = capsys.readouterr().out
    assert "failed in rest.2" in text
    if verb == "info":
        assert json.loads(text)["totals"]["macs"] == 49 * 4 * 27


def test_a_partial_run_does_not_make_a_later_run_succeed(source: str) -> None:
    shapes: dict[str, Any] = {"x": (None, (1, 3, 9, 9))}
    with Session(source, input_shapes=shapes, partial=True) as session:
        assert session.info().totals.macs == 49 * 4 * 27
        assert session.memory().steps
    with Session(source, input_shapes=shapes) as session, pytest.raises(BadModel):
        session.info()


QUESTIONS: dict[str, Callable[[Session], Any]] = {
    "open": lambda s: s.open(),
    "info": lambda s: s.info(),
    "analysis": lambda s: s.analysis(),
    "packed_analysis": lambda s: s.packed_analysis().layers,
    "memory": lambda s: s.memory(),
    "ops": lambda s: s.ops(),
    "roofline": lambda s: s.roofline(Machine("mine", 1e12, 1e11)),
    "training": lambda s: s.training(),
    "layers": lambda s: s.layers(),
    "edges": lambda s: s.edges(),
}


class Adds(nn.Module):
    """Fails between two operators, in no layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.scale(x) + torch.zeros(7)


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_figure_of_a_failing_module_object_is_refused_unless_partial(question: str) -> None:
    ask = QUESTIONS[question]
    with Session(Adds(), inputs=torch.zeros(2, 4)) as session, pytest.raises(BadModel) as error:
        ask(session)
    assert error.value.where == "Adds"
    assert "failed in add" in error.value.what
    assert "float32 [2, 4]" in error.value.what
    with Session(Adds(), inputs=torch.zeros(2, 4), partial=True) as session:
        assert ask(session) is not None


def test_weights_need_no_run_and_so_are_printed(source: str) -> None:
    assert main(["weights", source, *WRONG, "--quiet"]) == 0


ENDING = """
import sys
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 3)

    def forward(self, x):
        sys.exit(0)

def net():
    return Net(), torch.zeros(2, 5)

def nothing():
    sys.exit(0)
"""


@pytest.mark.parametrize("words", ["info {}", "training {}", "verify {} {}", "convert {} -o out.onnx"])
@pytest.mark.parametrize(("name", "line"), [("net", 12), ("nothing", 18)])
def test_code_that_ends_the_program_is_exit_2_and_no_verdict(
    words: str, name: str, line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "ending.py").write_text(ENDING)
    monkeypatch.chdir(tmp_path)
    assert main(words.format(*[f"ending.py:{name}"] * 2).split()) == 2
    out, err = capsys.readouterr()
    assert not out
    assert f"ending.py:{line}: this code calls sys.exit(0); raise an exception instead" in err


STOPPING = """
import asyncio
import torch
from torch import nn

class Abandoned(BaseException):
    pass

class Net(nn.Module):
    def __init__(self, error):
        super().__init__()
        self.fc, self.error = nn.Linear(5, 3), error

    def forward(self, x):
        y = self.fc(x)
        raise self.error

def abandoned():
    return Net(Abandoned("no more")), torch.zeros(2, 5)

def cancelled():
    return Net(asyncio.CancelledError()), torch.zeros(2, 5)

def interrupted():
    return Net(KeyboardInterrupt()), torch.zeros(2, 5)
"""


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("abandoned", 2, "stopping.py:16: this code raises Abandoned: no more, which is not a subclass of"),
        ("cancelled", 2, "stopping.py:16: this code raises CancelledError, which is not a subclass of"),
        ("interrupted", 130, "explorer: stopped"),
    ],
)
@pytest.mark.parametrize("verb", ["info", "training"])
def test_an_exception_that_is_no_exception_is_one_line(
    verb: str, name: str, code: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "stopping.py").write_text(STOPPING)
    monkeypatch.chdir(tmp_path)
    assert main([verb, f"stopping.py:{name}"]) == code
    out, err = capsys.readouterr()
    assert not out
    assert text in err
    assert len(err.splitlines()) == 1
