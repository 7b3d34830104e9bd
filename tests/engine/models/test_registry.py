"""What can be opened is a list of formats, and a file is what its content says, whatever it is called."""

from __future__ import annotations

import os
import subprocess
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from explorer import Session, TileSpec
from explorer.base.errors import BadModel, ExplorerError, Misuse
from explorer.engine.formats.format import HEAD_BYTES, Format, SourceProbe, open_graph_file
from explorer.engine.graph.model import Graph, Inline, Model, Node, Tensor, Value
from explorer.engine.models import registry
from explorer.engine.models.open_model import open_model
from explorer.engine.models.opened_model import OpenOptions

ROOT = Path(__file__).parent.parent.parent.parent
ONNX = b"\x08\x08\x12\x01p:\x00"
"""The smallest file that a reader of ONNX takes for one: an IR version, a producer, an empty graph."""


HEAVY = (
    *("argparse", "contextlib", "dataclasses", "enum", "functools", "hashlib", "inspect", "json", "logging"),
    *(
        "msgspec",
        "numpy",
        "pathlib",
        "pickle",
        "re",
        "rich",
        "shutil",
        "tempfile",
        "textual",
        "torch",
        "typing",
    ),
    *("zipfile", "onnx", "explorer.facts"),
)


def name_of(source: Path | str) -> str:
    return registry.recognize(str(source)).name


def refusal(source: Path | str) -> str:
    with pytest.raises(ExplorerError) as error:
        open_model(str(source), OpenOptions())
    return str(error.value)


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_every_format_says_of_itself_what_a_person_wants_to_know() -> None:
    known = list(registry.list_formats())
    assert len({format.name for format in known}) == len(known) == len(registry.MODULES)
    for format in known:
        assert format.about
        assert format.recognized_by
        assert format.shows
        assert all(ending == ending.lower() and ending[0] in "._" for ending in format.endings)


@pytest.mark.parametrize("name", ["model.onnx", "model.pt", "model.safetensors", "model", "model.gguf"])
def test_content_goes_before_name(tmp_path: Path, name: str) -> None:
    assert name_of(written(tmp_path / name, ONNX)) == "onnx"
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
        archive.writestr("m/data.pkl", b"")
        archive.writestr("m/constants.pkl", b"")
    assert name_of(tmp_path / name) == "torchscript"


def test_an_onnx_file_is_told_by_its_fields_wherever_its_head_ends(tmp_path: Path) -> None:
    long = b"\x08\x08\x12" + b"\xff\x7f" + b"p" * 16383 + b":\x00"
    assert len(long) > HEAD_BYTES
    assert name_of(written(tmp_path / "a", long)) == "onnx"
    graph = bytes([0x3A]) + b"\x80\x80\x04" + bytes(1 << 16)
    assert name_of(written(tmp_path / "b", b"\x08\x07" + graph)) == "onnx"
    cut_off = written(tmp_path / "c", (b"\x08\x07" + graph)[:9000])
    assert name_of(cut_off) == "onnx"
    assert "truncated or damaged" in refusal(cut_off)
    # a quotation mark is the tag of a text field
    docstring = written(tmp_path / "d", b'"""Costs of an ONNX graph\'s layers."""\n')
    assert "not a model of a known format" in refusal(docstring)


@pytest.mark.parametrize(
    "data",
    [b"plain text\n", b"{'a': 1}", b"\x89PNG\r\n\x1a\n", b"\0" * 100, b"\xff" * 100, b"\x08", b"\x80" * 5000],
    ids=["text", "braces", "png", "zeros", "ones", "a tag alone", "an endless number"],
)
def test_what_no_format_knows_is_refused_by_the_one_that_its_name_says_or_by_none(
    tmp_path: Path, data: bytes
) -> None:
    assert "not a model of a known format; explorer formats lists" in refusal(
        written(tmp_path / "x.txt", data)
    )
    assert "not an ONNX model" in refusal(written(tmp_path / "x.ONNX", data)) or data[:1] == b"\x08"
    assert "wrote" in refusal(written(tmp_path / "x.pt", data))


def test_what_is_not_there_is_a_missing_file_a_name_or_neither(tmp_path: Path) -> None:
    (tmp_path / "alexnet.safetensors").touch()
    (tmp_path / "readme.txt").touch()
    assert "no such file; did you mean 'alexnet.safetensors'?" in refusal(tmp_path / "alexnett.safetensors")
    assert "no such file; choose from: alexnet.safetensors" in refusal(tmp_path / "zzz")
    assert "no such file" in refusal("nowhere/at/all.onnx")
    assert name_of("no_file_but_a_name") == name_of("package.module:callable") == "torch"
    assert "neither a file nor a model's name; explorer formats lists" in refusal("no name!")
    assert "neither" in refusal("a\0b")
    (tmp_path / "link.onnx").symlink_to("gone.onnx")
    assert "a link to a file that is not there" in refusal(tmp_path / "link.onnx")


def test_an_empty_file_a_pipe_and_a_socket_are_named_and_never_waited_for(tmp_path: Path) -> None:
    assert "the file is empty" in refusal(written(tmp_path / "m.onnx", b""))
    os.mkfifo(tmp_path / "p.onnx")
    assert "not a regular file" in refusal(tmp_path / "p.onnx")
    assert SourceProbe(str(tmp_path / "p.onnx")).head == b""
    (tmp_path / "broken.onnx").symlink_to(tmp_path / "nowhere")
    assert "a link to a file that is not there" in refusal(tmp_path / "broken.onnx")
    assert "not a regular file" in refusal("/dev/null")


def test_weights_of_torchvisions_go_with_a_name_only(tmp_path: Path, sample: object) -> None:
    from explorer.session import Session

    assert callable(sample)
    with pytest.raises(Misuse, match="a file brings its own weights"):
        Session(sample("lenet"), weights="DEFAULT").open()


def test_a_file_that_cannot_be_read_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "m.onnx", ONNX)

    def refusing(real: Any) -> Any:
        def refused(file: object, *args: object, **how: object) -> object:
            if str(file) == str(path):
                raise PermissionError(13, "Permission denied")
            return real(file, *args, **how)

        return refused

    monkeypatch.setattr("builtins.open", refusing(open))
    monkeypatch.setattr("os.open", refusing(os.open))
    assert SourceProbe(str(path)).head == b""
    with pytest.raises(BadModel, match="cannot be read: Permission denied"):
        open_model(str(path), OpenOptions())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("module", [*registry.MODULES, "formats.format", "formats.tensor_index"])
def test_registering_a_format_costs_the_start_of_the_program_nothing(module: str) -> None:
    code = (
        "import sys\nbefore = set(sys.modules)\n"
        f"import explorer.engine.{module}\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    command = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not {name for name in done.stdout.split() if name in HEAVY or name.split(".")[0] in HEAVY}


def read_rows(path: str) -> Model:
    """A product of `2 x K` by what stands behind the word: rows of ones and zeros."""
    rows = [[float(c) for c in row] for row in Path(path).read_text().split()[1:]]
    data = np.array(rows, np.float32)
    weight = Tensor("w", "float32", data.shape, Inline(data.tobytes()))
    x, y = Value("x", "float32", (2, len(rows))), Value("y", "float32", (2, len(rows[0])))
    node = Node("MatMul", ["x", "missing" if not data.any() else "w"], ["y"])
    return Model(Graph("rows", (node,), (x,), (y,), {"w": weight}), {"": 17}, 8, path=path)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    module: Any = types.ModuleType("explorer.engine.formats.rows")
    opens = open_graph_file("rows", "formats.rows:read")
    module.FORMAT = Format("rows", "rows", lambda probe: probe.head[:4] == b"rows", opens)
    module.read = read_rows
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(registry, "MODULES", ("formats.rows", *registry.MODULES))
    return written(tmp_path / "a.rows", b"rows 11100 01010 10101")


def test_a_graph_of_another_format_needs_no_more_than_its_reader(rows: Path) -> None:
    with Session(str(rows)) as session:
        assert (session.info().model.format, session.info().totals.macs) == ("rows", 2 * 3 * 5)
        assert [one.zeros for one in session.weights().tensors] == [7 / 15]
        session.tile(TileSpec((2, 2, 2)))
        assert session.verify().verdict_kind == "equal"
        session.save(str(rows.with_name("tiled.onnx")))
    onnx.checker.check_model(str(rows.with_name("tiled.onnx")))


def test_an_answer_about_it_is_not_kept_beyond_a_change_of_its_file(rows: Path) -> None:
    def macs() -> int | None:
        with Session(str(rows)) as session:
            return session.info().totals.macs

    assert (macs(), macs()) == (30, 30)
    written(rows, b"rows 1110 0101 1010")
    assert macs() == 24


def test_a_graph_of_it_that_contradicts_itself_is_refused(rows: Path) -> None:
    written(rows, b"rows 000 000")
    assert refusal(rows).startswith(f"{rows}: ")
    assert "missing" in refusal(rows)
