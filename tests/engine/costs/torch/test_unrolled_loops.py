"""Unrolled loops are folded: each step adds to the rows of the first step, and no figure changes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

torch = pytest.importorskip("torch")

from explorer import Session  # noqa: E402
from explorer.engine.costs.torch import unrolled_loops  # noqa: E402
from explorer.engine.costs.torch.analyse import examine_module  # noqa: E402
from explorer.facts import Analysis, TileSpec  # noqa: E402
from explorer.facts.profile.profile import ProfileSpec  # noqa: E402

ROOT = Path(__file__).parents[4]


class Tiled(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A product of 24 column tiles, each the sum of 12 products, as a trace of a tiled model has it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(48, 48, device="meta"))
        self.act = torch.nn.ReLU()

    def forward(self, x: Any) -> Any:
        columns = []
        for column in range(0, 48, 2):
            total = x[:, 0:4] @ self.weight[0:4, column : column + 2]
            for start in range(4, 48, 4):
                total = total + x[:, start : start + 4] @ self.weight[start : start + 4, column : column + 2]
            columns.append(total)
        return self.act(torch.cat(columns, 1)) + 1


def analysis(module: Any, *shape: int) -> Analysis:
    return examine_module(module, (torch.empty(*shape, device="meta"),)).analysis


def test_equal_steps_share_rows_and_loops_nest() -> None:
    folded = analysis(Tiled(), 3, 48)
    loops = {row.path: (row.kind, row.calls, row.depth) for row in folded.layers if row.group}
    assert [(kind, depth) for kind, _, depth in loops.values()] == [("loop", 0), ("loop", 1)]
    assert [calls for _, calls, _ in loops.values()] == [24, 24 * 11]
    products = [row for row in folded.layers if row.kind == "matmul"]
    assert [row.calls for row in products] == [24, 24 * 11]
    assert [row.macs for row in products] == [24 * 3 * 4 * 2, 24 * 11 * 3 * 4 * 2]
    assert len(folded.layers) < 20
    assert [row.kind for row in folded.layers if not row.depth][-3:] == ["cat", "ReLU", "add"]


def test_no_figure_of_the_model_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    folded = analysis(Tiled(), 3, 48)
    monkeypatch.setattr(unrolled_loops, "MAX_SEPARATE_CALLS", 1 << 20)
    plain = analysis(Tiled(), 3, 48)
    assert len(plain.layers) > 800
    names: dict[str, Any] = {"peak_at": "", "peak_tensors": ()}
    assert replace(folded.info.totals, **names) == replace(plain.info.totals, **names)

    def counts(of: Analysis) -> Counter[str]:
        calls: Counter[str] = Counter()
        for row in of.layers:
            if not row.group:
                calls[row.kind] += row.calls
        return calls

    assert counts(folded) == counts(plain)


def test_steps_that_differ_and_short_loops_keep_their_rows() -> None:
    class Growing(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            for size in range(1, 301):
                x = x + x[:, :size].sum()
            return x

    assert len(analysis(Growing(), 1, 400).layers) > 600, "each step reads another number of columns"

    class Short(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            for _ in range(unrolled_loops.MAX_SEPARATE_CALLS):
                x = x + 1
            return x

    assert len(analysis(Short(), 1, 4).layers) == unrolled_loops.MAX_SEPARATE_CALLS


def test_a_loop_does_not_take_the_name_of_a_module() -> None:
    class Named(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.loop = torch.nn.Linear(4, 4, device="meta")

        def forward(self, x: Any) -> Any:
            for _ in range(100):
                x = x * 2 + 1
            return self.loop(x)

    rows = [(row.path, row.kind) for row in analysis(Named(), 1, 4).layers]
    assert rows == [("loop_1", "loop"), ("mul", "mul"), ("add", "add"), ("loop", "Linear")]


def test_a_step_of_one_function_is_one_row() -> None:
    class Adding(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            for _ in range(100):
                x = x + 1
            return x

    (row,) = analysis(Adding(), 1, 4).layers
    assert (row.path, row.group, row.calls, row.elementwise_ops) == ("add", False, 100, 400)


def test_a_profile_finds_each_call_of_a_folded_function() -> None:
    with torch.no_grad():
        model = Tiled()
        model.weight = torch.nn.Parameter(torch.ones(48, 48))
    with Session(model, inputs=torch.ones(3, 48)) as session:
        profile = session.profile(ProfileSpec(steps=2))
        kinds = {row.id: row.kind for row in session.analysis().layers}
    timed: Counter[str] = Counter()
    for layer in profile.layers:
        timed[kinds[layer.layer]] += layer.calls
    assert timed["matmul"] == 24 * 12
    assert timed["cat"] == 1


def test_a_profile_of_a_tiled_file_finds_the_layer_of_each_product(tmp_path: Path) -> None:
    """The layer has the name of the module that holds its weight, and Python never calls this module."""
    tiled, script = tmp_path / "tiled.onnx", tmp_path / "tiled.pt"
    with Session(ROOT / "sample_models/lenet.onnx") as session:
        session.tile(TileSpec((16, 32, 32)), output=tiled, verify=False)
    with Session(tiled) as session:
        session.convert(str(script), verify=False)
    with Session(script) as session:
        profile = session.profile(ProfileSpec(steps=2))
        rows = {row.id: row for row in session.analysis().layers}
    products = {rows[layer.layer].name: layer.calls for layer in profile.layers if rows[layer.layer].macs}
    assert products == {row.name: row.calls for row in rows.values() if row.macs}
    assert "aten::matmul" not in {kernel.name for kernel in profile.other}
