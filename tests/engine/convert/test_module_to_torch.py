"""An nn.Module becomes TorchScript or an exported program, which torch itself loads and runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from explorer import BadModel, ExplorerError, Misuse, Session
from explorer.facts.conversion import Conversion

torch = pytest.importorskip("torch")

from tests.engine.convert import nets  # noqa: E402

Convert = Callable[..., Conversion]


def small() -> Any:
    torch.manual_seed(0)
    return nets.Small().eval()


def script(path: Path) -> Any:
    return torch.jit.load(str(path))


def program(path: Path) -> Any:
    return torch.export.load(str(path)).module()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("output", "options", "load"),
    [
        ("small.pt", {}, script),
        ("small.ts", {"method": "trace"}, script),
        ("small.pt", {"method": "script"}, script),
        ("small.pt2", {}, program),
    ],
)
def test_torch_loads_what_was_written_and_it_computes_the_same(
    convert: Convert, tmp_path: Path, output: str, options: dict[str, Any], load: Callable[[Path], Any]
) -> None:
    module, x = small(), torch.rand(1, 1, 12, 12)
    fact = convert(module, output, inputs=x, **options)
    assert fact.verification is not None
    assert fact.verification.verdict.startswith("equal on evidence")
    assert (fact.inputs[0].name, fact.outputs[0].shape) == ("image", (1, 10))
    assert torch.equal(load(tmp_path / output)(x), module(x))


@pytest.mark.slow
def test_inputs_by_name_and_outputs_in_a_dictionary(convert: Convert, tmp_path: Path) -> None:
    torch.manual_seed(1)
    module = nets.Words().eval()
    given = {"ids": torch.tensor([[1, 2, 6]]), "x": torch.rand(1, 3, 4)}
    for output, load in (("words.pt", script), ("words.pt2", program)):
        fact = convert(module, output, inputs=given)
        assert fact.verification is not None
        assert fact.verification.passed
        assert {one.dtype for one in fact.verification.outputs} == {"float32", "int64"}
        theirs, own = load(tmp_path / output)(**given), module(**given)
        assert all(torch.equal(theirs[name], own[name]) for name in own)


@pytest.mark.slow
def test_a_program_keeps_its_dimensions_open(convert: Convert, tmp_path: Path) -> None:
    module = small()
    fact = convert(
        module, "small.pt2", inputs=torch.rand(1, 1, 8, 8), dynamic={"image": {0: "batch", 2: "height"}}
    )
    assert fact.inputs[0].shape == ("batch", 1, "height", 8)
    assert fact.outputs[0].shape == ("batch", 10)
    x = torch.rand(5, 1, 17, 8)
    assert torch.equal(program(tmp_path / "small.pt2")(x), module(x))


def test_a_program_that_decides_by_a_size_says_so(convert: Convert) -> None:
    with pytest.raises(BadModel, match=r"torch.export cannot write it .*batch"):
        convert(nets.Counting().eval(), "c.pt2", inputs=torch.rand(2, 8), dynamic={"x": {0: "batch"}})


def test_a_trace_that_lost_a_decision_is_not_kept_and_a_script_keeps_it(convert: Convert) -> None:
    traced = convert(nets.Deciding().eval(), "d.pt", inputs=torch.rand(2, 8))
    assert not traced.passed
    assert traced.output == ""
    assert any("branches that depend on values" in note for note in traced.notes)
    scripted = convert(nets.Deciding().eval(), "d.pt", inputs=torch.rand(2, 8), method="script")
    assert scripted.output == "d.pt"


def test_what_cannot_be_scripted_says_why_and_what_to_try(convert: Convert, tmp_path: Path) -> None:
    class Strange(torch.nn.Module):
        def forward(self, x: Any, *rest: Any) -> Any:
            return x + len({1, 2})

    with pytest.raises(BadModel, match=r"it cannot be scripted \(.*\); try --method trace") as caught:
        convert(Strange(), "s.pt", inputs=torch.rand(2), method="script")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "s.pt").exists()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("source", "output", "options"),
    [
        ("small.pt", "other.onnx", {}),
        ("small.pt", "other.pt", {}),
        ("small.pt", "other.pt2", {}),
        ("small.pt2", "other.onnx", {}),
        ("small.pt2", "other.onnx", {"exporter": "dynamo"}),
        ("small.pt2", "other.pt", {}),
        ("small.pt2", "other.pt2", {}),
    ],
)
def test_files_of_torchs_are_converted_like_modules(
    convert: Convert, source: str, output: str, options: dict[str, Any]
) -> None:
    convert(small(), source, inputs=torch.rand(1, 1, 8, 8), verify=False)
    fact = convert(source, output, draws=1, **options)
    assert fact.source_format == {"small.pt": "torchscript", "small.pt2": "torch.export"}[source]
    assert fact.verification is not None
    assert fact.verification.passed
    assert fact.command.startswith(f"explorer convert {source} -o {output}")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("source", "loader"), [("small.pt", "torch.jit.load"), ("small.pt2", "torch.export.load")]
)
@pytest.mark.parametrize("trust", [False, True])
def test_torch_itself_loads_the_source_only_where_it_is_trusted(
    convert: Convert, monkeypatch: pytest.MonkeyPatch, source: str, loader: str, trust: bool
) -> None:
    """What torch loads can run what is in it; without --trust the file is only read."""
    convert(small(), source, inputs=torch.rand(1, 1, 8, 8), verify=False)
    seen: list[str] = []
    module, _, name = loader.rpartition(".")
    real = getattr(torch.jit if module.endswith("jit") else torch.export, name)

    def watched(file: Any, *args: Any, **kwargs: Any) -> Any:
        assert os.path.samestat(os.fstat(file.fileno()), os.stat(source))
        seen.append(source)
        return real(file, *args, **kwargs)

    monkeypatch.setattr(loader, watched)
    fact = convert(source, "other.onnx", trust=trust, exporter="torchscript", draws=1)
    assert fact.passed
    assert seen == ([source] if trust else [])


def test_what_cannot_be_written_says_so_and_not_that_it_cannot_be_traced(
    convert: Convert, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("enforce fail: No space left on device")

    monkeypatch.setattr("torch.jit.save", full)
    with pytest.raises(ExplorerError, match=r"^small\.pt: cannot be written \(.*No space left"):
        convert(small(), "small.pt", inputs=torch.rand(1, 1, 8, 8))


def test_a_file_has_no_source_to_script(convert: Convert) -> None:
    convert(small(), "small.pt", inputs=torch.rand(1, 1, 8, 8), verify=False)
    with pytest.raises(BadModel, match="a model read from a file has no Python source"):
        convert("small.pt", "other.pt", method="script")


@pytest.mark.parametrize(("output", "option"), [("x.pt", {"opset": 17}), ("x.pt2", {"method": "trace"})])
def test_an_option_of_another_pair_is_refused(convert: Convert, output: str, option: dict[str, Any]) -> None:
    with pytest.raises(Misuse, match="does not go with torch to"):
        convert(small(), output, inputs=torch.rand(1, 1, 8, 8), **option)


def test_a_pickled_module_is_converted_only_where_it_is_trusted(
    convert: Convert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
    torch.save(module, tmp_path / "whole.pt")
    with pytest.raises(Misuse, match="a pickled module runs with --trust"):
        convert("whole.pt", "whole.onnx")
    fact = convert("whole.pt", "whole.onnx", trust=True, input_shapes={"input": (None, (2, 4))})
    assert fact.passed
    assert fact.output == "whole.onnx"


def test_a_tiled_model_is_onnx_already(tmp_path: Path) -> None:
    from explorer import TileSpec

    with Session(torch.nn.Linear(32, 32).eval(), inputs=torch.rand(2, 32)) as session:
        session.tile(TileSpec((16, 16, 16)), verify=False)
        with pytest.raises(Misuse, match="was changed here and is ONNX already"):
            session.convert(str(tmp_path / "x.pt"))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "conv"), [("tiled.pt", "convolution"), ("tiled.pt2", "conv2d")])
def test_the_operators_of_a_file_made_from_tiles_are_named(
    sample: Any, tmp_path: Path, name: str, conv: str
) -> None:
    from explorer import TileSpec

    tiled, target = str(tmp_path / "tiled.onnx"), str(tmp_path / name)
    with Session(str(sample("lenet"))) as session:
        macs = {stat.op: stat.macs for stat in session.ops() if stat.macs}
        session.tile(TileSpec((64, 64, 64), sites=("*Gemm",)), output=tiled, verify=False)
    with Session(tiled) as session:
        session.convert(target, verify=False)
    with Session(target) as session:
        assert {stat.op: stat.macs for stat in session.ops() if stat.macs} == {
            conv: macs["Conv"],
            "matmul": macs["Gemm"],
        }


class _Counts(torch.nn.Module):
    """Its only input are integers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(12, 6)

    def forward(self, ids: Any) -> Any:
        return self.table(ids).tanh()


def test_integers_of_an_example_are_kept_and_count_as_one_run(tmp_path: Path) -> None:
    with Session(_Counts(), inputs=torch.tensor([[3, 7, 11]])) as session:
        fact = session.convert(str(tmp_path / "m.pt2"))
    assert fact.verification is not None
    assert fact.verification.verdict_kind == "evidence"
    assert fact.verification.verdict.endswith("1 output bit for bit the same in 1 run")
    assert fact.verification.seeds == (0,)
    assert fact.verification.inputs == ("ids: int64 [1, 3], as given",)


def test_a_sparse_parameter_that_torch_does_not_write_is_one_line(tmp_path: Path) -> None:
    class Sparse(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.eye(5).to_sparse())

        def forward(self, x: Any) -> Any:
            return torch.mm(self.weight, x)

    with Session(Sparse(), inputs=torch.ones(5, 2)) as session, pytest.raises(ExplorerError) as error:
        session.convert(str(tmp_path / "m.pt2"))
    assert "cannot be written" in error.value.what
    assert not list(tmp_path.iterdir())
