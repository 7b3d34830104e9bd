"""Weights larger than memory are cut, written and opened a piece at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from explorer.engine.formats.onnx import reader, writer
from explorer.engine.graph.model import Tensor
from explorer.engine.tiling.emit import weights
from explorer.engine.tiling.sites import Weight

GIB = 1 << 30


def weight(folder: Path, rows: int, columns: int) -> tuple[Weight, np.ndarray]:
    """A (K, N) weight that lies in a file."""
    values = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
    tensor = onnx.numpy_helper.from_array(values, "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "xy")
    model = helper.make_model(helper.make_graph([node], "g", [x], [y], [tensor]))
    path = folder / "model.onnx"
    onnx.save(model, path)
    stored = reader.read(str(path)).graph.initializers["w"]
    return Weight(stored, "w", False, rows, columns, ()), values


@pytest.mark.parametrize(
    ("rows", "columns", "tile"), [(100, 300, 32), (64, 64, 64), (33, 500, 7), (257, 31, 16)]
)
def test_a_weight_read_in_bands_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, columns: int, tile: int
) -> None:
    held, values = weight(tmp_path, rows, columns)
    grid = -(-rows // tile), -(-columns // tile)

    def made() -> list[bytes]:
        cut: list[Tensor] = [
            weights.create_blocks("b", held, grid, tile, tile),
            weights.create_columns("c", held, columns // tile, rows, tile),
        ]
        return [bytes(t.payload.view()) for t in cut if t.payload is not None]

    whole = made()
    monkeypatch.setattr(weights, "_MAX_MAPPED_BYTES", 2_000)
    assert made() == whole
    padded = np.zeros((grid[0] * tile, grid[1] * tile), np.float32)
    padded[:rows, :columns] = values
    by_hand = padded.reshape(grid[0], tile, grid[1], tile).transpose(2, 0, 1, 3)
    assert whole[0] == by_hand.tobytes()


def sparse_model(folder: Path, layers: int, size: int) -> Path:
    """Square layers of `size` whose weights lie in a file with holes; the first row of each is not zero."""
    each = 4 * size * size
    nodes, held = [], []
    with (folder / "weights.bin").open("wb") as data:
        for at in range(layers):
            data.seek(at * each)
            data.write(np.full(size, at + 1, np.float32).tobytes())
            tensor = TensorProto(name=f"w{at}", data_type=1, dims=[size, size], data_location=1)
            places = {"location": "weights.bin", "offset": str(at * each), "length": str(each)}
            for key, value in places.items():
                entry = tensor.external_data.add()
                entry.key, entry.value = key, value
            held.append(tensor)
            nodes.append(
                helper.make_node("Gemm", [f"v{at}", f"w{at}"], [f"v{at + 1}"], name=f"fc{at}", transB=1)
            )
        data.truncate(layers * each)
    ends = [helper.make_tensor_value_info(f"v{at}", TensorProto.FLOAT, [64, size]) for at in (0, layers)]
    graph = helper.make_graph(nodes, "sparse", ends[:1], ends[1:], held)
    path = folder / "sparse.onnx"
    opset = [helper.make_opsetid("", 17)]
    path.write_bytes(helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString())
    return path


@pytest.mark.slow
def test_a_model_larger_than_its_memory_limit_is_tiled_and_saved(tmp_path: Path) -> None:
    path = sparse_model(tmp_path, 3, 8192)
    target = tmp_path / "tiled.onnx"
    words = ["tile", str(path), "-o", str(target), "--no-verify", "--memory", "400M"]
    done = subprocess.run([sys.executable, "-m", "explorer", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    model = reader.read(str(target))
    large = [t for t in model.graph.initializers.values() if t.nbytes > 1 << 20]
    assert sum(t.nbytes for t in large) == 3 * 4 * 8192**2
    # the first row of a weight is the first of every column of tiles
    for at, tensor in enumerate(sorted(large, key=lambda t: t.payload.offset)):  # type: ignore[union-attr]
        tiles = tensor.array().reshape(128, 8192, 64)
        assert (tiles[0, :, 0] == at + 1).all()
        assert not tiles[0, :, 1:].any()


@pytest.mark.slow
def test_stretches_of_zeros_take_no_room_on_the_disk(tmp_path: Path) -> None:
    path = sparse_model(tmp_path, 2, 4096)
    copy = tmp_path / "copy"
    copy.mkdir()
    writer.write(reader.read(str(path)), str(copy / "copy.onnx"))
    written = copy / "copy.onnx"
    assert written.stat().st_size > 2 * 4 * 4096**2
    if (tmp_path / "weights.bin").stat().st_blocks * 512 < 1 << 24:  # the file system knows holes
        assert written.stat().st_blocks * 512 < 1 << 26
    again = reader.read(str(written))
    assert (again.graph.initializers["w1"].array()[0] == 2).all()
    assert not again.graph.initializers["w1"].array()[1:].any()


def test_opening_touches_no_weight(tmp_path: Path) -> None:
    """A file of 3 GiB with its weights inside is opened by looking at the structure only."""
    path = sparse_model(tmp_path, 1, 64)
    inner = tmp_path / "inside.onnx"
    model = onnx.load(path)
    # a weight of 3 GiB behind the model's other fields, in a file with a hole
    payload, name = 3 * GIB, "huge"
    tensor = TensorProto(name=name, data_type=1, dims=[payload // 4]).SerializeToString()
    raw = b"\x4a" + _varint(payload)
    field = b"\x2a" + _varint(len(tensor) + len(raw) + payload) + tensor + raw
    graph = model.graph.SerializeToString()
    model.ClearField("graph")
    front = model.SerializeToString() + b"\x3a" + _varint(len(graph) + len(field) + payload) + graph + field
    with inner.open("wb") as file:
        file.write(front)
        file.truncate(len(front) + payload)
    code = (
        "import sys\n"
        "from explorer import Session\n"
        # not ru_maxrss, which begins at that of the process that started this one
        "def peak():\n"
        "    return int(next(x for x in open('/proc/self/status') if x.startswith('VmHWM')).split()[1])\n"
        "before = peak()\n"
        "session = Session(sys.argv[1])\n"
        "assert session.info().totals.params\n"
        "print(session.outline().file_bytes, peak() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(inner)], capture_output=True, text=True, check=True
    )
    size, grown = map(int, done.stdout.split())
    assert size == os.path.getsize(inner)
    assert 0 < grown < 60_000


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))
