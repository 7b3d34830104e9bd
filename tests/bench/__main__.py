"""Run the benchmarks and print what they must be, what was seen, and whether that is enough."""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench import again as openings
from tests.bench import analysis as analyses
from tests.bench import language as languages
from tests.bench import mapping as mappings
from tests.bench import open as opening
from tests.bench import quantize as quantizations
from tests.bench import quantize_speed as quantized_runs
from tests.bench import scale as scales
from tests.bench import screen
from tests.bench import tile as tilings

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the answer: `seen` must not exceed `must`."""

    name: str
    ours: str
    other: str
    must: float
    seen: float
    unit: str = "x"


def measured(what: str, *words: str | Path) -> dict[str, float]:
    """One measurement in a fresh process."""
    command = [sys.executable, "-m", "tests.bench.measure", what, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"{what}: {done.stderr.strip().splitlines()[-1:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def alternately(rounds: int, *work: Callable[[], dict[str, float]]) -> list[list[dict[str, float]]]:
    """Every measurement in turn, `rounds` times, so that a slow minute slows all of them."""
    seen: list[list[dict[str, float]]] = [[] for _ in work]
    for _ in range(rounds):
        for collected, one in zip(seen, work, strict=True):
            collected.append(one())
    return seen


def best(runs: list[dict[str, float]], key: str = "seconds") -> float:
    return min(run[key] for run in runs)


def ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms" if seconds < 10 else f"{seconds:,.1f} s"


class Models:
    """The large models, exported when a benchmark first asks for them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, name: str) -> Path:
        path = self.folder / f"{name}.onnx"
        if not path.exists():
            code = "import sys; from explorer import Session; Session(sys.argv[1]).save(sys.argv[2])"
            subprocess.run([sys.executable, "-c", code, name, str(path)], check=True, cwd=ROOT)
        return path


def paint(models: Models, rounds: int) -> Iterator[Row]:
    cases = ("sample_models/lenet.onnx", str(models("vgg16")), "alexnet")
    runs: dict[str, list[float]] = {case: [] for case in ("bare", *cases)}
    for _ in range(2 * rounds + 1):
        runs["bare"].append(screen.bare_paint())
        for case in cases:
            runs[case].append(screen.first_paint(case))
    bare = statistics.median(runs["bare"])
    for case in cases:
        ours = statistics.median(runs[case])
        yield Row(f"first paint, {Path(case).name}", ms(ours), f"{ms(bare)} bare app", 1.3, ours / bare)


def line(models: Models, rounds: int) -> Iterator[Row]:
    seen = screen.line_bytes("sample_models/mobilenet_small.onnx", "features")
    for name, what, must in (
        ("first", "first paint with the tree", 30_720),
        ("key", "a cursor key", 2048),
        ("page", "a page of all columns", 8192),
        ("idle", "3 s idle", 0),
    ):
        yield Row(f"{what}, 120x40, SSH", f"{seen[name]:,} B", "", must, seen[name], "B")


def stall(models: Models, rounds: int) -> Iterator[Row]:
    for case in (str(models("alexnet")), "alexnet"):
        seen = screen.stall(case)
        for phase, longest in seen.items():
            yield Row(f"longest stall, {phase} {Path(case).name}", ms(longest), "", 50, longest * 1000, "ms")


def layers(models: Models, rounds: int) -> Iterator[Row]:
    source = models("vgg16")
    theirs, ours = alternately(
        rounds, lambda: measured("onnx_load", source), lambda: measured("layer_list", source)
    )
    a, b = best(theirs), best(ours)
    size = source.stat().st_size / 1e6
    yield Row(f"VGG16, {size:,.0f} MB: layer list / onnx.load", ms(b), ms(a), 0.04, b / a)
    held, other = best(ours, "megabytes"), best(theirs, "megabytes")
    yield Row("VGG16: layer list, peak above start", f"{held:,.0f} MB", f"{other:,.0f} MB", 21, held, "MB")


def module(models: Models, rounds: int) -> Iterator[Row]:
    for name in ("resnet50", "vit_b_16"):
        theirs, ours = alternately(
            rounds,
            lambda name=name: measured("flop_counter", name),  # type: ignore[misc]
            lambda name=name: measured("module_analysis", name),  # type: ignore[misc]
        )
        a, b = best(theirs), best(ours)
        yield Row(f"{name}: analysis / torch's flop counter", ms(b), ms(a), 1, b / a)


def analysis(models: Models, rounds: int) -> Iterator[Row]:
    for lines in (
        analyses.torch_models(rounds),
        analyses.process(models.folder, rounds),
        analyses.onnx_files(models, models.folder, rounds),
        analyses.onnx_large(models.folder, rounds),
    ):
        yield from (Row(*line) for line in lines)


def open_(models: Models, rounds: int) -> Iterator[Row]:
    for lines in (
        opening.vgg16(models("vgg16"), rounds),
        opening.nodes(models.folder, rounds),
        opening.layer_list(models("vgg16"), models.folder, rounds),
        opening.files(models.folder, rounds),
        opening.headers(models.folder, rounds),
    ):
        yield from (Row(*line) for line in lines)
    small, large = (
        statistics.median(screen.first_paint(case) for _ in range(2 * rounds + 1))
        for case in ("sample_models/lenet.onnx", str(models("vgg16")))
    )
    yield Row("first paint, 553 MB / 243 kB", ms(large), ms(small), 1.15, large / small)


def again(models: Models, rounds: int) -> Iterator[Row]:
    yield from (Row(*line) for line in openings.cases(models, models.folder, rounds))


def scale(models: Models, rounds: int) -> Iterator[Row]:
    yield from (Row(*line) for line in scales.cases(models.folder))


def tile(models: Models, rounds: int) -> Iterator[Row]:
    encoder = functools.partial(analyses.encoder, models.folder)
    yield from (Row(*line) for line in tilings.cases(models, encoder, measured, rounds, models.folder))


def quantize(models: Models, rounds: int) -> Iterator[Row]:
    yield from (Row(*line) for line in quantizations.cases(models, measured, rounds, models.folder))


def quantize_speed(models: Models, rounds: int) -> Iterator[Row]:
    yield from (Row(*line) for line in quantized_runs.cases(models.folder))


def language(models: Models, rounds: int) -> Iterator[Row]:
    yield from (Row(*line) for line in languages.cases(models.folder, rounds))


def mapping(models: Models, rounds: int) -> Iterator[Row]:
    yield from (Row(*line) for line in mappings.cases(measured, rounds, models.folder))


GROUPS: dict[str, Callable[[Models, int], Iterator[Row]]] = {
    "open": open_,
    "paint": paint,
    "line": line,
    "stall": stall,
    "tile": tile,
    "mapping": mapping,
    "quantize": quantize,
    "quantize_speed": quantize_speed,
    "layers": layers,
    "module": module,
    "analysis": analysis,
    "scale": scale,
    "again": again,
    "language": language,
}


def main() -> int:
    # what is measured is the work, and not whether somebody did it before
    os.environ["EXPLORER_NO_CACHE"] = "1"
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("groups", nargs="*", default=list(GROUPS), help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each kind (default 3)")
    parser.add_argument("--folder", type=Path, help="where large models are kept from run to run")
    given = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table("work", "ours", "other", "must", "seen", "ok")
    for column in table.columns[1:]:
        column.justify = "right"
    bad = 0
    with tempfile.TemporaryDirectory() as own:
        folder = given.folder or Path(own)
        folder.mkdir(parents=True, exist_ok=True)
        for group in given.groups:
            print(f"{group} ...", file=sys.stderr, flush=True)
            try:
                rows = list(GROUPS[group](Models(folder), given.rounds))
            except (RuntimeError, AssertionError, subprocess.CalledProcessError) as error:
                rows = [Row(f"{group}: {str(error).splitlines()[0]}", "failed", "", 0, math.inf)]
            for row in rows:
                ok = row.seen <= row.must
                bad += not ok
                digits = 2 if row.unit == "x" else 0
                limits = [f"{number:,.{digits}f} {row.unit}" for number in (row.must, row.seen)]
                table.add_row(row.name, row.ours, row.other, *limits, "yes" if ok else "NO")
    console.print(table)
    load = os.getloadavg()[0]
    print(
        f"{os.cpu_count()} cores, load {load:.1f} at the end; best of {given.rounds}, first paint the median"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
