"""Nested tensors as inputs and inside of a model: the right figures, or none with a reason."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from explorer import Session  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")

ROWS = [torch.rand(2, 6), torch.rand(7, 6), torch.rand(1, 6)]


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 12), nn.Linear(12, 4, bias=False)

    def forward(self, rows: Any) -> Any:
        return self.down(torch.relu(self.up(rows)))


class Inside(Layers):
    def forward(self, rows: Any) -> Any:
        offsets = torch.tensor([0, 2, 9, 10], device=rows.device)
        return super().forward(torch.nested.nested_tensor_from_jagged(rows, offsets)).values()


MACS = 10 * (6 * 12 + 12 * 4)


@pytest.mark.parametrize("packed", [lambda t: (t,), lambda t: {"rows": t}])
def test_a_jagged_input_costs_the_rows_that_it_has(packed: Any) -> None:
    given = packed(torch.nested.nested_tensor(ROWS, layout=torch.jagged))
    with Session(Layers(), inputs=given, cache=False) as session:
        info = session.info()
        rows = {row.path: row.macs for row in session.analysis().layers}
    assert (info.totals.macs, info.totals.status) == (MACS, "exact")
    assert (rows["up"], rows["down"]) == (720, 480)
    assert info.model.inputs[0].shape == (3, "ragged", 6)


def test_a_jagged_tensor_inside_of_a_model_costs_the_rows_that_it_has() -> None:
    with Session(Inside(), inputs=(torch.rand(10, 6),), cache=False) as session:
        totals = session.info().totals
    assert (totals.macs, totals.status) == (MACS, "exact")


@pytest.mark.parametrize("rows", [ROWS, [torch.rand(3, 6), torch.rand(3, 6)]])
def test_the_work_on_a_strided_nested_input_is_unknown_with_a_reason(rows: Any) -> None:
    with Session(Layers(), inputs=(torch.nested.nested_tensor(rows),), cache=False) as session:
        info = session.info()
    assert (info.totals.macs, info.totals.status) == (None, "unknown")
    assert info.totals.params == 6 * 12 + 12 + 48
    assert any("nested tensor in the strided layout" in note for note in info.model.notes)
