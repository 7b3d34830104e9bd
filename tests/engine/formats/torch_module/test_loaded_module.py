"""Opening an nn.Module by name, its inputs, its ONNX file, and its own outputs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

import onnx  # noqa: E402
import onnxruntime  # noqa: E402
from torch import nn  # noqa: E402

from explorer.base.errors import BadModel, ExplorerError, MissingExtra, Misuse  # noqa: E402
from explorer.engine.costs.onnx import analyse as onnx_model  # noqa: E402
from explorer.engine.costs.torch.analyse import examine  # noqa: E402
from explorer.engine.costs.torch.signature import bind  # noqa: E402
from explorer.engine.formats.onnx import reader  # noqa: E402
from explorer.engine.formats.torch_module.loaded_module import LoadedModule, load, wrap_module  # noqa: E402
from explorer.engine.models.open_model import open_model  # noqa: E402
from explorer.engine.models.opened_model import OpenOptions  # noqa: E402
from explorer.engine.models.torch import onnx_export  # noqa: E402
from explorer.engine.models.torch.run import run  # noqa: E402

NETS = """
import sys
import torch
from torch import nn
print("noise of an import")

class Small(nn.Module):
    def __init__(self):
        super().__init__()
        print("noise of a constructor")
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4 * 28 * 28, 10)

    def forward(self, image):
        print("noise of a forward")
        print("noise on the other stream", file=sys.stderr)
        return self.fc(torch.relu(self.bn(self.conv(image))).flatten(1))

class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.block(self.embed(ids)))

class Misfit(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(9, 2)

    def forward(self, x):
        return self.b(self.a(x))

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, left, right, scale=None):
        out = self.a(left) + self.b(right)
        return {"sum": out, "twice": out * 2} if scale is None else {"sum": out * scale}

class ReadsValues(nn.Module):
    def __init__(self):
        super().__init__()
        count = int(torch.linspace(1, 3, 3).sum().item())
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(count))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

ready = nn.Sequential(nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5), nn.ReLU())

def with_inputs():
    return nn.Conv2d(3, 4, 3), (torch.zeros(1, 3, 20, 30),)

def sized(n, *, k, bias=True, **more):
    return nn.Linear(n, k, bias)


def a_number():
    return 3

def broken():
    raise ValueError("no luck today")
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of networks in it, entered."""
    (tmp_path / "my_nets.py").write_text(NETS)
    (tmp_path / "needs_more.py").write_text("import a_package_nobody_has\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("my_nets", "needs_more"):
        sys.modules.pop(name, None)


def shapes(loaded: LoadedModule) -> list[tuple[str, str | None, Any]]:
    return [(i.name, i.dtype, i.shape) for i in bind(loaded).inputs]


# -- names


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("alexnet", (1, 3, 224, 224)),
        ("inception_v3", (1, 3, 299, 299)),
        ("deeplabv3_resnet50", (1, 3, 520, 520)),
        ("r3d_18", (1, 3, 16, 112, 112)),
        ("fasterrcnn_resnet50_fpn", (3, 800, 800)),
        ("ssdlite320_mobilenet_v3_large", (3, 320, 320)),
    ],
)
def test_torchvision_models_come_with_their_own_input_size(name: str, shape: tuple[int, ...]) -> None:
    assert [s for _, _, s in shapes(load(name))] == [shape]


def test_a_mistyped_name_gives_the_nearest() -> None:
    with pytest.raises(Misuse, match="did you mean 'alexnet'"):
        load("alexnte")


def test_torch_absent_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    # None in sys.modules makes `import torch` fail as if it were not installed
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra) as caught:
        open_model("alexnet", OpenOptions())
    assert "pip install 'explorer-nn[torch]'" in str(caught.value)


def test_weights_that_do_not_exist_or_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Misuse, match="did you mean 'IMAGENET1K_V1'"):
        load("alexnet", weights="IMAGENET_V1")
    with pytest.raises(Misuse, match="only models of torchvision"):
        load("my_nets:Small", weights="DEFAULT")

    def offline(*args: Any, **kwargs: Any) -> Any:
        raise OSError("no route to host")

    monkeypatch.setattr("torch.hub.download_url_to_file", offline)
    monkeypatch.setenv("TORCH_HOME", "/nonexistent/cache")
    monkeypatch.setattr("os.makedirs", lambda *args, **kwargs: None)
    with pytest.raises(ExplorerError, match="leave --weights out") as caught:
        load("alexnet", weights="IMAGENET1K_V1").materialize()
    assert "\n" not in str(caught.value)


# -- package.module:callable


def test_a_callable_from_the_current_folder(nets: Path, capfd: pytest.CaptureFixture[str]) -> None:
    analysis = examine(load("my_nets:Small")).analysis
    assert analysis.info.totals.macs == 28 * 28 * 4 * 9 + 4 * 28 * 28 * 10
    assert analysis.info.model.inputs[0].name == "image"
    assert capfd.readouterr() == ("", "")


def test_a_python_file(nets: Path) -> None:
    assert examine(load(f"{nets / 'my_nets.py'}:Small")).analysis.info.totals.params == 31_418


def test_what_goes_in_is_found_out_and_said(nets: Path) -> None:
    assert shapes(load("my_nets:Small")) == [("image", "float32", (1, 1, 28, 28))]
    assert shapes(load("my_nets:Tokens")) == [("ids", "int64", (1, 128))]
    assert shapes(load("my_nets:ready")) == [("input", "float32", (1, 16))]
    assert shapes(load("my_nets:with_inputs")) == [("input", "float32", (1, 3, 20, 30))]
    note = bind(load("my_nets:Small")).notes
    assert note == ("input image: 1x1x28x28 guessed from the first layer (Conv2d); --input-shape sets it",)


def test_a_long_sequence_for_a_recurrent_layer_is_tried_in_one_piece() -> None:
    class Pixels(nn.Module):
        """Reads an image pixel by pixel: 50,176 steps, for each of which torch has a dozen operators."""

        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)
            self.gru = nn.GRU(4, 5, batch_first=True)

        def forward(self, x: Any) -> Any:
            assert torch._C._len_torch_function_stack(), "nobody watches"
            return self.gru(self.conv(x).flatten(2).transpose(1, 2))[0]

    loaded = wrap_module(Pixels())
    assert bind(loaded).inputs[0].shape == (1, 3, 224, 224)
    assert examine(loaded).analysis.info.totals.macs == 224 * 224 * (3 * 4 + 3 * 5 * (4 + 5))


def test_several_inputs_have_to_be_given(nets: Path) -> None:
    loaded = load("my_nets:Two")
    with pytest.raises(Misuse, match="--input-shape left:1,4"):
        bind(loaded)
    bound = bind(loaded, {"right": (None, (2, 4)), "left": (None, (2, 4))})
    assert [i.name for i in bound.inputs] == ["left", "right"]
    scaled = bind(loaded, dict.fromkeys(("scale", "left", "right"), ("float64", (2, 4))))
    assert [(i.name, i.dtype) for i in scaled.inputs] == [
        ("left", "float64"), ("right", "float64"), ("scale", "float64")
    ]  # fmt: skip
    with pytest.raises(Misuse, match="did you mean 'left'"):
        bind(loaded, {"lefft": (None, (2, 4))})
    with pytest.raises(Misuse, match="no type 'flaot32'"):
        bind(loaded, {"left": ("flaot32", (2, 4)), "right": (None, (2, 4))})


def test_a_model_that_runs_with_no_likely_shape_says_what_was_tried(nets: Path) -> None:
    with pytest.raises(Misuse, match=r"with 1x4, likely from its first layer, it fails in b: .*\[9, 2\]"):
        bind(load("my_nets:Misfit"))


def test_a_shape_that_failed_is_not_proposed() -> None:
    pooled = nn.Sequential(nn.Conv1d(2, 4, 9, stride=8), nn.MaxPool1d(16), nn.MaxPool1d(4))
    assert bind(wrap_module(pooled)).inputs[0].shape == (1, 2, 1024), "512 samples are too few"
    fixed = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 77 * 91, 5))
    with pytest.raises(Misuse, match=r"1x3x224x224.* give it: --input-shape input:1,3,N,N$"):
        bind(wrap_module(fixed))
    unflattened = nn.Sequential(nn.Linear(6, 4), nn.Unflatten(3, (2, 2)))
    with pytest.raises(Misuse, match=r"give it: --input-shape input:1,N,6$"):
        bind(wrap_module(unflattened))


def test_a_size_that_depends_on_values_is_no_reason_to_ask_for_a_shape() -> None:
    class Chosen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x[(x[:, 0] > 0).nonzero().squeeze(1)])

    analysis = examine(wrap_module(Chosen())).analysis
    assert analysis.info.model.inputs[0].shape == (1, 8)
    assert [(y.macs, y.status) for y in analysis.layers if y.path == "fc"] == [(8 * 16, "bound")]


def test_a_shape_that_was_tried_in_vain_leaves_no_size_in_layers_that_wait_for_one() -> None:
    class Digits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc, self.out = nn.LazyConv2d(2, 3), nn.LazyLinear(5), nn.Linear(5, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.fc(self.conv(x).flatten(1))
            return self.out(y if x.shape[-1] == 28 else y[:, :3])

    analysis = examine(wrap_module(Digits())).analysis
    assert analysis.info.model.inputs[0].shape == (1, 1, 28, 28)
    assert {y.path: y.params for y in analysis.layers if y.params} == {"conv": 20, "fc": 6765, "out": 12}


def test_rows_of_an_embedding_are_integers_without_being_told() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.kinds, self.fc = nn.Embedding(50, 4), nn.Embedding(2, 4), nn.Linear(4, 3)

        def forward(self, ids: torch.Tensor, scale: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
            return self.fc((self.words(ids + 0) + self.kinds(kinds)) * scale)

    asked: dict[str, tuple[str | None, tuple[int, ...]]] = {
        "ids": (None, (2, 5)),
        "scale": (None, (2, 5, 1)),
        "kinds": (None, (2, 5)),
    }
    bound = bind(wrap_module(Pair()), asked)
    assert [i.dtype for i in bound.inputs] == ["int64", "float32", "int64"]
    assert bound.notes[0] == "input ids: counted as int64, because an embedding reads it as indices"
    said = bind(wrap_module(Pair()), {**asked, "ids": ("int32", (2, 5))})
    assert [i.dtype for i in said.inputs] == ["int32", "float32", "int64"]


def test_a_constructor_that_reads_values_is_built_on_the_cpu(nets: Path) -> None:
    analysis = examine(load("my_nets:ReadsValues")).analysis
    assert analysis.info.totals.params == 6 * 20
    assert analysis.info.totals.macs == 6 * 16


def test_the_users_own_module_is_left_as_it_is(nets: Path) -> None:
    loaded = load("my_nets:ready")
    examine(loaded)
    ready = sys.modules["my_nets"].ready
    assert not any(p.is_meta for p in ready.parameters())
    assert loaded.meta() is not ready


@pytest.mark.parametrize(
    ("source", "kind", "says"),
    [
        ("my_nets:Smal", Misuse, "did you mean 'Small'"),
        ("my_nets:", Misuse, "package.module:callable"),
        ("my_net:Small", Misuse, "did you mean 'my_nets'"),
        ("nowhere.at.all:f", Misuse, "there is no module 'nowhere'"),
        ("my_nets:a_number", Misuse, "returned an object of type int, not an nn.Module"),
        ("my_nets:torch", Misuse, "not a callable"),
        (
            "my_nets:sized",
            Misuse,
            "write a function without arguments: def model(): return sized(n=..., k=...)",
        ),
        ("my_nets:broken", BadModel, "ValueError: no luck today"),
        ("needs_more:f", BadModel, "No module named 'a_package_nobody_has'"),
    ],
)
def test_bad_sources_say_what_is_wrong_in_one_line(
    nets: Path, source: str, kind: type[ExplorerError], says: str
) -> None:
    with pytest.raises(kind) as caught:
        examine(load(source))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


# -- to ONNX, and run


def exported(source: str, path: Path, shapes: Any = None, seed: int = 0) -> tuple[LoadedModule, Any]:
    loaded = load(source, seed=seed)
    onnx_export.export(loaded, bind(loaded, shapes), str(path))
    return loaded, onnx.load(path)


def outputs_agree(loaded: LoadedModule, path: Path) -> bool:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    args, kwargs = loaded.bound.build_arguments(device="cpu", seed=7)
    arrays = [t.numpy() for t in (*args, *kwargs.values())]
    given = {i.name: a for i, a in zip(session.get_inputs(), arrays, strict=True)}
    theirs, ours = session.run(None, given), run(loaded, loaded.bound, arrays)
    return all(np.allclose(a, b, atol=1e-5) for a, b in zip(theirs, ours, strict=True))


def test_exported_names_are_those_of_the_module(nets: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = nets / "small.onnx"
    loaded, model = exported("my_nets:Small", path)
    state = loaded.materialize().state_dict()
    names = {t.name for t in model.graph.initializer}
    assert names == {n for n in state if not n.endswith("num_batches_tracked")}
    assert [n.name for n in model.graph.node][:2] == ["/conv/Conv", "/bn/BatchNormalization"]
    assert [i.name for i in model.graph.input] == ["image"]
    assert [o.name for o in model.graph.output] == ["output"]
    onnx.checker.check_model(model, full_check=True)
    assert outputs_agree(loaded, path)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_transposed_weights_get_their_names_back(nets: Path) -> None:
    path = nets / "tokens.onnx"
    loaded, model = exported("my_nets:Tokens", path)
    state = set(loaded.materialize().state_dict())
    assert {t.name for t in model.graph.initializer if t.name.startswith("block.")} <= state
    assert not [t.name for t in model.graph.initializer if t.name.startswith("onnx::MatMul")]
    assert outputs_agree(loaded, path)


def test_equal_seeds_make_equal_files_and_others_do_not(nets: Path) -> None:
    one, two, three = (nets / f"{n}.onnx" for n in ("one", "two", "three"))
    for path, seed in ((one, 0), (two, 0), (three, 1)):
        exported("my_nets:Small", path, seed=seed)
    assert one.read_bytes() == two.read_bytes()
    assert one.read_bytes() != three.read_bytes()


def test_several_inputs_and_named_outputs(nets: Path) -> None:
    path = nets / "two.onnx"
    given = {"left": (None, (2, 4)), "right": (None, (2, 4))}
    loaded, model = exported("my_nets:Two", path, given)
    assert [i.name for i in model.graph.input] == ["left", "right"]
    assert [o.name for o in model.graph.output] == ["output.sum", "output.twice"]
    assert outputs_agree(loaded, path)


def test_a_model_that_cannot_take_these_inputs(nets: Path) -> None:
    small = load("my_nets:Small")
    with pytest.raises(BadModel, match="the model failed"):
        run(small, bind(small), [np.zeros((1, 2, 28, 28), np.float32)])


def test_a_model_that_no_exporter_takes_leaves_no_file(
    nets: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        Path(args[2]).write_bytes(b"half a file")
        raise RuntimeError("this operator has no ONNX form")

    monkeypatch.setattr(torch.onnx, "export", refuse)
    with pytest.raises(BadModel, match="no ONNX form"):
        exported("my_nets:Small", nets / "never.onnx")
    assert not (nets / "never.onnx").exists()
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_trace_that_branches_gives_way_to_the_newer_exporter(
    nets: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(onnx_export, "_has_branches", lambda path: True)
    path = nets / "tokens.onnx"
    loaded, model = exported("my_nets:Tokens", path)
    assert any(p.key == "pkg.torch.onnx.name_scopes" for n in model.graph.node for p in n.metadata_props)
    assert [i.name for i in model.graph.input] == ["ids"]
    assert "block.linear1.weight" in {t.name for t in model.graph.initializer}
    assert outputs_agree(loaded, path)
    assert not (nets / "tokens.onnx.part").exists()
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_alexnet_exports_with_the_parameters_that_the_analysis_counts(tmp_path: Path) -> None:
    loaded, model = exported("alexnet", tmp_path / "alexnet.onnx")
    elements = sum(int(np.prod(t.dims)) for t in model.graph.initializer)
    assert elements == 61_100_840 == examine(loaded).analysis.info.totals.params
    assert [n.op_type for n in model.graph.node].count("Gemm") == 3


@pytest.mark.slow
def test_a_module_and_its_onnx_file_cost_the_same(tmp_path: Path) -> None:
    loaded, _ = exported("resnet18", tmp_path / "resnet18.onnx")
    module = examine(loaded).analysis.info.totals
    graph = onnx_model.analyse(reader.read(str(tmp_path / "resnet18.onnx"))).info.totals
    assert (module.macs, module.elementwise_ops) == (graph.macs, graph.elementwise_ops)
    assert module.activation_bytes_peak == graph.activation_bytes_peak
    # the file stores the running mean and variance of 20 batch norms, 4,800 channels, as initializers too
    assert graph.params - module.params == 2 * 4_800


def test_a_module_that_exists_is_copied_once() -> None:
    """The twin on the meta device is made of the module itself, not of a copy with its values."""
    copies = []

    class Counted(nn.Linear):
        def __deepcopy__(self, memo: dict[int, Any]) -> Counted:
            copies.append(self)
            return type(self)(self.in_features, self.out_features, device="meta")

    layer = Counted(3, 2)
    loaded = wrap_module(nn.Sequential(layer), torch.ones(1, 3))
    assert examine(loaded).analysis.info.totals.macs == 6
    assert copies == [layer]
    assert layer.training
    assert not layer.weight.is_meta
