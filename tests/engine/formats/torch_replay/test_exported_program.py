"""Exported programs: the same numbers as the module that was exported, open sizes, nothing is run."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from torch import nn  # noqa: E402
from torch._export.serde.schema import ScalarType  # noqa: E402

from explorer.base.errors import BadModel, ExplorerError, Misuse  # noqa: E402
from explorer.cli import main  # noqa: E402
from explorer.engine.formats.torch_files.zip_archive import ZipArchive  # noqa: E402
from explorer.engine.formats.torch_replay import exported_program, graph  # noqa: E402
from explorer.facts import TileSpec  # noqa: E402
from explorer.session import Session  # noqa: E402
from tests.engine.formats.torch_replay.torch_nets import (  # noqa: E402
    MODELS,
    SMALL,
    WORDS,
    Small,
    Transformer,
    by_module,
    rewritten,
    rows,
    saved_program,
)

BATCH = torch.export.Dim("batch", min=2, max=64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("program")


@pytest.fixture(scope="module")
def small(folder: Path) -> str:
    return saved_program(Small(), (SMALL,), folder / "small.pt2")


@pytest.fixture(scope="module")
def dynamic(folder: Path) -> str:
    return saved_program(Small(), (SMALL,), folder / "dynamic.pt2", dynamic_shapes={"image": {0: BATCH}})


def changed(source: str, target: Path, change: Callable[[dict[str, Any]], None]) -> str:
    """A copy with its graph changed."""
    with zipfile.ZipFile(source) as archive:
        name = next(n for n in archive.namelist() if n.endswith("models/model.json"))
        described = json.loads(archive.read(name))
    change(described)
    return rewritten(source, target, {"models/model.json": json.dumps(described).encode()})


# -- the same numbers


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", MODELS)
def test_a_program_has_the_numbers_of_its_module(name: str, folder: Path) -> None:
    make, x = MODELS[name]
    module = make().eval()
    found = Session(saved_program(module, (x,), folder / f"{name}.pt2")).analysis()
    expected = by_module(module, x)
    assert found.info.totals.params == expected.info.totals.params
    assert found.info.totals.macs == expected.info.totals.macs
    assert found.info.totals.elementwise_ops == expected.info.totals.elementwise_ops
    assert found.info.totals.activation_bytes_peak == expected.info.totals.activation_bytes_peak
    assert found.info.totals.trainable_params == expected.info.totals.trainable_params
    assert found.info.totals.coverage == 1
    assert rows(found) == rows(expected)


def test_weights_are_not_read_for_the_numbers(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: ZipArchive, name: str) -> memoryview:
        raise AssertionError(f"{name} was read")

    monkeypatch.setattr(ZipArchive, "view", refuse)
    assert Session(small).info().totals.params == 36 + 8 + 272 + 51


def test_a_module_that_runs_twice_is_one_row_of_two_calls(small: str) -> None:
    (twice,) = [layer for layer in Session(small).analysis().layers if layer.path == "twice"]
    assert (twice.kind, twice.calls, twice.params, twice.macs) == ("Linear", 2, 272, 2 * 2 * 256)


class _Nested(nn.Module):
    """Takes and returns tensors in dicts and lists, and multiplies without gradients in between."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.register_buffer("shift", torch.ones(4))
        self.scale = torch.tensor([1.0, 2.0, 3.0, 4.0])

    def forward(self, x: torch.Tensor, more: dict[str, list[torch.Tensor]]) -> dict[str, Any]:
        y = self.first(x) + self.shift * self.scale + more["k"][0]
        with torch.no_grad():
            z = y @ y.transpose(0, 1)
        return {"out": z.reshape(x.shape[0] * 2, -1), "rest": [y[:, 1:]]}


def test_nested_inputs_and_outputs_and_regions_without_gradients(folder: Path) -> None:
    module, x, more = _Nested(), torch.rand(4, 4), {"k": [torch.rand(4, 4)]}
    path = saved_program(module, (x, more), folder / "nested.pt2")
    session = Session(path)
    info = session.info()
    assert [i.name for i in info.model.inputs] == ["x", "more_k_0"]
    assert [(o.name, o.shape) for o in info.model.outputs] == [
        ("output.out", (8, 2)),
        ("output.rest.0", (4, 3)),
    ]
    assert info.totals.macs == 4 * 4 * 4 + 4 * 4 * 4
    run = session.parts.models.open_state().runner()
    assert run is not None
    expected = module(x, more)
    found = run([x.numpy(), more["k"][0].numpy()])
    assert np.array_equal(found[0], expected["out"].detach().numpy())
    assert np.array_equal(found[1], expected["rest"][0].detach().numpy())


class _Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.yes = nn.Linear(4, 4)
        self.no = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: self.yes(x) + 1, lambda x: self.no(self.no(x) - 1), (x,))


@pytest.mark.slow
def test_of_two_branches_the_larger_is_counted_and_the_assumption_is_said(folder: Path) -> None:
    path = saved_program(_Branching(), (torch.ones(2, 4),), folder / "branching.pt2")
    session = Session(path)
    info = session.info()
    assert (info.totals.macs, info.totals.status) == (2 * 2 * 16, "assumed")
    assert any("takes the path that costs more" in note for note in info.model.notes)
    run = session.parts.models.open_state().runner()
    assert run is not None
    for x in (torch.ones(2, 4), -torch.ones(2, 4)):
        with torch.no_grad():
            expected = torch.export.load(path).module()(x).numpy()
        assert np.array_equal(run([x.numpy()])[0], expected)


# -- sizes that are left open


@pytest.mark.slow
def test_an_open_size_stands_at_what_it_was_exported_with_and_says_so(dynamic: str) -> None:
    info = Session(dynamic).info()
    assert info.assumptions["dims"] == {"batch": 2}
    [note] = [note for note in info.model.notes if note.startswith("dimension")]
    assert (
        note == "dimension batch: 2 as it was exported (2 to 64), open in the program; --dim batch=N binds it"
    )


def test_an_open_size_can_be_bound(dynamic: str) -> None:
    expected = by_module(Small().eval(), torch.zeros(8, 1, 8, 8)).info.totals
    by_name = Session(dynamic, dims={"batch": 8}).info()
    assert by_name.model.inputs[0].shape == (8, 1, 8, 8)
    assert by_name.totals.macs == expected.macs
    assert "dimension batch: 8 (2 to 64), open in the program; --dim batch=N binds it" in by_name.model.notes
    by_shape = Session(dynamic, input_shapes={"image": (None, (8, 1, 8, 8))}).info()
    assert by_shape.totals == by_name.totals


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["tile", "plan"])
def test_a_tiling_says_for_which_size_it_is_where_nobody_chose_one(
    dynamic: str, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = (
        "explorer: the graph fixes open sizes of the exported program (batch=2); --dim binds another size\n"
    )
    for typed, expected in (
        ((), said),
        (("--dim", "batch=8"), ""),
        (("--input-shape", "image:8,1,8,8"), ""),
    ):
        assert main.main([verb, dynamic, *typed]) == 0
        assert capsys.readouterr().err == expected


MISUSED: dict[str, tuple[dict[str, Any], str]] = {
    "out of range": ({"dims": {"batch": 100}}, "2 to 64"),
    "no such dimension": ({"dims": {"bathc": 8}}, "did you mean 'batch'?"),
    "no such input": ({"input_shapes": {"imag": (None, (2, 1, 8, 8))}}, "did you mean 'image'?"),
    "a fixed size": ({"input_shapes": {"image": (None, (2, 1, 9, 9))}}, "exported for float32"),
    "another type": ({"input_shapes": {"image": ("int64", (2, 1, 8, 8))}}, "exported for float32"),
    "another rank": ({"input_shapes": {"image": (None, (2, 8, 8))}}, "exported for float32"),
}


@pytest.mark.parametrize("case", MISUSED)
def test_a_size_that_does_not_fit_is_said(case: str, dynamic: str) -> None:
    options, expected = MISUSED[case]
    with pytest.raises(Misuse) as error:
        Session(dynamic, **options).analysis()
    assert expected in str(error.value)


def test_a_program_of_fixed_sizes_says_so(small: str) -> None:
    with pytest.raises(Misuse, match="all sizes of this program are fixed"):
        Session(small, dims={"batch": 8}).analysis()


EXPRESSIONS = {
    "Symbol('s77', positive=True, integer=True)": 5,
    "Mul(Integer(2), Symbol('s77', positive=True, integer=True))": 10,
    "Add(Symbol('s77', positive=True), Integer(-3))": 2,
    "2*s77 + s3": 11,
    "FloorDiv(Symbol('s77', positive=True, integer=True), Integer(2))": 2,
}


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_sizes_are_expressions_of_symbols(text: str) -> None:
    assert exported_program._evaluate(text, {"s77": 5, "s3": 1}) == EXPRESSIONS[text]


@pytest.mark.parametrize("text", ["__import__('os').getcwd()", "s77.bit_length()", "[s77][0]", "9**9**9**9"])
def test_an_expression_is_nothing_more(text: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        exported_program._evaluate(text, {"s77": 5})


# -- what can be done with a module can be done with a program


def test_a_program_runs_as_torch_runs_it(small: str) -> None:
    x = torch.rand(2, 1, 8, 8)
    session = Session(small)
    session.analysis()
    run = session.parts.models.open_state().runner()
    assert run is not None
    (found,) = run([x.numpy()])
    with torch.no_grad():
        assert np.array_equal(found, torch.export.load(small).module()(x).numpy())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["recurrent", "small"])
def test_a_program_is_exported_tiled_and_proved(name: str, folder: Path) -> None:
    make, x = MODELS[name]
    with Session(saved_program(make(), (x,), folder / f"{name}.pt2")) as session:
        result = session.tile(TileSpec((4, 4, 4)), output=str(folder / f"{name}.onnx"), draws=1)
        assert result.verification is not None
        assert result.verification.passed
        assert result.verification.torch


@pytest.mark.slow
class _Numbered(nn.Module):
    """Scales by numbers that are arguments."""

    def forward(self, x: Any, count: int, *, scale: float = 2.0) -> Any:
        return x[:count] * scale + count


def test_numbers_that_the_export_fixed_are_no_inputs(tmp_path: Path) -> None:
    program = torch.export.export(_Numbered(), (torch.ones(5, 8), 3), {"scale": 4.0})
    torch.export.save(program, tmp_path / "fixed.pt2")
    with Session(str(tmp_path / "fixed.pt2")) as session:
        result = session.convert(str(tmp_path / "fixed.onnx"))
    assert result.verification is not None
    assert result.verification.passed


def test_a_number_that_a_caller_may_change_is_refused_by_name(tmp_path: Path) -> None:
    sizes = {"x": None, "count": torch.export.Dim.DYNAMIC}
    program = torch.export.export(_Numbered(), (torch.ones(5, 8), 3), dynamic_shapes=sizes)
    torch.export.save(program, tmp_path / "open.pt2")
    with pytest.raises(BadModel, match="'count' is a number that a caller may change"):
        Session(str(tmp_path / "open.pt2")).open()


def test_a_tied_weight_is_stored_once(folder: Path) -> None:
    path = saved_program(Transformer(), (WORDS,), folder / "tied.pt2")
    analysis = Session(path).analysis()
    embed = next(layer for layer in analysis.layers if layer.path == "embed")
    head = next(layer for layer in analysis.layers if layer.path == "head")
    assert (embed.shared_with, head.shared_with) == (("head",), ("embed",))


# -- nothing of a file is run


def test_functions_that_a_graph_names_are_not_looked_up(small: str, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    for target in ("os.system", "torch.hub.load", "torch.ops.aten.from_file.default", "builtins.exec"):

        def change(described: dict[str, Any], target: str = target) -> None:
            node = described["graph_module"]["graph"]["nodes"][-1]
            node["target"] = target
            node["inputs"] = [{"name": "", "arg": {"as_string": f"touch {marker}"}, "kind": 1}]

        evil = changed(small, tmp_path / "evil.pt2", change)
        analysis = Session(evil).analysis()
        assert any("the model failed" in note for note in analysis.info.model.notes)
        assert next(layer for layer in analysis.layers if layer.path == "twice").macs == 1024
        assert not marker.exists()


def test_weights_that_are_pickles_are_refused(small: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(small) as archive:
        name = next(n for n in archive.namelist() if n.endswith("model_weights_config.json"))
        config = json.loads(archive.read(name))
    next(iter(config["config"].values()))["use_pickle"] = True
    inner = name.partition("/")[2]
    evil = rewritten(small, tmp_path / "evil.pt2", {inner: json.dumps(config).encode()})
    with pytest.raises(BadModel, match="runs code and was not run"):
        Session(evil).analysis()


def test_sample_inputs_are_not_read(small: str, tmp_path: Path) -> None:
    path = rewritten(small, tmp_path / "small.pt2", {"data/sample_inputs/model.pt": b"not a pickle"})
    assert Session(path).info().totals.macs == Session(small).info().totals.macs


# -- broken files

BROKEN: dict[str, tuple[Callable[[str, Path], str], str]] = {
    "cut off": (lambda s, t: _cut(s, t), "broken or cut off"),
    "no graph": (lambda s, t: rewritten(s, t, {"models/model.json": b"{}"}), "graph cannot be read"),
    "a size below zero": (lambda s, t: _sized(-5)(s, t), "impossible sizes"),
    "a size beyond all": (lambda s, t: _sized(1 << 60)(s, t), "impossible sizes"),
    "no JSON": (lambda s, t: rewritten(s, t, {"models/model.json": b"{"}), "graph cannot be read"),
    "nested without end": (
        lambda s, t: rewritten(s, t, {"models/model.json": b"[" * 200_000}),
        "nested deeper",
    ),
    "no weights": (lambda s, t: rewritten(s, t, {"data/weights/weight_0": None}), "weight_0"),
    "too few weights": (
        lambda s, t: rewritten(s, t, {"data/weights/weight_0": b"abc"}),
        "larger than its storage",
    ),
    "no list of weights": (
        lambda s, t: rewritten(s, t, {"data/weights/model_weights_config.json": None}),
        "lacks the weight",
    ),
    "a compiled package": (
        lambda s, t: rewritten(
            s,
            t,
            {"models/model.json": None, "archive_format": b"pt2"},
            added={"data/aotinductor/model/a.so": b""},
        ),
        "AOTInductor",
    ),
    "an older torch": (
        lambda s, t: rewritten(
            s, t, {"models/model.json": None}, added={"serialized_exported_program.json": b"{}"}
        ),
        "a torch before 2.8",
    ),
}


def _sized(size: int) -> Callable[[str, Path], str]:
    """A change of the first size of the model's input."""

    def change(described: dict[str, Any]) -> None:
        described["graph_module"]["graph"]["tensor_values"]["image"]["sizes"][0] = {"as_int": size}

    return lambda source, target: changed(source, target, change)


def _cut(source: str, target: Path) -> str:
    content = Path(source).read_bytes()
    target.write_bytes(content[: len(content) // 2])
    return str(target)


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_one_line_that_says_what_it_is(case: str, small: str, tmp_path: Path) -> None:
    make, expected = BROKEN[case]
    path = make(small, tmp_path / "broken.pt2")
    with pytest.raises(ExplorerError) as error:
        Session(path).analysis()
    assert expected in str(error.value)
    assert "\n" not in str(error.value)
    assert "broken.pt2" in str(error.value)


def test_types_have_the_numbers_that_torch_gives_them() -> None:
    for number, name in graph.DTYPES.items():
        kind = getattr(torch, name)
        plain = ScalarType(number).name.lower()
        assert isinstance(kind, torch.dtype)
        aliases = {"byte": "uint8", "char": "int8", "short": "int16", "int": "int32", "long": "int64"}
        aliases |= {"half": "float16", "float": "float32", "double": "float64", "complexhalf": "complex32"}
        aliases |= {"complexfloat": "complex64", "complexdouble": "complex128"}
        assert aliases.get(plain, plain) == name.replace("_", "")
