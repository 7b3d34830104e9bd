"""Speed of mapping: a matmul, whole models, proved code, and a matmul beside ZigZag and SCALE-Sim.

The last two must give the same figure. They need an environment of their own: set MAPPERS_PYTHON to a Python
with `zigzag-dse six` and `scalesim numba "numpy<2.3"`. Without it, their rows are left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

from tests.engine.formats.transformers import folders

Line = tuple[str, str, str, float, float, str]
"""Work, ours, the other, what must not be exceeded, what was seen, its unit."""

CASES = (
    ("zigzag", "map_energy", "ZigZag: least energy", "pJ", (128, 128, 128)),
    ("scalesim", "systolic_cycles", "SCALE-Sim: cycles of 32 x 32 cells", "cycles", (256, 256, 256)),
)
"""Tool, measurement of ours, words, unit of the figure, and M, K and N."""


def other(tool: str, sizes: tuple[int, ...]) -> dict[str, float]:
    """One run of another tool in its environment."""
    script = Path(__file__).parent / "mappers.py"
    with tempfile.TemporaryDirectory() as folder:
        command = [os.environ["MAPPERS_PYTHON"], str(script), tool, folder, *map(str, sizes)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if done.returncode:
        raise RuntimeError(f"{tool}: {done.stderr.strip().splitlines()[-1:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _prepare(folder: Path) -> tuple[str, str, str]:
    """Paths of an int8 matmul of 512 x 768 x 3072, its mapping, and the folder of Llama 3 8B."""
    matmul, mapping, llama = folder / "int8.onnx", folder / "int8.toml", folder / "llama8b"
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]>'
        "g (int8[512,768] x) => (int32[512,3072] y) { y = MatMulInteger(x, w) }"
    )
    weights = np.random.default_rng(0).integers(-127, 128, (768, 3072)).astype(np.int8)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    onnx.save(model, matmul)
    _explorer("map", str(matmul), "--machine", "gemmini", "--force", "-o", str(mapping))
    if not llama.exists():
        folders.folder(llama, dict(folders.LLAMA_3_8B), folders.llama(32, 4096, 14336), shards=4)
    return str(matmul), str(mapping), str(llama)


def _explorer(*words: str) -> float:
    """Seconds of a command as a process."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "explorer", *words, "--no-cache"], capture_output=True, check=True)
    return time.perf_counter() - began


def own_cases(rounds: int, folder: Path) -> Iterator[Line]:
    """Rows of full processes on the machine `gemmini`, with a limit in seconds."""
    matmul, mapping, llama = _prepare(folder)
    emitted = str(folder / "int8_c")
    machine = "--machine", "gemmini"
    commands: dict[str, tuple[float, tuple[str, ...]]] = {
        "map of an int8 matmul, 512x768x3072": (1, ("map", matmul, *machine)),
        "the same: emit C, compile, run and prove": (
            2, ("emit", matmul, "--mapping", mapping, "--to", "c", "--force", "-o", emitted),
        ),
        "map of ResNet50": (10, ("map", "resnet50", *machine)),
        "map of Llama 3 8B, 32 layers": (10, ("map", llama, *machine, "--dim", "batch=1")),
    }  # fmt: skip
    for work, (limit, words) in commands.items():
        seconds = min(_explorer(*words) for _ in range(rounds))
        yield work, f"{seconds:,.2f} s", "", limit, seconds, "s"


def cases(measured: Callable[..., dict[str, float]], rounds: int, folder: Path) -> Iterator[Line]:
    """Rows with limits in seconds, then ratios of times. A figure that differs is a row that fails."""
    yield from own_cases(rounds, folder)
    if "MAPPERS_PYTHON" not in os.environ:
        return
    for tool, what, words, unit, sizes in CASES:
        theirs, ours = [], []
        for _ in range(rounds):
            theirs.append(other(tool, sizes))
            ours.append(measured(what, *sizes))
        a, b = (min(run["seconds"] for run in runs) for runs in (theirs, ours))
        figure, same = ours[0]["figure"], theirs[0]["figure"]
        size = "x".join(map(str, sizes))
        yield f"{words}, {size}: ours / theirs", f"{b * 1000:,.1f} ms", f"{a:,.2f} s", 0.1, b / a, "x"
        shown = f"{figure:,.2f}", f"{same:,.2f}"
        yield f"{words}, {size}: difference of the {unit}", *shown, 0, abs(figure - same), unit
