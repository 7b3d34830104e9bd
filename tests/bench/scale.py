"""Graphs of 100,000 nodes and trees of a million tensors on the screen: how long a key waits, and the memory.

The whole program in a terminal of its own, with its own engine: a key is written, and the clock stops when
the first byte of the answer comes. Keys are pressed from the moment when rows are there, while the header is
read and the graph analyzed, and again when all is there.
"""

from __future__ import annotations

import json
import re
import select
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from tests.bench import open as opening
from tests.bench.analysis import large_graph
from tests.terminal import Terminal, explorer

__all__ = ["Keys", "cases", "chain", "large_file_of_tensors", "printed", "watch"]

_PAUSE = 0.06
"""Seconds between two keys; who holds a key down presses thirty times a second, and answers must keep up."""
_TENSORS = ("a.q", "a.k", "a.v", "a.o", "mlp.gate", "mlp.up", "mlp.down", "norm1", "norm2", "rope")
_MOVES = (
    "g",
    "down",
    "right",
    "down",
    "page down",
    "page down",
    "page down",
    "up",
    "end",
    "up",
    "g",
    "down",
    "left",
)
"""From the top into the run of blocks below it, through it to its end, and back; each changes the screen."""
Line = tuple[str, str, str, float, float, str]


def large_file_of_tensors(path: Path, tensors: int) -> None:
    """Experts of a thousand layers of ten tensors each, whose values are a hole in the file."""
    header: dict[str, object] = {}
    at = 0
    for layer in range(tensors // len(_TENSORS)):
        for name in _TENSORS:
            key = f"exp.{layer // 1000}.layers.{layer % 1000}.{name}.weight"
            header[key] = {"dtype": "F16", "shape": [2, 4], "data_offsets": [at, at + 16]}
            at += 16
    text = json.dumps(header, separators=(",", ":")).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        file.truncate(8 + len(text) + at)


def chain(path: Path, nodes: int) -> None:
    """A Relu and a Sigmoid in turn, named as an exporter names them that knows no modules."""
    from onnx import TensorProto, helper, save

    made = [
        helper.make_node("Sigmoid" if at % 2 else "Relu", [f"v{at}"], [f"v{at + 1}"], name=f"node_{at}")
        for at in range(nodes)
    ]
    ports = [helper.make_tensor_value_info(f"v{at}", TensorProto.FLOAT, [1, 8, 16, 16]) for at in (0, nodes)]
    graph = helper.make_graph(made, "chain", ports[:1], ports[1:])
    opset = [helper.make_opsetid("", 18)]
    save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)


def printed(folder: Path) -> Iterator[Line]:
    """Every row of a very large file as text: seconds of the processor's, and the peak."""
    tensors = folder / "tensors_1m.safetensors"
    if not tensors.exists():
        large_file_of_tensors(tensors, 1_000_000)
    yield from _told("info of 1,000,000 tensors", opening.command("info", tensors), 4)
    for nodes, most in ((20_000, 0.8), (200_000, 5)):
        path = folder / f"chain_{nodes}.onnx"
        if not path.exists():
            chain(path, nodes)
        yield from _told(f"layers of {nodes:,} nodes", opening.command("layers", path), most)


def _told(name: str, code: str, most: float) -> Iterator[Line]:
    seconds, megabytes = opening.process(code, 1)
    yield f"{name}: whole process", f"{seconds:.1f} s", "", most, seconds, "s"
    megabytes *= 1.048576
    yield f"{name}: memory", f"{megabytes:,.0f} MB", "", 300, megabytes, "MB"


class Keys:
    """Presses keys and times their answers."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self.seconds: list[float] = []
        self.unanswered: list[str] = []

    def press(self, key: str) -> None:
        terminal = self.terminal
        while terminal.pump(0):  # what is still on its way answers no key
            pass
        started = time.perf_counter()
        terminal.press(key)
        answered = bool(select.select([terminal.master], [], [], 2.0)[0])
        if answered:
            self.seconds.append(time.perf_counter() - started)
        else:
            self.unanswered.append(key)
        until = started + _PAUSE
        while (left := until - time.perf_counter()) > 0:
            terminal.pump(left)

    def worst(self, share: float = 0.99) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def watch(model: Path, done: str, *, most: float = 600.0) -> dict[str, float]:
    """Opens a model and presses keys until `done` stands on the screen, and then some more."""
    with explorer(model) as terminal:
        terminal.wait_for("▸ ", most)
        seen = {"first rows": time.perf_counter() - terminal.started}
        loading = Keys(terminal)
        end = time.monotonic() + most
        peak = [0, 0]
        while done not in terminal.text():
            assert time.monotonic() < end, terminal.text()
            for key in ("down", "up"):
                loading.press(key)
            peak = [max(a, b) for a, b in zip(peak, _held(terminal), strict=True)]
        seen["all rows"] = time.perf_counter() - terminal.started
        after = Keys(terminal)
        for _ in range(8):
            for key in _MOVES:
                after.press(key)
        peak = [max(a, b) for a, b in zip(peak, _held(terminal), strict=True)]
        found = Keys(terminal)
        for key in ("/", *"7.mlp", "left", "right", "left", "right", "left", "right"):
            found.press(key)
        terminal.wait_for("7.mlp", 10)
        for _ in range(20):
            found.press("left")
            found.press("right")
        started = time.perf_counter()
        terminal.press("escape")
        terminal.wait_for(lambda: re.search(r"/ +7\.mlp", terminal.text()) is None, 10)
        seen["stop a filter"] = time.perf_counter() - started
        for name, keys in (("loading", loading), ("after", after), ("filtering", found)):
            seen[f"{name}, 99 %"], seen[f"{name}, most"] = keys.worst(), keys.worst(1.0)
            seen[f"{name}, keys"] = len(keys.seconds)
            if keys.unanswered:
                print(f"{name}: no answer to {keys.unanswered}", file=sys.stderr)
        seen["screen"], seen["engine"] = peak
    return seen


def _held(terminal: Terminal) -> list[int]:
    """Bytes that the screen's process holds, and those of all others."""
    own = psutil.Process(terminal.process.pid).memory_info().rss
    others = 0
    for child in terminal.children():
        try:
            others += child.memory_info().rss
        except psutil.NoSuchProcess:
            pass
    return [own, others]


def cases(folder: Path) -> Iterator[Line]:
    yield from printed(folder)
    graph, tensors = folder / "graph_100k.onnx", folder / "tensors_1m.safetensors"
    if not graph.exists():
        large_graph(graph, 100_000)
    if not tensors.exists():
        large_file_of_tensors(tensors, 1_000_000)
    for name, path, done in (("100,000 nodes", graph, "peak"), ("1,000,000 tensors", tensors, "known")):
        seen = watch(path, done)
        print(name, json.dumps({key: round(value, 4) for key, value in seen.items()}), file=sys.stderr)
        yield from _lines(name, seen)


def _lines(name: str, seen: dict[str, float]) -> Sequence[Line]:
    out: list[Line] = []
    first = seen["first rows"]
    out.append((f"{name}: first rows on the screen", f"{first:.2f} s", "", 1.5, first, "s"))
    for phase in ("loading", "after", "filtering"):
        worst = seen[f"{phase}, 99 %"] * 1000
        count = f"of {seen[f'{phase}, keys']:,.0f} keys"
        out.append((f"{name}: a key, {phase}, 99 %", f"{worst:.0f} ms", count, 16, worst, "ms"))
    out.append((f"{name}: all rows", f"{seen['all rows']:.1f} s", "", 120, seen["all rows"], "s"))
    screen, engine = seen["screen"] / 1e6, seen["engine"] / 1e6
    out.append(
        (f"{name}: memory of the screen", f"{screen:,.0f} MB", f"engine {engine:,.0f}", 150, screen, "MB")
    )
    return out
