"""Random shapes, groups, strides and dilations, against torch's own counter and against brute force."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, assume, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from explorer.engine.costs.torch.analyse import examine_module  # noqa: E402
from tests.torch_counter import torch_counter  # noqa: E402

quick = settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much]
)
size = st.integers(1, 5)


class Call(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def macs(make: Any, *shapes: tuple[int, ...]) -> int:
    with torch.device("meta"):
        model = make()
        given_ = [torch.empty(s) for s in shapes]
    totals = examine_module(model, given_).analysis.info.totals
    assert totals.coverage == 1.0
    return totals.macs


def counted(make: Any, *shapes: tuple[int, ...]) -> int:
    """Half of what torch's counter says, with gradients on."""
    with torch_counter() as counter:
        make()(*[torch.rand(s, requires_grad=True) for s in shapes])
    return int(counter.get_total_flops()) // 2


@st.composite
def convolutions(draw: Any, transposed: bool) -> tuple[dict[str, Any], tuple[int, ...]]:
    rank = draw(st.integers(1, 3))
    groups = draw(st.integers(1, 3))
    each = st.tuples(*[st.integers(1, 3)] * rank)
    options = {
        "in_channels": groups * draw(st.integers(1, 3)),
        "out_channels": groups * draw(st.integers(1, 3)),
        "kernel_size": draw(each),
        "stride": draw(each),
        "dilation": draw(each),
        "padding": draw(st.tuples(*[st.integers(0, 2)] * rank)),
        "groups": groups,
        "bias": draw(st.booleans()),
    }
    sides = tuple(
        draw(st.integers(max(1, d * (k - 1) + 1 - 2 * p), 9))
        for k, d, p in zip(options["kernel_size"], options["dilation"], options["padding"], strict=True)
    )
    if transposed:
        out = [
            (n - 1) * s - 2 * p + d * (k - 1) + 1
            for n, s, p, d, k in zip(
                sides, options["stride"], options["padding"], options["dilation"], options["kernel_size"],
                strict=True,
            )
        ]  # fmt: skip
        assume(min(out) > 0)
    batch = draw(st.sampled_from([(), (1,), (3,)]))
    return options, (*batch, options["in_channels"], *sides)


def products_of_a_convolution(options: dict[str, Any], shape: tuple[int, ...], out: tuple[int, ...]) -> int:
    """Every product of a weight with an input, padding included, one by one: for each output element the
    channels of its group, and all taps."""
    per_group = options["in_channels"] // options["groups"]
    taps = list(itertools.product(*(range(k) for k in options["kernel_size"])))
    return sum(1 for _ in range(math.prod(out)) for _ in range(per_group) for _ in taps)


@quick
@given(convolutions(transposed=False))
def test_convolutions(case: Any) -> None:
    options, shape = case
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(options["kernel_size"]) - 1]
    ours = macs(lambda: kind(**options), shape)
    assert ours == counted(lambda: kind(**options), shape)
    with torch.no_grad():
        out = tuple(kind(**options)(torch.zeros(shape)).shape)
    assert ours == products_of_a_convolution(options, shape, out)


@pytest.mark.slow
@quick
@given(convolutions(transposed=True))
def test_transposed_convolutions(case: Any) -> None:
    options, shape = case
    kind = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[len(options["kernel_size"]) - 1]
    ours = macs(lambda: kind(**options), shape)
    # every input element goes, with every tap, to every output channel of its group
    features = options["out_channels"] // options["groups"]
    assert ours == math.prod(shape) * features * math.prod(options["kernel_size"])
    # torch's counter takes the first dimension for a batch even where there is none
    if len(shape) == len(options["kernel_size"]) + 2:
        assert ours == counted(lambda: kind(**options), shape)


@quick
@given(st.lists(size, max_size=3), st.lists(size, max_size=3), size, size, size, st.booleans(), st.booleans())
def test_matmul_broadcasts(a: Any, b: Any, m: int, k: int, n: int, left: bool, right: bool) -> None:
    # one of two sizes that meet may be 1
    for at in range(1, min(len(a), len(b)) + 1):
        if a[-at] != b[-at]:
            b[-at] = 1
    one = (k,) if left else (*a, m, k)
    two = (k,) if right else (*b, k, n)
    batch = [] if left else a
    others = [] if right else b
    shape = torch.broadcast_shapes(tuple(batch), tuple(others))
    whole = math.prod(shape) * (1 if left else m) * k * (1 if right else n)
    assert macs(lambda: Call(torch.matmul), one, two) == whole


@quick
@given(size, size, size, size)
def test_bmm(b: int, m: int, k: int, n: int) -> None:
    ours = macs(lambda: Call(torch.bmm), (b, m, k), (b, k, n))
    assert ours == counted(lambda: Call(torch.bmm), (b, m, k), (b, k, n)) == b * m * k * n


@quick
@given(st.text("ijkl", min_size=1, max_size=3), st.text("ijkl", min_size=1, max_size=3), st.data())
def test_einsum_of_two(first: str, second: str, data: Any) -> None:
    assume(len(set(first)) == len(first))
    assume(len(set(second)) == len(second))
    letters = sorted(set(first + second))
    kept = "".join(data.draw(st.permutations(data.draw(st.lists(st.sampled_from(letters), unique=True)))))
    sizes = {letter: data.draw(st.integers(2, 4)) for letter in letters}
    equation = f"{first},{second}->{kept}"
    shapes = [tuple(sizes[letter] for letter in term) for term in (first, second)]
    ours = macs(lambda: Call(lambda a, b: torch.einsum(equation, a, b)), *shapes)
    # what one operand alone has is summed before the product, what both have and nobody keeps in it
    alone = set(letters) - set(kept) - (set(first) & set(second))
    summed = set(first) & set(second) - set(kept)
    assert ours == (math.prod(sizes[letter] for letter in set(letters) - alone) if summed else 0)


@quick
@given(
    st.sampled_from([nn.LSTM, nn.GRU, nn.RNN]),
    st.integers(1, 3), st.integers(1, 2), st.booleans(), st.booleans(), st.booleans(), st.booleans(),
    size, size, size, size,
)  # fmt: skip
def test_recurrent_layers_step_by_step(
    kind: Any,
    layers: int,
    directions: int,
    bias: bool,
    batch_first: bool,
    projected: bool,
    unbatched: bool,
    steps: int,
    batch: int,
    width: int,
    hidden: int,
) -> None:
    projection = hidden - 1 if projected and kind is nn.LSTM else 0
    options = {"bidirectional": directions == 2, "bias": bias, "batch_first": batch_first}
    if projection:
        options["proj_size"] = projection
    make = lambda: kind(width, hidden, layers, **options)  # noqa: E731
    shape = (steps, width) if unbatched else (batch, steps, width) if batch_first else (steps, batch, width)
    # the weights say it: every element of every matrix is used once a step and sequence
    matrices = sum(p.numel() for n, p in make().named_parameters() if n.startswith("weight"))
    assert macs(make, shape) == steps * (1 if unbatched else batch) * matrices
    with torch.no_grad():
        result = make()(torch.zeros(shape))[0]
    with torch.device("meta"):
        analysis = examine_module(make(), [torch.empty(shape)]).analysis
    assert analysis.layers[0].outputs[0].shape == tuple(result.shape)


@quick
@given(size, st.integers(1, 3), size, size, st.integers(1, 4))
def test_attention(batch: int, heads: int, lq: int, lk: int, each: int) -> None:
    width = heads * each
    make = lambda: nn.MultiheadAttention(width, heads, batch_first=True)  # noqa: E731
    shapes = [(batch, lq, width), (batch, lk, width), (batch, lk, width)]
    projections = batch * width * width * (2 * lq + 2 * lk)
    ours = macs(make, *shapes)
    assert ours == projections + 2 * batch * heads * lq * lk * each
    assert ours == counted(make, *shapes)
