"""The rail: what feeds what, drawn beside the tree as `git log` draws branches."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from explorer import Session
from explorer.facts import Layer
from explorer.facts.graph.edges import RowEdges
from explorer.tui.tree.model import TreeModel
from explorer.tui.tree.rail import LANES, Rail
from tests.tui.hands import screen
from tests.tui.scripted import ScriptedEngine, flat


class _Block(nn.Module):
    """x + f(x), and a branch of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.act, self.side = nn.Conv2d(4, 4, 1), nn.Tanh(), nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.conv(x)) + self.side(x)


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.two = nn.Conv2d(4, 4, 1), _Block(), nn.Sequential(nn.ReLU(), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x)
        return self.two(self.one(y)) + y


def _drawn(model: TreeModel, rail: Rail) -> list[str]:
    rows = [model.layers[model.find_first_layer(row)].path for row in model.rows]
    return [f"{rail.line(model, at, 0)} {path}".strip() for at, path in enumerate(rows)]


@pytest.fixture
def net() -> tuple[TreeModel, Rail]:
    with Session(_Net(), inputs=torch.zeros(1, 4, 2, 2)) as session:
        return TreeModel(session.analysis().layers), Rail(session.edges())


def test_skips_have_a_lane_and_join_where_they_are_read(net: tuple[TreeModel, Rail]) -> None:
    model, rail = net
    assert _drawn(model, rail) == [
        "╭╮  stem",
        "││  one",
        "││  one.conv",
        "╰┼╮ one.act",
        "╭┤│ one.side",
        "├┼╯ one.add",
        "││  two",
        "││  two.0",
        "││  two.1",
        "╰╯  add",
    ]


def test_a_closed_group_stands_for_all_in_it(net: tuple[TreeModel, Rail]) -> None:
    model, rail = net
    model.fold_all()
    assert _drawn(model, rail) == ["╭╮ stem", "││ one", "││ two", "╰╯ add"]


def test_of_a_large_closed_group_what_leaves_it_is_drawn_and_what_stays_is_not() -> None:
    names = ["stem", "body", *(f"body.{at}" for at in range(60)), "join", "tail"]
    inside = range(2, 62)
    nodes = (0, *inside, 62, 63)
    layers = [
        Layer(at, 1 if at in inside else None, name, name, "Relu", int(at in inside), at == 1, macs=1)
        for at, name in enumerate(names)
    ]
    over = sorted([(0, 62), (2, 63), *((at, at + 5) for at in range(2, 56))])
    edges = RowEdges(tuple(a for a, _ in over), tuple(b for _, b in over), nodes, nodes[1:])
    model = TreeModel(layers)
    model.fold_all()
    assert _drawn(model, Rail(edges)) == ["╭╮  stem", "├┼╮ body", "├╯│ join", "╰─╯ tail"]


def test_rows_in_another_order_have_no_rail(net: tuple[TreeModel, Rail]) -> None:
    model, rail = net
    plain = [layer.path for layer in model.layers]
    model.set_order(by_cost=True)
    assert sorted(_drawn(model, rail)) == sorted(plain)
    model.set_order(by_cost=False)
    model.set_filter([2])
    assert _drawn(model, rail) == ["one", "one.conv"]


def test_more_lanes_than_there_is_room_for_are_a_mark() -> None:
    many = 2 * LANES
    ids = tuple(range(2 * many))
    edges = RowEdges(ids[:many], tuple(reversed(ids[many:])), ids, ())
    model, rail = TreeModel(flat(2 * many).layers), Rail(edges)
    lines = [rail.line(model, at, 0) for at in ids]
    assert {len(line) for line in lines} == {1 + LANES}
    assert lines[many][-1] == "⋮"


@pytest.mark.slow
async def test_a_key_takes_the_rail_away_and_says_why_there_is_none() -> None:
    engine = ScriptedEngine(flat(6))
    engine._edges = lambda: RowEdges((0,), (4,), tuple(range(6)), (1, 2, 3, 4, 5))  # type: ignore[method-assign]
    async with screen(engine, size=(120, 40)) as hands:
        assert [line.strip()[:2] for line in hands.tree()][:5] == ["╭╮", "││", "││", "││", "├╯"]
        await hands.press("R")
        assert not any("│" in line for line in hands.tree())
    engine._edges = lambda: RowEdges(unknown="which layer feeds which is not known")  # type: ignore[method-assign]
    async with screen(engine, size=(120, 40)) as hands:
        await hands.press("R", "R")
        assert hands.main.store.message == "which layer feeds which is not known"
