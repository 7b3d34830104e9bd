"""What a model asks that only values could answer: a true upper bound where there is one, else an assumption
that says the word; and what torch would refuse is refused."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from explorer.engine.costs.torch import data_dependence  # noqa: E402
from explorer.engine.costs.torch.analyse import examine_module  # noqa: E402
from explorer.facts import Analysis, Layer  # noqa: E402


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def on_meta(function: Any, *inputs: Any) -> Analysis:
    """Inputs are shapes of floats, or tensors."""
    given = [torch.empty(i, device="meta") if isinstance(i, tuple) else i for i in inputs]
    return examine_module(function if isinstance(function, nn.Module) else Call(function), given).analysis


def ids(*shape: int) -> Any:
    return torch.empty(shape, dtype=torch.int64, device="meta")


def row(analysis: Analysis, kind: str) -> Layer:
    return next(layer for layer in analysis.layers if layer.kind == kind)


# -- bounds: no run on real values can cost more


@pytest.mark.parametrize(
    ("function", "shapes", "outputs", "says"),
    [
        (lambda x: torch.nonzero(x) @ torch.ones(2, 3).long(), [(4, 5)], (20, 3), "counts as nonzero"),
        (lambda x: x[x > 0].reshape(-1, 1) @ torch.ones(1, 3), [(4, 5)], (20, 3), "counts as selected"),
        (lambda x: x.masked_select(x > 0).reshape(-1, 1) @ torch.ones(1, 3), [(4, 5)], (20, 3), "selected"),
        (lambda x: torch.unique(x).reshape(-1, 1) @ torch.ones(1, 3), [(4, 5)], (20, 3), "as distinct"),
        (lambda x: torch.unique(x, dim=0) @ torch.ones(5, 3), [(4, 5)], (4, 3), "counts as distinct"),
        (lambda x: x.unique_consecutive()[:, None] @ torch.ones(1, 3), [(4, 5)], (20, 3), "as distinct"),
        (lambda x: x[x[:, 0] > 0] @ torch.ones(5, 3), [(4, 5)], (4, 3), "counts as selected"),
    ],
)  # fmt: skip
def test_a_size_that_depends_on_values_is_the_largest_possible(
    function: Any, shapes: Any, outputs: Any, says: str
) -> None:
    analysis = on_meta(function, *shapes)
    product = row(analysis, "matmul")
    assert product.outputs[0].shape == outputs
    assert product.status == "bound"
    assert says in product.reason
    assert "assumed" not in product.reason
    # distinct, positive values reach the bound
    values = [torch.arange(1.0, 1 + torch.Size(s).numel()).reshape(s) for s in shapes]
    assert tuple(function(*values).shape) == outputs


# -- assumptions: there is no largest value


def test_what_follows_a_value_that_was_asked_for_may_depend_on_it_and_says_so() -> None:
    def cut(x: Any, count: Any) -> Any:
        before = x @ x
        n = int(count)
        return before[:, :n] @ x[:n]

    analysis = on_meta(cut, (3, 3), ids())
    first, second = (layer for layer in analysis.layers if layer.kind == "matmul")
    assert (first.status, first.macs) == ("exact", 27)
    assert (second.status, second.macs) == ("bound", 9)
    assert second.reason.startswith("assumed: the model read a value of a tensor, taken to be 1")
    assert any("assumed" in note for note in analysis.info.model.notes)


@pytest.mark.parametrize(
    ("function", "outside"),
    [
        (lambda x: x @ x if x.sum() > 0 else x, []),
        (lambda x: x @ x if torch.allclose(x, x + 1) else x, []),
        (lambda x: x @ x if x.equal(x + 1) else x, []),
        (lambda x: sum(x[:n] @ x for n in x[0].long().tolist()), []),
        (
            lambda x: x[:, : int(x.numpy().sum())] @ x[:1].repeat_interleave(int(x.numpy().sum()), 0),
            # the sum is NumPy's
            ["numpy"],
        ),
        (lambda x: x.repeat_interleave(x[0].long(), 0) @ x, []),
    ],
)
def test_every_way_to_ask_for_a_value_is_answered_and_labelled(function: Any, outside: list[str]) -> None:
    analysis = on_meta(function, (3, 3))
    assert not [note for note in analysis.info.model.notes if "failed" in note]
    assert [layer.path for layer in analysis.layers if layer.kind == "unseen work"] == outside
    assert (analysis.info.totals.coverage == 1.0) == (not outside)
    assert any(layer.reason.startswith("assumed") for layer in analysis.layers)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x @ x * x.max().item(),
        lambda x: x @ torch.from_numpy(x.numpy()),
        lambda x: x @ x if x.sum() > 0 else x @ x.T,
    ],
)
def test_a_value_that_changes_no_figure_is_no_assumption(function: Any) -> None:
    info = on_meta(function, (3, 3)).info
    assert (info.totals.macs, info.totals.status) == (27, "exact")
    assert not info.model.notes


class Checks(nn.Module):
    """As careful code does: raises on bad values, whichever way round it asks."""

    def __init__(self, *checks: Any) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 4)
        self.checks = checks

    def forward(self, x: Any) -> Any:
        for check in self.checks:
            if check(x):
                raise ValueError("bad values")
        return self.fc(x)


@pytest.mark.parametrize(
    "checks",
    [
        [lambda x: torch.isnan(x).any()],
        [lambda x: not torch.isfinite(x).all()],
        [lambda x: torch.isnan(x).any(), lambda x: not torch.isfinite(x).all(), lambda x: x.min() < 0],
    ],
)
def test_a_check_that_raises_on_bad_values_takes_the_values_for_good(checks: Any) -> None:
    analysis = on_meta(Checks(*checks), (2, 3))
    assert row(analysis, "Linear").macs == 24
    assert not [note for note in analysis.info.model.notes if "failed" in note]


def test_a_check_that_no_answer_satisfies_is_a_failure() -> None:
    analysis = on_meta(Checks(lambda x: True), (2, 3))
    assert any("ValueError: bad values" in note for note in analysis.info.model.notes)
    assert row(analysis, "Linear").macs is None


def test_values_that_are_known_are_used() -> None:
    """A table of the model's own is no guess, and numbers made from it are exact."""

    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)
            self.register_buffer("steps", torch.tensor(4))

        def forward(self, x: Any) -> Any:
            for _ in range(int(self.steps)):
                x = self.fc(x)
            return x

    from explorer import Session

    with Session(Steps(), inputs=torch.zeros(2, 3)) as session:
        linear = next(layer for layer in session.analysis().layers if layer.path == "fc")
    assert (linear.calls, linear.macs, linear.status) == (4, 4 * 2 * 9, "exact")


class Ends(nn.Module):
    """Goes on until a value says stop, in the ways in which that is written."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.way = way

    def forward(self, x: Any) -> Any:
        if self.way == "while":
            while x.norm() > 1e-3:
                x = self.fc(x)
        elif self.way == "item":
            while x.norm().item() > 1e-3:
                x = self.fc(x)
        elif self.way == "list":
            while x.abs().tolist()[0][0] > 1e-3:
                x = self.fc(x)
        elif self.way == "array":
            while x.abs().numpy().max() > 1e-3:
                x = self.fc(x)
        elif self.way == "break":
            while True:
                x = self.fc(x)
                if x.norm().item() < 1e-3:
                    break
        elif self.way == "never":
            while True:
                x = self.fc(x)
                if x.norm().item() == 17:
                    break
        return x


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "calls"), [("while", 1), ("item", 1), ("list", 1), ("array", 1), ("break", 2)]
)
def test_a_loop_that_only_a_value_ends_is_counted_once_and_not_for_ever(
    way: str, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way != "while":  # one way is asked as often as a model may ask
        monkeypatch.setattr(data_dependence, "MAX_QUESTIONS", 32)
    analysis = on_meta(Ends(way), (2, 3))
    linear = row(analysis, "Linear")
    assert (linear.calls, linear.macs) == (calls, calls * 2 * 9)
    notes = analysis.info.model.notes
    assert any("a loop that ends by the value of a tensor runs once" in note for note in notes)
    assert not any("failed" in note for note in notes)


@pytest.mark.slow
def test_a_loop_that_no_answer_ends_is_a_failure_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_dependence, "MAX_QUESTIONS", 32)
    analysis = on_meta(Ends("never"), (2, 3))
    assert any("a loop whose end depends on values" in note for note in analysis.info.model.notes)
    assert analysis.info.totals.coverage < 1
    assert row(analysis, "Linear").calls < 4


@pytest.mark.slow
def test_a_loop_over_many_boxes_may_ask_for_each() -> None:
    def boxes(x: Any) -> Any:
        for i in range(1000):
            if x[0, 0] > i:
                x = x @ x
        return x

    assert on_meta(boxes, (3, 3)).info.totals.macs == 27_000


def test_what_rests_on_an_assumption_is_not_called_the_most() -> None:
    from explorer import Session
    from explorer.report.present.look import table as report

    class Both(nn.Module):
        def forward(self, x: Any) -> Any:
            kept = x[x[:, 0] > 0] @ torch.ones(3, 3)
            return kept[: int(x.sum())] @ torch.ones(3, 3)

    with Session(Both(), inputs=torch.zeros(4, 3)) as session:
        analysis = session.analysis()
        notes = session.info().model.notes
        memory = session.memory()
    assert any("under an assumption: the true totals may be higher or lower" in note for note in notes)
    assert not any("the most" in note for note in notes)
    assert memory.reason.startswith("assumed")
    told = [report._compose_remark(layer, {}, False) for layer in analysis.layers if layer.status == "bound"]
    assert any(text.startswith("upper bound: indexing") for text in told)
    assert any(text.startswith("assumed: ") for text in told)


# -- devices and types


def test_what_is_brought_to_another_device_stays_without_values() -> None:
    assert on_meta(lambda x: x.cpu() @ x.to("cpu"), (3, 3)).info.totals.macs == 27


def test_a_function_that_looks_at_devices_first_is_asked_again() -> None:
    def spectrum(x: Any) -> Any:
        return torch.stft(x, 16, window=torch.ones(16), return_complex=True)

    analysis = on_meta(spectrum, (2, 64))
    assert analysis.info.totals.coverage == 1.0
    # 17 windows of 16 samples, 9 frequencies of each, a real by a complex number
    assert analysis.info.totals.macs == 2 * 17 * 9 * 16 * 2


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Conv2d(3, 4, 3), (1, 3, 8, 8)),
        (lambda: nn.Linear(3, 4), (2, 3)),
        (lambda: nn.Linear(3, 4, bias=False), (2, 3)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.int64])
def test_an_input_of_a_type_that_the_weights_have_not_fails_as_it_would(
    make: Any, shape: tuple[int, ...], dtype: Any
) -> None:
    with torch.device("meta"):
        model = nn.Sequential(make())
    analysis = examine_module(model, [torch.empty(shape, dtype=dtype, device="meta")]).analysis
    layer = next(layer for layer in analysis.layers if layer.path == "0")
    assert (layer.status, layer.macs) == ("unknown", None)
    assert "failed here" in layer.reason
    assert "type" in layer.reason
    with pytest.raises(RuntimeError):
        make()(torch.zeros(shape, dtype=dtype))


def test_a_half_precision_model_takes_half_precision_inputs_unasked() -> None:
    from explorer import Session

    with Session(nn.Sequential(nn.Linear(8, 2)).half()) as session:
        assert session.info().model.inputs[0].dtype == "float16"
        assert session.info().totals.macs == 16


def test_a_dimension_of_no_elements_costs_nothing() -> None:
    """An input may be empty (a cache before the first step); what has a name may not, as in ONNX."""
    from explorer import Session
    from explorer.base.errors import Misuse

    model = nn.Sequential(nn.Linear(8, 2))
    with Session(model, inputs=torch.zeros(3, 8), input_shapes={"input": (None, (0, 8))}) as session:
        assert session.info().totals.macs == 0
    with pytest.raises(Misuse, match="a dimension cannot be 0"):
        Session(model, inputs=torch.zeros(3, 8), dims={"batch": 0}).info()
    empty = on_meta(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).to("meta"), (0, 3, 8, 8)).info
    assert (empty.totals.macs, empty.totals.elementwise_ops, empty.totals.coverage) == (0, 0, 1.0)
    assert empty.model.outputs[0].shape == (0, 4, 6, 6)


# -- modules that need more than a call


@pytest.mark.filterwarnings("ignore:.*weight_norm.*")
def test_old_style_weight_norm_and_hooks_of_the_user_run_with_the_model() -> None:
    from explorer import Session

    model = nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 4)), nn.Linear(4, 2))
    model[1].register_forward_hook(lambda module, args, out: F.relu(out))
    with Session(model, inputs=torch.zeros(2, 3)) as session:
        assert session.info().totals.macs == 2 * 3 * 4 + 2 * 4 * 2
    assert len(model[1]._forward_hooks) == 1


def test_of_two_branches_with_equal_macs_the_one_that_moves_more_counts() -> None:
    """Both branches multiply the same; one selects by a mask before, which the figures must include."""
    layer = nn.Linear(6, 6)

    def choose(x: Any) -> Any:
        return layer(x) if x.sum() > 0 else layer(x[x > 0].view(-1, 6))

    analysis = on_meta(choose, (5, 6))
    assert {"getitem", "view"} <= {layer.kind for layer in analysis.layers}
    totals = analysis.info.totals
    assert totals.macs == 5 * 6 * 6
    assert totals.moved_sign == "~ "
    assert any("takes the path that costs more" in note for note in analysis.info.model.notes)


def test_a_bound_of_the_work_alone_leaves_sizes_and_bytes_exact() -> None:
    """A Fourier transform has known shapes; a mask has not, so it makes the bytes bounds, too."""
    transform = on_meta(lambda x: torch.fft.rfft(x).abs(), (3, 20)).info.totals
    signs = {name: transform.sign_of(name) for name in ("macs", "elementwise_ops", "bytes_read")}
    assert signs == {"macs": "<= ", "elementwise_ops": "", "bytes_read": ""}
    assert transform.bytes_written == 3 * 11 * (8 + 4)

    inverse = on_meta(lambda x: torch.linalg.inv(x), (2, 5, 5)).info.totals
    assert (inverse.sign_of("elementwise_ops"), inverse.moved_sign) == ("<= ", "")

    both = on_meta(lambda x: torch.fft.rfft(x[x > 0]).abs(), (3, 20)).info.totals
    assert (both.sign, both.moved_sign) == ("<= ", "<= ")
