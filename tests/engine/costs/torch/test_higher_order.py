"""Branches and loops of torch over functions, and flex_attention: counted as in plain Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from explorer import Session  # noqa: E402
from explorer.engine.costs.torch import tracer  # noqa: E402
from explorer.facts import Info, Layer  # noqa: E402

ops = torch.ops.higher_order


class Layers(nn.Module):
    """A narrow and a wide layer; `function` says how they run."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.narrow = nn.Linear(6, 6)
        self.wide = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 6))
        self.function = function

    def forward(self, *x: Any) -> Any:
        return self.function(self, *x)


X = (torch.rand(5, 6),)


def analysis(function: Callable[..., Any], inputs: tuple[Any, ...] = X) -> tuple[Info, list[Layer]]:
    with Session(Layers(function), inputs=inputs, cache=False) as session:
        return session.info(), list(session.analysis().layers)


def counts(function: Callable[..., Any], inputs: tuple[Any, ...] = X) -> tuple[Any, ...]:
    totals = analysis(function, inputs)[0].totals
    return totals.macs, totals.elementwise_ops, totals.status, totals.coverage


def chosen(model: Layers, x: Any) -> Any:
    return torch.cond(x.mean() > 0, lambda y: model.narrow(y), lambda y: model.wide(y), (x,))


def test_the_branch_that_costs_more_counts_and_says_so():
    info, layers = analysis(chosen)
    wide = counts(lambda model, x: model.wide(x))
    assert info.totals.macs == wide[0] == 5 * (6 * 24 + 24 * 6)
    assert info.totals.status == "assumed"
    assert any("takes the path that costs more" in note and "chosen" in note for note in info.model.notes)
    narrow = next(row for row in layers if row.path == "narrow")
    assert (narrow.macs, narrow.status) == (0, "bound")
    assert "runs only if" in narrow.reason


def test_two_branches_that_cost_the_same_are_counted_once():
    def same(model: Layers, x: Any) -> Any:
        return torch.cond(x.mean() > 0, lambda y: model.narrow(y), lambda y: model.narrow(y * 1), (x,))

    assert counts(same)[0] == 5 * 6 * 6


def counted_loop(model: Layers, x: Any) -> Any:
    at = torch.zeros((), dtype=torch.long)
    return ops.while_loop(lambda i, y: i < 7, lambda i, y: (i + 1, model.narrow(y).relu()), (at, x), ())[1]


def plain_loop(model: Layers, x: Any) -> Any:
    at = torch.zeros((), dtype=torch.long)
    while at < 7:
        at, x = at + 1, model.narrow(x).relu()
    return x


def scanned(model: Layers, x: Any) -> Any:
    def step(carried: Any, row: Any) -> Any:
        after = torch.tanh(model.narrow(carried) + row)
        return after, after * 2

    return ops.scan(step, (x[0] * 0,), (x,), ())


def plain_scan(model: Layers, x: Any) -> Any:
    carried, rows = x[0] * 0, []
    for at in range(5):
        carried = torch.tanh(model.narrow(carried) + x.select(0, at))
        rows.append(carried * 2)
    return carried, torch.stack(rows)


def mapped(model: Layers, x: Any) -> Any:
    return ops.map_impl(lambda row, by: (model.wide(row) * by,), [x], [x[0]])


def plain_map(model: Layers, x: Any) -> Any:
    by = x[0]
    return torch.stack([model.wide(x.select(0, at)) * by for at in range(5)])


@pytest.mark.parametrize(
    ("loop", "plain"), [(counted_loop, plain_loop), (scanned, plain_scan), (mapped, plain_map)]
)
def test_a_loop_of_known_length_counts_as_a_loop_of_python(loop, plain):
    assert counts(loop) == counts(plain)
    assert counts(loop)[2:] == ("exact", 1)


def test_the_rounds_of_a_loop_share_their_rows():
    _, layers = analysis(lambda model, x: counted_loop(model, x) + counted_loop(model, x).relu())
    rows = {row.path: row.calls for row in layers}
    assert rows["narrow"] == 14
    assert rows["relu"] == rows["relu_2"] == 7
    assert rows["relu_3"] == 1


def test_a_loop_that_a_value_ends_runs_once_and_says_so():
    def search(model: Layers, x: Any) -> Any:
        return ops.while_loop(lambda y: y.sum() < 9, lambda y: (model.narrow(y),), (x,), ())[0]

    info, _ = analysis(search)
    assert info.totals.macs == 5 * 6 * 6
    assert info.totals.status == "assumed"
    assert any("runs once" in note for note in info.model.notes)


def test_a_branch_within_a_loop_is_asked_for_at_its_own_line():
    def nested(model: Layers, x: Any) -> Any:
        def body(i: Any, y: Any) -> Any:
            return i + 1, chosen(model, y)

        return ops.while_loop(lambda i, y: i < 3, body, (torch.tensor(0), x), ())[1]

    info, _ = analysis(nested)
    assert info.totals.macs == 3 * 5 * (6 * 24 + 24 * 6)
    assert [note for note in info.model.notes if "of chosen takes" in note]


def test_training_counts_what_runs_inside():
    with Session(Layers(counted_loop), inputs=X, cache=False) as session:
        looped = session.training().backward_macs
    with Session(Layers(plain_loop), inputs=X, cache=False) as session:
        assert looped == session.training().backward_macs


Q, K = torch.rand(2, 4, 10, 8), torch.rand(2, 4, 12, 8)


def flexed(model: Layers, q: Any, k: Any) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(q, k, k, score_mod=lambda score, b, h, i, j: score + (i - j))


def compiled(model: Layers, q: Any, k: Any) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)(q, k, k)


def test_a_block_mask_that_exists_before_the_run_is_taken():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 10, 12, device="cpu")
    info, _ = analysis(lambda model, q, k: flex_attention(q, k, k, block_mask=mask), (Q, K))
    assert (info.totals.macs, info.totals.status) == (2 * 4 * 10 * 12 * (8 + 8), "exact")


@pytest.mark.parametrize("function", [flexed, compiled])
def test_flex_attention_is_one_row_with_both_products(function):
    info, layers = analysis(function, (Q, K))
    assert info.totals.macs == 2 * 4 * 10 * 12 * (8 + 8)
    assert (info.totals.status, info.totals.coverage) == ("exact", 1)
    assert [row.path for row in layers if row.macs and not row.group] == ["flex_attention"]
    assert info.model.outputs[0].shape == (2, 4, 10, 8)


def test_an_unknown_operator_over_functions_is_named():
    from torch._ops import HigherOrderOperator

    class Odd(HigherOrderOperator):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__("odd_of_a_test")

        def __call__(self, *args: Any) -> Any:
            return super().__call__(*args)

    odd = Odd()
    info, _ = analysis(lambda model, x: odd(model.narrow, x))
    assert info.totals.macs is None
    assert any("the higher-order operator odd_of_a_test is not supported" in n for n in info.model.notes)


@pytest.mark.parametrize(
    "make",
    [
        torch.hann_window,
        torch.hamming_window,
        torch.blackman_window,
        torch.bartlett_window,
        torch.kaiser_window,
        torch.fft.fftfreq,
        lambda size: torch.range(1, size),
    ],
)
def test_a_tensor_that_is_made_of_no_input_is_counted(make):
    assert counts(lambda model, x: model.narrow(x) * make(6))[2:] == ("exact", 1)


@pytest.mark.parametrize("window", [None, torch.hann_window(4)])
def test_a_window_on_the_processor_meets_a_signal_without_values(window):
    def transform(model: Layers, x: Any) -> Any:
        shape = torch.hann_window(4) if window is None else window
        return torch.stft(model.narrow(x).flatten(), 4, window=shape, return_complex=True).abs()

    info, layers = analysis(transform)
    assert (info.totals.status, info.totals.coverage) == ("bound", 1)
    assert "stft" in [row.path for row in layers]


def test_a_question_in_the_standard_library_stands_at_the_models_line():
    from statistics import median

    def middle(model: Layers, x: Any) -> Any:
        return model.wide(x) if median([x.sum(), x.mean(), x.max()]) > 1 else model.narrow(x)

    info, _ = analysis(middle)
    assert info.totals.macs == 5 * (6 * 24 + 24 * 6)
    assert any("of test_a_question" in note and "middle" in note for note in info.model.notes), (
        info.model.notes
    )


@pytest.mark.slow
def test_each_branch_of_a_program_from_a_file_is_decided_by_itself(tmp_path):
    def twice(model: Layers, x: Any) -> Any:
        y = torch.cond(x.sum() > 0, lambda z: model.narrow(z), lambda z: model.wide(z), (x,))
        return torch.cond(x.sum() > 1, lambda z: model.wide(z), lambda z: model.narrow(z), (y,))

    path = tmp_path / "twice.pt2"
    torch.export.save(torch.export.export(Layers(twice), X), path)
    with Session(str(path), cache=False) as session:
        totals = session.info().totals
    assert totals.macs == 2 * 5 * (6 * 24 + 24 * 6)
    assert totals.status == "assumed"


class Multiplied(nn.Module):
    """A product as often as the sum asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        return ops.while_loop(lambda y: y.sum() < 9, lambda y: (y @ y.t() @ y,), (self.layer(x),), ())[0]


def test_a_loop_of_a_program_from_a_file_that_a_value_ends_runs_once(tmp_path):
    path = tmp_path / "doubled.pt2"
    torch.export.save(torch.export.export(Multiplied().eval(), X), path)
    with Session(str(path), cache=False) as session:
        totals = session.info().totals
    assert (totals.macs, totals.status) == (5 * 6 * 6 + 2 * 5 * 5 * 6, "assumed")


def test_a_loop_of_more_steps_than_anybody_waits_for_is_open(monkeypatch):
    monkeypatch.setattr(tracer, "MAX_STEPS", 6)
    info, layers = analysis(counted_loop)
    assert info.totals.status != "exact"
    assert any("a loop has more than 6 steps" in layer.reason for layer in layers)


def stacked(model, x):
    """Two copies of a layer, whose parameters lie in one tensor."""
    parameters = {name: torch.stack([p, -p]) for name, p in model.narrow.named_parameters()}
    return torch.func.vmap(lambda held: torch.func.functional_call(model.narrow, held, (x,)))(parameters)


@pytest.mark.parametrize(
    ("function", "products"),
    [
        (lambda model, x: torch.func.vmap(lambda row: torch.relu(model.narrow(row)))(x), 1),
        (lambda model, x: torch.func.vmap(model.narrow, chunk_size=2)(x), 1),
        (lambda model, x: torch.func.vmap(torch.func.vmap(lambda number: number * 2))(model.narrow(x)), 1),
        (stacked, 2),
    ],
)
def test_a_function_over_the_rows_of_a_batch_counts_for_every_row(function, products):
    info, _ = analysis(function)
    assert (info.totals.macs, info.totals.status) == (products * 5 * 6 * 6, "exact")
