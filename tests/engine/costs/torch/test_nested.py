"""Nested tensors as inputs and inside of a model: the right figures, or none with a reason."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from explorer import ExplorerError, Session  # noqa: E402

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


def heads(rows: Any) -> Any:
    return rows.unflatten(-1, [3, 2]).transpose(1, 2)


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.both = nn.Linear(6, 6, bias=False), nn.Linear(6, 12, bias=False)

    def forward(self, queries: Any, others: Any) -> Any:
        keys, values = self.both(others).chunk(2, -1)
        mixed = nn.functional.scaled_dot_product_attention(
            heads(self.query(queries)), heads(keys), heads(values)
        )
        return mixed.transpose(1, 2).flatten(-2)


def jagged(*lengths: int) -> Any:
    return torch.nested.nested_tensor([torch.rand(n, 6) for n in lengths], layout=torch.jagged)


def test_attention_over_jagged_rows_multiplies_within_each_row() -> None:
    queries, others = jagged(2, 7, 1), jagged(4, 1, 5)
    with Session(Attending(), inputs=(queries, others), cache=False) as session:
        info = session.info()
        rows = {row.path: row.macs for row in session.analysis().layers}
    assert rows["scaled_dot_product_attention"] == 3 * (2 * 4 + 7 * 1 + 1 * 5) * (2 + 2)
    assert info.totals.macs == rows["scaled_dot_product_attention"] + 10 * 36 + 10 * 72
    assert (info.totals.status, info.totals.coverage) == ("exact", 1)


class Unmeasured(Attending):
    def forward(self, queries: Any, others: Any) -> Any:
        rows = torch.nested.as_nested_tensor([queries, others], layout=torch.jagged)
        return super().forward(rows, rows)


def test_attention_over_rows_of_unknown_lengths_is_unknown_with_a_reason() -> None:
    with Session(Unmeasured(), inputs=(torch.rand(2, 6), torch.rand(3, 6)), cache=False) as session:
        info = session.info()
    assert info.totals.status == "unknown"
    assert any("the lengths of their rows are not known" in note for note in info.model.notes)


class Normal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(6), nn.Linear(6, 2)

    def forward(self, rows: Any) -> Any:
        return torch.softmax(self.out(self.norm(rows)), -1)


def test_norm_and_softmax_of_jagged_rows_count_as_those_of_all_rows() -> None:
    with Session(Normal(), inputs=(jagged(2, 7, 1),), cache=False) as session:
        ragged = session.info().totals
    with Session(Normal(), inputs=(torch.rand(10, 6),), cache=False) as session:
        plain = session.info().totals
    assert (ragged.macs, ragged.elementwise_ops, ragged.status) == (
        plain.macs,
        plain.elementwise_ops,
        "exact",
    )


@pytest.mark.parametrize("rows", [jagged(2, 7, 1), torch.nested.nested_tensor(ROWS)])
def test_gradients_of_nested_tensors_are_unknown_and_not_zero(rows: Any) -> None:
    with Session(Normal(), inputs=(rows,), cache=False) as session:
        training = session.training()
        with pytest.raises(ExplorerError, match="the memory of a step"):
            session.training_memory()
    assert training.backward_macs is None
    assert training.coverage == 0


class Strided(Normal):
    def forward(self, first: Any, second: Any) -> Any:
        return super().forward(torch.nested.nested_tensor([first, second]))


def test_a_strided_nested_tensor_inside_of_a_model_is_unknown_with_a_reason() -> None:
    with Session(Strided(), inputs=(torch.rand(2, 6), torch.rand(3, 6)), cache=False) as session:
        info = session.info()
    assert info.totals.status == "unknown"
    assert any("makes a nested tensor in the strided layout" in note for note in info.model.notes)


class Flat(Normal):
    def forward(self, rows: Any) -> Any:
        made = self.out(torch.relu(self.norm(rows)))
        return made.values() if made.is_nested else made


def test_what_jagged_rows_keep_for_the_backward_pass_is_what_plain_rows_keep() -> None:
    kept = []
    for rows in (jagged(2, 7, 1), torch.rand(10, 6)):
        with Session(Flat(), inputs=(rows,), cache=False) as session:
            kept.append(session.training_memory().steps[0].kept_bytes)
    # torch keeps the nested tensor, 10 rows of 2, for the backward pass of `values`
    assert kept[0] == kept[1] + 10 * 2 * 4
