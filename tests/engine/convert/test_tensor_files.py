"""Checkpoints become safetensors and safetensors checkpoints, byte for byte, whoever wrote them."""

from __future__ import annotations

import json
import os
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from explorer import BadModel, Cancelled, Misuse
from explorer.facts.conversion import Conversion

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")

from safetensors import safe_open  # noqa: E402
from torch import nn  # noqa: E402

Convert = Callable[..., Conversion]

DTYPES = (
    *("float16", "bfloat16", "float32", "float64", "complex64", "bool"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float8_e4m3fn", "float8_e5m2"),
)


class Net(nn.Module):
    """Tied weights, a transposed one, buffers of every type, an empty one and a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(11, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.emb.weight
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        for name in DTYPES:
            self.register_buffer(f"b_{name}", torch.arange(6).reshape(2, 3).to(getattr(torch, name)))
        self.register_buffer("empty", torch.zeros(0, 3))
        self.register_buffer("scalar", torch.tensor(3.5))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


def raw(tensor: Any) -> bytes:
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())


def same(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and raw(a) == raw(b)


def loaded(path: Path, **how: Any) -> Any:
    return torch.load(path, weights_only=True, **how)


@pytest.mark.parametrize("how", [{}, {"_use_new_zipfile_serialization": False}])
def test_a_state_dict_becomes_what_safetensors_own_writer_writes(
    convert: Convert, tmp_path: Path, net: Net, how: dict[str, Any]
) -> None:
    torch.save(net.state_dict(), tmp_path / "net.pth", **how)
    fact = convert("net.pth", "net.safetensors")
    assert (fact.source_format, fact.format, fact.verification) == ("checkpoint", "safetensors", None)
    assert fact.stored is not None
    assert fact.stored.passed
    assert fact.stored.tensors == len(net.state_dict())
    assert len(fact.stored.sha256) == 64
    assert any("1 tied tensor" in note and "head.weight is emb.weight" in note for note in fact.notes)
    safetensors_torch.save_model(net, str(tmp_path / "theirs.safetensors"))
    ours, theirs = (tmp_path / f"{name}.safetensors" for name in ("net", "theirs"))
    assert body(ours) == body(theirs)
    assert header(ours)["tensors"] == header(theirs)["tensors"]
    other = Net()
    missing, unexpected = safetensors_torch.load_model(other, str(ours))
    assert not missing
    assert not unexpected
    assert all(
        same(a, b) for a, b in zip(net.state_dict().values(), other.state_dict().values(), strict=True)
    )


def body(path: Path) -> bytes:
    content = path.read_bytes()
    return content[8 + int.from_bytes(content[:8], "little") :]


def header(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert length % 8 == 0
    found = json.loads(content[8 : 8 + length])
    return {"metadata": found.pop("__metadata__"), "tensors": found}


@pytest.mark.parametrize("mapped", [False, True])
def test_there_and_back_again_it_is_the_state_dict_that_it_was(
    convert: Convert, tmp_path: Path, net: Net, mapped: bool
) -> None:
    before = net.state_dict()
    torch.save(before, tmp_path / "net.pth")
    convert("net.pth", "net.safetensors")
    fact = convert("net.safetensors", "back.pt")
    assert fact.stored is not None
    assert fact.stored.passed
    after = loaded(tmp_path / "back.pt", mmap=mapped)
    assert type(after) is OrderedDict
    assert set(after) == set(before)
    assert all(same(before[name], after[name]) for name in before)
    assert after["head.weight"].data_ptr() == after["emb.weight"].data_ptr()
    assert after._metadata == before._metadata
    Net().load_state_dict(after)


def test_storages_are_aligned_as_torch_aligns_them(convert: Convert, tmp_path: Path, net: Net) -> None:
    torch.save(net.state_dict(), tmp_path / "net.pth")
    convert("net.pth", "other.pt")
    with zipfile.ZipFile(tmp_path / "other.pt") as archive, open(tmp_path / "other.pt", "rb") as file:
        assert archive.testzip() is None
        entries = [entry for entry in archive.infolist() if "/data/" in entry.filename]
        assert len(entries) == len({t.data_ptr() or id(t) for t in net.state_dict().values()})
        for entry in entries:
            assert entry.compress_type == zipfile.ZIP_STORED
            file.seek(entry.header_offset + 26)
            name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
            assert (entry.header_offset + 30 + name + extra) % 64 == 0


def test_metadata_goes_there_and_back_again(convert: Convert, tmp_path: Path) -> None:
    said = {"format": "pt", "licence": "ours", "names": 'a "b" \\ \u00e4\n'}
    safetensors_torch.save_file({"w": torch.arange(4.0)}, tmp_path / "a.safetensors", metadata=said)
    convert("a.safetensors", "a.pt")
    assert loaded(tmp_path / "a.pt").metadata == said
    fact = convert("a.pt", "b.safetensors")
    with safe_open(tmp_path / "b.safetensors", "pt") as file:
        assert file.metadata() == said
    assert fact.passed


def test_what_lies_beside_the_model_is_left_behind_or_becomes_metadata_and_that_is_said(
    convert: Convert, tmp_path: Path
) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.rand(1, 3)).sum().backward()
    optimizer.step()
    torch.save(
        {
            "state_dict": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": 3,
            "arch": "linear",
            "hyper": {"lr": 0.1, "steps": [1, 2]},
        },
        tmp_path / "run.ckpt",
    )
    fact = convert("run.ckpt", "run.safetensors")
    with safe_open(tmp_path / "run.safetensors", "pt") as file:
        assert sorted(file.keys()) == ["bias", "weight"]
        said = file.metadata()
    assert (said["epoch"], said["arch"], said["hyper"]) == ("3", "linear", '{"lr": 0.1, "steps": [1, 2]}')
    assert "the state_dict is what the checkpoint holds under 'state_dict'" in fact.notes
    assert any("6 tensors outside the model not written: optimizer state" in note for note in fact.notes)


def test_views_of_one_storage_are_written_each_by_itself(convert: Convert, tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    state = {
        "whole": base,
        "turned": base.t(),
        "row": base[1],
        "column": base[:, 2],
        "wide": base[:1].expand(3, 6),
    }
    torch.save(state, tmp_path / "views.pt")
    fact = convert("views.pt", "views.safetensors")
    made = safetensors_torch.load_file(tmp_path / "views.safetensors")
    assert set(made) == set(state)
    assert all(torch.equal(made[name], state[name]) for name in state)
    assert any("share storages but are not equal" in note for note in fact.notes)


def test_a_whole_module_gives_its_weights_without_being_run(convert: Convert, tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    torch.save(module, tmp_path / "whole.pt")
    convert("whole.pt", "whole.safetensors")
    made = safetensors_torch.load_file(tmp_path / "whole.safetensors")
    assert all(torch.equal(made[name], tensor) for name, tensor in module.state_dict().items())


def sharded(folder: Path, ending: str) -> dict[str, Any]:
    """A model of three tensors in two files, as transformers writes it."""
    folder.mkdir()
    stem = {"safetensors": "model", "bin": "pytorch_model"}[ending]
    torch.manual_seed(2)
    state = {"a.weight": torch.rand(3, 4), "a.bias": torch.rand(3), "b.weight": torch.rand(2, 3)}
    files = [f"{stem}-0000{at}-of-00002.{ending}" for at in (1, 2)]
    for file, names in zip(files, (["a.weight", "a.bias"], ["b.weight"]), strict=True):
        part = {name: state[name] for name in names}
        if ending == "bin":
            torch.save(part, folder / file)
        else:
            safetensors_torch.save_file(part, folder / file, metadata={"format": "pt"})
    placed = {"a.weight": files[0], "a.bias": files[0], "b.weight": files[1]}
    index = {"metadata": {"total_size": sum(t.nbytes for t in state.values())}, "weight_map": placed}
    (folder / f"{stem}.{ending}.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text("{}")
    return state


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
@pytest.mark.parametrize("output", ["joined.safetensors", "joined.bin"])
def test_shards_are_joined(convert: Convert, tmp_path: Path, ending: str, output: str) -> None:
    state = sharded(tmp_path / "model", ending)
    fact = convert(str(tmp_path / "model"), output)
    assert fact.source_format == "huggingface"
    load = safetensors_torch.load_file if output.endswith("safetensors") else loaded
    made = load(tmp_path / output)
    assert set(made) == set(state)
    assert all(torch.equal(made[name], state[name]) for name in state)


def test_a_model_of_which_files_are_missing_is_not_converted(convert: Convert, tmp_path: Path) -> None:
    sharded(tmp_path / "model", "safetensors")
    os.unlink(tmp_path / "model" / "model-00002-of-00002.safetensors")
    with pytest.raises(BadModel, match=r"missing: model-00002-of-00002\.safetensors; fetch them first"):
        convert(str(tmp_path / "model"), "joined.safetensors")


def test_a_shard_of_the_source_is_no_target(convert: Convert, tmp_path: Path) -> None:
    sharded(tmp_path / "model", "safetensors")
    shard = tmp_path / "model" / "model-00001-of-00002.safetensors"
    with pytest.raises(Misuse, match="this is the model itself"):
        convert(str(tmp_path / "model"), str(shard), overwrite=True)


def test_types_that_the_other_format_has_not_are_named(convert: Convert, tmp_path: Path) -> None:
    torch.save({"z": torch.zeros(2, dtype=torch.complex128)}, tmp_path / "z.pt")
    with pytest.raises(BadModel, match="safetensors has no type complex128, the type of 'z'"):
        convert("z.pt", "z.safetensors")
    head = json.dumps({"q": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}}).encode()
    (tmp_path / "q.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + b"\x12\x34")
    with pytest.raises(BadModel, match="torch has no type float4_e2m1fn, the type of 'q'"):
        convert("q.safetensors", "q.pt")
    fact = convert("q.safetensors", "copy.safetensors")
    assert fact.passed
    assert body(tmp_path / "copy.safetensors") == b"\x12\x34"


def test_what_has_no_values_is_not_made_up(convert: Convert, tmp_path: Path) -> None:
    torch.save({"m": torch.empty(3, device="meta")}, tmp_path / "m.pt")
    with pytest.raises(BadModel, match="'m' cannot be copied: it is on the meta device"):
        convert("m.pt", "m.safetensors")


def test_a_byte_that_went_wrong_on_the_way_is_found_and_nothing_is_kept(
    convert: Convert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from explorer.engine.convert.tensor_files import to_safetensors
    from explorer.engine.convert.tensor_files.bundle import StateDict

    def spoilt(path: str) -> StateDict:
        with open(path, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\xff")
        return of(path)

    of = to_safetensors.read_safetensors
    monkeypatch.setattr(to_safetensors, "read_safetensors", spoilt)
    torch.save({"a": torch.rand(3), "b": torch.zeros(5)}, tmp_path / "a.pt")
    fact = convert("a.pt", "a.safetensors")
    assert not fact.passed
    assert fact.output == ""
    assert fact.stored is not None
    assert fact.stored.differing == (("b", "its bytes differ"),)
    assert "'b': its bytes differ" in fact.stored.verdict
    assert not (tmp_path / "a.safetensors").exists()


@pytest.mark.parametrize("output", ["x.safetensors", "x.bin"])
def test_what_the_disk_cannot_take_is_refused_before_it_is_full(
    convert: Convert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    torch.save({"x": torch.rand(1000), "y": torch.rand(48)}, tmp_path / "x.pt")
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=4191))
    with pytest.raises(Misuse, match=r"would take 4\.09 KiB, and 4\.09 KiB are free there; nothing was"):
        convert("x.pt", output)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=4192))
    assert convert("x.pt", output).passed


def test_nothing_of_a_stopped_conversion_is_left(convert: Convert, tmp_path: Path) -> None:
    torch.save({str(n): torch.rand(2) for n in range(100)}, tmp_path / "a.pt")
    asked = 0

    def cancel() -> bool:
        nonlocal asked
        asked += 1
        return asked > 50

    with pytest.raises(Cancelled):
        convert("a.pt", "a.safetensors", cancel=cancel)


@pytest.mark.slow
def test_many_tensors_with_strange_names(convert: Convert, tmp_path: Path) -> None:
    """More than fit in one batch of the pickle, and names that JSON and pickles have to escape."""
    state = {f'layer.{n}."\\\u00e9\U0001f600\x1b[31m': torch.full((1,), float(n)) for n in range(1100)}
    safetensors_torch.save_file(state, tmp_path / "many.safetensors")
    convert("many.safetensors", "many.pt")
    made = loaded(tmp_path / "many.pt")
    assert {name: float(tensor) for name, tensor in made.items()} == {n: float(t) for n, t in state.items()}
    fact = convert("many.pt", "again.safetensors")
    assert fact.passed
    assert body(tmp_path / "again.safetensors") == body(tmp_path / "many.safetensors")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """256 MiB go through a process that may take 64 MiB more than it had when it began."""
    import subprocess
    import sys

    size = 256 << 20
    head = json.dumps({"w": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    with open(tmp_path / "large.safetensors", "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(8 + len(head) + size)
    code = """
import resource, sys
from explorer import Session
with open("/proc/self/statm") as file:
    mapped = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + (192 << 20),) * 2)
with Session("large.safetensors") as session:
    fact = session.convert("large.pt")
with Session("large.pt") as session:
    again = session.convert("again.safetensors")
assert fact.passed and again.passed
assert fact.stored.sha256 == again.stored.sha256
assert "torch" not in sys.modules
"""
    root = str(Path(__file__).parents[3])
    env = {**os.environ, "PYTHONPATH": root, "OPENBLAS_NUM_THREADS": "1"}
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
