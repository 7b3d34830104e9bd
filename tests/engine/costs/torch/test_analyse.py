"""What an nn.Module costs: published figures, and the traps that other counters fall into."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from explorer.base.errors import Cancelled, Misuse  # noqa: E402
from explorer.engine.costs.operator_stats import compute_operator_stats  # noqa: E402
from explorer.engine.costs.torch.analyse import examine, examine_module  # noqa: E402
from explorer.engine.formats.torch_module.loaded_module import load  # noqa: E402
from explorer.facts import Analysis, Layer  # noqa: E402
from tests.torch_counter import torch_counter  # noqa: E402


def on_meta(make: Any, *shapes: tuple[int, ...], dtype: Any = None) -> Analysis:
    with torch.device("meta"):
        model = make()
        inputs = [torch.empty(s, dtype=dtype) for s in shapes]
    return examine_module(model, inputs).analysis


def row(analysis: Analysis, path: str) -> Layer:
    return next(layer for layer in analysis.layers if layer.path == path)


def leaves(analysis: Analysis) -> list[Layer]:
    return [layer for layer in analysis.layers if not layer.group]


@pytest.fixture(scope="module")
def googlenet() -> Analysis:
    return examine(load("googlenet")).analysis


# -- published figures


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "macs", "params"),
    [
        ("alexnet", 714_188_480, 61_100_840),
        ("vgg16", 15_470_264_320, 138_357_544),
        ("resnet18", 1_814_073_344, 11_689_512),
        ("resnet50", 4_089_184_256, 25_557_032),
        ("resnet152", 11_513_626_624, 60_192_808),
        ("googlenet", 1_498_376_192, 6_624_904),
        ("mobilenet_v2", 300_774_272, 3_504_872),
        ("efficientnet_b0", 385_814_752, 5_288_548),
        ("convnext_tiny", 4_455_531_264, 28_589_128),
        ("vit_b_16", 17_563_828_224, 86_567_656),
        ("swin_t", 4_490_566_656, 28_288_354),
        ("inception_v3", 5_713_216_096, 27_161_264),
        ("densenet121", 2_834_161_664, 7_978_856),
        ("deeplabv3_resnet50", 168_731_205_888, None),
        ("r3d_18", 40_696_553_472, 33_371_472),
        ("fasterrcnn_resnet50_fpn", 134_379_721_216, None),
    ],
)
def test_published_macs_and_parameters(name: str, macs: int, params: int | None) -> None:
    totals = examine(load(name)).analysis.info.totals
    assert totals.macs == macs
    assert totals.flops == 2 * macs
    assert totals.coverage == 1.0
    if params is not None:
        assert totals.params == totals.trainable_params == params
        assert totals.weight_bytes == 4 * params


def test_alexnet_layer_by_layer() -> None:
    analysis = examine(load("alexnet")).analysis
    macs = [layer.macs for layer in leaves(analysis) if layer.macs]
    assert macs == [
        70_276_800, 223_948_800, 112_140_288, 149_520_384, 99_680_256, 37_748_736, 16_777_216, 4_096_000
    ]  # fmt: skip
    assert row(analysis, "features").macs == 655_566_528
    assert row(analysis, "classifier").macs == 58_621_952
    assert analysis.info.totals.weight_bytes == 244_403_360


def test_googlenet_by_kind_and_by_activation(googlenet: Analysis) -> None:
    by_kind = {
        kind: [layer for layer in leaves(googlenet) if layer.kind == kind] for kind in ("Conv2d", "Linear")
    }
    assert sum(layer.macs or 0 for layer in by_kind["Conv2d"]) == 1_497_352_192
    assert sum(layer.macs or 0 for layer in by_kind["Linear"]) == 1_024_000
    assert googlenet.info.totals.weight_bytes == 26_499_616
    assert googlenet.info.totals.activation_bytes_sum == 31_491_360
    shapes = [layer.outputs[0].shape for layer in by_kind["Conv2d"]]
    assert len(shapes) == 57
    assert (shapes[0], shapes[-1]) == ((1, 64, 112, 112), (1, 128, 7, 7))


def test_googlenet_functional_operators_are_leaves_of_their_caller(googlenet: Analysis) -> None:
    cat = row(googlenet, "inception3a.cat")
    assert (cat.kind, cat.macs, cat.attributes) == ("cat", 0, {"dim": 1})
    assert [t.shape for t in cat.inputs] == [(1, c, 28, 28) for c in (64, 128, 32, 32)]
    assert cat.outputs[0].shape == (1, 256, 28, 28)
    assert googlenet.layers[cat.parent or 0].path == "inception3a"


def test_torchinfo_counts_twice_the_outputs_of_the_layers_that_own_parameters(googlenet: Analysis) -> None:
    owners = sum(layer.activation_bytes or 0 for layer in leaves(googlenet) if layer.params)
    assert round(2 * owners / 1e6, 2) == 51.63


def test_mobilenet_counts_leaf_modules_and_no_container() -> None:
    analysis = examine(load("mobilenet_v2")).analysis
    assert analysis.info.totals.activation_bytes_sum == 77_857_184
    # "107,117,792 over every module" elsewhere is this plus every container's output once more
    containers = sum(
        4 * _count(layer.outputs[0].shape) for layer in analysis.layers if layer.group and layer.outputs
    )
    root = 4 * 1000
    assert 77_857_184 + containers + root == 107_117_792


def _count(shape: Any) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


class SimpleLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(10, 20, bias=False)
        self.fc2 = nn.Linear(20, 15, bias=False)
        self.fc3 = nn.Linear(15, 1, bias=False)

    def forward(self, x: Any) -> Any:
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


def test_simple_linear() -> None:
    analysis = on_meta(SimpleLinear, (1, 10))
    assert [row(analysis, f"fc{i}").macs for i in (1, 2, 3)] == [200, 300, 15]
    assert (analysis.info.totals.macs, analysis.info.totals.flops) == (515, 1_030)


def test_simple_conv() -> None:
    class SimpleConv(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
            self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
            self.fc = nn.Linear(32 * 28 * 28, 10)

        def forward(self, x: Any) -> Any:
            return self.fc(torch.flatten(F.relu(self.conv2(F.relu(self.conv1(x)))), 1))

    analysis = on_meta(SimpleConv, (1, 1, 28, 28))
    assert [row(analysis, n).macs for n in ("conv1", "conv2", "fc")] == [112_896, 3_612_672, 250_880]
    assert (analysis.info.totals.macs, analysis.info.totals.flops) == (3_976_448, 7_952_896)


def test_three_alexnets_side_by_side() -> None:
    from torchvision import models

    class Three(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (models.alexnet() for _ in range(3))

        def forward(self, x: Any, y: Any, z: Any) -> Any:
            return torch.cat([self.a(x), self.b(y), self.c(z)], 1)

    analysis = on_meta(Three, *[(1, 3, 64, 64)] * 3)
    branches = [layer for layer in analysis.layers if layer.depth == 0 and layer.group]
    assert [b.path for b in branches] == ["a", "b", "c"]
    assert [b.repeat for b in branches] == [3, 0, 0]
    joins = [layer for layer in leaves(analysis) if layer.kind == "cat"]
    assert [[t.shape for t in j.inputs] for j in joins] == [[(1, 1000)] * 3]
    assert [t.name for t in analysis.info.model.inputs] == ["input.0", "input.1", "input.2"]
    assert analysis.info.totals.params == 3 * 61_100_840
    assert sum(b.macs or 0 for b in branches) == analysis.info.totals.macs


def test_jsc_tiny_has_four_layers() -> None:
    analysis = on_meta(
        lambda: nn.Sequential(nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5), nn.ReLU()), (1, 16)
    )
    assert [layer.kind for layer in analysis.layers] == ["BatchNorm1d", "ReLU", "Linear", "ReLU"]
    assert analysis.info.totals.macs == 80


class Conv1D(nn.Module):
    """GPT-2's linear layer: weight (in, out), despite its name."""

    def __init__(self, out: int, into: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(into, out))
        self.bias = nn.Parameter(torch.zeros(out))

    def forward(self, x: Any) -> Any:
        shape = (*x.shape[:-1], self.weight.shape[1])
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(shape)


class GptBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = Conv1D(3 * width, width), Conv1D(width, width)
        self.c_fc, self.mlp_proj = Conv1D(4 * width, width), Conv1D(width, 4 * width)

    def forward(self, x: Any) -> Any:
        q, k, v = self.c_attn(self.ln_1(x)).split(x.shape[-1], -1)
        q, k, v = (t.view(*t.shape[:2], self.heads, -1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(x.shape))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x))))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(50257, 768), nn.Embedding(1024, 768)
        self.h = nn.ModuleList(GptBlock(768, 12) for _ in range(12))
        self.ln_f = nn.LayerNorm(768)
        self.lm_head = nn.Linear(768, 50257, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: Any) -> Any:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def test_gpt2_small() -> None:
    analysis = on_meta(Gpt, (1, 128), dtype=torch.int64)
    totals = analysis.info.totals
    assert round((totals.macs or 0) / 1e9, 3) == 16.114
    assert round(totals.params / 1e6, 2) == 124.44
    assert row(analysis, "lm_head").shared_with == ("wte",)
    assert row(analysis, "wte").macs == 0
    # the rows that were looked up, not the table of 50,257
    assert (row(analysis, "wte").bytes_read or 0) < 128 * 768 * 4 + 128 * 8 + 1
    assert row(analysis, "h.0").repeat == 12
    attention = row(analysis, "h.0.scaled_dot_product_attention")
    assert attention.macs == 12 * 128 * 128 * (64 + 64)
    assert "causal pairs only: 12,681,216" in attention.formula


class LlamaBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.o = (nn.Linear(8192, 8192, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(8192, 1024, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(8192, 28672, bias=False) for _ in range(2))
        self.down = nn.Linear(28672, 8192, bias=False)
        self.norm1, self.norm2 = nn.RMSNorm(8192), nn.RMSNorm(8192)

    def forward(self, x: Any) -> Any:
        y = self.norm1(x)
        q, k, v = (
            p(y).view(1, -1, n, 128).transpose(1, 2) for p, n in ((self.q, 64), (self.k, 8), (self.v, 8))
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(x.shape))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def test_llama_70b_shape_without_140_gigabytes() -> None:
    class Llama(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(32000, 8192)
            self.layers = nn.ModuleList(LlamaBlock() for _ in range(80))
            self.norm = nn.RMSNorm(8192)
            self.head = nn.Linear(8192, 32000, bias=False)

        def forward(self, ids: Any) -> Any:
            x = self.embed(ids)
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x))

    totals = on_meta(Llama, (1, 2048), dtype=torch.int64).info.totals
    assert totals.params == 68_976_648_192
    assert totals.macs == 146_222_161_592_320


# -- the yardstick


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Conv1d(3, 8, 5, groups=1), (2, 3, 64)),
        (lambda: nn.Conv1d(8, 8, 3, groups=4), (2, 8, 32)),
        (lambda: nn.Conv3d(2, 4, 3, stride=2), (1, 2, 9, 9, 9)),
        (lambda: nn.ConvTranspose2d(3, 6, 3, stride=2), (2, 3, 7, 7)),
        (lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), (2, 10, 32)),
        (lambda: nn.MultiheadAttention(32, 4, batch_first=True), None),
    ],
)
def test_half_of_torchs_own_counter_with_gradients(make: Any, shape: Any) -> None:
    model = make().eval()
    inputs = [torch.randn(2, 10, 32)] * 3 if shape is None else [torch.randn(shape)]
    with torch_counter() as counter:
        model(*inputs)
    assert on_meta(make, *[tuple(t.shape) for t in inputs]).info.totals.macs == counter.get_total_flops() // 2


def test_unbatched_convolution() -> None:
    assert on_meta(lambda: nn.Conv1d(4, 8, 3, padding=1), (4, 128)).info.totals.macs == 12_288


def test_transposed_convolution_multiplies_its_input() -> None:
    make = lambda: nn.ConvTranspose2d(3, 1, 2, stride=2, bias=False)  # noqa: E731
    assert on_meta(make, (1, 3, 2, 2)).info.totals.macs == 48


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("make", "macs"),
    [
        # steps x batch x directions x gates x hidden x (input + state)
        (lambda: nn.LSTM(10, 20), 7 * 3 * 4 * 20 * (10 + 20)),
        (lambda: nn.GRU(10, 20, bidirectional=True), 7 * 3 * 2 * 3 * 20 * (10 + 20)),
        (lambda: nn.RNN(10, 20, 2), 7 * 3 * 20 * (10 + 20) + 7 * 3 * 20 * (20 + 20)),
        (lambda: nn.LSTM(10, 20, proj_size=5), 7 * 3 * (4 * 20 * (10 + 5) + 5 * 20)),
    ],
)
def test_recurrent_layers_that_torchs_counter_leaves_out(make: Any, macs: int) -> None:
    analysis = on_meta(make, (7, 3, 10))
    assert analysis.info.totals.macs == macs
    assert [layer.kind for layer in analysis.layers] == [type(make()).__name__]
    with torch.no_grad():
        real = make()(torch.zeros(7, 3, 10))[0]
    assert analysis.layers[0].outputs[0].shape == tuple(real.shape)


def test_bilinear_and_einsum() -> None:
    class Product(nn.Module):
        def forward(self, a: Any, b: Any) -> Any:
            return torch.einsum("bij,bkj->bik", a, b)

    assert on_meta(Product, (2, 3, 4), (2, 5, 4)).info.totals.macs == 2 * 3 * 4 * 5
    assert on_meta(lambda: nn.Bilinear(3, 4, 5), (2, 3), (2, 4)).info.totals.macs == 2 * 3 * 4 * 5 + 2 * 4 * 5


# -- the tree


class Loop(nn.Module):
    """One block run three times, and an addition in between that is written as an operator."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.unused = nn.Linear(8, 2)
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Any) -> Any:
        for _ in range(3):
            x = self.block(x) + x
        return x


def test_a_module_called_three_times_has_its_parameters_once() -> None:
    analysis = on_meta(Loop, (2, 8))
    linear = row(analysis, "block.0")
    assert (linear.calls, linear.params, linear.macs) == (3, 72, 3 * 2 * 8 * 8)
    assert linear.formula.startswith("3 x (")
    assert row(analysis, "block").calls == 3
    assert [layer.name for layer in leaves(analysis) if layer.kind == "add"] == ["add", "add_2", "add_3"]
    assert analysis.info.totals.nodes == 3 + 3 + 3


def test_parameters_that_nothing_uses_are_shown_and_counted() -> None:
    analysis = on_meta(Loop, (2, 8))
    unused = row(analysis, "unused")
    assert (unused.calls, unused.params, unused.macs) == (0, 18, 0)
    assert unused.reason == "it does not run on these inputs in evaluation mode"
    assert row(analysis, "scale").kind == "Parameter"
    assert analysis.info.totals.params == 72 + 18 + 8


def test_a_layer_says_what_it_was_made_with_and_what_goes_through() -> None:
    conv = on_meta(lambda: nn.Conv2d(3, 6, 3, stride=2, bias=False), (1, 3, 9, 9)).layers[0]
    assert conv.kind == "Conv2d"
    assert conv.attributes["kernel_size"] == [3, 3]
    assert conv.attributes["stride"] == [2, 2]
    assert conv.attributes["bias"] is False
    assert (conv.inputs[0].name, conv.inputs[0].dtype, conv.inputs[0].shape) == (
        "input", "float32", (1, 3, 9, 9)
    )  # fmt: skip
    assert conv.outputs[0].shape == (1, 6, 4, 4)
    assert [(w.name, w.shape) for w in conv.weights] == [("weight", (6, 3, 3, 3))]
    assert "Cout 6 x out 4x4 x Cin/groups 3 x kernel 3x3 = 2,592" in conv.formula
    assert (conv.bytes_read, conv.bytes_written) == (4 * (3 * 81 + 162), 4 * 96)


def test_work_on_the_parameters_of_a_module_that_is_never_called_is_its_own() -> None:
    swin = examine(load("swin_t")).analysis
    qkv = row(swin, "features.1.0.attn.qkv")
    assert (qkv.kind, qkv.calls) == ("Linear", 1)
    assert qkv.macs == 64 * 49 * 96 * 288


def test_attention_in_evaluation_mode_is_one_row_with_its_projections() -> None:
    analysis = on_meta(lambda: nn.MultiheadAttention(32, 4, batch_first=True), *[(2, 10, 32)] * 3)
    assert [layer.kind for layer in analysis.layers] == ["MultiheadAttention"]
    assert analysis.layers[0].macs == 2 * (10 * 32 * 96 + 4 * 10 * 10 * (8 + 8) + 10 * 32 * 32)
    assert analysis.layers[0].params == sum(p.numel() for p in nn.MultiheadAttention(32, 4).parameters())


def test_a_module_without_children_that_multiplies_often_shows_its_operators() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w1, self.w2 = nn.Parameter(torch.ones(4, 8)), nn.Parameter(torch.ones(8, 2))

        def forward(self, x: Any) -> Any:
            return (x @ self.w1).relu() @ self.w2

    analysis = on_meta(lambda: nn.Sequential(Functional()), (1, 4))
    assert [(layer.path, layer.params) for layer in analysis.layers] == [
        ("0", 48), ("0.matmul", 32), ("0.relu", 0), ("0.matmul_2", 16)
    ]  # fmt: skip


def test_weights_that_share_storage_count_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.b.weight = nn.Parameter(self.a.weight.detach())

        def forward(self, x: Any) -> Any:
            return self.b(self.a(x))

    analysis = on_meta(Tied, (1, 4))
    assert analysis.info.totals.params == 16
    assert row(analysis, "a").shared_with == ("b",)


# -- memory


def test_a_tensor_that_is_updated_in_place_or_viewed_takes_no_memory_of_its_own() -> None:
    chain = on_meta(lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Flatten()), (1, 4, 256))
    assert chain.info.totals.activation_bytes_peak == 4 * 1024
    apart = on_meta(lambda: nn.Sequential(nn.ReLU(), nn.ReLU(), nn.ReLU()), (1, 4, 256))
    assert apart.info.totals.activation_bytes_peak == 2 * 4 * 1024


def test_a_skip_connection_stays_alive() -> None:
    class Skip(nn.Module):
        def forward(self, x: Any) -> Any:
            return F.relu(F.relu(x)) + x

    totals = on_meta(Skip, (1, 256)).info.totals
    assert totals.activation_bytes_peak == 3 * 1024
    assert totals.peak_at in ("relu_2", "add")
    assert [t.shape for t in totals.peak_tensors] == [(1, 256)] * 3


# -- what cannot be known


def test_an_operator_without_a_rule_is_unknown_and_stops_nothing() -> None:
    @torch.library.custom_op("explorer_tests::odd", mutates_args=())
    def odd(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    odd.register_fake(lambda x: torch.empty_like(x))

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            return self.fc(torch.ops.explorer_tests.odd(x))

    analysis = on_meta(Odd, (1, 8))
    unknown = next(layer for layer in leaves(analysis) if layer.status == "unknown")
    assert (unknown.macs, unknown.elementwise_ops) == (None, None)
    assert "no rule for the operator explorer_tests::odd" in unknown.reason
    assert analysis.info.totals.macs == 64
    assert 0 < analysis.info.totals.coverage < 1


@pytest.mark.slow
def test_detection_is_a_bound_and_says_why() -> None:
    analysis = examine(load("fasterrcnn_resnet50_fpn")).analysis
    box = row(analysis, "roi_heads.box_head.fc6")
    assert box.status == "bound"
    assert "counts as nonzero" in box.reason
    assert row(analysis, "backbone.body.conv1").status == "exact"
    assert (analysis.info.totals.macs, analysis.info.totals.status) == (134_379_721_216, "bound")
    assert any("every box counts as kept" in note for note in analysis.info.model.notes)


class Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.good, self.bad, self.after = nn.Linear(4, 8), nn.Linear(9, 2), nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        return self.after(self.bad(F.relu(self.good(x))))


def test_a_model_that_fails_half_way_gives_the_half_that_worked() -> None:
    with torch.device("meta"):
        model, given = Fails().train(), torch.empty(1, 4)
    fastpath = torch.backends.mha.get_fastpath_enabled()
    analysis = examine_module(model, [given]).analysis
    assert row(analysis, "good").macs == 32
    bad, after = row(analysis, "bad"), row(analysis, "after")
    assert (bad.status, bad.macs, bad.params) == ("unknown", None, 20)
    assert "must have same reduction dim" in bad.reason
    assert (after.status, after.macs) == ("unknown", None)
    assert after.reason == "not reached: the model failed in bad"
    assert analysis.info.totals.macs == 32
    assert analysis.info.totals.coverage == 0.5
    assert analysis.info.totals.activation_bytes_peak is None
    assert any("failed in bad" in note for note in analysis.info.model.notes)
    # and the model is as it was
    assert all(m.training for m in model.modules())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert torch.backends.mha.get_fastpath_enabled() == fastpath


def test_a_model_of_one_layer_that_fails_at_once_did_nothing_and_is_unknown() -> None:
    class Refuses(nn.Module):
        def forward(self, x: Any) -> Any:
            raise ValueError("not this one")

    analysis = on_meta(Refuses, (2, 3))
    (only,) = analysis.layers
    assert (only.status, only.macs, analysis.info.totals.coverage) == ("unknown", None, 0.0)
    assert only.reason == "failed here: ValueError: not this one"


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_a_compiled_part_is_not_said_to_be_idle() -> None:
    """TorchScript runs where nobody sees its modules; its operators are seen, and count."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = torch.jit.script(nn.Linear(4, 8))
            self.rest = nn.Linear(8, 2)

        def forward(self, x: Any) -> Any:
            return self.rest(self.part(x))

    from explorer import Session

    with Session(Mixed(), inputs=torch.zeros(2, 4)) as session:
        analysis = session.analysis()
    assert analysis.info.totals.macs == 2 * 4 * 8 + 2 * 8 * 2
    assert not any("does not run" in layer.reason for layer in analysis.layers)


def test_a_failing_operator_is_named() -> None:
    class Adds(nn.Module):
        def forward(self, x: Any) -> Any:
            return F.relu(x) + torch.empty(3, device="meta")

    analysis = on_meta(Adds, (1, 4))
    assert (row(analysis, "relu").status, row(analysis, "add").status) == ("exact", "unknown")


def test_an_error_that_the_model_handles_itself_is_no_failure() -> None:
    class Tries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.fits = nn.Linear(9, 2), nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            try:
                return self.wide(x)
            except RuntimeError:
                return self.fits(x)

    analysis = on_meta(Tries, (1, 4))
    assert row(analysis, "fits").macs == 8
    assert analysis.info.model.notes == ()


def test_constants_made_on_the_cpu_mix_with_inputs_that_have_no_values() -> None:
    class Mixed(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * torch.arange(4.0) + torch.tensor([1.0, 2.0, 3.0, 4.0])

    model = Mixed()
    analysis = examine_module(model, [torch.empty(2, 4, device="meta")]).analysis
    assert analysis.info.model.outputs[0].shape == (2, 4)
    assert analysis.info.totals.coverage == 1.0


def test_stopping() -> None:
    with pytest.raises(Cancelled):
        examine(load("resnet18"), cancel=lambda: True)


def test_batch_and_shape_change_the_figures() -> None:
    loaded = load("resnet18")
    one = examine(loaded).analysis.info
    eight = examine(loaded, dims={"batch": 8}).analysis.info
    assert eight.totals.macs == 8 * (one.totals.macs or 0)
    assert eight.assumptions["dims"] == {"batch": 8}
    small = examine(loaded, input_shapes={"x": (None, (1, 3, 64, 64))}).analysis.info
    assert small.model.inputs[0].shape == (1, 3, 64, 64)
    assert (small.totals.macs or 0) < (one.totals.macs or 0)
    with pytest.raises(Misuse, match="choose from: x"):
        examine(loaded, input_shapes={"imagen": (None, (1, 3, 64, 64))})
    with pytest.raises(Misuse, match="did you mean 'batch'"):
        examine(loaded, dims={"bach": 8})


def test_a_recurrent_layer_with_a_given_state() -> None:
    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(4, 6, batch_first=True)

        def forward(self, x: Any) -> Any:
            state = torch.zeros(1, x.shape[0], 6, device=x.device)
            return self.rnn(x, state)[0]

    assert on_meta(Stateful, (2, 5, 4)).info.totals.macs == 2 * 5 * 3 * 6 * (4 + 6)


def test_the_ranges_of_a_window_are_told_in_the_words_of_onnx() -> None:
    """Who asks which kernels a model needs need not know where it came from."""
    net = on_meta(
        lambda: nn.Sequential(
            nn.Conv2d(4, 8, (3, 1), stride=2, padding=(1, 0), groups=2), nn.MaxPool2d(3, stride=2, padding=1)
        ),
        (1, 4, 15, 15),
    )
    ranges = {
        stat.op: {k: r.minimum for k, r in stat.attributes.items()} for stat in compute_operator_stats(net)
    }
    conv, pool = ranges["Conv2d"], ranges["MaxPool2d"]
    assert conv["kernel_shape"] == (3, 1)
    assert conv["strides"] == (2, 2)
    assert conv["dilations"] == (1, 1)
    assert conv["pads"] == (1, 0, 1, 0)
    assert conv["group"] == 2
    assert (conv["input_channels"], conv["input_height"], conv["input_width"]) == (4, 15, 15)
    assert (pool["kernel_shape"], pool["strides"], pool["pads"]) == ((3, 3), (2, 2), (1, 1, 1, 1))


def test_live_tensors_of_the_model_have_the_names_of_its_inputs() -> None:
    from explorer import Session

    class Late(nn.Module):
        """Reads its second input last, so that it is live at the peak."""

        def forward(self, image: Any, scale: Any) -> Any:
            return (image @ image.T) * scale

    with Session(Late(), inputs=(torch.zeros(4, 4), torch.zeros(4))) as session:
        names = {life.tensor.name for life in session.memory().lifetimes}
    assert {"image", "scale"} <= names
    assert "input" not in names
