"""The peak and the sum of a model's activations take one kernel for an operator, the one that torch takes."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

from explorer.session import Session  # noqa: E402

LONG = 600
SCORES = 4 * LONG * LONG * 4
"""Bytes of the matrix of scores of four heads."""


class Direct(nn.Module):
    """Attention as a function, with whatever it takes."""

    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.how = how

    def forward(self, query: Any, key: Any, value: Any, mask: Any = None) -> Any:
        return F.scaled_dot_product_attention(query, key, value, mask, **self.how)


class Itself(nn.Module):
    """Attention of a layer of torch with itself."""

    def __init__(self, scores: bool) -> None:
        super().__init__()
        self.layer, self.scores = nn.MultiheadAttention(32, 4, batch_first=True), scores

    def forward(self, x: Any) -> Any:
        return self.layer(x, x, x, need_weights=self.scores)[0]


def totals(model: Any, *given: Any) -> Any:
    with Session(model, inputs=given, cache=False) as session:
        return session.info().totals


QUERY, PAIR = torch.zeros(1, 4, LONG, 8), torch.zeros(1, 2, LONG, 8)


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (Direct(is_causal=True), (QUERY, QUERY, QUERY)),
        (Direct(enable_gqa=True), (QUERY, PAIR, PAIR)),
        (Itself(False), (torch.zeros(1, LONG, 32),)),
        (nn.TransformerEncoderLayer(32, 4, 32, batch_first=True), (torch.zeros(1, LONG, 32),)),
    ],
)
def test_fused_attention_has_no_matrix_of_scores_in_the_peak(model: Any, given: Any) -> None:
    found = totals(model, *given)
    assert found.status == "exact"
    assert sum(t.nbytes for t in given) < found.activation_bytes_peak < SCORES / 2


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (Direct(), (QUERY, QUERY, torch.zeros(1, 4, LONG, 4))),
        (Direct(), (QUERY, QUERY, QUERY, torch.zeros(4, LONG, LONG))),
        (Itself(True), (torch.zeros(1, LONG, 32),)),
    ],
)
def test_attention_that_torch_does_not_fuse_has_the_scores_in_the_peak(model: Any, given: Any) -> None:
    assert totals(model, *given).activation_bytes_peak > SCORES


def test_attention_without_a_batch_takes_the_kernel_that_torch_takes() -> None:
    # the fused one in torch 2.14, the plain one in torch 2.9
    given = (QUERY[0], QUERY[0], QUERY[0])
    with torch.no_grad(), torch.profiler.profile() as profile:
        F.scaled_dot_product_attention(*given)
    is_fused = any("flash_attention" in event.name for event in profile.events())
    assert (totals(Direct(), *given).activation_bytes_peak < SCORES / 2) == is_fused


@pytest.mark.parametrize(("tokens", "kind"), [(780, "float32"), (200, "bfloat16"), (30, "float64")])
def test_the_peak_of_fused_attention_is_what_torch_allocates_for_one_thread(tokens: int, kind: str) -> None:
    given = [torch.rand(2, 3, n, 12, dtype=getattr(torch, kind)) for n in (tokens, tokens - 9, tokens - 9)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad(), torch.profiler.profile(profile_memory=True) as profile:
            F.scaled_dot_product_attention(*given)
    finally:
        torch.set_num_threads(threads)
    makers = ("aten::empty", "aten::empty_strided")
    allocated = sum(event.self_cpu_memory_usage for event in profile.events() if event.name in makers)
    assert allocated > 2 * 3 * tokens * 12 * given[0].itemsize
    found = totals(Direct(), *given).activation_bytes_peak
    assert found == sum(t.nbytes for t in given) + allocated


def test_a_training_step_works_in_the_memory_of_the_same_kernel() -> None:
    with Session(Itself(False), inputs=torch.rand(1, 512, 32), cache=False) as session:
        step = session.training_memory().steps[0]
        moments = [moment for moment in step.moments if moment.phase == "backward"]
    # two blocks of 64 queries by 512 keys in the backward pass
    assert max(moment.temporary for moment in moments) > 2 * 64 * 512 * 4


class Within(nn.Module):
    """A layer that runs as usual, and an equal layer that runs within a context."""

    def __init__(self, make: Any, context: Any) -> None:
        super().__init__()
        self.plain, self.other, self.context = make(), make(), context

    def forward(self, x: Any) -> Any:
        x = self.plain(x)
        with self.context():
            return self.other(x)


class Steps(nn.LSTM):
    """The steps of a recurrent layer, without its state."""

    def forward(self, x: Any) -> Any:  # type: ignore[override]
        return super().forward(x)[0]


SETTINGS = {
    "attention": (
        lambda: nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True),
        lambda: sdpa_kernel(SDPBackend.MATH),
    ),
    "recurrent": (
        lambda: Steps(16, 16, batch_first=True),
        lambda: torch.backends.mkldnn.flags(enabled=False),
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_torch_within_a_model_choose_the_kernel_of_equal_layers(name: str) -> None:
    make, context = SETTINGS[name]
    x = torch.rand(2, 40, 16)
    model = Within(make, context).train()
    own = {t.untyped_storage().data_ptr() for t in (x, *model.parameters())}
    kept: dict[int, int] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = model(x)
    with Session(Within(make, context), inputs=x, cache=False) as session:
        step = session.training_memory().steps[0]
    assert result.requires_grad
    assert abs(step.kept_bytes - sum(kept.values())) <= 0.02 * step.kept_bytes


def test_an_equal_layer_with_another_kernel_has_its_own_peak() -> None:
    make, context = SETTINGS["attention"]
    x = torch.rand(1, LONG, 16)
    plain, within = (totals(Within(make, c), x) for c in (contextlib.nullcontext, context))
    assert plain.macs == within.macs
    assert plain.activation_bytes_peak < SCORES < within.activation_bytes_peak


def test_the_kernel_does_not_change_the_macs() -> None:
    found = [
        totals(Direct(), *(QUERY, QUERY, QUERY, *mask)).macs for mask in ((), (torch.zeros(4, LONG, LONG),))
    ]
    assert found == [2 * 4 * LONG * LONG * 8] * 2


class Graph(nn.Module):
    """A layer of a graph network: a stored matrix of neighbors by the nodes."""

    def __init__(self, neighbors: Any, kept: str, by: str = "@") -> None:
        super().__init__()
        if kept == "buffer":
            self.register_buffer("neighbors", neighbors)
        else:
            self.neighbors = nn.Parameter(neighbors) if kept == "parameter" else neighbors
        self.layer, self.by = nn.Linear(6, 5), by

    def forward(self, x: Any) -> Any:
        return self.layer(self.neighbors @ x if self.by == "@" else torch.sparse.mm(self.neighbors, x))


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr", "to_sparse_csc"])
@pytest.mark.parametrize("kept", ["buffer", "parameter", "attribute"])
@pytest.mark.parametrize("by", ["@", "mm"])
@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_product_with_a_sparse_matrix_is_an_upper_bound(layout: str, kept: str, by: str) -> None:
    dense = torch.eye(20)
    model = Graph(getattr(dense, layout)(), kept, by)
    with Session(model, inputs=torch.zeros(20, 6), cache=False) as session:
        rows = {row.path: row for row in session.layers().layers}
        found = session.info().totals
    product = next(row for path, row in rows.items() if path != "layer" and row.macs == 20 * 20 * 6)
    assert (product.status, rows["layer"].status, found.status) == ("bound", "exact", "bound")
    assert "20 of 400 elements" in product.reason
    if kept == "parameter":
        assert found.weight_bytes < dense.nbytes + 35 * 4


@pytest.mark.parametrize(
    ("layout", "multiply"),
    [
        ("to_sparse", lambda matrix, x: matrix @ x),
        ("to_sparse_csr", lambda matrix, x: matrix @ x),
        ("to_sparse_csc", lambda matrix, x: matrix @ x),
        ("to_sparse", lambda matrix, x: torch.sparse.mm(matrix, x)),
        ("to_sparse", lambda matrix, x: torch.sparse.addmm(x, matrix, x)),
        ("to_sparse", lambda matrix, x: torch.sparse.softmax(matrix, 1) @ x),
        ("to_sparse", lambda matrix, x: matrix.transpose(0, 1) @ x),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_sparse_matrix_outside_of_the_model_is_counted_as_one_inside(layout: str, multiply: Any) -> None:
    matrix = getattr(torch.eye(20), layout)()

    class Outside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 5)

        def forward(self, x: Any) -> Any:
            return self.layer(multiply(matrix, x))

    with Session(Outside(), inputs=torch.zeros(20, 6), cache=False) as session:
        rows = session.layers().layers
    assert [(row.status, "20 of 400" in row.reason) for row in rows if row.macs == 20 * 20 * 6] == [
        ("bound", True)
    ]


@pytest.mark.filterwarnings("ignore:Sparse")
def test_what_is_made_of_a_sparse_matrix_alone_is_sparse() -> None:
    class Scaled(Graph):
        def forward(self, x: Any) -> Any:
            return self.layer((self.neighbors.t() * 0.5) @ x)

    with Session(
        Scaled(torch.eye(20).to_sparse(), "buffer"), inputs=torch.zeros(20, 6), cache=False
    ) as session:
        rows = {row.path: row.status for row in session.layers().layers if row.macs and not row.group}
    assert rows["layer"] == "exact"
    assert sorted(rows.values()) == ["bound", "exact"]


def test_a_layer_with_a_sparse_weight_is_not_taken_for_a_dense_one_of_its_shape() -> None:
    model = nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 12))
    model[1].weight = nn.Parameter(torch.eye(12).to_sparse())
    with Session(model, inputs=torch.zeros(3, 12), cache=False) as session:
        rows = session.layers().layers
    assert [row.status for row in rows if not row.group] == ["exact", "bound", "exact"]


class Narrow(nn.Module):
    """A layer and a product in bfloat16, as autocast chooses, and a loss in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.weight = nn.Linear(12, 20), nn.Parameter(torch.zeros(20, 5))

    def forward(self, x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.mse_loss(self.layer(x) @ self.weight, x[:, :5])


def test_autocast_makes_the_sizes_that_it_makes_on_a_processor() -> None:
    with Session(Narrow(), inputs=torch.zeros(6, 12), cache=False) as session:
        rows = {row.path: row for row in session.analysis().layers}
    assert [rows[name].outputs[0].dtype for name in ("layer", "matmul", "mse_loss")] == [
        "bfloat16",
        "bfloat16",
        "float32",
    ]
    assert [rows[name].activation_bytes for name in ("layer", "matmul", "mse_loss")] == [240, 60, 4]
    # the layer casts its input, its weight and its bias; the product casts its weight; the loss the product
    assert rows["layer"].bytes_written == (6 * 12 + 12 * 20 + 20) * 2 + 240
    assert rows["matmul"].bytes_written == 20 * 5 * 2 + 60
    assert rows["mse_loss"].bytes_written == 6 * 5 * 4 + 4


class PartlyScripted(nn.Module):
    """A part that is compiled with TorchScript, or not."""

    def __init__(self, scripted: bool) -> None:
        super().__init__()
        part = nn.Sequential(nn.Conv1d(4, 6, 3), nn.Tanh(), nn.MaxPool1d(2))
        self.part = torch.jit.script(part) if scripted else part

    def forward(self, x: Any) -> Any:
        return self.part(x).flatten(1)


def test_the_results_of_a_torchscript_part_are_activations() -> None:
    given = torch.zeros(2, 4, 20)
    plain, scripted = totals(PartlyScripted(False), given), totals(PartlyScripted(True), given)
    every = (2 * 6 * 18 * 2 + 2 * 6 * 9 * 2) * 4
    assert plain.activation_bytes_sum + plain.activation_bytes_functional == every
    # TorchScript also adds and drops an axis for the pooling of one dimension
    assert scripted.activation_bytes_sum + scripted.activation_bytes_functional >= every
    assert scripted.activation_bytes_peak == plain.activation_bytes_peak


class Fills(nn.Module):
    """Writes products into a tensor that it creates on the processor."""

    def __init__(self) -> None:
        super().__init__()
        self.product = nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        table = torch.zeros(40, 16)
        table.addmm_(x, self.product.weight)
        table[1:] += 1
        return table


def test_a_tensor_that_the_model_fills_is_in_memory_once() -> None:
    assert totals(Fills(), torch.zeros(40, 16)).activation_bytes_peak == 2 * 40 * 16 * 4


class Picks(nn.Module):
    """Picks scores at places that the model creates."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(9, 7)

    def forward(self, x: Any) -> Any:
        return self.scores(x).take_along_dim(torch.arange(10).reshape(5, 2) % 7, 1)


def test_a_function_takes_places_with_values_beside_scores_without() -> None:
    with Session(Picks(), inputs=torch.zeros(5, 9), cache=False) as session:
        info = session.info()
    assert (info.totals.macs, info.totals.status, info.totals.coverage) == (5 * 9 * 7, "exact", 1)
    assert info.model.outputs[0].shape == (5, 2)
