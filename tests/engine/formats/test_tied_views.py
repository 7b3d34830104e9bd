"""Views of one storage: totals count each byte once, rows show each layer's own, in modules and in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from explorer import Session  # noqa: E402
from explorer.engine.formats import byte_ranges  # noqa: E402

W = torch.arange(120, dtype=torch.float32).reshape(10, 12)

VIEWS = [
    ("a slice", lambda: {"whole": W, "part": W[2:5]}, 120),
    ("a transpose", lambda: {"whole": W, "turned": W.t()}, 120),
    ("columns", lambda: {"whole": W, "columns": W[:, :4]}, 120),
    ("overlapping slices", lambda: {"low": W[:6], "high": W[4:]}, 120),
    ("rows and columns", lambda: {"rows": W[:2], "columns": W[:, 1::2]}, 24 + 8 * 6),
    ("even and odd columns", lambda: {"even": W[:, ::2], "odd": W[:, 1::2]}, 120),
    ("equal counts, other bytes", lambda: {"rows": W[:5], "columns": W[:, :6]}, 60 + 60 - 30),
    ("side by side", lambda: {"low": W[:5], "high": W[5:]}, 120),
    ("three of one", lambda: {"whole": W, "a": W[1:4], "b": W[3:6, ::3]}, 120),
    ("an expanded row", lambda: {"row": W[:1].expand(10, 12)}, 12),
    ("windows", lambda: {"windows": W.as_strided((9, 24), (12, 1))}, 120),
]


@pytest.mark.parametrize(("views", "count"), [case[1:] for case in VIEWS], ids=[case[0] for case in VIEWS])
def test_each_byte_of_a_file_counts_once(views: Any, count: int, tmp_path: Path) -> None:
    path = tmp_path / "views.pt"
    torch.save(views(), path)
    with Session(str(path), cache=False) as session:
        totals = session.info().totals
    assert (totals.params, totals.weight_bytes) == (count, 4 * count)


@pytest.mark.parametrize(("views", "count"), [case[1:] for case in VIEWS], ids=[case[0] for case in VIEWS])
def test_each_byte_of_a_module_counts_once(views: Any, count: int) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, tensor in views().items():
                layer = nn.Module()
                layer.weight = nn.Parameter(tensor)
                self.add_module(name, layer)

        def forward(self, x: Any) -> Any:
            return x + sum(layer.weight.sum() for layer in self.children())

    with Session(Model(), inputs=(torch.rand(2, 3),), cache=False) as session:
        totals = session.info().totals
        rows = {row.path: row.params for row in session.analysis().layers if row.params}
    assert (totals.params, totals.weight_bytes) == (count, 4 * count)
    assert totals.trainable_params == count
    for name, tensor in views().items():
        own = next(params for path, params in rows.items() if path.startswith(name))
        assert own == (tensor.numel() if count >= tensor.numel() else count)


def test_a_frozen_slice_of_a_trained_weight_is_trained() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.whole = nn.Parameter(W)
            self.part = nn.Parameter(W[7:], requires_grad=False)

        def forward(self, x: Any) -> Any:
            return x @ self.whole + (x[:, :3] @ self.part)

    with Session(Model(), inputs=(torch.rand(2, 10),), cache=False) as session:
        totals = session.info().totals
    assert (totals.params, totals.trainable_params, totals.macs) == (120, 120, 2 * 120 + 2 * 36)


class Shared(nn.Module):
    """Half of a weight, and the rest of it with some of that half."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.rand(6, 6)
        self.low, self.high = nn.Parameter(weight[:4]), nn.Parameter(weight[2:])

    def forward(self, x: Any) -> Any:
        return x @ self.low.t() + x @ self.high.t()


@pytest.mark.parametrize("ending", ["torchscript.pt", "pt2"])
def test_each_byte_of_a_program_counts_once(ending: str, tmp_path: Path) -> None:
    path, inputs = tmp_path / f"shared.{ending}", (torch.rand(2, 6),)
    if ending == "pt2":
        torch.export.save(torch.export.export(Shared(), inputs), path)
    else:
        torch.jit.trace(Shared(), inputs).save(str(path))
    with Session(str(path), cache=False) as session:
        totals = session.info().totals
    assert (totals.params, totals.weight_bytes) == (36, 144)


TALL = 101
"""Rows of which a column lies in one run of bytes more than are looked at here."""


@pytest.fixture
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert byte_ranges.RUNS == 1_048_576
    monkeypatch.setattr(byte_ranges, "RUNS", TALL - 1)


def holder(views: dict[str, Any]) -> Any:
    class Holder(nn.Module):
        def forward(self, x: Any) -> Any:
            return x + self.pair.sum() + self.last.sum()

    model = Holder()
    for name, tensor in views.items():
        model.register_parameter(name, nn.Parameter(tensor))
    return model


@pytest.mark.usefixtures("few_runs")
@pytest.mark.parametrize(("rows", "status"), [(TALL - 1, "exact"), (TALL, "bound")])
def test_views_in_more_pieces_than_are_told_apart_are_an_upper_bound(
    rows: int, status: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from explorer.cli.main import main

    whole = torch.zeros(rows, 4, dtype=torch.uint8)
    views = {"pair": whole[:, :2], "last": whole[:, 3:]}
    torch.save(views, tmp_path / "tall.pt")
    with Session(str(tmp_path / "tall.pt"), cache=False) as session:
        totals = session.info().totals
    assert totals.stored_status == status
    assert (totals.params == 3 * rows) is (status == "exact")
    assert totals.params >= 3 * rows
    assert main(["info", str(tmp_path / "tall.pt")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert ("parameters and bytes are upper bounds" in text) is (status == "bound")
    assert ("Parameters <= " in text) is (status == "bound")


@pytest.mark.usefixtures("few_runs")
def test_parameters_of_a_module_in_more_pieces_than_are_told_apart_are_an_upper_bound() -> None:
    whole = torch.empty(TALL, 4)
    model = holder({"pair": whole[:, :2], "last": whole[:, 3:]})
    with Session(model, inputs=torch.rand(2), cache=False) as session:
        info = session.info()
    assert info.totals.stored_status == "bound"
    assert any("are upper bounds: pair" in note for note in info.model.notes)
