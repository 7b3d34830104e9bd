"""Speed of tiling experiments, side by side where something does the same, else against a limit.

Every case is a row of `CASES`: what it measures, with which limit. Both sides write files that are not there
yet: what it takes a file system to give the old one up has nothing to do with tiling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["CASES", "Bench", "Line", "Measure", "cases", "largest", "ms"]

Line = tuple[str, str, str, float, float, str]
"""Work, ours, the other, what must not be exceeded, what was seen, its unit."""
Measure = Callable[..., dict[str, float]]
"""`measured(what, *words)` of `tests.bench`: one measurement in a process of its own."""

SAMPLES = Path(__file__).parent.parent.parent / "sample_models"
GEMM = "*Gemm"
FORMS = ("auto", "lab", "unrolled", "batched")


class Bench:
    """What the cases share.

    Args:
        models: Path of a large model by name.
        encoder: Path of a BERT-like encoder.
        measured: Measures.
        rounds: Measurements of each kind; the best counts.
    """

    def __init__(
        self, models: Callable[[str], Path], encoder: Callable[[], Path], measured: Measure, rounds: int
    ) -> None:
        self.models = models
        self.encoder = encoder
        self.measured = measured
        self.rounds = rounds

    def best(self, *works: tuple[str | Path, ...]) -> list[dict[str, float]]:
        """The smallest figures of each work, done in turn, so that a slow minute slows all of them."""
        seen: list[list[dict[str, float]]] = [[] for _ in works]
        for _ in range(self.rounds):
            for runs, (what, *words) in zip(seen, works, strict=True):
                runs.append(self.measured(str(what), *words))
        return [{key: min(run[key] for run in runs) for key in runs[0]} for runs in seen]


Case = Callable[[Bench, Path], Iterator[Line]]


def ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms" if seconds < 10 else f"{seconds:,.1f} s"


def largest(path: Path) -> float:
    """MB of the largest weight of a file."""
    from explorer.engine.formats.onnx import reader

    return max(t.nbytes for t in reader.read(str(path)).graph.initializers.values()) / 1e6


def making(bench: Bench, folder: Path) -> Iterator[Line]:
    """AlexNet to 64x64x64 in every form: time against load + save, memory against a naive script."""
    source = bench.models("alexnet")
    parts = (("three Gemm", GEMM), ("whole", ""))
    works = [(f"{said}, {form}", form, sites) for said, sites in parts for form in FORMS]
    copied, naive, *ours = bench.best(
        ("load_save", source, folder / "copy.onnx"),
        ("naive_tile", source, folder / "naive.onnx"),
        *(("tile_save", source, folder / "tiled.onnx", form, "64", sites) for _, form, sites in works),
    )
    a, held = copied["seconds"], naive["megabytes"]
    for (said, _, _), seen in zip(works, ours, strict=True):
        b = seen["seconds"]
        yield f"AlexNet, {said}: tile + save / load + save", ms(b), ms(a), 0.25, b / a, "x"
    for (said, _, _), seen in zip(works, ours, strict=True):
        b = seen["megabytes"]
        yield f"AlexNet, {said}: peak / naive script", f"{b:,.0f} MB", f"{held:,.0f} MB", 0.2, b / held, "x"
    most, weight = max(seen["megabytes"] for seen in ours), largest(source)
    yield (
        "AlexNet: peak of all forms",
        f"{most:,.0f} MB",
        f"{weight:,.0f} MB weight",
        weight + 100,
        most,
        "MB",
    )


def peaks(bench: Bench, folder: Path) -> Iterator[Line]:
    """Memory of tiling other models."""
    for path in (bench.models("resnet18"), bench.encoder()):
        (seen,) = bench.best(("tile_save", path, folder / "tiled.onnx"))
        most, weight = seen["megabytes"], largest(path)
        held = f"{most:,.0f} MB"
        yield f"{path.stem}: peak of tiling", held, f"{weight:,.0f} MB weight", weight + 100, most, "MB"


def fine(bench: Bench, folder: Path) -> Iterator[Line]:
    """AlexNet's three Gemm to 16x16x16, 229,000 products, against 64x64x64."""
    source, target = bench.models("alexnet"), folder / "tiled.onnx"
    coarse, small = bench.best(*(("tile_save", source, target, "auto", size, GEMM) for size in ("64", "16")))
    a, b = coarse["seconds"], small["seconds"]
    yield "AlexNet, three Gemm: 16x16x16 / 64x64x64", ms(b), ms(a), 2, b / a, "x"


def proof(bench: Bench, folder: Path) -> Iterator[Line]:
    """AlexNet's proof: layers 1 and 2 (with tiling and saving before them) and the session of layer 3."""
    source, target = bench.models("alexnet"), folder / "tiled.onnx"
    for said, sites in (("three Gemm", GEMM), ("whole", "")):
        copied, proved, old, new = bench.best(
            ("load_save", source, folder / "copy.onnx"),
            ("tile_prove", source, target, "auto", "64", sites),
            ("session_creation", source),
            ("session_creation", target),
        )
        a, b = copied["seconds"], proved["sites"]
        yield f"AlexNet, {said}: tile + proof 1, 2 / load + save", ms(b), ms(a), 2.5, b / a, "x"
        a, b = old["seconds"], new["seconds"]
        yield f"AlexNet, {said}: session, default form / original", ms(b), ms(a), 1, b / a, "x"


def whole(bench: Bench, folder: Path) -> Iterator[Line]:
    """Tile and prove against one session creation of the original."""
    large = [(bench.models(name), 6.0) for name in ("resnet50", "vit_b_16")]
    small = [(path, 10.0) for path in (bench.models("resnet18"), bench.encoder(), SAMPLES / "bert_tiny.onnx")]
    for path, must in (*large, *small):
        session, proved = bench.best(("session_creation", path), ("tile_prove", path, folder / "proved.onnx"))
        a, b = session["seconds"], proved["seconds"]
        yield f"{path.stem}: tile + prove / session", ms(b), ms(a), must, b / a, "x"
        held = proved["megabytes"]
        yield f"{path.stem}: tile + prove, peak", f"{held:,.0f} MB", "", 1200, held, "MB"


def sweep(bench: Bench, folder: Path) -> Iterator[Line]:
    """64 tilings: opening the model, finding its products, plan and cost of each; with and without a file."""
    for name in ("alexnet", "resnet50"):
        for what, said in (("sweep", ""), ("sweep_kept", ", kept in a file")):
            (seen,) = bench.best((what, bench.models(name)))
            b = seen["seconds"]
            yield f"{name}: sweep of 64 plans{said}", ms(b), "", 1000, b * 1000, "ms"


CASES: dict[str, Case] = {
    "making": making,
    "peaks": peaks,
    "fine": fine,
    "proof": proof,
    "whole": whole,
    "sweep": sweep,
}


def cases(
    models: Callable[[str], Path], encoder: Callable[[], Path], measured: Measure, rounds: int, folder: Path
) -> Iterator[Line]:
    """Every case in turn; `folder` is where what they write goes."""
    bench = Bench(models, encoder, measured, rounds)
    for case in CASES.values():
        yield from case(bench, folder)
