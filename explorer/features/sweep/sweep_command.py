"""`explorer sweep`: many tilings of one model or several, or trainings of one, side by side."""

from __future__ import annotations

import os

import explorer
from explorer.base.errors import Misuse
from explorer.base.exit_codes import BAD_INPUT, DIFFERENT, IF_PROVED
from explorer.base.features import load
from explorer.base.options import option_of
from explorer.base.verdicts import weakest
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import declared_options, typed_values
from explorer.cli.arguments.options import HARDWARE, KEPT_IN, OPENING, SCHEDULER, TABLE, Option
from explorer.cli.arguments.quantize import FORMAT_SWEEP
from explorer.cli.arguments.records import hardware, tile_spec, tiles
from explorer.cli.arguments.training import TRAINING_SWEEP, samples
from explorer.cli.output.answer import Answer, document, plain, plots, present, tool
from explorer.cli.output.progress import ProgressLine
from explorer.host import output_files
from explorer.process import supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from explorer.base.errors import ModelRow
    from explorer.facts.evaluate.training_sweep import TrainingSweep
    from explorer.facts.quantize import FormatRow, FormatSweep
    from explorer.facts.sweep import SweepSpec
    from explorer.report.blocks import Scatter


def _layout_beside(path: str) -> str:
    """Where the layout for a topology of SCALE-Sim goes: 'gemm.csv' -> 'gemm_layout.csv'."""
    stem, ending = os.path.splitext(path)
    return f"{stem}_layout{ending}"


def _sweeps() -> Any:
    """What reads files of results; with it comes the engine, and the help of all verbs reads this file."""
    from explorer.features.sweep import sweep  # the help reads this file

    return sweep


def _run(given: ParsedArgs, progress: ProgressLine) -> Answer:
    sweep = _sweeps()
    shown = len(given.models) == 1 and sweep.is_results(given.models[0])
    held = sweep.kinds(given.models[0]) if shown else ()
    if held == ("servings",):
        return _servings(given)
    trainings = held == ("trainings",) or ("trainings" in held and given.train is not None)
    if (trained := _trainings(given, progress, trainings)) is not None:
        return trained
    if (formats := _formats(given, progress, shown, held)) is not None:
        return formats
    if shown:
        idle = sorted(given.explicit - _OF_RESULTS)
        given.refuse(idle, "says nothing of results that are only shown", "name the model")
        fact, bad = sweep.results(given.models[0]), {}
    else:
        if given.scalesim is not None:
            for target in (given.scalesim, _layout_beside(given.scalesim)):
                output_files.check_target(target, overwrite=given.force, models=given.models, weights=())
        say_what_is_kept(given)
        fact = explorer.sweep_files(
            *given.models,
            on_progress=progress,
            spec=_combined(given),
            hardware=hardware(given),
            order=given.order,
            verify=given.verify,
            draws=given.draws or 1,
            first_seed=given.seed,
            output=given.output,
            scheduler=given.scheduler,
            workers=given.workers,
            layers=given.scalesim is not None,
            **given.opening,
        )
        bad = fact.failed
    if given.sort is not None:
        fact = sweep.sorted_by(fact, given.sort)
    figures = None if given.beside is None else sweep.beside(fact, given.beside)
    if given.scalesim is not None:
        text = present("sweep_words", __package__)
        written = {
            given.scalesim: text.scalesim(fact.layers),
            _layout_beside(given.scalesim): text.scalesim_layout(fact.layers),
        }
        for target, lines in written.items():
            _write(lines, target, given)
    proofs = [row.verdict_kind for row in fact.rows if row.verdict_kind is not None]
    return Answer(
        lambda: document().sweep(fact, tool(), figures),
        lambda: present("sweep_words", __package__).sweep(fact, figures),
        "rows" if figures is None else "compared",
        warning=without_figures(fact.rows, bad),
        outcome="some failed" if bad else weakest(proofs),
    )


def _servings(given: ParsedArgs) -> Answer:
    """The answer where a file of results holds layouts of serving and nothing else."""
    idle = sorted(given.explicit - {"json", "csv", "quiet", "memory"})
    given.refuse(idle, "says nothing of results that are only shown", "leave it out")
    fact = _sweeps().serving_results(given.models[0])
    return Answer(
        lambda: plain(fact),
        lambda: load("words", "serving_sweep")(fact),
        "rows",
    )


def _formats(given: ParsedArgs, progress: ProgressLine, shown: bool, held: Sequence[str]) -> Answer | None:
    """The answer where number formats are tried, or a file of results holds nothing else; else None."""
    if given.quantize is None and (not shown or "formats" not in held or "tilings" in held):
        idle = sorted(option.key for option in FORMAT_SWEEP)
        given.refuse(idle, "says nothing of tilings", "name formats: --quantize int8,fixed8.4")
        return None
    unused = given.explicit - _OF_FORMAT_RESULTS if shown else _OF_TILINGS
    given.refuse(sorted(unused), "says nothing of number formats", "leave it out")
    take = _taken(given)
    if given.plot is not None:
        draws = plots()
        (draws.check_library if _is_page(given.plot) else draws.check)(given.plot)
        output_files.check_target(given.plot, overwrite=given.force, models=given.models, weights=())
    fact = (
        _sweeps().format_results(given.models[0], given.quantize or ())
        if shown
        else _swept_formats(given, progress)
    )
    # what cannot be written is refused before anything is
    row = None if take is None else _row(fact, take[0])
    front = [] if given.plot is None else _front(fact, given)
    written = None if row is None or take is None else take[1]
    if row is not None and written is not None:
        _write(row.config or "[quantize]\n", written, given)
    if given.plot is not None:
        _draw(fact, front, given)
    bad = fact.failed
    return Answer(
        lambda: document().format_sweep(fact, tool()),
        lambda: present("format_sweep_words", __package__).format_sweep(
            fact, written, given.cost, given.plot
        ),
        "choices",
        warning=without_figures(fact.rows, bad),
        outcome="some failed" if bad else "done" if all(one.met for one in fact.mixed) else "limits missed",
    )


def _taken(given: ParsedArgs) -> tuple[str, str] | None:
    """Which row is written where."""
    if given.take is None:
        return None
    row, _, path = given.take.partition(":")
    if not path or not (row == "found" or row.isdigit()):
        raise Misuse(f"'{given.take}' is no row and file", where="--take", hint="write 7:formats.toml")
    output_files.check_target(path, overwrite=given.force, models=given.models, weights=())
    return row, path


def _row(fact: FormatSweep, number: str) -> FormatRow:
    """The row of a number, or the one that was found."""
    keys = [one.row for one in fact.mixed if one.row]
    found = [row for row in fact.rows if row.key in keys[:1]] if number == "found" else []
    if number != "found" and 0 < int(number) <= len(fact.rows):
        found = [fact.rows[int(number) - 1]]
    if not found or found[0].error:
        hint = f"there are {len(fact.rows):,}; found is that of --bits and --snr"
        raise Misuse(f"there is no row {number} with figures", where="--take", hint=hint)
    return found[0]


def _write(text: str, path: str, given: ParsedArgs) -> None:
    with output_files.atomic_write(path, overwrite=given.force) as temporary:
        with output_files.text(temporary) as file:
            file.write(text)


_PAGES = (".html", ".md")


def _is_page(path: str) -> bool:
    return os.path.splitext(path)[1].lower() in _PAGES


def _front(fact: FormatSweep, given: ParsedArgs) -> list[Scatter]:
    """What the choices lose over what they cost, a plot of each model."""
    found: list[Scatter] = present("format_sweep_words", __package__).front_plots(fact.rows, given.cost)
    if not _is_page(given.plot) and len(found) != 1:
        what = f"there are {len(found):,} plots: of each model with three choices or more that have figures"
        raise Misuse(what, where="--plot", hint="a page takes any number: --plot front.html")
    return found


def _draw(fact: FormatSweep, front: Sequence[Scatter], given: ParsedArgs) -> None:
    """Draws the front; a page has the whole answer."""
    text = present("format_sweep_words", __package__)
    with output_files.atomic_write(given.plot, overwrite=given.force) as temporary:
        if _is_page(given.plot):
            from explorer.report.html.page import write_blocks  # jinja2, and the help reads this file

            write_blocks("Number formats", text.format_sweep(fact, None, given.cost), temporary, tool())
        else:
            plots().write("scatter", None, front[0], temporary)


def _swept_formats(given: ParsedArgs, progress: ProgressLine) -> FormatSweep:
    say_what_is_kept(given)
    spec = explorer.FormatSweepSpec(
        given.quantize,
        given.per_layer,
        given.bits,
        given.snr,
        explorer.QuantizeSpec(
            **typed_values(given, explorer.QuantizeSpec, group="scales"), sites=tuple(given.site)
        ),
        given.calibrate or "",
        given.draws or 4,
        given.seed,
        given.cost,
    )
    how = {name: getattr(given, name) for name in ("output", "scheduler", "workers")}
    return explorer.sweep_formats(*given.models, spec=spec, on_progress=progress, **how, **given.opening)


def _trainings(given: ParsedArgs, progress: ProgressLine, shown: bool) -> Answer | None:
    """The answer where trainings are asked for, or a file of results holds nothing else; else None."""
    if not shown and not given.train:
        given.refuse(sorted(_OWN_OF_TRAININGS), "needs --train", "leave it out")
        return None
    idle = sorted(given.explicit - (_OF_TRAINING_RESULTS if shown else _OF_TRAININGS))
    given.refuse(idle, "says nothing of trainings", "leave it out")
    row, colon, path = (given.take or "1:").partition(":")
    if not (row.isdecimal() and colon) or bool(given.take) != bool(path):
        raise Misuse(f"'{given.take}' is no row and file", where="--take", hint="write 1:best.ckpt")
    take = (int(row), path) if given.take else None
    if shown:
        fact = _sweeps().training_results(given.models[0], given.train, take, given.force)
    else:
        fact = _trained(given, progress, take)
    failed = sum(bool(trial.error) for trial in fact.trials)
    return Answer(
        lambda: plain(fact),
        lambda: load("words", "training_sweep")(fact),
        rows="trials",
        warning=f"{failed:,} of {len(fact.trials):,} trials have no figures" if failed else "",
    )


def _trained(given: ParsedArgs, progress: ProgressLine, take: tuple[int, str] | None) -> TrainingSweep:
    if given.data is None:
        raise Misuse("needs samples", where="--train", hint="add --data FILE")
    if len(given.models) > 1:
        raise Misuse("one model is trained at a time", where=given.models[1], hint="leave it out")
    say_what_is_kept(given)
    how = {
        name: getattr(given, name) for name in ("trials", "seed", "output", "scheduler", "workers", "held")
    }
    how |= {"take": take, "overwrite": given.force, "on_progress": progress}
    with explorer.Session(given.models[0], **given.opening) as session:
        return session.sweep_training(given.data, given.train, **samples(given), **how)


def without_figures(rows: Sequence[ModelRow], bad: Mapping[str, str]) -> str:
    """What there are no figures of: whole models, and why, and single rows; '' if there are all."""
    said = [line if line.startswith(f"{name}:") else f"{name}: {line}" for name, line in bad.items()]
    single = sum(bool(row.error) and row.model not in bad for row in rows)
    if single:
        said.append(f"{single:,} of {len(rows):,} rows have no figures")
    return "; ".join(said)


_OF_RESULTS = {"sort", "beside", "json", "csv", "markdown", "quiet", "memory"}
"""Options that mean something for the rows of an earlier sweep."""
_OF_FORMAT_RESULTS = {"quantize", "take", "cost", "plot", "force", "json", "csv", "quiet", "memory"}
_OF_TILINGS = {
    *("tile", "tile_m", "tile_k", "tile_n", "edges", "form", "grouped", "config", "machine", "order"),
    *("verify", "sort", "beside", "scalesim", "markdown"),
}
"""Options that mean something for tilings alone."""
_OWN_OF_TRAININGS = {option.key for option in TRAINING_SWEEP}
_OF_TRAINING_RESULTS = {"train", "take", "force", "json", "csv", "quiet", "memory"}
_OF_TRAININGS = {
    *_OWN_OF_TRAININGS,
    *_OF_TRAINING_RESULTS,
    *("seed", "output", "workers", "scheduler"),
    *(flag[2:].replace("-", "_") for flag in OPENING),
}


def say_what_is_kept(given: ParsedArgs) -> None:
    """Has a sweep that is stopped say what became of what was done."""
    kept = f"what was done is kept in {given.output}; the same command goes on from there"
    supervisor.if_stopped(
        f"stopped; {kept if given.output else 'nothing was kept; with -o FILE it would be'}"
    )


def _combined(given: ParsedArgs) -> SweepSpec:
    """What is combined: what was typed, on top of the file of `--config`."""
    combined = tiles(given)
    typed = {"tile": combined[0], "sites": given.site, "edges": given.edges[0], "form": given.form[0]}
    kept = {name: value for name, value in typed.items() if name == "tile" or name[:4] in given.explicit}
    if "grouped" in given.explicit:
        kept["grouped"] = given.grouped
    base = tile_spec(given, kept)
    edges, forms = (
        values if name in given.explicit else (getattr(base, name),)
        for name, values in (("edges", given.edges), ("form", given.form))
    )
    return explorer.SweepSpec(combined, edges, forms, base=base)


_EDGES, _FORMS = (option_of(explorer.TileSpec, name).choices for name in ("edges", "form"))

COMMAND = Command(
    "sweep",
    "many tilings, or number formats: cost, proof, Pareto front",
    ("MODEL", "..."),
    (
        Option(
            "--tile",
            "tiles between commas, each one size or three (default 16,32,64,128)",
            "SIZES",
            reads="tiles",
            manual="several tiles between commas, all combined: `16,32,64x64x16`",
        ),
        Option("--tile-m", "M of the tile, in place of --tile's", "SIZES", reads="sizes"),
        Option("--tile-k", "its K, in place of --tile's", "SIZES", reads="sizes"),
        Option("--tile-n", "its N, in place of --tile's", "SIZES", reads="sizes"),
        Option(
            "--edges",
            "which edges to try: ragged (partial tiles, default), padded, or both",
            ",".join(_EDGES),
            "ragged",
            choices=_EDGES,
            reads="choices",
        ),
        Option(
            "--form",
            "which forms to try (default auto)",
            ",".join(_FORMS),
            "auto",
            choices=_FORMS,
            reads="choices",
        ),
        *declared_options(explorer.TileSpec, "sites", "grouped", "config"),
        HARDWARE,
        Option(
            "--buffer",
            "bytes for the tiles that are worked on, such as 512KiB: the machine's, or of none",
            "SIZE",
        ),
        "--order",
        Option("--verify", "tile, write and prove each; the tiled files do not stay"),
        *FORMAT_SWEEP,
        "--draws",
        "--seed",
        KEPT_IN,
        Option(
            "--sort",
            "what the rows are sorted by (default: as asked)",
            choices=(
                *("asked", "cycles", "time", "traffic", "buffer", "products"),
                *("utilisation", "padded", "error", "pareto"),
            ),
        ),
        Option(
            "--beside",
            "figures of some tilings beside each other, the first to measure by: their tiles, all, or front",
            "TILES",
        ),
        Option(
            "--workers",
            "processes to spread it over; 1 is this one (default: one a processor, where that pays)",
            "N",
            least=1,
        ),
        SCHEDULER,
        Option(
            "--scalesim",
            "also write the matmuls for SCALE-Sim (-i gemm)",
            "FILE",
            manual="also write the matmuls of the models for SCALE-Sim (`-t FILE -i gemm`), and beside it,"
            " as"
            " `FILE` with `_layout` in its name, the layout that version 3 asks for (`-l`)",
        ),
        Option("--force", "overwrite FILE of --scalesim, or of --take, if it exists"),
        *TRAINING_SWEEP,
        *OPENING,
        "--markdown",
        *TABLE,
    ),
    (
        "explorer sweep alexnet --tile 16,32,64,128 --machine npu.toml",
        "explorer sweep model.onnx --tile-m 16,64 --tile-k 16,64 --tile-n 16,64 -o results.db",
        "explorer sweep a.onnx b.onnx --tile 32,64 --edges ragged,padded --verify -o results.db",
        "explorer sweep results.db --beside 32,64,128 --markdown",
        "explorer sweep net.py:net --train lr=1e-4..1e-2,batch=64,256 --data train.npz --take 1:best.ckpt",
        "explorer sweep model.onnx --quantize int8,fixed8.4,mxfp4 --per-layer -o results.db",
        "explorer sweep model.onnx --quantize int8,mxfp4 --bits 6 --snr 20 --take found:mixed.toml",
        "explorer sweep results.db --sort cycles --csv        (what a file of results holds)",
    ),
    _run,
    exits={**IF_PROVED, "limits missed": DIFFERENT, "some failed": BAD_INPUT},
    usage="sweep MODEL ... --tile 16,32,64 --machine npu.toml",
    manual="many tilings side by side: tile matmuls, utilization, traffic, buffer, cycles of each, with"
    " `--verify` its proof, and their Pareto front; or with `--quantize` number formats, layer by layer, and"
    " a mixed precision; `-o FILE` keeps the rows and goes on where it was stopped",
)
