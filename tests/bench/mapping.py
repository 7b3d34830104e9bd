"""Speed of mapping a matmul beside ZigZag and SCALE-Sim, at the same figure.

Both tools need an environment of their own: set MAPPERS_PYTHON to a Python with `zigzag-dse six` and
`scalesim numba "numpy<2.3"`. Without it, the rows are left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

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


def cases(measured: Callable[..., dict[str, float]], rounds: int) -> Iterator[Line]:
    """Rows with the ratio of the times. A figure that differs is a row that fails."""
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
