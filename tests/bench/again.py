"""The second opening of a model on the screen, beside the first, and beside what `import torch` alone takes.

The whole program in a terminal of its own; the clock stops when the title says how much of the model is
known, which it does with the whole tree. Every round begins with a cache that is empty.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.bench.scale import chain
from tests.terminal import explorer

__all__ = ["cases"]

Line = tuple[str, str, str, float, float]


def cases(models: Callable[[str], Path], folder: Path, rounds: int) -> Iterator[Line]:
    """A name of torchvision's, its ONNX file, and a file of 200,000 nodes."""
    large = folder / "chain_200000.onnx"
    if not large.exists():
        chain(large, 200_000)
    for name, model, of_torch, of_first in (
        ("resnet50", "resnet50", 0.25, 0.3),
        ("resnet50.onnx", str(models("resnet50")), 0.25, 1.1),
        ("200,000 nodes", str(large), 0.5, 0.3),
    ):
        first, second, torch = [], [], []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as caches:
                first.append(_tree(model, caches))
                second.append(_tree(model, caches))
            torch.append(_import_torch())
        ours = min(second)
        yield (
            f"{name}: second opening, full tree / import torch",
            _ms(ours),
            _ms(min(torch)),
            of_torch,
            ours / min(torch),
        )
        yield f"{name}: second opening / first", _ms(ours), _ms(min(first)), of_first, ours / min(first)


def _tree(model: str, caches: str) -> float:
    """Seconds from the start of the process until all is on show."""
    with explorer(model, env={"EXPLORER_NO_CACHE": "", "XDG_CACHE_HOME": caches}) as terminal:
        while "coverage" not in terminal.written():
            terminal.pump(0.005)
            assert time.perf_counter() - terminal.started < 120, terminal.text()
        seconds = time.perf_counter() - terminal.started
        terminal.settle(1.0)  # the rest is kept behind what is shown
        return seconds


def _import_torch() -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - started


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms" if seconds < 10 else f"{seconds:,.1f} s"
