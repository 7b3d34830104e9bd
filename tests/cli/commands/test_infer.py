"""`explorer infer`: nothing that onnx infers is lost or contradicted, more is known, and a file says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser, shape_inference

from explorer import InferSpec, Misuse, Session
from explorer.cli.main import main
from tests.hunt.random_graphs import RandomGraph

SAMPLES = Path(__file__).parents[3] / "sample_models"
DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
STORED = [
    *sorted(SAMPLES.glob("*.onnx")),
    *sorted(DATA.glob("light/*.onnx")),
    *sorted(DATA.glob("simple/*/model.onnx")),
    *sorted(DATA.glob("pytorch-operator/*/model.onnx")),
]
CASES: list[Path | int] = [*STORED, *range(30)]
"""Files, and seeds of generated graphs with branches, loops and functions."""


def name_case(case: Path | int) -> str:
    if isinstance(case, int):
        return f"seed {case}"
    return case.parent.name if case.name == "model.onnx" else case.stem


def source_of(case: Path | int, folder: Path) -> Path:
    if isinstance(case, Path):
        return case
    model = RandomGraph(case, 12).model()
    model.ir_version = 10
    path = folder / "generated.onnx"
    onnx.save(model, path)
    return path


def list_scopes(graph: onnx.GraphProto, path: str = "") -> Iterator[tuple[str, onnx.GraphProto]]:
    """A graph and its bodies, by the first output of the node and the attribute."""
    yield path, graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from list_scopes(attribute.g, f"{path}/{node.output[0]}.{attribute.name}")


def read_types(model: onnx.ModelProto, *, computed: bool = True) -> dict[tuple[str, str], onnx.TypeProto]:
    """The declared type of each value that a node computes, by scope and name."""
    types: dict[tuple[str, str], onnx.TypeProto] = {}
    for path, graph in list_scopes(model.graph):
        names = {name for node in graph.node for name in node.output}
        for value in (*graph.value_info, *graph.output):
            if value.type.WhichOneof("value") and (value.name in names or not computed):
                types[path, value.name] = value.type
    return types


def sizes_of(kind: onnx.TypeProto) -> list[int | str | None] | None:
    """The sizes of a tensor, or of the tensors in a sequence or optional. None for an unknown rank."""
    while kind.WhichOneof("value") in ("sequence_type", "optional_type"):
        kind = getattr(kind, str(kind.WhichOneof("value"))).elem_type
    if not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    return [
        d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in kind.tensor_type.shape.dim
    ]


def strip(kind: onnx.TypeProto) -> str:
    """The type without its sizes."""
    bare = onnx.TypeProto()
    bare.CopyFrom(kind)
    inner = bare
    while inner.WhichOneof("value") in ("sequence_type", "optional_type"):
        inner = getattr(inner, str(inner.WhichOneof("value"))).elem_type
    if inner.HasField("tensor_type"):
        inner.tensor_type.ClearField("shape")
    return str(bare)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("case", CASES, ids=name_case)
def test_nothing_that_onnx_infers_is_lost_or_contradicted(case: Path | int, tmp_path: Path) -> None:
    source, target = source_of(case, tmp_path), tmp_path / "inferred.onnx"
    assert main(["infer", str(source), "-o", str(target), "--quiet"]) == 0
    theirs = read_types(shape_inference.infer_shapes(onnx.load(source), data_prop=True))
    written = onnx.load(target)
    ours = read_types(written)
    assert ours.keys() >= theirs.keys()
    known: dict[str, int] = {"ours": 0, "theirs": 0}
    for key, kind in theirs.items():
        assert strip(ours[key]) == strip(kind), key
        expected, sizes = sizes_of(kind), sizes_of(ours[key])
        if expected is None:
            continue
        assert sizes is not None, key
        assert len(sizes) == len(expected), key
        for ours_size, size in zip(sizes, expected, strict=True):
            if isinstance(size, int):
                assert ours_size == size, key
            elif size is not None and not size.startswith("unk__"):
                assert ours_size is not None, key
                known["theirs"] += 1
    with_sizes = [sizes_of(kind) for kind in ours.values()]
    known["ours"] = sum(size is not None for sizes in with_sizes for size in sizes or ())
    known["theirs"] += sum(isinstance(size, int) for kind in theirs.values() for size in sizes_of(kind) or ())
    assert known["ours"] >= known["theirs"]
    assert [n.SerializeToString() for n in written.graph.initializer] == [
        n.SerializeToString() for n in onnx.load(source).graph.initializer
    ]


def save(path: Path, text: str) -> str:
    onnx.save(parser.parse_model(text), path)
    return str(path)


OPEN = """<ir_version: 10, opset_import: ["" : 18]> net (float[batch, 6, n] x) => (float[a, b, c] y) {
    h = Concat <axis = 2> (x, x)
    k = Relu (h)
    y = Transpose <perm = [2, 1, 0]> (k)
}"""


def test_open_sizes_are_names_and_a_name_of_the_file_stays(tmp_path: Path) -> None:
    target = tmp_path / "o.onnx"
    assert main(["infer", save(tmp_path / "m.onnx", OPEN), "-o", str(target), "--quiet"]) == 0
    types = read_types(onnx.load(target))
    assert sizes_of(types["", "k"]) == ["batch", 6, "2*n"]
    assert sizes_of(types["", "y"]) == ["a", 6, "c"]


def test_a_fixed_size_is_declared_for_the_input_too(tmp_path: Path) -> None:
    target = tmp_path / "o.onnx"
    words = ["--dim", "batch=8", "--dim", "n=5", "--quiet"]
    assert main(["infer", save(tmp_path / "m.onnx", OPEN), "-o", str(target), *words]) == 0
    model = onnx.load(target)
    assert sizes_of(model.graph.input[0].type) == [8, 6, 5]
    assert sizes_of(model.graph.output[0].type) == [10, 6, 8]


def test_a_function_is_declared_as_far_as_its_calls_agree(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 18, "own" : 1]>
    net (float[2, 3] x, float[2, 5] z) => (float[p, q] y, float[p, q] w) {
        y = own.twice (x)
        w = own.twice (z)
    }
    <domain: "own", opset_import: ["" : 18]>
    twice (a) => (b) { t = Relu (a) b = Add (t, t) }
    """
    source, target = save(tmp_path / "m.onnx", text), tmp_path / "o.onnx"
    assert main(["infer", source, "-o", str(target), "--quiet"]) == 0
    values = {value.name: sizes_of(value.type) for value in onnx.load(target).functions[0].value_info}
    assert values == {"a": [2, None], "t": [2, None], "b": [2, None]}
    old = onnx.load(source)
    old.ir_version = 9
    onnx.save(old, tmp_path / "old.onnx")
    with Session(tmp_path / "old.onnx") as session:
        fact = session.infer(output=str(tmp_path / "old_inferred.onnx"))
    assert any("IR version 9" in note for note in fact.notes)
    assert not onnx.load(tmp_path / "old_inferred.onnx").functions[0].value_info


def test_a_doc_string_of_a_function_stays(tmp_path: Path) -> None:
    model = parser.parse_model("""<ir_version: 10, opset_import: ["" : 18, "own" : 1]>
    net (float[2, 3] x) => (float[p, q] y) { y = own.once (x) }
    <domain: "own", opset_import: ["" : 18]>
    once (a) => (b) { b = Relu (a) }""")
    model.functions[0].doc_string = "keeps its text"
    onnx.save(model, tmp_path / "m.onnx")
    assert main(["infer", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "o.onnx"), "--quiet"]) == 0
    function = onnx.load(tmp_path / "o.onnx").functions[0]
    assert function.doc_string == "keeps its text"
    assert {value.name for value in function.value_info} == {"a", "b"}


def test_sequences_and_optionals_keep_the_type_of_their_elements(tmp_path: Path) -> None:
    inner = helper.make_graph(
        [
            helper.make_node("SequenceAt", ["s", "zero"], ["e"]),
            helper.make_node("Relu", ["e"], ["r"]),
        ],
        "branch",
        [],
        [helper.make_empty_tensor_value_info("r")],
    )
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"]),
        helper.make_node("Optional", ["s"], ["o"]),
        helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner),
        helper.make_node("OptionalGetElement", ["o"], ["back"]),
        helper.make_node("ConcatFromSequence", ["back"], ["z"], axis=0),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4]),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, None),
        ],
        [onnx.numpy_helper.from_array(np.array(0, np.int64), "zero")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    assert main(["infer", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "o.onnx"), "--quiet"]) == 0
    types = read_types(onnx.load(tmp_path / "o.onnx"))
    sequence = types["", "s"].sequence_type.elem_type
    assert (sequence.tensor_type.elem_type, sizes_of(types["", "s"])) == (TensorProto.FLOAT, ["batch", 4])
    assert types["", "o"].optional_type.elem_type.HasField("sequence_type")
    assert sizes_of(types["/y.then_branch", "r"]) == ["batch", 4]
    assert sizes_of(types["", "y"]) == ["batch", 4]


def test_a_size_that_depends_on_data_gets_no_number_and_no_name(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 18]> net (float[4] x) => (int64[m, n] y) {
        h = NonZero (x)
        y = Transpose (h)
    }"""
    target = tmp_path / "o.onnx"
    assert main(["infer", save(tmp_path / "m.onnx", text), "-o", str(target), "--quiet"]) == 0
    types = read_types(onnx.load(target))
    assert sizes_of(types["", "h"]) == [1, None]
    assert sizes_of(types["", "y"]) == ["m", 1]


WRONG = """<ir_version: 10, opset_import: ["" : 18]> net (float[2, 3] x) => (float[2, 3] y) <float[2, 7] h> {
    h = Relu (x)
    y = Relu (h)
}"""


def test_a_wrong_declaration_is_corrected_and_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = save(tmp_path / "m.onnx", WRONG), tmp_path / "o.onnx"
    assert main(["infer", source, "-o", str(target), "--json", "--quiet"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["values"]}
    assert (rows["h"]["before"], rows["h"]["after"]) == ("float32 [2, 7]", "float32 [2, 3]")
    assert {name: row["status"] for name, row in rows.items()} == {"h": "corrected", "y": "kept"}
    assert sizes_of(read_types(onnx.load(target))["", "h"]) == [2, 3]
    assert main(["infer", source]) == 0
    assert "float32 [2, 7]" in capsys.readouterr().out


def test_fresh_forgets_what_only_the_file_knows(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 18, "own" : 1]>
    net (float[2, 3] x) => (float[2, 3] y) <float[5, 3] h> {
        h = own.Unknown (x)
        y = Relu (h)
    }"""
    source = save(tmp_path / "m.onnx", text)
    with Session(source) as session:
        kept = session.infer_choice()
        fresh = session.infer_choice(InferSpec(fresh=True))
    assert [value.after for value in kept.values] == ["float32 [5, 3]", "float32 [5, 3]"]
    assert [value.status for value in fresh.values] == ["unknown", "kept"]


def test_a_state_of_the_history_and_its_script(tmp_path: Path) -> None:
    source = save(tmp_path / "m.onnx", OPEN)
    with Session(source) as session:
        fact = session.infer()
        entry = session.history().entries[1]
        assert (entry.change, entry.label) == ("infer", "3 of 3 shapes declared")
        assert fact.command.split()[:2] == ["explorer", "infer"]
        assert "infer" in session.script_text()


@pytest.mark.parametrize(
    "words",
    [
        ["tile", "--tile", "16"],
        ["fold", "--no-verify"],
        ["quantize", "--to", "int8"],
        ["edit", "--rename", "/conv1/Conv=first"],
        ["extract", "--layer", "/conv1/Conv"],
        ["rebatch", "2"],
    ],
    ids=lambda words: words[0],
)
def test_shapes_are_written_wherever_a_file_is_written(words: list[str], tmp_path: Path) -> None:
    verb, *options = words
    source = SAMPLES / "lenet.onnx"
    bare = onnx.load(source)
    del bare.graph.value_info[:]
    onnx.save(bare, tmp_path / "bare.onnx")
    target = tmp_path / "o.onnx"
    positional = [options.pop(0)] if verb == "rebatch" else []
    command = [verb, str(tmp_path / "bare.onnx"), *positional, "-o", str(target), *options]
    assert main([*command, "--shapes", "--quiet"]) == 0
    model = onnx.load(target)
    names = {name for node in model.graph.node for name in node.output}
    assert {name for scope, name in read_types(model) if not scope} == names


def test_shapes_are_written_into_stages_and_made_models(tmp_path: Path) -> None:
    assert main(["make", "linear:8x8x8:bias", "-o", str(tmp_path / "m.onnx"), "--shapes", "--quiet"]) == 0
    model = onnx.load(tmp_path / "m.onnx")
    assert len(read_types(model)) == len(model.graph.node)
    words = ["-n", "2", "-o", str(tmp_path / "stages"), "--shapes", "--quiet"]
    assert main(["split", str(SAMPLES / "lenet.onnx"), *words]) == 0
    stage = onnx.load(tmp_path / "stages" / "stage1.onnx")
    assert len(read_types(stage)) == sum(len(node.output) for node in stage.graph.node)


@pytest.mark.parametrize(
    "words",
    [
        ["tile", "--to", "torch", "--no-verify", "-o", "o.pt2"],
        ["quantize", "--to", "int8", "-o", "o.pt2"],
        ["extract", "--layer", "0", "-o", "o.pt2"],
        ["split", "-n", "2", "--to", "torch", "-o", "stages"],
    ],
    ids=lambda words: words[0],
)
def test_shapes_are_refused_where_no_onnx_file_is_written(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    layers = "torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)"
    (tmp_path / "net.py").write_text(f"import torch\ndef net():\n    return torch.nn.Sequential({layers})\n")
    verb, *options = words
    command = [verb, "net.py:net", *options, "--input-shape", "input:1,4", "--trust", "--shapes"]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    assert "--shapes: only ONNX files declare shapes" in error
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == ["net.py"]


@pytest.mark.parametrize(
    "words",
    [
        ["split", "-n", "2"],
        ["quantize", "--to", "int8"],
        ["tile", "--tile", "16"],
        ["fold"],
        ["edit", "--rename", "a=b"],
    ],
    ids=lambda words: words[0],
)
def test_shapes_are_refused_where_no_file_is_written(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    verb, *options = words
    assert main([verb, str(SAMPLES / "lenet.onnx"), *options, "--shapes"]) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.startswith(f"explorer: --shapes: {verb} writes no file without --output; add --output")
    assert written.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_what_was_asked_and_cannot_be_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = save(tmp_path / "m.onnx", OPEN)
    for words in (
        ["infer", source, "-o", str(tmp_path / "o.onnx"), "--dim", "width=3"],
        ["infer", str(tmp_path / "missing.onnx")],
        ["infer", source, "-o", source],
        ["convert", source, "-o", str(tmp_path / "o.pt2"), "--shapes"],
    ):
        assert main(words) == 2, words
        error = capsys.readouterr().err
        assert len(error.strip().splitlines()) == 1, error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx"]
    with Session(source, dims={"width": 3}) as session, pytest.raises(Misuse, match="no dimension is called"):
        session.infer_choice()
