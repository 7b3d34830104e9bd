"""torchinfo beside us: its own table, and every number in which it is wrong, with the rule that says so."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
torchinfo = pytest.importorskip("torchinfo")

from torch import nn  # noqa: E402

from explorer.base.errors import MissingExtra, Misuse  # noqa: E402
from explorer.engine.costs.compare.torchinfo import build_torchinfo_table  # noqa: E402
from explorer.engine.costs.torch.analyse import examine  # noqa: E402
from explorer.engine.formats.torch_module.loaded_module import LoadedModule  # noqa: E402
from explorer.facts.comparison import TorchinfoDifference, TorchinfoTable  # noqa: E402
from explorer.session import Session  # noqa: E402

Shape = tuple[int, ...]


def compared(module: nn.Module, *shapes: Shape, dtype: str = "float32") -> TorchinfoTable:
    """torchinfo's table of a module, for inputs that are called as its forward calls them."""
    example = tuple(torch.zeros(s, dtype=getattr(torch, dtype), device="meta") for s in shapes)
    loaded = LoadedModule("net", lambda: module, "", trained=True, example=example)
    return build_torchinfo_table(loaded, examine(loaded).analysis)


def of_layers(found: TorchinfoTable) -> dict[str, TorchinfoDifference]:
    return {d.path: d for d in found.differences if d.figure == "macs" and d.path}


def of_total(found: TorchinfoTable, figure: str) -> TorchinfoDifference | None:
    return next((d for d in found.differences if d.figure == figure and not d.path), None)


class Conv1D(nn.Module):
    """The linear layer of GPT-2, as it is written there."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.features = features
        self.weight = nn.Parameter(torch.zeros(width, features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return out.view(*x.shape[:-1], self.features)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(tokens))


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attend(x, x, x)[0]


class Products(nn.Module):
    """Multiplies without a module: attention as it is written by hand."""

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(1, 2), -1) @ k


class Multiplying(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x) @ x.transpose(1, 2)


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(4))
        self.out = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x + self.shift)


# name: module, inputs, type, layer, torchinfo's MACs, ours, a word of the reason
FLAWS: dict[str, tuple[Callable[[], nn.Module], tuple[Shape, ...], str, str, int, int, str]] = {
    # 16 channels of length 64, 3 -> 16, kernel 4 without bias: 16 x 64 x 3 x 4; torchinfo multiplies the 192
    # weights by the first dimension of an output that has no batch, [16, 64] -> 16
    "an unbatched convolution": (
        lambda: nn.Sequential(nn.Conv1d(3, 16, 4, bias=False)),
        ((3, 67),),
        "float32",
        "0",
        16 * 192,
        12_288,
        "has no batch",
    ),
    # 3 channels of 2x2 in, 1 out, kernel 2, stride 2: 3 x 2 x 2 x 1 x 2 x 2; torchinfo goes over 4x4 outputs
    "a transposed convolution": (
        lambda: nn.Sequential(nn.ConvTranspose2d(3, 1, 2, stride=2, bias=False)),
        ((1, 3, 2, 2),),
        "float32",
        "0",
        192,
        48,
        "transposed",
    ),
    "the bias of a convolution": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3)),
        ((2, 3, 6, 6),),
        "float32",
        "0",
        2 * 16 * (8 * 27 + 8),
        2 * 16 * 8 * 27,
        "added, not multiplied (+256)",
    ),
    "the bias of a linear layer": (
        lambda: nn.Sequential(nn.Linear(5, 7)),
        ((3, 5),),
        "float32",
        "0",
        3 * (35 + 7),
        3 * 35,
        "added, not multiplied (+21)",
    ),
    # 2 x 6 rows; torchinfo takes 2
    "a linear layer over a sequence": (
        lambda: nn.Sequential(nn.Linear(5, 7, bias=False)),
        ((2, 6, 5),),
        "float32",
        "0",
        2 * 35,
        2 * 6 * 35,
        "rows of the product",
    ),
    "the table of an embedding": (
        lambda: nn.Sequential(nn.Embedding(10, 4)),
        ((2, 6),),
        "int64",
        "0",
        2 * 40,
        0,
        "table",
    ),
    # 2 x 6 rows x 5 x 7; torchinfo takes it for a convolution: 35 weights and 7 biases x 2 x 7 (the last)
    "the Conv1D of GPT-2": (
        lambda: nn.Sequential(Conv1D(7, 5)),
        ((2, 6, 5),),
        "float32",
        "0",
        (35 + 7) * 2 * 7,
        2 * 6 * 35,
        "Conv1D of GPT-2 is a linear layer",
    ),
    "a batch norm": (
        lambda: nn.Sequential(nn.BatchNorm2d(3)),
        ((2, 3, 4, 4),),
        "float32",
        "0",
        2 * (3 + 3),
        0,
        "elementwise",
    ),
    "a parametric activation": (
        lambda: nn.Sequential(nn.PReLU(3)),
        ((2, 3, 4, 4),),
        "float32",
        "0",
        2 * 3,
        0,
        "elementwise",
    ),
    # projections 4 x 8 x 8, products 2 x 5 x 8, for 2 batches of 5
    "multi-head attention": (
        Attending,
        ((2, 5, 8),),
        "float32",
        "attend",
        0,
        2 * (5 * 4 * 64 + 2 * 5 * 5 * 8),
        "attention counts 0",
    ),
    "a product that is not a module": (
        Multiplying,
        ((2, 5, 8),),
        "float32",
        "matmul",
        0,
        2 * 5 * 5 * 8,
        "not a module",
    ),
    # q k and p v, by hand and without a module at all
    "a model without modules": (
        Products,
        ((2, 5, 8), (2, 5, 8)),
        "float32",
        "Products",
        0,
        2 * 2 * 5 * 5 * 8,
        "without parameters of its own",
    ),
    # 3 steps, batch 2, gates 4 x 6 x (5 + 6), and two biases of 24 for each
    "the biases of an LSTM": (
        lambda: _First(nn.LSTM(5, 6)),
        ((3, 2, 5),),
        "float32",
        "layer",
        6 * (24 * 11 + 48),
        6 * 24 * 11,
        "added, not multiplied (+288)",
    ),
}


class _First(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


@pytest.mark.parametrize("case", FLAWS)
def test_a_wrong_number_of_torchinfo_is_found_with_its_reason(case: str) -> None:
    make, shapes, dtype, path, theirs, ours, word = FLAWS[case]
    found = compared(make(), *shapes, dtype=dtype)
    layer = of_layers(found)[path]
    assert (layer.theirs, layer.ours) == (theirs, ours)
    assert word in layer.why
    assert "no rule" not in layer.why
    total = of_total(found, "macs")
    assert total is not None
    assert "no rule" not in total.why


def test_numbers_that_are_right_are_not_mentioned() -> None:
    found = compared(nn.Sequential(nn.Linear(5, 7, bias=False), nn.ReLU()), (3, 5))
    assert not of_layers(found)
    assert of_total(found, "macs") is None
    assert of_total(found, "params") is None


def test_a_tied_weight_is_counted_twice_by_torchinfo() -> None:
    found = compared(Tied(), (2, 3), dtype="int64")
    params, size = of_total(found, "params"), of_total(found, "weight_bytes")
    assert params is not None
    assert size is not None
    assert (params.theirs, params.ours) == (80, 40)
    assert (size.theirs, size.ours) == (320, 160)
    assert "tied" in params.why
    assert "+40" in params.why
    assert "no rule" not in params.why + size.why


def test_a_tied_weight_hides_parameters_outside_leaf_layers_from_torchinfo() -> None:
    class Scaled(Tied):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(7))

    params = of_total(compared(Scaled(), (2, 3), dtype="int64"), "params")
    assert params is not None
    # the 40 that are tied are counted twice, and the 7 are in what 47 less 80 leave over: nothing
    assert (params.theirs, params.ours) == (80, 47)
    assert "+40" in params.why
    assert "subtracts tied ones twice (-7)" in params.why


def test_bytes_of_parameters_outside_leaf_layers_are_left_out_by_torchinfo() -> None:
    size = of_total(compared(Bare(), (1, 4)), "weight_bytes")
    assert size is not None
    assert (size.theirs, size.ours) == (40, 56)
    assert "left out (-16)" in size.why


def test_the_forward_backward_size_only_counts_layers_that_own_parameters() -> None:
    found = compared(nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2)), (3, 5))
    size = of_total(found, "activation_bytes")
    assert size is not None
    # twice (3 x 7 + 3 x 2) x 4 bytes; ours has the ReLU too, and each once
    assert (size.theirs, size.ours) == (2 * 108, 108 + 84)
    assert "2 layers with parameters of their own" in size.why
    assert "1 other layer" in size.why


def test_the_reasons_of_a_whole_model_add_up_to_the_difference() -> None:
    pytest.importorskip("torchvision")
    session = Session("resnet18")
    found = session.torchinfo()
    total = of_total(found, "macs")
    assert total is not None
    assert total.ours == 1_814_073_344
    assert (
        total.theirs
        == torchinfo.summary(
            session.parts.models.open_state().loaded.meta(),  # type: ignore[attr-defined]
            input_data=torch.zeros(1, 3, 224, 224, device="meta"),
            device="meta",
            verbose=0,
        ).total_mult_adds
    )
    assert "no rule" not in total.why


def test_the_table_is_made_by_torchinfo_itself() -> None:
    found = compared(nn.Sequential(nn.Linear(5, 7)), (3, 5))
    assert found.version == torchinfo.__version__
    assert "Total mult-adds" in found.text
    assert "Linear (0): 1-1" in found.text


class _Valued(nn.Module):
    """Reads the values of its input, which shapes do not have."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x[x.sum(1) > -1.0]
        return self.out(rows)


def test_a_model_that_reads_values_is_run_with_its_weights() -> None:
    found = compared(_Valued(), (3, 4))
    assert "Linear (out): 1-1" in found.text


def test_the_model_is_left_as_it_was() -> None:
    example = (torch.zeros(3, 5, device="meta"),)
    loaded = LoadedModule("net", lambda: nn.Sequential(nn.Linear(5, 7), nn.Dropout()), "", example=example)
    analysis, module = examine(loaded).analysis, loaded.meta()
    for part, training in zip(module.modules(), (False, True, False), strict=True):
        part.training = training
    build_torchinfo_table(loaded, analysis)
    assert [m.training for m in module.modules()] == [False, True, False]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())


def test_an_onnx_file_has_no_modules_for_torchinfo(sample: Callable[[str], Path]) -> None:
    with pytest.raises(Misuse, match="torchinfo reads"):
        Session(sample("lenet")).torchinfo()


def test_a_missing_torchinfo_is_one_line_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchinfo", None)
    with pytest.raises(MissingExtra, match=r"pip install 'explorer-nn\[torch\]'"):
        compared(nn.Sequential(nn.Linear(5, 7)), (3, 5))


@pytest.mark.parametrize(
    "layout",
    [
        {
            "columns": (
                "input_size",
                "output_size",
                "kernel_size",
                "num_params",
                "params_percent",
                "trainable",
            )
        },
        {"columns": ("mult_adds", "input_size"), "depth": 1, "width": 18},
        {"depth": 2, "width": 31, "rows": ("ascii_only", "depth")},
        {"rows": ("var_names",)},
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_table_is_torchinfos_own_to_the_byte(layout: dict[str, Any], dtype: str) -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))
            self.right = nn.Linear(7, 5)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.left(x) + self.right(y)

    net = Pair().to(getattr(torch, dtype))
    inputs = [torch.zeros(2, *shape, dtype=getattr(torch, dtype)) for shape in ((3, 8, 8), (7,))]
    theirs = torchinfo.summary(
        net,
        input_data=inputs,
        col_names=layout.get("columns", ("output_size", "num_params", "mult_adds")),
        depth=layout.get("depth", 9),
        col_width=layout.get("width", 25),
        row_settings=layout.get("rows", ("depth", "var_names")),
        verbose=0,
    )
    with Session(net, inputs=tuple(inputs)) as session:
        assert session.torchinfo(**layout).text == str(theirs)


def test_a_column_that_torchinfo_lacks_is_refused_by_name() -> None:
    with (
        Session(nn.Linear(2, 2), inputs=torch.zeros(1, 2)) as session,
        pytest.raises(Misuse, match=r"torchinfo has no 'input_sizes'.*did you mean 'input_size'"),
    ):
        session.torchinfo(columns=["input_sizes"])
