"""Programs of torch.export that branch, loop and return numbers: replayed, and written as what they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from explorer import ExplorerError
from explorer.facts.conversion import Conversion

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from explorer.engine.formats.torch_replay.exported_program import load  # noqa: E402

Convert = Callable[..., Conversion]


class Chosen(nn.Module):
    """Two layers, one of which runs."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        return torch.cond(x.mean() > 0, lambda x: self.small(x) - 1, lambda x: self.large(x).relu(), (x,))


class Halved(nn.Module):
    """As often as the numbers are large."""

    def forward(self, x: Any) -> Any:
        loop = torch.ops.higher_order.while_loop
        (found,) = loop(lambda x: x.abs().sum() > 1, lambda x: (x * 0.5,), (x,), ())
        return found


class Summed(nn.Module):
    """Running sums through a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        def step(total: Any, row: Any, weight: Any, bias: Any) -> Any:
            total = torch.tanh(nn.functional.linear(total, weight, bias) + row)
            return total, total * 2

        more = self.layer.weight, self.layer.bias
        return torch.ops.higher_order.scan(step, (x[0] * 0,), (x,), more)


class Counting(nn.Module):
    """Numbers beside a tensor: one of its own, one of its input's size."""

    def forward(self, x: Any) -> Any:
        return x.relu(), 11, x.shape[0] * 3


def saved(module: nn.Module, path: Path, *, open_batch: bool = False) -> tuple[str, Any]:
    torch.manual_seed(1)
    shapes = ({0: torch.export.Dim("rows", min=2, max=64)},) if open_batch else None
    program = torch.export.export(module.eval(), (torch.randn(4, 3),), dynamic_shapes=shapes)
    torch.export.save(program, path)
    return str(path), program.module()


FLOW = {"If": Chosen, "Loop": Halved, "Scan": Summed}


@pytest.mark.parametrize("kind", FLOW)
def test_what_branches_or_loops_is_replayed_with_its_values(kind: str, tmp_path: Path) -> None:
    path, original = saved(FLOW[kind](), tmp_path / "m.pt2")
    replayed = load(path).materialize()
    for given in (torch.full((4, 3), 3.7), torch.full((4, 3), -0.4), torch.randn(4, 3) * 20):
        with torch.no_grad():
            expected, found = original(given), replayed(given)
        for a, b in zip(*((v if isinstance(v, tuple) else (v,)) for v in (expected, found)), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("kind", FLOW)
def test_a_trace_of_what_branches_is_refused(convert: Convert, kind: str, tmp_path: Path) -> None:
    saved(FLOW[kind](), tmp_path / "m.pt2")
    with pytest.raises(ExplorerError, match="a trace follows only one branch of higher_order::"):
        convert("m.pt2", "m.pt")


@pytest.mark.slow
@pytest.mark.parametrize("kind", FLOW)
def test_what_branches_or_loops_becomes_an_operator_of_onnx_that_does(
    convert: Convert, kind: str, tmp_path: Path
) -> None:
    saved(FLOW[kind](), tmp_path / "m.pt2")
    fact = convert("m.pt2", "m.onnx", draws=8)
    assert fact.passed
    assert kind in {node.op_type for node in onnx.load(tmp_path / "m.onnx").graph.node}


class Seldom(Chosen):
    """Two layers, one of which runs on no input that anybody draws; inside the other one of two."""

    def forward(self, x: Any) -> Any:
        def inner(x: Any) -> Any:
            return torch.cond(x.max() > 1, lambda x: self.large(x), lambda x: x * 2, (x,))

        return torch.cond(x.mean() > 1000, lambda x: self.small(x), inner, (x,))


@pytest.mark.slow
@pytest.mark.parametrize(("module", "noted"), [(Seldom, True), (Chosen, False)])
def test_a_branch_that_no_run_took_is_noted(
    convert: Convert, module: type[nn.Module], noted: bool, tmp_path: Path
) -> None:
    saved(module(), tmp_path / "m.pt2")
    notes = " ".join(convert("m.pt2", "m.onnx", draws=8).notes)
    assert ("1 condition took the same branch in all runs: the other branch was not" in notes) == noted
    assert ("1 condition inside other branches" in notes) == noted


@pytest.mark.slow
@pytest.mark.parametrize("exporter", [None, "dynamo"])
def test_numbers_among_the_results_are_results_of_the_file(
    convert: Convert, exporter: str | None, tmp_path: Path
) -> None:
    saved(Counting(), tmp_path / "m.pt2", open_batch=True)
    fact = convert("m.pt2", "m.onnx", exporter=exporter, dynamic={"x": {0: "rows"}})
    assert fact.passed
    assert [info.shape for info in fact.outputs][1:] == [(), ()]
    assert fact.verification is not None
    sizes, rest = divmod(len(fact.verification.outputs), 3)
    assert (sizes >= 3, rest) == (True, 0)
