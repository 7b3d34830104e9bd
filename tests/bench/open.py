"""How soon a file is open, as whole processes: what somebody waits for who types a command.

Both sides pay for Python and for their imports. Seconds are those that the processor worked, not those on
the wall: a busy machine stretches the second and not the first, and none of these processes waits for
anything. Memory is the largest resident size that the process itself saw.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.bench.analysis import large_graph

__all__ = ["Line", "files", "headers", "layer_list", "nodes", "vgg16"]

ROOT = Path(__file__).parent.parent.parent
Line = tuple[str, str, str, float, float]

_PEAK = (
    "import sys; print([l for l in open('/proc/self/status') if 'VmHWM' in l][0].split()[1], file=sys.stderr)"
)
_START_S = 0.045


def process(code: str, rounds: int) -> tuple[float, float]:
    """Seconds of processor time and peak MiB of `python -c code`, the best of some."""
    seconds, megabytes = [], []
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env["PYTHONPATH"] = str(ROOT)
    for _ in range(rounds):
        started = subprocess.Popen(
            [sys.executable, "-c", f"{code}\n{_PEAK}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        assert started.stderr is not None
        said = started.stderr.read()
        _, status, usage = os.wait4(started.pid, 0)
        started.returncode = os.waitstatus_to_exitcode(status)
        if started.returncode:
            raise RuntimeError(said.strip().splitlines()[-1])
        seconds.append(usage.ru_utime + usage.ru_stime)
        megabytes.append(int(said.split()[-1]) / 1024)
    return min(seconds), min(megabytes)


def command(*words: object) -> str:
    """Code that does what the command line does with these words."""
    typed = [str(word) for word in words]
    return f"from explorer.cli.main import main\nassert not main({typed!r})"


def said(seconds: float, megabytes: float | None = None) -> str:
    text = f"{seconds * 1000:,.0f} ms"
    return text if megabytes is None else f"{text}, {megabytes:,.0f} MiB"


def beside(rounds: int, ours: str, *others: str) -> list[tuple[float, float]]:
    """Each measured in turn, so that a slow minute slows all of them; the best of each."""
    seen = [[process(code, 1) for code in (ours, *others)] for _ in range(rounds)]
    return [(min(run[i][0] for run in seen), min(run[i][1] for run in seen)) for i in range(1 + len(others))]


def vgg16(path: Path, rounds: int) -> Iterator[Line]:
    """The 553 MB file to a printed list of what is in it."""
    load = f"import onnx; onnx.load({str(path)!r})"
    ours, theirs, python = beside(rounds, command("outline", path), load, "pass")
    yield "VGG16, 553 MB: outline / onnx.load, time", said(*ours), said(*theirs), 1 / 25, ours[0] / theirs[0]
    yield "VGG16: outline / onnx.load, memory", said(*ours), said(*theirs), 1 / 50, ours[1] / theirs[1]
    yield "VGG16: outline / Python alone", said(*ours), said(*python), 31 / 10, ours[0] / python[0]


def nodes(folder: Path, rounds: int) -> Iterator[Line]:
    """20,000 nodes to a printed list."""
    path = folder / "large.onnx"
    if not path.exists():
        large_graph(path, 20_000)
    load = f"import onnx; onnx.load({str(path)!r}, load_external_data=False)"
    ours, theirs = beside(rounds, command("outline", path), load)
    yield "20,000 nodes: outline / onnx.load", said(*ours), said(*theirs), 0.8, ours[0] / theirs[0]


def layer_list(path: Path, folder: Path, rounds: int) -> Iterator[Line]:
    """Every layer with its shapes and MACs, beside onnx's own shape inference on a file without weights."""
    from explorer.engine.formats.onnx import reader, writer

    bare = folder / "skeleton.onnx"
    bare.write_bytes(writer.encode_skeleton(reader.read(str(path))))
    infer = (
        f"import onnx; m = onnx.load({str(bare)!r}, load_external_data=False)\n"
        "from onnx import shape_inference; shape_inference.infer_shapes(m)"
    )
    ours, theirs = beside(rounds, command("layers", path), infer)
    yield "VGG16: layers / import onnx, infer_shapes", said(*ours), said(*theirs), 1.3, ours[0] / theirs[0]


def files(folder: Path, rounds: int) -> Iterator[Line]:
    """Files of torch's and their like: at most 45 ms, or four times Python's own start."""
    for kind, path in torch_files(folder).items():
        ours, python = beside(rounds, command("outline", path), "pass")
        name = f"ResNet18, {kind}: outline / the larger of 45 ms, 4 x Python"
        yield name, said(*ours), said(*python), 1, ours[0] / max(_START_S, 4 * python[0])


def torch_files(folder: Path) -> dict[str, Path]:
    """ResNet18 in every kind of file that its own writer makes, made in a process of its own."""
    made = {
        "state_dict": folder / "r.pt",
        "TorchScript": folder / "script.pt",
        "torch.export": folder / "r.pt2",
        "safetensors": folder / "r.safetensors",
    }
    code = (
        "import sys, torch, torchvision\nfrom safetensors.torch import save_file\n"
        "m = torchvision.models.resnet18().eval(); x = torch.ones(1, 3, 224, 224)\n"
        "torch.save(m.state_dict(), sys.argv[1])\ntorch.jit.save(torch.jit.trace(m, x), sys.argv[2])\n"
        "torch.export.save(torch.export.export(m, (x,)), sys.argv[3])\nsave_file(m.state_dict(), sys.argv[4])"
    )
    if not all(path.exists() for path in made.values()):
        subprocess.run([sys.executable, "-W", "ignore", "-c", code, *map(str, made.values())], check=True)
    return made


def headers(folder: Path, rounds: int) -> Iterator[Line]:
    """Sizes that no memory holds: sparse files, whose weights are on paper only."""
    for name, path, what in (
        ("3 GiB in one ONNX file", large_onnx(folder), "outline"),
        ("100 GB in 20 shards", large_shards(folder), "outline"),
    ):
        ours, python = beside(rounds, command(what, path), "pass")
        more = ours[1] - python[1]
        yield f"{name}: {what}, of 50 ms", said(*ours), said(*python), 1, (ours[0] - python[0]) / 0.050
        yield f"{name}: {what}, above Python, of 20 MB", f"{more:,.1f} MiB", "", 1, more * 1.048576 / 20


def large_onnx(folder: Path) -> Path:
    """Three products with a weight of 1 GiB each."""
    from onnx import TensorProto, helper

    from explorer.engine.formats.onnx.protobuf_wire import (
        encode_length_delimited,
        encode_tagged_varint,
        encode_varint,
    )

    path, side = folder / "three_gib.onnx", 1 << 14
    made = [helper.make_node("MatMul", [f"v{i}", f"w{i}"], [f"v{i + 1}"]) for i in range(3)]
    ports = [helper.make_tensor_value_info(f"v{i}", TensorProto.FLOAT, [1, side]) for i in (0, 3)]
    model = helper.make_model(helper.make_graph(made, "g", ports[:1], ports[1:]), ir_version=8)
    rest = model.graph.SerializeToString()
    model.ClearField("graph")
    dims = encode_tagged_varint(1, side) * 2 + encode_tagged_varint(2, 1)
    heads = [
        dims + encode_length_delimited(8, f"w{i}".encode()) + b"\x4a" + encode_varint(4 * side**2)
        for i in range(3)
    ]
    fields = [b"\x2a" + encode_varint(len(head) + 4 * side**2) + head for head in heads]
    size = len(rest) + sum(len(field) + 4 * side**2 for field in fields)
    with path.open("wb") as file:
        file.write(model.SerializeToString() + b"\x3a" + encode_varint(size) + rest)
        for field in fields:
            file.write(field)
            file.seek(4 * side**2, os.SEEK_CUR)
        file.truncate(file.tell())
    return path


def large_shards(folder: Path) -> Path:
    """Twenty shards of 5 GB with their index, as a Hugging Face folder."""
    path = folder / "shards"
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    index: dict[str, str] = {}
    side = 11_180
    for shard in range(20):
        name = f"model-{shard + 1:05}-of-00020.safetensors"
        header, at = {}, 0
        for n in range(20):
            tensor = f"model.layers.{shard}.part.{n}.weight"
            header[tensor] = {"dtype": "BF16", "shape": [side, side], "data_offsets": [at, at + 2 * side**2]}
            at += 2 * side**2
            index[tensor] = name
        text = json.dumps(header).encode()
        with (path / name).open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(file.tell() + at)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return path
