"""What training a module multiplies is what torch multiplies when it runs backward."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from explorer.base.errors import Misuse  # noqa: E402
from explorer.engine.costs.torch import training as training_torch  # noqa: E402
from explorer.engine.costs.torch.analyse import examine_module  # noqa: E402
from explorer.engine.costs.torch.signature import bind  # noqa: E402
from explorer.engine.costs.training.step import StepGradients, compute_training  # noqa: E402
from explorer.engine.formats.torch_module.loaded_module import load  # noqa: E402
from explorer.engine.operators import cost_formulas  # noqa: E402
from explorer.facts.training import LayerTraining, Training  # noqa: E402
from explorer.session import Session  # noqa: E402
from tests.torch_counter import torch_counter  # noqa: E402


def on_meta(make: Any, *inputs: Any, optimizer: Any = "sgd") -> Training:
    with torch.device("meta"):
        model = make()
        given = [torch.empty(i) if isinstance(i, tuple) else i.to("meta") for i in inputs]
    watch = training_torch.Gradients()
    examined = examine_module(model, given, gradients=watch)
    return compute_training(StepGradients(examined.analysis, watch.parts), optimizer)


def backward(make: Any, *inputs: Any) -> int:
    """Half of what torch's counter counts while torch itself runs backward, on shapes."""
    with torch.device("meta"):
        model = make().eval()
        given = [torch.empty(i) if isinstance(i, tuple) else i.to("meta") for i in inputs]
    return backward_of(model, given)


def backward_of(model: Any, given: Any) -> int:
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch_counter():  # the kernel of the backward pass is that of the forward pass
            out = model(*given)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    while not isinstance(out, torch.Tensor):
        out = next(iter(out.values())) if isinstance(out, dict) else out[0]
    with torch_counter() as counter:
        out.sum().backward()
    return counter.get_total_flops() // 2


def row(found: Training, path: str) -> LayerTraining:
    return next(layer for layer in found.layers if layer.path == path)


class Sum(nn.Module):
    """Two inputs, of which one passes a trained layer on its way."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(4, 6)
        self.right = nn.Linear(5, 6)
        self.both = nn.Linear(6, 3)

    def forward(self, x: Any, y: Any) -> Any:
        return self.both(self.left(x) * self.right(y)) @ self.left(x)[:3]


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.step(self.step(self.step(x)))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Any) -> Any:
        return self.head(self.embed(ids))


class Frozen(nn.Module):
    """A backbone that is not trained, and a head that is."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3)
        self.conv2 = nn.Conv2d(8, 8, 3)
        self.head = nn.Linear(8, 4)
        self.conv1.requires_grad_(False)
        self.conv2.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        return self.head(self.conv2(self.conv1(x)).mean((2, 3)))


class Middle(nn.Module):
    """A frozen layer with a trained one before it: its input wants a gradient, its weight does not."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 5)
        self.fixed = nn.Linear(5, 6)
        self.last = nn.Linear(6, 7)
        self.fixed.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        return self.last(self.fixed(self.first(x)))


class Detached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 5)
        self.last = nn.Linear(5, 6)

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            hidden = self.first(x)
        return self.last(hidden) + self.last(self.first(x).detach())


class Normed(nn.Module):
    """A weight that is made from others before it is used."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(6, 4))
        self.scale = nn.Parameter(torch.empty(6, 1))

    def forward(self, x: Any) -> Any:
        return F.linear(x, self.weight * self.scale)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(8, 8)
        self.key = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        shape = (2, 5, 2, 4)
        q, k, v = (t.view(shape).transpose(1, 2) for t in (self.query(x), self.key(x), x))
        return F.scaled_dot_product_attention(q, k, v)


IDS = torch.zeros(2, 3, dtype=torch.int64)
MODELS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "two inputs": (Sum, ((3, 4), (3, 5))),
    "a module called three times": (Shared, ((3, 4),)),
    "tied weights behind integers": (Tied, (IDS,)),
    "a frozen prefix": (Frozen, ((2, 3, 8, 8),)),
    "a frozen layer in the middle": (Middle, ((3, 4),)),
    "detached": (Detached, ((3, 4),)),
    "a weight made of weights": (Normed, ((3, 4),)),
    "an encoder layer": (lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), ((2, 5, 16),)),
    "an encoder of two": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
        ((2, 5, 8),),
    ),
    "LSTM, two layers both ways": (lambda: nn.LSTM(4, 5, 2, bidirectional=True), ((7, 3, 4),)),
    "LSTM with projections": (lambda: nn.LSTM(4, 5, proj_size=2), ((7, 3, 4),)),
    "GRU, batch first": (lambda: nn.GRU(4, 5, batch_first=True), ((3, 7, 4),)),
    "RNN behind a layer": (lambda: nn.Sequential(nn.Linear(6, 4), nn.RNN(4, 5)), ((7, 3, 6),)),
    "transposed convolutions": (
        lambda: nn.Sequential(nn.ConvTranspose2d(3, 4, 2, 2), nn.ConvTranspose2d(4, 6, 3)),
        ((2, 3, 4, 4),),
    ),
    "one-dimensional": (lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.Conv1d(4, 5, 2)), ((2, 3, 9),)),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", MODELS)
def test_backward_is_what_torch_multiplies_when_it_runs_backward(name: str) -> None:
    make, inputs = MODELS[name]
    found = on_meta(make, *inputs)
    assert found.coverage == 1
    assert found.backward_macs == backward(make, *inputs)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(0, 2),
    st.booleans(),
)
def test_any_convolution_agrees_with_torch(
    rank: int,
    groups: int,
    channels: tuple[int, int],
    kernel: int,
    stride: int,
    dilation: int,
    padding: int,
    transposed: bool,
) -> None:
    """Whatever its groups, strides and dilations; two in a row, so that one has a gradient of its input."""
    plain = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1]
    kind = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[rank - 1] if transposed else plain
    wide, deep = channels[0] * groups, channels[1] * groups
    options = {"stride": stride, "dilation": dilation, "groups": groups}
    if not transposed:
        options["padding"] = padding

    def make() -> Any:
        return nn.Sequential(plain(2, wide, 1), kind(wide, deep, kernel, **options))

    found = on_meta(make, (2, 2, *[7] * rank))
    second = row(found, "1")
    assert second.backward_input_macs == second.backward_weight_macs == second.forward_macs
    # see test_grouped_convolutions_are_not_taken_for_dense_ones
    surplus = (second.forward_macs or 0) * (groups - 1)
    assert backward(make, (2, 2, *[7] * rank)) == (found.backward_macs or 0) + surplus


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "vit_b_16", "densenet121", "googlenet"])
def test_whole_models_agree_with_torch(name: str) -> None:
    loaded = load(name)
    found = compute_training(training_torch.analyze_training_step(loaded))
    given, _ = bind(loaded).build_arguments(device="meta")
    with loaded.quiet():
        assert found.backward_macs == backward_of(load(name).meta(), given)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mobilenet_v2", "shufflenet_v2_x0_5"])
def test_grouped_convolutions_are_not_taken_for_dense_ones(name: str) -> None:
    """Torch's counter takes a grouped weight for a dense one in its gradient: groups times too much."""
    loaded = load(name)
    step = training_torch.analyze_training_step(loaded)
    found = compute_training(step)
    rows = {layer.layer: layer for layer in found.layers}
    surplus = sum(
        (rows[layer.id].forward_macs or 0) * (layer.attributes["groups"] - 1)
        for layer in step.analysis.layers
        if layer.kind == "Conv2d"
    )
    given, _ = bind(loaded).build_arguments(device="meta")
    with loaded.quiet():
        assert backward_of(load(name).meta(), given) == (found.backward_macs or 0) + surplus
    assert surplus > 0


def test_a_weight_made_of_weights_is_a_weight() -> None:
    found = on_meta(Normed, (3, 4))
    product = next(layer for layer in found.layers if layer.forward_macs)
    assert (product.forward_macs, product.backward_input_macs, product.backward_weight_macs) == (72, 0, 72)


def test_fused_attention_counts_the_algorithm_and_not_the_kernel() -> None:
    """Scores 2x2x5x5x4 = 400, the product with V as many. Q and K are trained, V is the input: gradients of
    Q, K and of the softmax, none of V.
    """
    found = on_meta(Attention, (2, 5, 8))
    attention = next(layer for layer in found.layers if "attention" in layer.path)
    assert attention.forward_macs == 800
    assert attention.backward_input_macs == 400 + 400 + 400
    assert attention.backward_weight_macs == 0


def test_the_first_layer_s_input_has_no_gradient() -> None:
    found = on_meta(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)), (2, 3, 8, 8))
    first, last = row(found, "0"), row(found, "2")
    assert (first.backward_input_macs, first.backward_weight_macs) == (0, first.forward_macs)
    assert (last.backward_input_macs, last.backward_weight_macs) == (last.forward_macs, last.forward_macs)


def test_a_product_of_two_values_has_two_input_gradients_and_no_weight_gradient() -> None:
    found = on_meta(Sum, (3, 4), (3, 5))
    product = next(layer for layer in found.layers if layer.kind == "matmul")
    assert (product.forward_macs, product.backward_input_macs, product.backward_weight_macs) == (54, 108, 0)


def test_what_a_frozen_prefix_puts_out_is_not_kept() -> None:
    """The output of the last frozen layer is: the weight of the head is multiplied with it."""
    found = on_meta(Frozen, (2, 3, 8, 8), optimizer="adam")
    assert [row(found, p).activation_bytes for p in ("conv1", "conv2", "mean", "head")] == [0, 0, 64, 32]
    assert [row(found, p).gradient_bytes for p in ("conv1", "conv2", "head")] == [0, 0, 36 * 4]
    assert found.param_bytes == (224 + 584 + 36) * 4
    assert found.optimizer_bytes == 2 * found.gradient_bytes == 2 * 36 * 4


def test_a_tied_parameter_is_stored_trained_and_optimised_once() -> None:
    found = on_meta(Tied, IDS, optimizer="momentum")
    assert found.param_bytes == found.gradient_bytes == found.optimizer_bytes == 10 * 4 * 4


def test_half_precision_parameters_have_half_precision_gradients() -> None:
    found = on_meta(lambda: nn.Linear(4, 5).half(), torch.empty(2, 4, dtype=torch.float16), optimizer="adam")
    assert (found.param_bytes, found.gradient_bytes, found.optimizer_bytes) == (50, 50, 100)
    assert found.notes[-1].startswith("Adam and AdamW keep two numbers for each trained parameter")


def test_the_figures_of_a_step_by_hand() -> None:
    """Linear 10-20-15-1 without bias at batch 4: 515 MACs an example, 200 of them in the first layer."""
    layers = [nn.Linear(a, b, bias=False) for a, b in ((10, 20), (20, 15), (15, 1))]
    found = on_meta(lambda: nn.Sequential(*layers).to("meta"), (4, 10), optimizer="adam")
    assert found.forward_macs == 4 * 515
    assert found.backward_macs == 4 * (515 + 515 - 200)
    assert found.input_bytes == 4 * 10 * 4
    assert found.activation_bytes == 4 * (20 + 15 + 1) * 4
    assert found.param_bytes == found.gradient_bytes == 515 * 4
    assert found.optimizer_bytes == 2 * 515 * 4
    assert found.sum_bytes == 160 + 576 + 4 * 515 * 4
    assert found.batch == 4


def test_a_batch_is_analysed_again() -> None:
    """Not multiplied: parameters, gradients and optimizer stay, batch-free tensors do too."""
    with Session("alexnet") as session:
        one, eight = session.training(), session.training(batch=8, optimizer="adam")
    assert (one.batch, eight.batch) == (1, 8)
    assert eight.forward_macs == 8 * 714_188_480
    assert eight.backward_macs == 8 * (2 * 714_188_480 - 70_276_800)
    assert eight.input_bytes == 8 * (one.input_bytes or 0)
    assert eight.param_bytes == one.param_bytes == 244_403_360
    assert eight.optimizer_bytes == 2 * 244_403_360
    assert one.optimizer_bytes == 0


def test_a_model_that_fails_keeps_what_is_known() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.good = nn.Linear(4, 4)
            self.bad = nn.Linear(5, 4)

        def forward(self, x: Any) -> Any:
            return self.bad(self.good(x))

    found = on_meta(Broken, (2, 4))
    assert row(found, "good").backward_weight_macs == 32
    assert row(found, "bad").backward_weight_macs is row(found, "bad").forward_macs is None
    assert row(found, "bad").status == "unknown"
    assert found.coverage < 1


def test_a_model_that_cannot_run_with_gradients_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            self.layer.weight.mul_(2)
            return self.layer(x)

    made = types.ModuleType("training_models")
    made.__dict__["in_place"] = lambda: (InPlace(), torch.zeros(2, 4))
    monkeypatch.setitem(sys.modules, "training_models", made)
    with Session("training_models:in_place") as session:
        found = session.training()
    assert found.forward_macs == 32
    assert found.backward_macs is None
    assert found.coverage == 0
    assert any("does not run with gradients on" in note for note in found.notes)


@pytest.mark.slow
def test_layers_that_only_a_loss_in_training_reaches_are_pointed_out() -> None:
    """The proposals of a detector are detached on the way to its boxes; their own loss trains them."""
    with Session("fasterrcnn_resnet50_fpn") as session:
        found = session.training()
    assert any("(rpn.head." in note for note in found.notes)
    with Session("resnet18") as session:
        assert not any("depends on" in note for note in session.training().notes)


def test_what_does_not_exist_is_refused() -> None:
    with Session("alexnet") as session:
        with pytest.raises(Misuse, match="give 'adam', 'momentum' or 'sgd'"):
            session.training(optimizer="adm")  # type: ignore[arg-type]
        with pytest.raises(Misuse, match="at least 1"):
            session.training(batch=0)


@pytest.mark.slow
def test_analysis_and_training_leave_no_trace_on_each_other() -> None:
    """The forward figures are the same, with gradients on and off."""
    with Session("swin_t") as session:
        found = session.training()
        assert found.forward_macs == session.info().totals.macs
        assert torch.is_grad_enabled()


def test_a_module_and_its_export_are_trained_alike(tmp_path: Path) -> None:
    """The file does not say what is trained; where everything is, it comes to the same."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, groups=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=4),
        nn.Flatten(),
        nn.Linear(8 * 36, 10),
    ).eval()
    path = str(tmp_path / "m.onnx")
    names = {"input_names": ["x"], "dynamic_axes": {"x": {0: "batch"}}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (torch.zeros(1, 3, 10, 10),), path, dynamo=False, **names)
    with Session(path) as graph, Session(model, inputs=torch.zeros(1, 3, 10, 10)) as module:
        a, b = (session.training(batch=4, optimizer="adam") for session in (graph, module))
    for name in (
        "batch", "input_bytes", "activation_bytes", "param_bytes", "gradient_bytes", "optimizer_bytes",
        "sum_bytes", "forward_macs", "backward_macs", "coverage",
    ):  # fmt: skip
        assert getattr(a, name) == getattr(b, name), name


def test_elementwise_work_backward_is_that_of_forward_for_each_gradient() -> None:
    """A bias of 4, a ReLU, normalization of 4 with scale and shift, a frozen bias of 3; a detached branch."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3)
            self.last.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm(torch.relu(self.first(x)))
            return self.last(y) + self.last(y.detach()).exp()

    found = on_meta(Net, torch.empty(2, 5))
    got = {x.path: x.backward_elementwise_ops for x in found.layers}
    each = 8 * cost_formulas.ELEMENTWISE["layer_norm"][0]
    assert got["first"] == 8, "the bias; nobody wants the gradient of x"
    assert got["relu"] == 8
    assert got["norm"] == 2 * each
    # it runs twice, and only once with a gradient: of its input, its bias is frozen
    assert got["last"] == 6
    assert found.backward_elementwise_ops == sum(v or 0 for v in got.values())
