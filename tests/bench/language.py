"""A language model of 70 billion parameters as a folder: 140 GB of shards, of which only headers are there.

Times are those of processors (user and system), medians of runs in turn: what else runs on the machine, and
how many processors it has, changes them little. Bytecode is there before the clock starts, as where the
program is installed.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.engine.formats.transformers import folders

__all__ = ["cases"]

ROOT = Path(__file__).parent.parent.parent
Line = tuple[str, str, str, float, float, str]

_SWEEP = """
import sys, time
from explorer import Machine, ServingSpec, Session
from explorer.facts.serving.sweep import ServingSweepSpec
from explorer.engine.serving.sweep import sweep_servings
from explorer.features.sizes.serving_sweep import _build_subject

chip = Machine(name="", peak_macs=494.5e12, bandwidth=3.35e12)
base = ServingSpec(card=80 * 2**30, links=450e9)
with Session(sys.argv[1]) as session:
    began = time.process_time()
    session.serving(base, machine=chip)
    first = time.process_time() - began
    contexts = tuple(range(1000, 1000 + 25 * 97, 97))
    spec = ServingSweepSpec(
        ServingSpec(card=base.card, links=base.links, contexts=contexts, batches=(1, 8), devices=(1, 2, 4, 8))
    )
    began = time.process_time()
    found = sweep_servings([_build_subject(session, None)], spec, chip)
    assert len(spec.list_questions()) == 200 and len(found.rows) >= 200
    print(first, time.process_time() - began)
"""


def model(folder: Path) -> Path:
    """The folder of Llama 3 70B."""
    path = folder / "llama70b"
    if not path.exists():
        config = {
            **folders.LLAMA_3_8B,
            "hidden_size": 8192,
            "intermediate_size": 28672,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
        }
        folders.folder(path, config, folders.llama(80, 8192, 28672), shards=30)
    return path


def cases(folder: Path, rounds: int) -> Iterator[Line]:
    """Outline, tree, plan and serving, beside what importing torch and transformers takes."""
    path = str(model(folder))
    own = [sys.executable, "-m", "explorer"]
    commands = {
        "imports": [sys.executable, "-c", "import torch, transformers"],
        "outline": [*own, "outline", path],
        "tree": [*own, "layers", path],
        "plan": [*own, "plan", path, "--tile", "128"],
    }
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for turn in range(2 * rounds + 2):
        for name, command in commands.items():
            used = _used(command)
            if turn:
                seen[name].append(used)
    taken = {name: statistics.median(one for one, _ in used) for name, used in seen.items()}
    imports = _said(taken["imports"])
    yield (
        "70B folder: outline, processor time",
        _said(taken["outline"]),
        "",
        100,
        taken["outline"] * 1e3,
        "ms",
    )
    ratio = taken["tree"] / taken["imports"]
    yield "70B folder: full tree / import torch, transformers", _said(taken["tree"]), imports, 1.6, ratio, "x"
    most = max(held for _, held in seen["tree"])
    yield "70B folder: full tree, memory", f"{most:,.0f} MB", "", 1500, most, "MB"
    yield (
        "70B folder: tilings planned, processor time",
        _said(taken["plan"]),
        "",
        5000,
        taken["plan"] * 1e3,
        "ms",
    )
    swept = []
    for _ in range(rounds):
        done = subprocess.run(
            [sys.executable, "-c", _SWEEP, path], check=True, capture_output=True, text=True, cwd=ROOT
        )
        swept.append(tuple(map(float, done.stdout.split())))
    first, sweep = (statistics.median(each) for each in zip(*swept, strict=True))
    name = "70B folder: 200 questions at new contexts, one asked before"
    yield name, _said(sweep), f"{_said(first)} the first", 2000, sweep * 1e3, "ms"


def _used(command: Sequence[str]) -> tuple[float, float]:
    """Seconds of processors that a command takes, and the most megabytes that it holds."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT, env=environment
    ) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} ends with {process.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6


def _said(seconds: float) -> str:
    return f"{seconds:,.2f} s"
