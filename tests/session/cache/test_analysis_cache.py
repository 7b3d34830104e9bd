"""The second opening of a model says what the first said, byte for byte, or says it anew: never what was."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from explorer import BadModel, Misuse, Session, TileSpec, compare_files
from explorer.cli.main import main
from explorer.engine.formats.onnx import file_reads, reader
from explorer.host import memory_limit
from explorer.host.cache_folder import CacheFolder
from explorer.process.client import EngineProcess
from explorer.session import cache_usage, clear_cache
from explorer.session.cache import analysis_cache
from explorer.session.cache.rows import Chunk

Samples = Callable[[str], Path]
TFLITE = Path(__file__).parents[2] / "engine" / "formats" / "tflite" / "models" / "batched.tflite"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.delenv("EXPLORER_NO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    return tmp_path / "xdg" / "explorer" / "analyses"


@pytest.fixture
def model(tmp_path: Path, sample: Samples) -> Path:
    path = tmp_path / "model.onnx"
    shutil.copy(sample("lenet"), path)
    settle()
    return path


def settle() -> None:
    """What has just been written may change while it is looked at: nothing is kept of it."""
    time.sleep(0.04)


def was_opened(source: Path | str, **options: Any) -> bool:
    """Opens a model, asks for all that is kept of one, and says whether the model was needed for that."""
    with Session(source, **options) as session:
        session.analysis(), session.ops(), session.memory(), session.edges(), session.connections(0)
        return session.parts.models._original is not None


def answers(source: Path | str, **options: Any) -> list[Any]:
    with Session(source, **options) as session:
        found = [session.info(), session.analysis(), session.ops(), session.memory(), session.edges()]
        return [*found, *(session.connections(layer.id) for layer in found[1].layers)]


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main([str(word) for word in words]) == 0
    return capsys.readouterr().out


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From when it is called on, no ONNX file can be read."""

    def close() -> None:
        def refuse(path: str) -> None:
            raise AssertionError(f"{path} was read")

        monkeypatch.setattr(reader, "read", refuse)

    return close


@pytest.mark.slow
def test_every_verb_says_the_same_byte_for_byte_without_the_model(
    sample: Samples, capsys: pytest.CaptureFixture[str], closed: Callable[[], None]
) -> None:
    machine = ("--peak-macs", "4T", "--bandwidth", "100GB/s")
    asked = [
        (verb, sample(name), *more, *form)
        for name in ("lenet", "lstm_tiny", "bert_tiny")
        for verb, *more in (("info",), ("layers",), ("ops",), ("memory",), ("roofline", *machine))
        for form in (("--json",), ())
    ]
    fresh = [printed(capsys, *words, "--no-cache") for words in asked]
    os.environ.pop("EXPLORER_NO_CACHE")  # what the option sets holds for the whole process
    assert [printed(capsys, *words) for words in asked] == fresh
    closed()
    assert [printed(capsys, *words) for words in asked] == fresh


def test_python_gets_equal_records_to_the_type(model: Path) -> None:
    fresh = answers(model, cache=False)
    assert was_opened(model)
    assert not was_opened(model)
    assert repr(answers(model)) == repr(fresh)


@pytest.mark.slow
def test_the_screen_is_told_the_same_without_the_model(model: Path) -> None:
    def told() -> list[Any]:
        engine = EngineProcess(str(model))
        try:
            jobs = [engine.submit(method) for method in ("open", "analysis", "ops", "history", "memory")]
            found = [job.future.result(120) for job in jobs]
            assert engine.submit("locate", ["/fc1/Gemm"]).future.result(120)
            maps = Path(f"/proc/{engine.pid}/maps")
            mapped = maps.exists() and str(model) in maps.read_text()
            return [mapped, found[1].info, tuple(found[1].layers), *found[2:], found[0]]
        finally:
            engine.close()

    first, second = told(), told()
    assert first[1:] == second[1:]
    assert [first[0], second[0]] == [Path("/proc/self/maps").exists(), False]


@pytest.mark.slow
def test_a_name_of_torchvisions_needs_no_torch_the_second_time() -> None:
    pytest.importorskip("torchvision")
    code = (
        "import hashlib, sys; from explorer import Session\n"
        "s = Session('squeezenet1_0')\n"
        "found = repr([s.open(), s.analysis(), s.ops(), s.memory()])\n"
        "print(hashlib.sha256(found.encode()).hexdigest())\n"
        "print('torch' in sys.modules, file=sys.stderr)"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True) for _ in range(2)]
    assert [run.stderr.strip() for run in runs] == ["True", "False"]
    assert runs[0].stdout == runs[1].stdout != ""


# what an answer rests on


def put_in_place(path: Path, old: bytes, new: bytes) -> None:
    """Other content of the same size in the same file, of the same time."""
    about, content = path.stat(), path.read_bytes()
    assert content.count(old) >= 1
    assert len(old) == len(new)
    with open(path, "r+b") as file:
        file.write(content.replace(old, new))
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (
        about.st_size,
        about.st_mtime_ns,
        about.st_ino,
    )


def test_other_content_of_the_same_size_time_and_file_is_another_model(model: Path) -> None:
    before = answers(model)
    put_in_place(model, b"Relu", b"Tanh")
    settle()
    changed = answers(model)
    assert changed == answers(model, cache=False)
    assert changed != before
    assert not was_opened(model)
    put_in_place(model, b"Tanh", b"Relu")
    settle()
    assert answers(model) == before


def wide(path: Path, *, external: bool = False) -> onnx.ModelProto:
    """A product with 256 KiB of weights, and a reshape by what is stored."""
    import numpy as np

    weight = numpy_helper.from_array(np.ones((256, 256), np.float32), "w")
    shape = numpy_helper.from_array(np.array([4, 64], np.int64), "shape")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"], "product"),
        helper.make_node("Reshape", ["y", "shape"], ["z"], "reshape"),
        helper.make_node("Relu", ["z"], ["out"], "relu"),
    ]
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 256])]
    results = [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "wide", ports, results, [weight, shape])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    more = {"save_as_external_data": True, "location": "w.data", "size_threshold": 1024} if external else {}
    onnx.save(model, str(path), **more)
    settle()
    return model


def test_other_weights_are_passed_over_and_a_stored_shape_is_not(tmp_path: Path) -> None:
    path = tmp_path / "wide.onnx"
    wide(path)
    assert was_opened(path)
    ones, twos = b"\0\0\x80?" * 65_536, b"\0\0\0@" * 65_536
    put_in_place(path, ones, twos)
    assert not was_opened(path)
    assert answers(path) == answers(path, cache=False)
    put_in_place(
        path,
        (4).to_bytes(8, "little") + (64).to_bytes(8, "little"),
        (8).to_bytes(8, "little") + (32).to_bytes(8, "little"),
    )
    settle()
    found = answers(path)
    assert found == answers(path, cache=False)
    assert found[1].layers[-1].outputs[0].shape == (8, 32)


def test_a_weight_that_was_looked_at_is_read_and_so_is_every_byte_around_one(tmp_path: Path) -> None:
    path = tmp_path / "wide.onnx"
    wide(path)
    found = reader.read(str(path))
    (of_file,) = file_reads.list_model_reads(found)
    passed = found.graph.initializers["w"].payload
    assert passed is not None
    assert sum(size for _, size in of_file.spans) == path.stat().st_size - passed.size
    bytes(passed.view()[:1])
    (of_file,) = file_reads.list_model_reads(found)
    assert of_file.spans == ((0, path.stat().st_size),)


def test_what_lies_beside_the_model_belongs_to_it(tmp_path: Path) -> None:
    path = tmp_path / "wide.onnx"
    wide(path, external=True)
    assert was_opened(path)
    assert not was_opened(path)
    data = tmp_path / "w.data"
    content = data.read_bytes()
    data.write_bytes(content[:-4])
    with pytest.raises(BadModel, match="does not fit"):
        answers(path)
    data.unlink()
    with pytest.raises(BadModel, match=r"w\.data"):
        answers(path)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "w.data").write_bytes(content)
    inner = tmp_path / "inner"
    inner.mkdir()
    shutil.move(path, inner / "wide.onnx")
    (inner / "w.data").write_bytes(content)
    settle()
    assert was_opened(inner / "wide.onnx")
    assert not was_opened(inner / "wide.onnx")
    (inner / "w.data").unlink()
    (inner / "w.data").symlink_to(tmp_path / "outside" / "w.data")
    with pytest.raises(BadModel, match="outside"):
        answers(inner / "wide.onnx")


def test_weights_that_a_file_says_lie_in_its_own_midst_are_read(tmp_path: Path) -> None:
    path = tmp_path / "wide.onnx"
    model = wide(path)
    stored = model.graph.initializer[0]
    stored.ClearField("raw_data")
    stored.data_location = TensorProto.EXTERNAL
    for key, value in (("location", path.name), ("offset", "0"), ("length", str(4 * 65_536))):
        stored.external_data.add(key=key, value=value)
    model.doc_string = "x" * 4 * 65_536
    path.write_bytes(model.SerializeToString())
    settle()
    assert was_opened(path)
    assert not was_opened(path)
    put_in_place(path, b"Relu", b"Tanh")
    settle()
    assert answers(path)[1].layers[-1].kind == "Tanh"


def opened_by_batch(path: Path) -> None:
    """`wide` with its first size left open."""
    graph = wide(path).graph
    graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    shape = next(tensor for tensor in graph.initializer if tensor.name == "shape")
    shape.CopyFrom(numpy_helper.from_array(np.array([-1, 64], np.int64), "shape"))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    settle()


def test_a_tflite_file_is_kept_and_every_byte_of_it_counts(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    shutil.copy(TFLITE, path)
    settle()
    assert was_opened(path)
    assert not was_opened(path)
    assert answers(path) == answers(path, cache=False)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    settle()
    assert was_opened(path)


@pytest.mark.slow
def test_an_exported_program_is_kept_and_a_checkpoint_is_described_anew(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Linear(4, 4).eval()
    torch.export.save(torch.export.export(net, (torch.zeros(1, 4),)), tmp_path / "net.pt2")
    torch.save(net.state_dict(), tmp_path / "net.pt")
    settle()
    assert was_opened(tmp_path / "net.pt2")
    assert not was_opened(tmp_path / "net.pt2")
    assert answers(tmp_path / "net.pt2") == answers(tmp_path / "net.pt2", cache=False)
    for _ in range(2):
        with Session(tmp_path / "net.pt") as session:
            session.analysis()
            assert session.parts.models._original is not None


def test_every_way_to_open_it_has_an_answer_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "open.onnx"
    opened_by_batch(path)
    ways: list[dict[str, Any]] = [
        {},
        {"dims": {"batch": 1}},
        {"dims": {"batch": 2}},
        {"input_shapes": {"x": (None, (3, 256))}},
        {"input_shapes": {"x": ("float16", (3, 256))}},
    ]
    fresh = [answers(path, cache=False, **way) for way in ways]
    assert len({repr(one) for one in fresh}) == len(ways)
    for _ in range(2):
        assert [answers(path, **way) for way in ways] == fresh
    for way in ways:
        assert not was_opened(path, **way)


def test_sizes_bound_later_have_the_same_answers(tmp_path: Path) -> None:
    path = tmp_path / "open.onnx"
    opened_by_batch(path)
    answers(path), answers(path, dims={"batch": 2})
    fresh = answers(path, cache=False, dims={"batch": 2})
    with Session(path) as session:
        session.open()
        session.bind({"batch": 2})
        assert [session.info(), session.analysis(), session.ops(), session.memory()] == fresh[:4]
        session.bind({})
        assert session.analysis() == answers(path, cache=False)[1]


def test_an_answer_for_two_models_does_not_hide_a_mistyped_name_from_one(tmp_path: Path, model: Path) -> None:
    path = tmp_path / "open.onnx"
    opened_by_batch(path)
    compare_files(path, model, dims={"batch": 1})
    for _ in range(2):
        with pytest.raises(Misuse, match="no dimension is called 'batch'"):
            answers(model, dims={"batch": 1})


def test_another_program_is_another_answer(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert was_opened(model)
    for name in ("_list_code_files", "_list_version_files"):
        usual = getattr(analysis_cache, name)
        monkeypatch.setattr(analysis_cache, name, lambda *a, u=usual: [*u(*a), ("more.py", 1, 1)])
        assert was_opened(model), name
        assert not was_opened(model)


def test_code_that_changed_since_this_process_began_is_not_what_answers(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analysis_cache, "_STARTED_NS", 1)
    assert was_opened(model)
    assert was_opened(model)


def test_a_file_that_has_just_been_written_may_be_written_still(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = model.read_bytes()
    just = analysis_cache._CLOCK_NS
    monkeypatch.setattr(analysis_cache, "_CLOCK_NS", 3_600 * 10**9)  # however slow this machine is
    model.write_bytes(content)
    assert was_opened(model)
    monkeypatch.setattr(analysis_cache, "_CLOCK_NS", just)
    settle()
    assert was_opened(model)
    assert not was_opened(model)


# what is never kept


def test_nothing_is_kept_where_code_of_the_users_runs(
    model: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = tmp_path / "rules.py"
    rules.write_text(
        "from explorer.rules import Cost, rule\n\n"
        "@rule('MyOp', domain='my.domain')\ndef mine(call):\n    return Cost(0)\n"
    )
    ways: Sequence[dict[str, Any]] = (
        {"trust": True},
        {"trust": True, "rules": str(rules)},
        {"observe": True},
    )
    for way in ways:
        assert was_opened(model, **way)
    assert not cache.exists()
    assert was_opened(model)
    assert not was_opened(model)
    for way in ways:
        assert was_opened(model, **way), "and what is kept is not told to who opens it with trust"


def test_nothing_is_kept_of_a_callable_or_of_an_object(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "nets_of_mine.py").write_text("import torch\ndef net():\n    return torch.nn.Linear(4, 4)\n")
    monkeypatch.chdir(tmp_path)
    for source in ("nets_of_mine:net", "nets_of_mine.py:net", torch.nn.Linear(4, 4)):
        with Session(source) as session:
            session.analysis(), session.ops()
    assert not cache.exists()


def test_nothing_is_kept_under_a_limit_of_memory(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_limit, "read_limit", lambda: 1 << 30)
    assert was_opened(model)
    assert not cache.exists()


def test_what_is_checked_no_sooner_than_analysed_is_not_kept(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analysis_cache, "_MIN_HASHED_BYTES", 1)
    monkeypatch.setattr(analysis_cache, "_HASHED_BYTES_PER_SECOND", 1)
    assert was_opened(model)
    assert not cache.exists()


# a cache is data that anybody may have spoilt


@pytest.mark.slow
def test_a_damaged_cache_is_passed_over_and_replaced(model: Path, cache: Path) -> None:
    fresh = answers(model)
    for path in sorted(cache.iterdir()):
        content = path.read_bytes()
        for spoilt in (b"", content[:-1], content[:80] + b"\xff" + content[81:], b"\0" * 5_000):
            path.write_bytes(spoilt)
            assert answers(model) == fresh
            settle()
            assert answers(model) == fresh
        assert path.read_bytes() == content, "it is as it was"
    assert not was_opened(model)


@pytest.mark.slow
def test_well_signed_nonsense_is_no_answer_and_no_pickle_is_opened(model: Path, cache: Path) -> None:
    fresh = answers(model)
    folder = CacheFolder(str(cache))
    bomb = msgspec.msgpack.encode((Chunk("pickled", "", b"cos\nabort\n(tR."),))
    for path in sorted(cache.iterdir()):
        for nonsense in (
            b"",
            b"\xc1",
            msgspec.msgpack.encode({"model": 1}),
            msgspec.msgpack.encode([]),
            bomb,
        ):
            assert folder.write(path.name, nonsense)
            if nonsense == msgspec.msgpack.encode([]) and path.suffix in (".ops", ".rows"):
                continue  # an empty list is an answer there, and only the user can have signed it
            assert answers(model) == fresh


def test_where_no_cache_can_be_all_is_as_before(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = answers(model, cache=False)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert answers(model) == fresh
    assert answers(model) == fresh


# what comes behind a kept answer


def test_a_kept_answer_tiles_and_proves_the_model(model: Path, tmp_path: Path) -> None:
    answers(model)
    with Session(model) as session:
        session.open()
        assert session.parts.models._original is None
        found = session.tile(TileSpec((64, 64, 64)), output=str(tmp_path / "tiled.onnx"))
        assert found.verification is not None
        assert found.verification.passed
        assert session.analysis(0) == answers(model, cache=False)[1]
        assert session.undo().current == 0
        assert session.analysis() == answers(model, cache=False)[1]


def test_a_model_that_changed_behind_a_kept_answer_is_not_mixed_with_it(model: Path) -> None:
    answers(model)
    with Session(model) as session:
        session.open()
        put_in_place(model, b"Relu", b"Tanh")
        with pytest.raises(BadModel, match="has changed since"):
            session.plan(TileSpec((64, 64, 64)))


# the switch, and the verb


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`--no-cache` sets it for the whole process, which here is not the command's own."""
    yield
    os.environ.pop("EXPLORER_NO_CACHE", None)


def test_it_can_be_switched_off(
    model: Path, cache: Path, unset: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert was_opened(model, cache=False)
    printed(capsys, "info", model, "--no-cache")
    assert os.environ["EXPLORER_NO_CACHE"] == "1"
    assert was_opened(model)
    assert not cache.exists()
    del os.environ["EXPLORER_NO_CACHE"]
    assert was_opened(model)
    assert cache.exists()
    assert was_opened(model, cache=False)


def test_the_verb_says_where_and_how_much_and_clears_it(
    model: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(model)
    files = list(cache.iterdir())
    usage = cache_usage()
    assert (usage.folder, usage.files) == (str(cache), len(files))
    assert usage.bytes == sum(path.stat().st_size for path in files)
    text = printed(capsys, "cache")
    assert str(cache) in text
    assert f"{usage.bytes:,}" in text
    assert msgspec.json.decode(printed(capsys, "cache", "--json"))["files"] == len(files)
    printed(capsys, "cache", "--clear")
    assert list(cache.iterdir()) == []
    assert was_opened(model)
    assert clear_cache().files == 0
