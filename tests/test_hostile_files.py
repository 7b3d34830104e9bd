"""Files that were made to hurt: each is refused in one line or answered, within a second and a GiB.

Bombs that unpack without end, functions that call each other a billion times, rings, sizes that overflow,
names that are not unique or go on for ever, and every file cut off at every place.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

from explorer.base.errors import ExplorerError
from explorer.cli.main import main
from explorer.engine.formats.onnx.protobuf_wire import (
    encode_length_delimited,
    encode_tagged_varint,
    encode_varint,
)
from explorer.report.outline_words import compose_text, write_json
from explorer.session import Session, headers
from tests.fuzz.limits import attempt, bounded_memory
from tests.fuzz.targets import TARGETS


def asked(path: str) -> list[str]:
    """The outline and the analysis of a file; what was refused, in words."""
    refused = []
    try:
        for line in compose_text(headers.read_outline(path)):
            assert line.rstrip("\n").isprintable()
        for _ in write_json(headers.read_outline(path), {}):
            pass
    except ExplorerError as error:
        refused.append(str(error))
    try:
        with Session(path) as session:
            session.open()
            session.analysis()
    except ExplorerError as error:
        refused.append(str(error))
    assert all(len(text.splitlines()) == 1 and len(text) < 2000 for text in refused), refused
    return refused


@pytest.fixture
def bounded() -> Callable[[str | Path], list[str]]:
    """`bounded(path)`: what is refused of a file, within a second of processor time and a GiB."""
    said: list[str] = []

    def run(path: str) -> None:
        said[:] = asked(path)

    def call(path: str | Path) -> list[str]:
        with bounded_memory():
            find = attempt(run, str(path), 15.0)  # what takes a second here may take several elsewhere
        assert find is None, find.text
        return said

    return call


Bounded = Callable[[str | Path], list[str]]


def printed(path: Path, capfd: pytest.CaptureFixture[str], *verbs: str) -> str:
    """What the verbs print of a file; none may end in an internal error."""
    shown = ""
    for verb in verbs:
        capfd.readouterr()
        main([*verb.split(), str(path), "--quiet"])
        out, err = capfd.readouterr()
        assert "internal error" not in err, (verb, err)
        assert len(err.splitlines()) <= 1
        shown += out
    return shown


def info(name: str, *shape: Any, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def saved(path: Path, nodes: Sequence[Any], **more: Any) -> Path:
    inputs, outputs = more.pop("inputs", [info("x", 2)]), more.pop("outputs", [info("y", 2)])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
    graph = helper.make_graph(list(nodes), "g", inputs, outputs, more.pop("tensors", []))
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, **more).SerializeToString())
    return path


# bombs


@pytest.mark.slow
def test_a_zip_bomb_in_a_checkpoint(tmp_path: Path, bounded: Bounded) -> None:
    for entry in (
        "archive/data.pkl",
        "archive/constants.pkl",
        "archive/code/__torch__.py",
        "archive/version",
    ):
        path = tmp_path / "bomb.pt"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as made:
            for name in dict.fromkeys(("archive/data.pkl", entry)):
                made.writestr(name, bytes(1 << 26) if name == entry else pickle.dumps({}, 2))
        assert path.stat().st_size < 1 << 18
        said = bounded(path)
        assert said or entry == "archive/version"


@pytest.mark.slow
def test_a_zip_bomb_in_an_exported_program(tmp_path: Path, bounded: Bounded) -> None:
    path = tmp_path / "bomb.pt2"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as made:
        made.writestr("m/models/model.json", b"[" * (1 << 27))
    assert bounded(path)


@pytest.mark.slow
def test_a_zip_whose_directory_lies_about_sizes(tmp_path: Path, bounded: Bounded) -> None:
    """An entry that says it is small and is not: what is unpacked stops at what it said."""
    path = tmp_path / "lie.pt"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("archive/data.pkl", bytes(1 << 27))
    content = bytearray(buffer.getvalue())
    for magic, at in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        struct.pack_into("<I", content, content.index(magic) + at, 100)
    path.write_bytes(content)
    assert bounded(path)


@pytest.mark.slow
def test_a_bomb_of_arrays(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    np = pytest.importorskip("numpy")
    model = saved(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])])
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros(1 << 27, np.uint8))
    assert main(["activations", str(model), "--input", str(tmp_path / "bomb.npz")]) == 2
    assert "bytes unpacked" in capfd.readouterr().err


def test_a_pickle_of_a_billion_laughs(tmp_path: Path, bounded: Bounded) -> None:
    """Lists of one list ten times over, thirty deep: 200 bytes, 10^30 items to whoever follows them."""
    content = b"\x80\x02]q\x00"
    for depth in range(30):
        content += b"](" + b"h" + bytes([depth]) * 1
        content += (b"h" + bytes([depth])) * 9 + b"eq" + bytes([depth + 1])
    content += b"."
    for name, data in (("m.pkl", content), ("m.bin", b"\x80\x02}X\x01\x00\x00\x00a" + content[2:-1] + b"s.")):
        (tmp_path / name).write_bytes(data)
        bounded(tmp_path / name)
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as made:
        made.writestr("archive/data.pkl", b"\x80\x02}X\x01\x00\x00\x00a" + content[2:-1] + b"s.")
        made.writestr("archive/version", "3")
    bounded(tmp_path / "m.pt")


def test_functions_that_call_each_other_a_billion_times(tmp_path: Path, bounded: Bounded) -> None:
    made = []
    for depth in range(20):
        op, domain = ("Relu", "") if not depth else (f"F{depth - 1}", "local")
        nodes = [helper.make_node(op, [f"v{i}"], [f"v{i + 1}"], domain=domain) for i in range(10)]
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
        made.append(helper.make_function("local", f"F{depth}", ["v0"], ["v10"], nodes, opsets))
    call = helper.make_node("F19", ["x"], ["y"], domain="local")
    said = bounded(saved(tmp_path / "m.onnx", [call], functions=made))
    assert any("expands to more than" in text for text in said)


def test_branches_in_branches_in_functions(tmp_path: Path, bounded: Bounded) -> None:
    """Each function calls the next from both branches of an If: 2^40 ways through 40 functions."""
    made = []
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
    for depth in range(40):
        op, domain = ("Relu", "") if not depth else (f"F{depth - 1}", "local")
        branches = [
            helper.make_graph([helper.make_node(op, ["a"], [name], domain=domain)], name, [], [info(name)])
            for name in ("left", "right")
        ]
        choice = helper.make_node("If", ["c"], ["b"], then_branch=branches[0], else_branch=branches[1])
        constant = helper.make_node(
            "Constant", [], ["c"], value=helper.make_tensor("", TensorProto.BOOL, [], [1])
        )
        made.append(helper.make_function("local", f"F{depth}", ["a"], ["b"], [constant, choice], opsets))
    call = helper.make_node("F39", ["x"], ["y"], domain="local")
    said = bounded(saved(tmp_path / "m.onnx", [call], functions=made))
    assert any("expands to more than" in text for text in said)


@pytest.mark.slow
def test_loops_in_loops_that_never_end(tmp_path: Path, bounded: Bounded, capfd: Any) -> None:
    """Trip counts of 2^62, thirty deep: what runs 10^560 times can still be counted and printed."""
    trips = helper.make_tensor("m", TensorProto.INT64, [], [1 << 62])
    node = helper.make_node("MatMul", ["x", "x"], ["v_out"])
    for _ in range(30):
        node = loop([node])
    node.output[0] = "y"
    shapes = {"inputs": [info("x", 4, 4)], "outputs": [info("y", 4, 4)]}
    path = saved(tmp_path / "m.onnx", [node], tensors=[trips], **shapes)
    bounded(path)
    verbs = ("info", "layers", "layers --csv", "ops", "memory", "training", "info --json", "outline")
    assert "10^" in printed(path, capfd, *verbs, "roofline --peak-macs 1T --bandwidth 1GB/s")


def loop(nodes: Sequence[Any]) -> Any:
    """A loop around nodes that take 'x' and make 'v_out'."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["cond_in"], ["cond_out"]), *nodes],
        "body",
        [info("i", kind=TensorProto.INT64), info("cond_in", kind=TensorProto.BOOL), info("v_in", 4, 4)],
        [info("cond_out", kind=TensorProto.BOOL), info("v_out", 4, 4)],
    )
    return helper.make_node("Loop", ["m", "", "x"], ["v_out"], body=body)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("loops", "functions"), [(28, 20), (1, 60), (15, 4)])
def test_loops_in_functions_in_loops(tmp_path: Path, bounded: Bounded, loops: int, functions: int) -> None:
    """Each alone is not nested too deeply; together they are higher than any stack."""
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
    trips = helper.make_node("Constant", [], ["m"], value_int=1 << 62)
    made = []
    for depth in range(functions):
        op, domain = ("Relu", "") if not depth else (f"F{depth - 1}", "local")
        node = helper.make_node(op, ["x"], ["v_out"], domain=domain)
        for _ in range(loops):
            node = loop([node])
        node.output[0] = "y"
        made.append(helper.make_function("local", f"F{depth}", ["x"], ["y"], [trips, node], opsets))
    call = helper.make_node(f"F{functions - 1}", ["x"], ["y"], domain="local")
    shapes = {"inputs": [info("x", 4, 4)], "outputs": [info("y", 4, 4)]}
    path = saved(tmp_path / "m.onnx", [call], functions=made, **shapes)
    assert any("nested more than" in text for text in bounded(path))


# rings


def test_rings(tmp_path: Path, bounded: Bounded) -> None:
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
    ring = [
        helper.make_function(
            "local", a, ["a"], ["b"], [helper.make_node(b, ["a"], ["b"], domain="local")], opsets
        )
        for a, b in (("F", "G"), ("G", "H"), ("H", "F"))
    ]
    call = helper.make_node("F", ["x"], ["y"], domain="local")
    assert any("call themselves" in t for t in bounded(saved(tmp_path / "f.onnx", [call], functions=ring)))
    nodes = [helper.make_node("Add", ["x", f"v{(i + 1) % 50}"], [f"v{i}"]) for i in range(50)]
    nodes.append(helper.make_node("Relu", ["v0"], ["y"]))
    assert any("cycle" in text for text in bounded(saved(tmp_path / "g.onnx", nodes)))
    inner = helper.make_graph(
        [helper.make_node("Add", ["p", "x"], ["q"]), helper.make_node("Add", ["q", "x"], ["p"])],
        "b",
        [],
        [info("p")],
    )
    choice = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    inputs = [info("x", 2), info("c", kind=TensorProto.BOOL)]
    assert any("cycle" in text for text in bounded(saved(tmp_path / "s.onnx", [choice], inputs=inputs)))


def test_a_pickle_that_holds_itself(tmp_path: Path, bounded: Bounded) -> None:
    itself: dict[str, Any] = {"list": []}
    itself["self"] = itself
    itself["list"].append(itself)
    (tmp_path / "m.pkl").write_bytes(pickle.dumps(itself, 2))
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as made:
        made.writestr("archive/data.pkl", pickle.dumps(itself, 2))
        made.writestr("archive/version", "3")
    for name in ("m.pkl", "m.pt"):
        bounded(tmp_path / name)


# sizes


@pytest.mark.parametrize(
    "shape",
    [(-2,), (1 << 62, 1 << 62), (1 << 63,), ((1 << 62),) * 60, (0, 1 << 62), ("n",) * 64, (2,) * 1000],
    ids=[
        "negative",
        "overflowing",
        "beyond int64",
        "beyond floats",
        "of nothing",
        "of names",
        "of a thousand",
    ],
)
def test_declared_sizes_that_nothing_has(tmp_path: Path, bounded: Bounded, shape: Any, capfd: Any) -> None:
    def dim(size: Any) -> bytes:
        return (
            encode_tagged_varint(1, size)
            if isinstance(size, int)
            else encode_length_delimited(2, size.encode())
        )

    dims = b"".join(encode_length_delimited(1, dim(size)) for size in shape)
    kind = encode_length_delimited(1, encode_tagged_varint(1, 1) + encode_length_delimited(2, dims))

    def value(name: bytes) -> bytes:
        return encode_length_delimited(1, name) + encode_length_delimited(2, kind)

    product = (
        encode_length_delimited(1, b"x") * 2
        + encode_length_delimited(2, b"m")
        + encode_length_delimited(4, b"MatMul")
    )
    relu = (
        encode_length_delimited(1, b"m")
        + encode_length_delimited(2, b"y")
        + encode_length_delimited(4, b"Relu")
    )
    graph = encode_length_delimited(1, product) + encode_length_delimited(1, relu)
    graph += (
        encode_length_delimited(11, value(b"x"))
        + encode_length_delimited(12, value(b"y"))
        + encode_length_delimited(13, value(b"m"))
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(
        encode_tagged_varint(1, 8)
        + encode_length_delimited(7, graph)
        + encode_length_delimited(8, encode_tagged_varint(2, 17))
    )
    bounded(path)
    printed(
        path,
        capfd,
        "outline",
        "outline --json",
        "info",
        "layers",
        "layers --csv",
        "memory",
        "ops",
        "training",
    )


@pytest.mark.parametrize("op", ["Expand", "Tile", "ConstantOfShape", "Range", "Pad", "Resize", "Reshape"])
def test_sizes_that_are_computed_and_overflow(tmp_path: Path, bounded: Bounded, op: str, capfd: Any) -> None:
    huge = [1 << 62] * 8
    tensors = [
        helper.make_tensor("huge", TensorProto.INT64, [8], huge),
        helper.make_tensor("pads", TensorProto.INT64, [16], huge * 2),
        helper.make_tensor("scales", TensorProto.FLOAT, [8], [1e38] * 8),
        *(
            helper.make_tensor(n, TensorProto.INT64, [], [v])
            for n, v in (("a", -(1 << 62)), ("b", 1 << 62), ("c", 1))
        ),
    ]
    given = {
        "ConstantOfShape": ["huge"],
        "Range": ["a", "b", "c"],
        "Pad": ["x", "pads"],
        "Resize": ["x", "", "scales"],
    }.get(op, ["x", "huge"])
    nodes = [helper.make_node(op, given, ["h"], name="huge"), helper.make_node("Relu", ["h"], ["y"])]
    shapes = {"inputs": [info("x", *[3] * 8)], "outputs": [info("y")]}
    path = saved(tmp_path / "m.onnx", nodes, tensors=tensors, **shapes)
    bounded(path)
    printed(path, capfd, "info", "layers", "layers --csv", "memory", "ops", "training", "info --json")


def test_a_split_into_more_parts_than_there_are_atoms(tmp_path: Path, bounded: Bounded) -> None:
    split = helper.make_node("Split", ["x"], ["y"], num_outputs=1 << 62)
    bounded(saved(tmp_path / "m.onnx", [split]))


# names


@pytest.mark.slow
def test_twenty_thousand_nodes_of_one_name(tmp_path: Path, bounded: Bounded) -> None:
    nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"], name="/same/name") for i in range(5000)]
    path = saved(tmp_path / "m.onnx", nodes, inputs=[info("v0", 2)], outputs=[info("v5000", 2)])
    assert bounded(path) == []
    with Session(path) as session:
        paths = [layer.path for layer in session.analysis().layers]
    assert len(set(paths)) == len(paths)


@pytest.mark.parametrize("separator", ["/", "."])
def test_a_name_of_ten_thousand_levels(tmp_path: Path, bounded: Bounded, separator: str, capfd: Any) -> None:
    name = separator + separator.join("a" * 5000)
    path = saved(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"], name=name)])
    bounded(path)
    printed(path, capfd, "layers", "layers --json", "info", "outline")


def test_tensors_of_ten_thousand_levels(tmp_path: Path, bounded: Bounded, capfd: Any) -> None:
    names = [".".join("a" * 5000) + f".{i}" for i in range(3)]
    head = {
        name: {"dtype": "F32", "shape": [], "data_offsets": [4 * i, 4 * i + 4]}
        for i, name in enumerate(names)
    }
    text = json.dumps(head).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(12))
    bounded(path)
    printed(path, capfd, "layers", "layers --json", "info", "outline", "weights")


@pytest.mark.parametrize("letters", [50_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_a_name_of_very_many_letters(letters: int, tmp_path: Path, bounded: Bounded, capfd: Any) -> None:
    path = saved(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"], name="\x1b" * letters)])
    bounded(path)
    assert "\x1b" not in printed(path, capfd, "layers", "info", "ops", "outline")


def test_a_complaint_about_a_name_of_a_million_letters(tmp_path: Path, bounded: Bounded) -> None:
    weight = helper.make_tensor("w" * 1_000_000, TensorProto.FLOAT, [2], [1.0, 2.0])
    weight.dims[0] = -7
    path = saved(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], tensors=[weight])
    said = bounded(path)
    assert said
    assert all(len(text) < 2000 for text in said)
    assert "impossible dimensions [-7]" in said[-1]


# places


@pytest.mark.parametrize("place", ["/dev/zero", "/dev/random", "/dev/stdin", "/proc/self/mem"])
def test_devices_are_not_read(place: str, bounded: Bounded) -> None:
    if not os.path.exists(place):
        pytest.skip(f"no {place} here")
    assert len(bounded(place)) == 2


def test_a_shard_elsewhere(tmp_path: Path, bounded: Bounded) -> None:
    (tmp_path / "outside.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    for name in (
        "../outside.safetensors",
        str(tmp_path / "outside.safetensors"),
        "link",
        "pipe",
        "a\0b",
        "/dev/zero",
    ):
        folder = tmp_path / "hf"
        folder.mkdir(exist_ok=True)
        if not (folder / "pipe").exists():
            os.mkfifo(folder / "pipe")
            (folder / "link").symlink_to(tmp_path / "outside.safetensors")
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
        assert len(bounded(folder)) == 2, name


# cut off, and what protobuf allows


CUT = ("onnx", "safetensors", "gguf", "tflite", "checkpoint", "graph", "arrays", "resume")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CUT)
def test_a_file_that_is_cut_off_anywhere(tmp_path: Path, name: str) -> None:
    target = TARGETS[name]
    if target.needs:
        pytest.importorskip(target.needs)
    run = target.prepare()
    whole = min(target.seeds(), key=len) if name != "graph" else next(iter(target.seeds()))
    path = str(tmp_path / f"cut{target.ending}")
    # every byte of the beginning and of the end, where headers and directories are, and some between
    ends = sorted(
        {
            *range(min(len(whole), 200)),
            *range(max(len(whole) - 200, 0), len(whole)),
            *range(0, len(whole), 97),
        }
    )
    for end in ends:
        Path(path).write_bytes(whole[:end])
        find = attempt(run, path, 15.0)
        assert find is None, (end, find.text)


@pytest.mark.parametrize("length", [10, 11, 100, 100_000])
def test_a_number_that_never_ends(tmp_path: Path, bounded: Bounded, length: int) -> None:
    path = tmp_path / "m.onnx"
    for content in (
        b"\x08" + b"\x80" * length + b"\x01",
        b"\x08\x08" + b"\xff" * length,
        b"\x08\x08\x3a" + b"\xff" * length + b"\x01",
        encode_tagged_varint(1, 8) + encode_length_delimited(7, b"\x0a" + b"\x80" * length + b"\x01"),
    ):
        path.write_bytes(content)
        said = bounded(path)
        assert said
        assert "varint" in said[-1] or "valid protobuf" in said[-1]


def test_a_length_beyond_the_end(tmp_path: Path, bounded: Bounded) -> None:
    path = tmp_path / "m.onnx"
    for size in (1 << 20, 1 << 31, 1 << 62, (1 << 64) - 1):
        path.write_bytes(b"\x08\x08\x3a" + encode_varint(size) + b"\x0a\x02ab")
        assert any("does not fit" in text for text in bounded(path))
