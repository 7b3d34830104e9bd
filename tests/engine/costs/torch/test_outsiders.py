"""Parameters that a forward uses and no module registers: they are in no count, and a note names them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from explorer import Session  # noqa: E402
from explorer.engine.costs.torch.analyse import examine_module  # noqa: E402

ELSEWHERE = nn.Bilinear(4, 4, 2)


class Holder(nn.Module):
    """A registered product of 4 x 4 without bias, then `function` on its result; `extra` is held as it is."""

    def __init__(self, extra: Any, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.own = nn.Linear(4, 4, bias=False)
        self.extra, self.function = extra, function

    def forward(self, x: Any) -> Any:
        return self.function(self.extra, self.own(x))


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], Any], int, str]] = {
    "a tuple": (lambda: (nn.Linear(4, 3),), lambda e, x: e[0](x), 15, "extra[0].weight (3 x 4)"),
    "a dict in a list": (
        lambda: [{"p": frozen(nn.Linear(4, 2, bias=False))}],
        lambda e, x: e[0]["p"](x),
        8,
        "extra[0]['p'].weight",
    ),
    "an object": (
        lambda: SimpleNamespace(scale=nn.Parameter(torch.rand(4))),
        lambda e, x: x * e.scale,
        4,
        "extra.scale (4)",
    ),
    "a tensor": (lambda: torch.rand(4, 5, requires_grad=True), lambda e, x: x @ e, 20, "extra (4 x 5)"),
    "views of one": (
        lambda: [nn.Parameter(torch.rand(4, 4))],
        lambda e, x: x @ e[0].t() * e[0][1] + e[0][0],
        16,
        "extra[0] (4 x 4)",
    ),
    "a global": (lambda: None, lambda e, x: ELSEWHERE(x, x), 34, "a tensor that bilinear uses (2 x 4 x 4)"),
    "made in the forward": (lambda: None, lambda e, x: nn.Linear(4, 2)(x), 10, "linear"),
    "a recurrent layer": (
        lambda: [nn.GRU(4, 4)],
        lambda e, x: e[0](x)[0],
        120,
        "extra[0].weight_ih_l0 (12 x 4)",
    ),
    "a list with statistics": (
        lambda: [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))],
        lambda e, x: e[0](x),
        28,
        "extra[0].1.weight",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_parameters_outside_of_modules_are_named_and_not_counted(case: str) -> None:
    make, function, elements, name = CASES[case]
    with Session(Holder(make(), function), inputs=(torch.rand(3, 4),), cache=False) as session:
        info = session.info()
        (note,) = info.model.notes
        assert note.startswith(f"the run used {elements} parameters that belong to no module of the model: ")
        assert name in note
        assert (info.totals.params, info.totals.coverage, info.totals.status) == (16, 1.0, "exact")
        assert note.partition(":")[0] in " ".join(session.training().notes)


@pytest.mark.parametrize(
    ("extra", "function"),
    [
        ("a list of a registered layer", lambda e, x: x),
        ("unused", lambda e, x: x),
        ("an input that wants a gradient", lambda e, x: x * 2),
        ("a plain tensor", lambda e, x: x + e[0]),
    ],
)
def test_what_is_registered_unused_or_an_input_is_no_such_parameter(extra: str, function: Any) -> None:
    model = Holder([torch.rand(4)], function)
    if extra == "a list of a registered layer":
        model.extra = [model.own, model.own.weight]
        model.function = lambda e, x: e[0](x) @ e[1]
    elif extra == "unused":
        model.extra = [nn.Linear(9, 9)]
    x = torch.rand(3, 4, requires_grad=extra.startswith("an input"))
    with Session(model, inputs=(x,), cache=False) as session:
        assert session.info().model.notes == ()


def test_a_model_with_layers_in_a_list_is_left_as_it_was() -> None:
    model = Holder([nn.Linear(4, 4)], lambda e, x: e[0](x))
    with Session(model, inputs=(torch.rand(3, 4),), cache=False) as session:
        session.info()
        session.training_memory()
    (layer,) = model.extra
    assert layer.weight.device.type == "cpu"
    assert layer.weight.grad is None


FILE = """
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = [nn.Conv2d(3, 5, 3)]
    def forward(self, x):
        return self.steps[0](x)
"""


def test_the_note_is_in_text_and_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from explorer.cli.main import main

    (tmp_path / "outside_net.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    call = ["info", "outside_net:Net", "--input-shape", "x:1,3,8,8"]
    assert main(call) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "the run used 140 parameters that belong to no module of the model: steps[0].weight (5 x 3 x 3 x 3)"
        in text
    )
    assert main([*call, "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["model"]["notes"]
    assert any("steps[0].bias (5)" in note for note in notes)


def test_what_many_modules_hold_is_looked_at_once() -> None:
    looked = []

    class Settings(dict[str, Any]):
        def items(self) -> Any:
            looked.append(self)
            return super().items()

    shared = Settings(tables=[nn.Parameter(torch.ones(4, device="meta"))])

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.settings = shared

        def forward(self, x: Any) -> Any:
            return x * self.settings["tables"][0]

    model = nn.Sequential(*(Scaled() for _ in range(5)))
    info = examine_module(model, [torch.ones(4, device="meta")]).analysis.info
    assert len(looked) == 1
    assert "the run used 4 parameters" in info.model.notes[0]
    assert "0.settings['tables'][0] (4)" in info.model.notes[0]
