"""TorchScript files and exported programs without torch: outlines at once, and a layer tree that is right."""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

import torchvision  # noqa: E402
from torch import nn  # noqa: E402

from explorer.base.errors import BadModel, ExplorerError, Misuse  # noqa: E402
from explorer.base.outline import Outline, OutlineRow  # noqa: E402
from explorer.engine.models.registry import recognize  # noqa: E402
from explorer.facts import Analysis, TileSpec  # noqa: E402
from explorer.session import Session  # noqa: E402
from tests.engine.formats.torch_replay.torch_nets import (  # noqa: E402
    Recurrent,
    Small,
    Transformer,
    rewritten,
    saved_script,
)
from tests.fresh import DRAWS_OR_COMPUTES, loaded, tops  # noqa: E402

ROOT = Path(__file__).parents[4]
WORDS = torch.zeros(2, 7, dtype=torch.int64)

MODELS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "small": (Small, torch.zeros(2, 1, 8, 8)),
    "recurrent": (Recurrent, WORDS),
    "transformer": (Transformer, WORDS),
    "mobilenet": (torchvision.models.mobilenet_v3_small, torch.zeros(1, 3, 64, 64)),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], str]:
    """Path of a model saved as 'script', 'trace' or 'export', made once."""
    folder = tmp_path_factory.mktemp("described")

    def make(name: str, form: str) -> str:
        path = folder / f"{name}-{form}.pt{'2' * (form == 'export')}"
        if path.exists():
            return str(path)
        torch.manual_seed(0)
        build, example = MODELS[name]
        model = build().eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if form == "export":
                torch.export.save(torch.export.export(model, (example,)), path)
            elif form == "trace":
                saved_script(model, (example,), path)
            else:
                torch.jit.save(torch.jit.script(model), path)
        return str(path)

    return make


@pytest.fixture(scope="module")
def small() -> nn.Module:
    torch.manual_seed(0)
    return Small().eval()


@pytest.fixture
def without_torch(made: Any, small: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if torch were not installed, for what asks for it from now on; the files are there already."""
    for form in ("trace", "script", "export"):
        made("small", form)
    monkeypatch.setitem(sys.modules, "torch", None)


def outline(path: str) -> Outline:
    found = recognize(path).outline
    assert found is not None
    return found(path)


def of_kind(path: str, kind: str) -> dict[str, OutlineRow]:
    return {row.path: row for row in outline(path).rows if row.kind == kind}


def analysed(path: str, **options: Any) -> Analysis:
    return Session(path, **options).analysis()


# -- outlines


@pytest.mark.parametrize("form", ["trace", "script", "export"])
def test_an_outline_has_every_tensor_as_the_model_has_it(form: str, made: Any) -> None:
    found = of_kind(made("small", form), "tensor")
    assert {path: (row.dtype, tuple(row.shape or ())) for path, row in found.items()} == {
        name: (str(t.dtype).removeprefix("torch."), tuple(t.shape))
        for name, t in Small().state_dict().items()
    }
    assert found["norm.running_mean"].note == "buffer"
    assert found["norm.weight"].note == ""


@pytest.mark.parametrize("form", ["trace", "script"])
def test_a_torchscript_outline_names_modules_by_their_class_before_mangling(form: str, made: Any) -> None:
    modules = of_kind(made("small", form), "module")
    assert {path: row.dtype for path, row in modules.items()} == {
        name or "(model)": type(module).__name__ for name, module in Small().named_modules()
    }


def test_a_scripted_outline_shows_settings_and_a_traced_one_the_shapes_it_was_traced_with(made: Any) -> None:
    assert "kernel_size=(3, 3)" in of_kind(made("small", "script"), "module")["conv"].note
    assert of_kind(made("small", "script"), "input")["image"].dtype == "Tensor"
    given = of_kind(made("small", "trace"), "input")["image"]
    assert (given.dtype, given.shape) == ("float32", (2, 1, 8, 8))


def test_a_torchscript_outline_lists_the_calls_of_the_code(made: Any) -> None:
    calls = of_kind(made("small", "trace"), "operator")
    assert calls["conv.torch._convolution"].dtype == "torch._convolution"
    assert "[2, 2], [1, 1]" in calls["conv.torch._convolution"].note
    scripted = of_kind(made("small", "script"), "operator")
    assert "norm.torch.nn.functional.batch_norm" in scripted


def test_an_export_s_outline_has_operators_with_shapes_modules_and_source_lines(made: Any) -> None:
    path = made("small", "export")
    conv = of_kind(path, "operator")["conv.conv2d"]
    assert (conv.dtype, conv.shape) == ("aten.conv2d", (2, 4, 4, 4))
    assert "stride=(2, 2)" in conv.note
    assert "torch_nets.py:" in conv.note
    assert of_kind(path, "module")["norm"].dtype == "BatchNorm2d"
    assert of_kind(path, "input")["image"].shape == (2, 1, 8, 8)
    assert len(of_kind(path, "output")) == 1
    order = [row.path for row in outline(path).rows]
    assert order.index("conv") < order.index("conv.weight") < order.index("conv.conv2d") < order.index("norm")


def test_an_open_dimension_stands_by_its_name(tmp_path: Path) -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(
        Small().eval(), (torch.zeros(4, 1, 8, 8),), dynamic_shapes={"image": {0: batch}}
    )
    torch.export.save(program, tmp_path / "open.pt2")
    path = str(tmp_path / "open.pt2")
    assert of_kind(path, "input")["image"].shape == ("batch", 1, 8, 8)
    assert ("dimension batch", "2 to 64") in list(outline(path).facts)


class Meeting(torch.nn.Module):
    """Two inputs, whose first dimensions may differ."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.cat([a, b, b])


def test_dimensions_that_inputs_do_not_share_keep_their_symbols(tmp_path: Path) -> None:
    sizes = {name: {0: torch.export.Dim(name * 3, min=2, max=64)} for name in "ab"}
    program = torch.export.export(Meeting(), (torch.zeros(4, 2), torch.zeros(5, 2)), dynamic_shapes=sizes)
    torch.export.save(program, tmp_path / "open.pt2")
    path = str(tmp_path / "open.pt2")
    inputs = of_kind(path, "input")
    first, second = inputs["a"].shape, inputs["b"].shape
    assert first is not None
    assert second is not None
    assert "batch" not in (first[0], second[0])
    ((rows, _),) = (row.shape or () for row in of_kind(path, "output").values())
    for symbol in (first[0], second[0]):
        assert (f"dimension {symbol}", "2 to 64") in list(outline(path).facts)
        assert str(symbol) in str(rows)
    assert "Symbol" not in str(rows)


def test_a_dimension_open_to_above_says_so(tmp_path: Path) -> None:
    sizes = {"image": {0: torch.export.Dim("batch", min=3)}}
    program = torch.export.export(Small().eval(), (torch.zeros(4, 1, 8, 8),), dynamic_shapes=sizes)
    torch.export.save(program, tmp_path / "open.pt2")
    assert "3 or more" in [text for _, text in outline(str(tmp_path / "open.pt2")).facts]


class Unselfish(torch.nn.Module):
    """Calls itself otherwise than everybody does."""

    def forward(this, image: torch.Tensor) -> torch.Tensor:
        return image + 1


def test_a_script_does_not_take_itself_as_an_input_whatever_it_calls_itself(tmp_path: Path) -> None:
    path = str(tmp_path / "m.pt")
    torch.jit.save(torch.jit.script(Unselfish()), path)
    assert list(of_kind(path, "input")) == ["image"]


@pytest.mark.slow
def test_a_tied_weight_says_with_whom(made: Any) -> None:
    for form in ("trace", "script", "export"):
        notes = [row.note for row in of_kind(made("transformer", form), "tensor").values()]
        assert sum("tied to" in note for note in notes) == 1, form


@pytest.mark.parametrize("form", ["trace", "script", "export"])
def test_an_outline_needs_nothing_that_is_slow_to_import(form: str, made: Any) -> None:
    assert not tops(loaded("outline", made("small", form))) & {*DRAWS_OR_COMPUTES, "ast"}


# -- without torch


@pytest.mark.parametrize("form", ["trace", "script", "export"])
def test_without_torch_parameters_bytes_and_values_are_those_of_the_model(
    form: str, made: Any, small: nn.Module, without_torch: None
) -> None:
    path = made("small", form)
    with Session(path) as session:
        info = session.info()
        weights = {w.tensor.name: w for w in session.weights().tensors}
    assert any("torch, which cannot be imported here" in note for note in info.model.notes)
    assert info.model.file_bytes == os.path.getsize(path)
    assert info.totals.params == sum(p.numel() for p in small.parameters())
    assert info.totals.trainable_params == info.totals.params
    assert info.totals.weight_bytes == sum(p.nbytes for p in small.parameters())
    for name, tensor in small.state_dict().items():
        assert weights[name].mean == pytest.approx(float(tensor.double().mean())), name


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_macs_of_an_exported_program_are_the_same_with_torch_and_without(
    name: str, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(name, "export")
    there = analysed(path)
    monkeypatch.setitem(sys.modules, "torch", None)
    here = analysed(path)
    for field in ("params", "trainable_params", "weight_bytes", "macs", "coverage"):
        assert getattr(here.info.totals, field) == getattr(there.info.totals, field), field
    with_macs = {layer.path: layer.macs for layer in there.layers if layer.macs and not layer.group}
    ours = {layer.path: layer.macs for layer in here.layers if layer.macs and not layer.group}
    assert sorted(ours.values()) == sorted(with_macs.values())  # type: ignore[type-var]
    modules = {layer.path: layer for layer in here.layers}
    for layer in there.layers:
        if layer.macs and layer.path in modules:
            assert modules[layer.path].macs == layer.macs
            assert modules[layer.path].kind == layer.kind


@pytest.mark.slow
def test_elementwise_work_is_the_same_too(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only attention differs: torch takes a layer of it apart, where the file has it whole."""
    for name in ("small", "mobilenet", "recurrent"):
        path = made(name, "export")
        there = analysed(path).info.totals.elementwise_ops
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "torch", None)
            assert analysed(path).info.totals.elementwise_ops == there, name


def test_a_program_in_core_operators_is_counted_whole_without_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`run_decompositions` writes what torch runs in the end: other operators than those that were called."""
    path = str(tmp_path / "core.pt2")
    program = torch.export.export(Small().eval(), (torch.zeros(2, 1, 8, 8),)).run_decompositions()
    assert any("_native_batch_norm_legit_no_training" in str(node.target) for node in program.graph.nodes)
    torch.export.save(program, path)
    there = analysed(path).info.totals
    monkeypatch.setitem(sys.modules, "torch", None)
    here = analysed(path).info.totals
    assert (here.macs, here.elementwise_ops) == (there.macs, there.elementwise_ops)
    assert here.coverage == 1


@pytest.mark.slow
def test_a_recurrent_layer_with_more_layers_than_weights_is_unknown_at_once(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = made("recurrent", "export")
    path = str(tmp_path / "deep.pt2")
    layers = re.compile(r'("name": "num_layers", "arg": \{"as_int": )\d+\}')
    _changed(source, Path(path), lambda text: layers.sub(r"\g<1>1000000000}", text))
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "fewer weights than layers" in next(r.reason for r in analysed(path).layers if r.reason)


def test_an_operator_without_a_rule_is_unknown_and_named(
    made: Any, tmp_path: Path, without_torch: None
) -> None:
    def change(text: str) -> str:
        return text.replace("torch.ops.aten.relu.default", "torch.ops.mylib.relu.default")

    path = _changed(made("small", "export"), tmp_path / "own.pt2", change)
    found = analysed(path)
    unknown = [layer for layer in found.layers if layer.status == "unknown" and not layer.group]
    assert unknown
    assert [layer.reason for layer in unknown if "no rule for mylib.relu" not in layer.reason] == []
    assert found.info.totals.coverage < 1


def _changed(source: str, target: Path, change: Callable[[str], str]) -> str:
    with zipfile.ZipFile(source) as archive:
        name = next(n for n in archive.namelist() if n.endswith("models/model.json"))
        text = archive.read(name).decode()
    changed = change(text)
    assert changed != text
    return rewritten(source, target, {"models/model.json": changed.encode()})


@pytest.mark.parametrize("form", ["trace", "export"])
def test_what_needs_torch_says_what_to_type(form: str, made: Any, without_torch: None) -> None:
    with pytest.raises(Misuse, match=r"torch, which cannot be imported here.*pip install"):
        Session(made("small", form)).plan(TileSpec())


@pytest.mark.parametrize("form", ["trace", "export"])
@pytest.mark.parametrize(
    "options", [{"dims": {"batch": 4}}, {"input_shapes": {"image": (None, (4, 1, 8, 8))}}, {"past": 3}]
)
def test_without_torch_other_sizes_are_refused_and_not_ignored(
    form: str, options: dict[str, Any], made: Any, without_torch: None
) -> None:
    with pytest.raises(Misuse, match=r"only the sizes in the file.*pip install"):
        analysed(made("small", form), **options)


def test_without_torch_macs_of_torchscript_are_unknown_and_say_why(made: Any, without_torch: None) -> None:
    found = analysed(made("small", "trace"))
    assert found.info.totals.macs is None
    assert found.info.totals.coverage == 0
    leaf = next(layer for layer in found.layers if layer.path == "conv")
    assert (leaf.kind, leaf.params, leaf.macs, leaf.status) == ("Conv2d", 36, None, "unknown")
    assert "torch" in leaf.reason


# -- broken and hostile files


def _json(change: Callable[[Any], None]) -> Callable[[str], str]:
    def changed(text: str) -> str:
        found = json.loads(text)
        change(found)
        return json.dumps(found)

    return changed


def _sizes(value: int) -> Callable[[Any], None]:
    def change(found: Any) -> None:
        values = found["graph_module"]["graph"]["tensor_values"]
        values["image"]["sizes"][0] = {"as_int": value}

    return change


HOSTILE: dict[str, Callable[[str], str]] = {
    "no graph": lambda text: "{}",
    "no JSON": lambda text: text[:-20],
    "nested deeper than any": lambda text: "[" * 100_000,
    "a number for a graph": _json(lambda found: found.update(graph_module=3)),
    "a negative size": _json(_sizes(-4)),
    "a size of eighty bits": _json(_sizes(1 << 80)),
    "nodes that are none": _json(lambda found: found["graph_module"]["graph"].update(nodes=[1, 2])),
    "a name for a list": _json(lambda found: found["graph_module"]["graph"].update(tensor_values=["a"])),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_broken_program_is_one_line(case: str, made: Any, tmp_path: Path, without_torch: None) -> None:
    path = _changed(made("small", "export"), tmp_path / "broken.pt2", HOSTILE[case])
    for look in (lambda: list(outline(path).rows), lambda: analysed(path)):
        with pytest.raises(BadModel) as error:
            look()
        assert "\n" not in str(error.value)
        assert "broken.pt2" in str(error.value)


def test_a_weight_larger_than_its_bytes_is_refused(made: Any, tmp_path: Path, without_torch: None) -> None:
    path = rewritten(made("small", "export"), tmp_path / "short.pt2", {"data/weights/weight_0": b"abc"})
    with pytest.raises(BadModel, match="larger than its storage"):
        outline(path)


BROKEN_SCRIPT: dict[str, tuple[dict[str, bytes | None], str]] = {
    "no pickle": ({"data.pkl": b""}, "pickle is broken"),
    "a pickle that asks for code": ({"data.pkl": b"\x80\x02cos\nsystem\nX\x02\0\0\0ls\x85R."}, "not run"),
    "no weights": ({"data/0": None}, "has no 'data/0'"),
    "too few weights": ({"data/0": b"abc"}, "fewer bytes"),
    "a number for a module": ({"data.pkl": b"\x80\x02K\x05."}, "no TorchScript module"),
}


@pytest.mark.parametrize("case", BROKEN_SCRIPT)
def test_a_broken_torchscript_file_is_one_line(
    case: str, made: Any, tmp_path: Path, without_torch: None
) -> None:
    change, expected = BROKEN_SCRIPT[case]
    path = rewritten(made("small", "trace"), tmp_path / "broken.pt", change)
    for look in (lambda: list(outline(path).rows), lambda: analysed(path)):
        with pytest.raises(ExplorerError, match=expected) as error:
            look()
        assert "\n" not in str(error.value)


def test_code_of_no_sense_is_looked_through_in_no_time(made: Any, tmp_path: Path) -> None:
    """Text that makes a careless pattern try every way of matching it."""
    source = made("small", "trace")
    with zipfile.ZipFile(source) as archive:
        code = next(n.partition("/")[2] for n in archive.namelist() if "/conv" in n and n.endswith(".py"))
        text = archive.read(f"{archive.namelist()[0].partition('/')[0]}/{code}").decode()
    hostile = text + "  def x(self:" + "a: " * 200_000 + "torch." * 100_000 + '__parameters__ = ["' * 50_000
    path = rewritten(source, tmp_path / "odd.pt", {code: hostile.encode()})
    assert "conv.weight" in {row.path for row in outline(path).rows}


def test_numbers_are_read_where_strides_say(tmp_path: Path) -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.arange(12.0).reshape(3, 4).t())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight

    model = Turned()
    torch.export.save(torch.export.export(model, (torch.zeros(2, 4),)), tmp_path / "t.pt2")
    from explorer.engine.models.opened_model import OpenOptions
    from explorer.engine.models.torch.described_program import open_described

    numbers, _ = open_described(str(tmp_path / "t.pt2"), OpenOptions()).tensors()
    found = np.concatenate([*numbers[0].slabs()]).reshape(4, 3)
    assert np.array_equal(found, model.weight.detach().numpy())
