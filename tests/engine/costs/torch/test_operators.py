"""What single layers and functions of PyTorch cost, each against a count by hand.

torch's own counter leaves many of these out. Where it counts, half of what it says (with gradients on, so
that no fused path hides work) is compared too.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from explorer import Session  # noqa: E402
from explorer.engine.costs.torch.analyse import examine_module  # noqa: E402
from explorer.facts import Analysis  # noqa: E402
from tests.torch_counter import torch_counter  # noqa: E402

INT = torch.int64


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def call(function: Any) -> Any:
    return lambda: Call(function)


def on_meta(make: Any, *inputs: Any, **kwargs: Any) -> Analysis:
    """Inputs are shapes of floats, or tensors."""
    with torch.device("meta"):
        model = make()
        given = [torch.empty(i) if isinstance(i, tuple) else i for i in inputs]
    return examine_module(model, given, kwargs).analysis


def ids(*shape: int) -> Any:
    return torch.empty(shape, dtype=INT, device="meta")


def leaves(analysis: Analysis) -> list[Any]:
    return [layer for layer in analysis.layers if not layer.group]


ATTENTION = 3 * (
    5 * 8 * 24 + 2 * 5 * 5 * 8 + 5 * 64
)  # batch 3, 5 positions, width 8: in, scores and sum, out
CROSS = 3 * (5 * 64 + 7 * 128 + 2 * 5 * 7 * 8 + 5 * 64)  # its keys and values from 7 other positions
FEED = 3 * (2 * 5 * 8 * 16)  # 8 to 16 and back

PRODUCTS = [
    ("mv", call(torch.mv), [(3, 4), (4,)], 12),
    ("dot", call(torch.dot), [(4,), (4,)], 4),
    ("vdot", call(torch.vdot), [(4,), (4,)], 4),
    ("inner of vectors", call(torch.inner), [(4,), (4,)], 4),
    ("inner of matrices", call(torch.inner), [(3, 4), (5, 4)], 60),
    ("outer adds nothing up", call(torch.outer), [(3,), (4,)], 0),
    ("addr", call(torch.addr), [(3, 4), (3,), (4,)], 0),
    ("addmv", call(torch.addmv), [(3,), (3, 4), (4,)], 12),
    ("addbmm", call(torch.addbmm), [(3, 5), (2, 3, 4), (2, 4, 5)], 120),
    ("baddbmm", call(torch.baddbmm), [(2, 3, 5), (2, 3, 4), (2, 4, 5)], 120),
    ("matmul, vector by batch", call(torch.matmul), [(4,), (2, 4, 3)], 24),
    ("matmul, batch by vector", call(torch.matmul), [(2, 3, 4), (4,)], 24),
    ("matmul, both broadcast", call(torch.matmul), [(2, 1, 3, 4), (1, 5, 4, 6)], 720),
    ("einsum with an ellipsis", call(lambda a, b: torch.einsum("...ij,...jk->...ik", a, b)),
     [(2, 7, 3, 4), (2, 7, 4, 5)], 14 * 60),
    ("einsum without a summed index", call(lambda a, b: torch.einsum("i,j->ij", a, b)), [(3,), (4,)], 0),
    ("einsum of one operand", call(lambda a: torch.einsum("ij->i", a)), [(3, 4)], 0),
    # torch takes the operands from left to right: what it runs is what is counted
    ("einsum of three", call(lambda a, b, c: torch.einsum("ij,jk,kl->il", a, b, c)),
     [(2, 3), (3, 4), (4, 5)], 2 * 3 * 4 + 2 * 4 * 5),
    ("chain_matmul", call(torch.chain_matmul), [(10, 100), (100, 5), (5, 50)], 10 * 100 * 5 + 10 * 5 * 50),
    # and here the cheaper order is chosen: 100 x 50 x 2 first
    ("multi_dot", call(lambda *a: torch.linalg.multi_dot(a)), [(10, 100), (100, 50), (50, 2)],
     100 * 50 * 2 + 10 * 100 * 2),
    ("tensordot", call(lambda a, b: torch.tensordot(a, b, dims=([1, 0], [0, 1]))), [(3, 4, 5), (4, 3, 2)],
     5 * 12 * 2),
    ("kron adds nothing up", call(torch.kron), [(2, 2), (3, 3)], 0),
    ("bilinear", lambda: nn.Bilinear(3, 4, 5), [(2, 3), (2, 4)], 2 * 3 * 20 + 2 * 5 * 4),
    ("affine_grid", call(lambda t: F.affine_grid(t, (1, 3, 4, 4), align_corners=False)), [(1, 2, 3)],
     16 * 3 * 2),
    ("iterating over rows", call(lambda x: sum(r.dot(r) for r in x)), [(3, 4)], 12),
    ("vmap", call(lambda x, y: torch.vmap(torch.dot)(x, y)), [(3, 4), (3, 4)], 12),
    ("weight_norm", lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), [(2, 3)], 24),
    # u W v, once for the norm, and the layer itself
    ("spectral_norm", lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4)), [(2, 3)],
     12 + 4 + 24),
]  # fmt: skip

CONVOLUTIONS = [
    ("conv_tbc", call(torch.conv_tbc), [(7, 2, 3), (3, 3, 4), (4,)], 5 * 2 * 4 * 3 * 3),
    ("circular padding", lambda: nn.Conv2d(4, 8, 3, padding="same", padding_mode="circular"), [(2, 4, 8, 8)],
     2 * 8 * 64 * 36),
    ("transposed, unbatched, grouped", lambda: nn.ConvTranspose1d(4, 6, 3, groups=2, stride=2), [(4, 9)],
     9 * 4 * 3 * 3),
    ("transposed, three dimensions", lambda: nn.ConvTranspose3d(2, 3, 2), [(1, 2, 4, 4, 4)], 64 * 2 * 3 * 8),
    ("an empty batch", lambda: nn.Conv2d(3, 4, 3), [(0, 3, 8, 8)], 0),
    ("unfold", lambda: nn.Unfold(2), [(1, 3, 4, 5)], 0),
    ("fold", lambda: nn.Fold((4, 5), (2, 2)), [(1, 12, 12)], 0),
]  # fmt: skip

# steps x batch x directions x gates x units x (input + state), layer by layer
RECURRENT = [
    ("LSTM", lambda: nn.LSTM(3, 5), [(7, 2, 3)], 7 * 2 * 4 * 5 * 8),
    ("LSTM, unbatched", lambda: nn.LSTM(3, 5), [(7, 3)], 7 * 4 * 5 * 8),
    ("LSTM, batch first", lambda: nn.LSTM(3, 5, batch_first=True), [(2, 7, 3)], 7 * 2 * 4 * 5 * 8),
    ("LSTM, two layers, two directions", lambda: nn.LSTM(3, 5, 2, bidirectional=True), [(7, 2, 3)],
     7 * 2 * 2 * 4 * 5 * (3 + 5) + 7 * 2 * 2 * 4 * 5 * (10 + 5)),
    ("LSTM, projected as well", lambda: nn.LSTM(3, 5, 2, bidirectional=True, proj_size=4), [(7, 2, 3)],
     7 * 2 * 2 * (4 * 5 * (3 + 4) + 20) + 7 * 2 * 2 * (4 * 5 * (8 + 4) + 20)),
    ("GRU, unbatched, two directions", lambda: nn.GRU(3, 5, bidirectional=True), [(7, 3)], 7 * 2 * 3 * 5 * 8),
    ("RNN, ReLU", lambda: nn.RNN(3, 5, nonlinearity="relu"), [(7, 2, 3)], 7 * 2 * 5 * 8),
    ("RNN, two layers without bias", lambda: nn.RNN(3, 5, 2, bias=False), [(7, 2, 3)],
     7 * 2 * 5 * 8 + 7 * 2 * 5 * 10),
    ("LSTMCell", lambda: nn.LSTMCell(3, 5), [(2, 3)], 2 * 4 * 5 * 8),
    ("LSTMCell, unbatched", lambda: nn.LSTMCell(3, 5), [(3,)], 4 * 5 * 8),
    ("GRUCell", lambda: nn.GRUCell(3, 5), [(2, 3)], 2 * 3 * 5 * 8),
    ("RNNCell", lambda: nn.RNNCell(3, 5), [(2, 3)], 2 * 5 * 8),
]  # fmt: skip

ATTENTIONS = [
    ("attention", lambda: nn.MultiheadAttention(8, 2), [(5, 3, 8)] * 3, ATTENTION),
    ("attention, unbatched", lambda: nn.MultiheadAttention(8, 2), [(5, 8)] * 3, ATTENTION // 3),
    ("attention, other widths", lambda: nn.MultiheadAttention(8, 2, kdim=6, vdim=4, batch_first=True),
     [(3, 5, 8), (3, 7, 6), (3, 7, 4)], 3 * (5 * 64 + 7 * 48 + 7 * 32 + 2 * 5 * 7 * 8 + 5 * 64)),
    ("attention, 2 keys more", lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True, add_zero_attn=True),
     [(5, 3, 8)] * 3, 3 * (5 * 8 * 24 + 2 * 5 * 7 * 8 + 5 * 64)),
    ("encoder layer", lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), [(3, 5, 8)],
     ATTENTION + FEED),
    ("encoder", lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
     [(3, 5, 8)], 2 * (ATTENTION + FEED)),
    ("decoder layer", lambda: nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), [(3, 5, 8), (3, 7, 8)],
     ATTENTION + CROSS + FEED),
    ("scaled dot product", call(F.scaled_dot_product_attention), [(2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6)],
     2 * 4 * 5 * 7 * (8 + 6)),
    ("grouped queries, causal",
     call(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)),
     [(2, 4, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8)], 2 * 4 * 5 * 5 * 16),
    ("masked", call(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m)),
     [(2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8), (5, 7)], 2 * 4 * 5 * 7 * 16),
    ("keys broadcast over the batch", call(F.scaled_dot_product_attention),
     [(2, 4, 5, 8), (1, 4, 7, 8), (1, 4, 7, 8)], 2 * 4 * 5 * 7 * 16),
    ("without heads", call(F.scaled_dot_product_attention), [(5, 8), (7, 8), (7, 8)], 5 * 7 * 16),
]  # fmt: skip

ALL = [*PRODUCTS, *CONVOLUTIONS, *RECURRENT, *ATTENTIONS]


@pytest.mark.sampled(20)
@pytest.mark.parametrize(
    ("make", "inputs", "macs"), [case[1:] for case in ALL], ids=[case[0] for case in ALL]
)
def test_macs_by_hand(make: Any, inputs: Any, macs: int) -> None:
    analysis = on_meta(make, *inputs)
    assert analysis.info.totals.macs == macs
    assert analysis.info.totals.coverage == 1.0
    assert {layer.status for layer in analysis.layers} == {"exact"}


LESS = {
    **dict.fromkeys(("mv", "dot", "vdot", "inner of vectors", "addmv", "addbmm", "bilinear", "conv_tbc"), 0),
    **dict.fromkeys(("matmul, vector by batch", "matmul, batch by vector", "affine_grid"), 0),
    "iterating over rows": 0,
    # the layer, without the products of the matrix with a vector that give its norm
    "spectral_norm": 24,
}
"""What torch's counter says of those that it leaves out: products with vectors, sums of products, grids."""


@pytest.mark.sampled(12)
@pytest.mark.parametrize("case", [*PRODUCTS, *CONVOLUTIONS, *ATTENTIONS], ids=lambda case: case[0])
def test_half_of_what_torchs_counter_says_where_it_counts(case: Any) -> None:
    name, make, inputs, macs = case
    with torch_counter() as counter:
        make()(*[torch.rand(i, requires_grad=True) for i in inputs])
    assert counter.get_total_flops() // 2 == LESS.get(name, macs)


def forward_mode(x: Any, w: Any) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(F.linear(forward_ad.make_dual(x, x), w, w[0, : w.shape[0]])).tangent


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: torch.func.jvp(lambda y: F.linear(y, w, w[0, : w.shape[0]]), (x,), (x,))[1],
        lambda x, w: torch.func.jvp(lambda y: y @ w.T, (x,), (x,))[1],
        forward_mode,
    ],
)
def test_a_derivative_in_forward_mode_counts_the_same_in_each_session(function: Any) -> None:
    x, w = torch.rand(3, 8), torch.rand(5, 8)
    totals = []
    for _ in range(3):
        with Session(Call(function), inputs=(x, w), cache=False) as session:
            totals.append(session.info().totals)
    with torch_counter() as counter:
        function(x, w)
    macs = counter.get_total_flops() / 2
    assert [(total.macs, total.status, total.coverage) for total in totals] == 3 * [(macs, "exact", 1)]


def packed(kind: Any, **options: Any) -> Any:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = kind(3, 5, batch_first=True, **options)

        def forward(self, x: Any, lengths: Any) -> Any:
            sequence = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            return nn.utils.rnn.pad_packed_sequence(self.rnn(sequence)[0], batch_first=True)[0]

    return Packed


def test_an_adaptive_softmax_costs_the_clusters_of_its_targets() -> None:
    # the head has 4 classes and 2 clusters; two targets are in a cluster, each at a place of its own
    layer = nn.AdaptiveLogSoftmaxWithLoss(16, 24, [4, 12])
    targets = torch.tensor([1, 6, 3, 20])
    analysis = examine_module(Call(lambda x: layer(x, targets).loss), [torch.empty(4, 16, device="meta")], {})
    totals = analysis.analysis.info.totals
    assert (totals.macs, totals.status) == (4 * 16 * 6 + (16 * 4 + 4 * 8) + (16 * 1 + 1 * 12), "exact")


def test_a_packed_sequence_costs_the_steps_that_it_has() -> None:
    lengths = torch.tensor([3, 7])
    assert on_meta(packed(nn.LSTM), (2, 7, 3), lengths).info.totals.macs == 10 * 4 * 5 * 8
    both = on_meta(packed(nn.GRU, bidirectional=True), (2, 7, 3), lengths)
    assert both.info.totals.macs == 10 * 2 * 3 * 5 * 8
    assert both.info.totals.coverage == 1.0


def test_a_packed_sequence_of_unknown_lengths_is_bounded_by_the_longest() -> None:
    analysis = on_meta(packed(nn.LSTM), (2, 7, 3), ids(2))
    assert analysis.info.totals.macs == 14 * 4 * 5 * 8
    rnn = next(layer for layer in analysis.layers if layer.path == "rnn")
    assert (rnn.status, rnn.reason) == ("bound", "packed sequence: every length counts as the longest")


# -- operations that are no MACs


@pytest.mark.parametrize(
    ("make", "inputs", "operations"),
    [
        # difference, power and sum, for each pair and coordinate; also where torch would use a product
        (call(torch.cdist), [(3, 4), (5, 4)], 3 * 3 * 5 * 4),
        (call(torch.cdist), [(30, 4), (40, 4)], 3 * 30 * 40 * 4),
        (lambda: nn.Fold((4, 5), (2, 2)), [(1, 12, 12)], 144),
        (lambda: nn.EmbeddingBag(10, 3, mode="sum"), [ids(2, 4)], 2 * 4 * 3),
        (call(lambda x, g: F.grid_sample(x, g, align_corners=False)), [(1, 3, 4, 4), (1, 5, 5, 2)], 7 * 75),
        (call(lambda x, g: F.grid_sample(x, g, mode="nearest", align_corners=False)),
         [(1, 3, 4, 4), (1, 5, 5, 2)], 0),
        (call(lambda x, i: torch.zeros(9, 4, device=x.device).index_add(0, i, x)), [(3, 4), ids(3)], 12),
        (call(lambda x, i: torch.zeros(9, 4, device=x.device).scatter_add(0, i, x)), [(3, 4), ids(3, 4)], 12),
        (call(F.mse_loss), [(3, 4), (3, 4)], 3 * 12),
        (call(lambda x, y: F.mse_loss(x, y, reduction="none")), [(3, 4), (3, 4)], 2 * 12),
        (call(F.nll_loss), [(3, 4), ids(3)], 2 * 3),
        (call(lambda x: x.clone().abs_()), [(3, 4)], 12),
        (call(lambda x: torch.nn.functional.fold(F.unfold(x, 2), (4, 5), 2)), [(1, 3, 4, 5)], 144),
    ],
)  # fmt: skip
def test_elementwise_operations_by_hand(make: Any, inputs: Any, operations: int) -> None:
    totals = on_meta(make, *inputs).info.totals
    assert (totals.macs, totals.elementwise_ops, totals.coverage) == (0, operations, 1.0)


# -- complex numbers and transforms


def test_a_complex_product_takes_four_real_ones() -> None:
    def complex_(*shape: int) -> Any:
        return torch.empty(shape, dtype=torch.complex64, device="meta")

    assert on_meta(call(torch.matmul), complex_(3, 4), complex_(4, 5)).info.totals.macs == 4 * 60


@pytest.mark.parametrize(
    ("transform", "shape", "macs"),
    [
        (torch.fft.rfft, (2, 8), 2 * 5 * 8 * 2),  # 5 frequencies of 8 real samples, two products each
        (torch.fft.fft, (2, 8), 2 * 8 * 8 * 2),
        (lambda x: torch.fft.ifft(torch.fft.fft(x)), (2, 8), 2 * 8 * 8 * 2 + 2 * 8 * 8 * 4),
        (torch.fft.rfft2, (4, 6), 4 * 4 * 6 * 2 + 4 * 4 * 4 * 4),  # 4 of 6 columns, then 4 columns of 4 rows
    ],
)
def test_a_fourier_transform_is_counted_by_its_definition_and_called_a_bound(
    transform: Any, shape: tuple[int, ...], macs: int
) -> None:
    analysis = on_meta(call(transform), shape)
    assert analysis.info.totals.macs == macs
    bounds = [layer for layer in leaves(analysis) if layer.macs]
    assert {layer.status for layer in bounds} == {"bound"}
    assert "fast Fourier transform" in bounds[0].reason


def test_eliminations_are_bounds_and_iterations_are_unknown() -> None:
    det = on_meta(call(torch.linalg.det), (2, 3, 3))
    # columns of 2 and 1 below the pivots: 3 divisions, 2 (4 + 1) products and sums, 2 products of the pivots
    assert det.info.totals.elementwise_ops == 2 * (3 + 10 + 2)
    assert det.layers[0].status == "bound"
    svd = on_meta(call(lambda x: torch.linalg.svd(x)[1]), (4, 3))
    assert (svd.layers[0].status, svd.layers[0].macs) == ("unknown", None)
    assert "depends on the values" in svd.layers[0].reason


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (5, 5), (12, 4), (4, 12), (1, 7), (7, 1), (0, 3)])
def test_an_elimination_counts_every_row_and_column_of_a_matrix_that_is_not_square(
    rows: int, columns: int
) -> None:
    walked = 0
    for pivot in range(min(rows, columns)):
        for _ in range(pivot + 1, rows):
            walked += 1  # the division
            walked += sum(2 for _ in range(pivot + 1, columns))  # a product and a difference
    factorization = on_meta(call(lambda x: torch.linalg.lu_factor(x)[0]), (2, rows, columns))
    assert factorization.info.totals.elementwise_ops == 2 * walked


# -- dynamic quantization


def quantized() -> nn.Module:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)
            self.lstm = nn.LSTM(4, 6, 2, batch_first=True, bidirectional=True)
            self.gru = nn.GRU(12, 5)
            self.cell = nn.LSTMCell(5, 5)

        def forward(self, x: Any) -> Any:
            y, _ = self.lstm(self.b(torch.relu(self.a(x))))
            return self.cell(self.gru(y)[0][0])[0]

    kinds = {nn.Linear, nn.LSTM, nn.GRU, nn.LSTMCell}
    return torch.ao.quantization.quantize_dynamic(Model(), kinds, dtype=torch.qint8)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_dynamically_quantized_layers_cost_as_their_float_forms_and_weigh_a_byte_each() -> None:
    from explorer import Session

    engines = [e for e in ("x86", "fbgemm", "qnnpack") if e in torch.backends.quantized.supported_engines]
    if not engines:
        pytest.skip("no engine for quantized layers")
    model = quantized()
    with Session(model, inputs=torch.zeros(2, 3, 8)) as session:
        rows = {layer.path: layer for layer in session.analysis().layers}
        assert session.info().totals.coverage == 1.0
        output = session.info().model.outputs[0].shape
    assert {path: rows[path].macs for path in ("a", "b", "lstm", "gru", "cell")} == {
        "a": 768, "b": 6 * 16 * 4, "lstm": 6 * 2 * 24 * (10 + 18), "gru": 6 * 15 * 17, "cell": 3 * 4 * 50
    }  # fmt: skip
    assert (rows["a"].params, rows["a"].weight_bytes) == (8 * 16 + 16, 8 * 16 + 4 * 16)
    assert rows["lstm"].params == 2 * (24 * (4 + 6) + 2 * 24) + 2 * (24 * (12 + 6) + 2 * 24)
    assert not rows["a"].group
    assert (rows["a"].bytes_read or 0) >= 8 * 16 + 4 * 16 + 4 * 6 * 8
    with torch.no_grad():
        assert output == tuple(model(torch.zeros(2, 3, 8)).shape)
