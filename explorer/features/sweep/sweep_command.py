"""`explorer sweep`: compares many tilings, number formats, machines with memories, or trainings."""

from __future__ import annotations

import os

from msgspec.structs import asdict

import explorer
from explorer.base.errors import Misuse
from explorer.base.exit_codes import BAD_INPUT, DIFFERENT, IF_PROVED
from explorer.base.features import load
from explorer.base.options import find_option
from explorer.base.verdicts import find_weakest
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options, read_typed_values, record_of
from explorer.cli.arguments.options import OPENING, TABLE, Option
from explorer.cli.arguments.quantize_options import FORMAT_SWEEP
from explorer.cli.arguments.records import read_hardware, read_tile_spec, read_tiles
from explorer.cli.arguments.training import TRAINING_SWEEP
from explorer.cli.output.answer import (
    Answer,
    build_plain_document,
    document,
    import_plots,
    load_presenter,
    name_tool,
)
from explorer.cli.output.computed_rows import announce_kept_rows, warn_missing_figures
from explorer.cli.output.progress import ProgressLine
from explorer.facts.cost import HardwareSpec, OrderSpec
from explorer.facts.evaluate.evaluation import SampleSpec
from explorer.facts.mapping import MapSpec
from explorer.facts.mapping_sweep import MappingSweepSpec
from explorer.facts.sweep import SweepRunSpec, SweepViewSpec
from explorer.host import output_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from explorer.facts.evaluate.training_sweep import TrainingSweep
    from explorer.facts.mapping_sweep import MappingSweep
    from explorer.facts.quantize import FormatRow, FormatSweep
    from explorer.facts.sweep import SweepSpec
    from explorer.report.blocks import Scatter


def _name_layout(path: str) -> str:
    """Return the path of the layout file for a SCALE-Sim topology: 'gemm.csv' -> 'gemm_layout.csv'."""
    stem, ending = os.path.splitext(path)
    return f"{stem}_layout{ending}"


def _import_sweeps() -> Any:
    """Import the module that reads result files; it imports the engine, which help must not."""
    from explorer.features.sweep import sweep  # imports the engine

    return sweep


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    sweep = _import_sweeps()
    is_shown = len(args.models) == 1 and sweep.is_results(args.models[0])
    row_kinds = sweep.kinds(args.models[0]) if is_shown else ()
    if row_kinds == ("servings",):
        return _show_servings(args)
    if args.map or row_kinds == ("mappings",):
        return _answer_mappings(args, progress, is_shown)
    args.refuse(("capacity", "objective"), "needs --map", "leave it out, or add --map")
    has_only_trainings = row_kinds == ("trainings",)
    shows_trainings = has_only_trainings or ("trainings" in row_kinds and args.train is not None)
    if (training_answer := _answer_trainings(args, progress, shows_trainings)) is not None:
        return training_answer
    if (format_answer := _answer_formats(args, progress, is_shown, row_kinds)) is not None:
        return format_answer
    if is_shown:
        refused = sorted(args.explicit - _TILING_RESULT_OPTIONS)
        args.refuse(refused, "does not apply to stored results", "name the model")
        fact, failed_models = sweep.results(args.models[0]), {}
    else:
        if args.scalesim is not None:
            for target in (args.scalesim, _name_layout(args.scalesim)):
                output_files.check_target(target, overwrite=args.force, models=args.models, weights=())
        announce_kept_rows(args)
        fact = explorer.sweep_files(
            *args.models,
            on_progress=progress,
            spec=_combine_specs(args),
            hardware=read_hardware(args),
            order=args.order,
            verify=args.verify,
            draws=args.draws or 1,
            first_seed=args.seed,
            layers=args.scalesim is not None,
            **asdict(record_of(args, SweepRunSpec)),
            **args.opening,
        )
        failed_models = fact.failed
    view = record_of(args, SweepViewSpec)
    if view.sort is not None:
        fact = sweep.sort_rows(fact, view.sort)
    figures = None if view.beside is None else sweep.compare_tilings(fact, view.beside)
    if args.scalesim is not None:
        words = load_presenter("sweep_words", __package__)
        texts_by_path = {
            args.scalesim: words.scalesim(fact.layers),
            _name_layout(args.scalesim): words.scalesim_layout(fact.layers),
        }
        for target, lines in texts_by_path.items():
            _write(lines, target, args)
    proofs = [row.verdict_kind for row in fact.rows if row.verdict_kind is not None]
    return Answer(
        lambda: document().sweep(fact, name_tool(), figures),
        lambda: load_presenter("sweep_words", __package__).sweep(fact, figures),
        "rows" if figures is None else "compared",
        warning=warn_missing_figures(fact.rows, failed_models),
        outcome="some failed" if failed_models else find_weakest(proofs),
    )


def _show_servings(args: ParsedArgs) -> Answer:
    """Answer for a result file that contains only serving rows."""
    refused = sorted(args.explicit - {"json", "csv", "quiet", "memory"})
    args.refuse(refused, "does not apply to stored results", "leave it out")
    fact = _import_sweeps().serving_results(args.models[0])
    return Answer(
        lambda: build_plain_document(fact),
        lambda: load("words", "serving_sweep")(fact),
        "rows",
    )


def _answer_mappings(args: ParsedArgs, progress: ProgressLine, is_shown: bool) -> Answer:
    """Answer a sweep of mappings, or a result file with their rows."""
    refused = sorted(args.explicit - (_MAPPING_RESULT_OPTIONS if is_shown else _MAPPING_OPTIONS))
    args.refuse(refused, "does not apply to mappings", "leave it out")
    if is_shown:
        fact = _import_sweeps().mapping_results(args.models[0])
    else:
        fact = _sweep_mappings(args, progress)
    failed = sum(row.fits is None for row in fact.rows)
    return Answer(
        lambda: build_plain_document(fact),
        lambda: load_presenter("mapping_sweep_words", __package__).mapping_sweep(fact),
        "rows",
        warning=f"{failed:,} of {len(fact.rows):,} rows have no figures" if failed else "",
        outcome="some failed" if failed else "done",
    )


def _sweep_mappings(args: ParsedArgs, progress: ProgressLine) -> MappingSweep:
    machines = tuple(name.strip() for name in (args.machine or "").split(",") if name.strip())
    if not machines:
        hint = "such as --machine gemmini,edge-npu; explorer machines lists machines"
        raise Misuse("needs machines with memories", where="--map", hint=hint)
    if len(args.models) > 1:
        raise Misuse("one model is mapped at a time", where=args.models[1], hint="leave it out")
    announce_kept_rows(args)
    with explorer.Session(args.models[0], **args.opening) as session:
        return session.sweep_mappings(
            machines,
            **asdict(record_of(args, MappingSweepSpec)),
            objective=args.objective,
            sites=tuple(args.site or ()),
            on_progress=progress,
            **asdict(record_of(args, SweepRunSpec)),
        )


def _answer_formats(
    args: ParsedArgs, progress: ProgressLine, is_shown: bool, row_kinds: Sequence[str]
) -> Answer | None:
    """Answer a sweep of number formats, or a result file with their rows; None for another request."""
    if args.quantize is None and (not is_shown or "formats" not in row_kinds or "tilings" in row_kinds):
        format_options = sorted(option.key for option in FORMAT_SWEEP)
        args.refuse(format_options, "does not apply to tilings", "name formats: --quantize int8,fixed8.4")
        return None
    refused = args.explicit - _FORMAT_RESULT_OPTIONS if is_shown else _TILING_ONLY_OPTIONS
    args.refuse(sorted(refused), "does not apply to number formats", "leave it out")
    take = _parse_take(args)
    if args.plot is not None:
        plots = import_plots()
        (plots.check_library if _is_page(args.plot) else plots.check)(args.plot)
        output_files.check_target(args.plot, overwrite=args.force, models=args.models, weights=())
    fact = (
        _import_sweeps().format_results(args.models[0], args.quantize or ())
        if is_shown
        else _sweep_formats(args, progress)
    )
    # check all outputs before the first file is written
    row = None if take is None else _select_row(fact, take[0])
    front = [] if args.plot is None else _plot_fronts(fact, args)
    written_path = None if row is None or take is None else take[1]
    if row is not None and written_path is not None:
        _write(row.config or "[quantize]\n", written_path, args)
    if args.plot is not None:
        _draw(fact, front, args)
    failed_models = fact.failed
    return Answer(
        lambda: document().format_sweep(fact, name_tool()),
        lambda: load_presenter("format_sweep_words", __package__).format_sweep(
            fact, written_path, args.cost, args.plot
        ),
        "choices",
        warning=warn_missing_figures(fact.rows, failed_models),
        outcome="some failed"
        if failed_models
        else "done"
        if all(mixed.met for mixed in fact.mixed)
        else "limits missed",
    )


def _parse_take(args: ParsedArgs) -> tuple[str, str] | None:
    """Parse `--take` into a row number and a file path; None without the option."""
    if args.take is None:
        return None
    row, _, path = args.take.partition(":")
    if not path or not (row == "found" or row.isdigit()):
        raise Misuse(f"'{args.take}' is not a row and file", where="--take", hint="write 7:formats.toml")
    output_files.check_target(path, overwrite=args.force, models=args.models, weights=())
    return row, path


def _select_row(fact: FormatSweep, number: str) -> FormatRow:
    """Return the row with a number; 'found' is the row that satisfies `--bits` and `--snr`."""
    keys = [mixed.row for mixed in fact.mixed if mixed.row]
    rows = [row for row in fact.rows if row.key in keys[:1]] if number == "found" else []
    if number != "found" and 0 < int(number) <= len(fact.rows):
        rows = [fact.rows[int(number) - 1]]
    if not rows or rows[0].error:
        hint = f"there are {len(fact.rows):,} rows; 'found' is the row that --bits and --snr find"
        raise Misuse(f"there is no row {number} with figures", where="--take", hint=hint)
    return rows[0]


def _write(text: str, path: str, args: ParsedArgs) -> None:
    with output_files.write_atomically(path, overwrite=args.force) as temporary:
        with output_files.open_text(temporary) as file:
            file.write(text)


_PAGES = (".html", ".md")


def _is_page(path: str) -> bool:
    return os.path.splitext(path)[1].lower() in _PAGES


def _plot_fronts(fact: FormatSweep, args: ParsedArgs) -> list[Scatter]:
    """Plot the loss of the choices over their cost, for each model."""
    plots_by_model: list[Scatter] = load_presenter("format_sweep_words", __package__).front_plots(
        fact.rows, args.cost
    )
    if not _is_page(args.plot) and len(plots_by_model) != 1:
        count = len(plots_by_model)
        problem = f"there are {count:,} plots: of each model with three choices or more that have figures"
        raise Misuse(problem, where="--plot", hint="a page takes any number: --plot front.html")
    return plots_by_model


def _draw(fact: FormatSweep, front: Sequence[Scatter], args: ParsedArgs) -> None:
    """Draw the Pareto front into the file of `--plot`; an HTML or Markdown page contains the whole answer."""
    words = load_presenter("format_sweep_words", __package__)
    with output_files.write_atomically(args.plot, overwrite=args.force) as temporary:
        if _is_page(args.plot):
            from explorer.report.html.page import write_blocks  # imports jinja2, which help must not

            write_blocks("Number formats", words.format_sweep(fact, None, args.cost), temporary, name_tool())
        else:
            import_plots().write("scatter", None, front[0], temporary)


def _sweep_formats(args: ParsedArgs, progress: ProgressLine) -> FormatSweep:
    announce_kept_rows(args)
    scales = read_typed_values(args, explorer.QuantizeSpec, group="scales")
    spec = record_of(
        args,
        explorer.FormatSweepSpec,
        base=explorer.QuantizeSpec(**scales, sites=tuple(args.site)),
        calibrate=args.calibrate or "",
        draws=args.draws or 4,
        seed=args.seed,
    )
    run_options = asdict(record_of(args, SweepRunSpec))
    return explorer.sweep_formats(
        *args.models, spec=spec, on_progress=progress, **run_options, **args.opening
    )


def _answer_trainings(args: ParsedArgs, progress: ProgressLine, is_shown: bool) -> Answer | None:
    """Answer a sweep of trainings, or a result file with their rows; None for another request."""
    if not is_shown and not args.train:
        args.refuse(sorted(_TRAINING_SWEEP_OPTIONS), "needs --train", "leave it out")
        return None
    refused = sorted(args.explicit - (_TRAINING_RESULT_OPTIONS if is_shown else _TRAINING_OPTIONS))
    args.refuse(refused, "does not apply to trainings", "leave it out")
    row, colon, path = (args.take or "1:").partition(":")
    if not (row.isdecimal() and colon) or bool(args.take) != bool(path):
        raise Misuse(f"'{args.take}' is not a row and file", where="--take", hint="write 1:best.ckpt")
    take = (int(row), path) if args.take else None
    if is_shown:
        fact = _import_sweeps().training_results(args.models[0], args.train, take, args.force)
    else:
        fact = _sweep_trainings(args, progress, take)
    failed = sum(bool(trial.error) for trial in fact.trials)
    return Answer(
        lambda: build_plain_document(fact),
        lambda: load("words", "training_sweep")(fact),
        rows="trials",
        warning=f"{failed:,} of {len(fact.trials):,} trials have no figures" if failed else "",
    )


def _sweep_trainings(args: ParsedArgs, progress: ProgressLine, take: tuple[int, str] | None) -> TrainingSweep:
    if args.data is None:
        raise Misuse("needs samples", where="--train", hint="add --data FILE")
    if len(args.models) > 1:
        raise Misuse("one model is trained at a time", where=args.models[1], hint="leave it out")
    announce_kept_rows(args)
    options = {name: getattr(args, name) for name in ("trials", "seed", "held")}
    options |= asdict(record_of(args, SweepRunSpec))
    options |= {"take": take, "overwrite": args.force, "on_progress": progress}
    with explorer.Session(args.models[0], **args.opening) as session:
        return session.sweep_training(over=args.train, **asdict(record_of(args, SampleSpec)), **options)


_TILING_RESULT_OPTIONS = {"sort", "beside", "json", "csv", "markdown", "quiet", "memory"}
"""Options that apply to the tilings of a result file."""
_FORMAT_RESULT_OPTIONS = {"quantize", "take", "cost", "plot", "force", "json", "csv", "quiet", "memory"}
_TILING_ONLY_OPTIONS = {
    *("tile", "tile_m", "tile_k", "tile_n", "edges", "form", "grouped", "config", "machine", "order"),
    *("verify", "sort", "beside", "scalesim", "markdown"),
}
"""Options that apply only to tilings."""
_TRAINING_SWEEP_OPTIONS = {option.key for option in TRAINING_SWEEP}
_MAPPING_RESULT_OPTIONS = {"map", "json", "csv", "quiet", "memory"}
_MAPPING_OPTIONS = {
    *_MAPPING_RESULT_OPTIONS,
    *("machine", "capacity", "objective", "site", "output", "workers", "scheduler"),
    *(flag[2:].replace("-", "_") for flag in OPENING),
}
_TRAINING_RESULT_OPTIONS = {"train", "take", "force", "json", "csv", "quiet", "memory"}
_TRAINING_OPTIONS = {
    *_TRAINING_SWEEP_OPTIONS,
    *_TRAINING_RESULT_OPTIONS,
    *("seed", "output", "workers", "scheduler"),
    *(flag[2:].replace("-", "_") for flag in OPENING),
}


def _combine_specs(args: ParsedArgs) -> SweepSpec:
    """Return the combinations to try. Options of the command line override the file of `--config`."""
    tile_sizes = read_tiles(args)
    typed = {"tile": tile_sizes[0], "sites": args.site, "edges": args.edges[0], "form": args.form[0]}
    options = {name: value for name, value in typed.items() if name == "tile" or name[:4] in args.explicit}
    if "grouped" in args.explicit:
        options["grouped"] = args.grouped
    base = read_tile_spec(args, options)
    edges, forms = (
        values if name in args.explicit else (getattr(base, name),)
        for name, values in (("edges", args.edges), ("form", args.form))
    )
    return explorer.SweepSpec(tile_sizes, edges, forms, base=base)


_EDGES, _FORMS = (find_option(explorer.TileSpec, name).choices for name in ("edges", "form"))

COMMAND = Command(
    "sweep",
    "compare many tilings or number formats: cost, proof, Pareto front",
    ("MODEL", "..."),
    (
        Option(
            "--tile",
            "tiles separated by commas, each one size or three (default 16,32,64,128)",
            "SIZES",
            parser="tiles",
            manual="several tiles separated by commas, all combined: `16,32,64x64x16`",
        ),
        Option("--tile-m", "M of the tile, in place of --tile's", "SIZES", parser="sizes"),
        Option("--tile-k", "K of the tile, in place of --tile's", "SIZES", parser="sizes"),
        Option("--tile-n", "N of the tile, in place of --tile's", "SIZES", parser="sizes"),
        Option(
            "--edges",
            "which edges to try: partial (default), padded, or both",
            "partial,padded",
            "partial",
            choices=_EDGES,
            parser="choices",
        ),
        Option(
            "--form",
            "which forms to try (default auto)",
            ",".join(_FORMS),
            "auto",
            choices=_FORMS,
            parser="choices",
        ),
        *list_options(explorer.TileSpec, "sites", "grouped", "config"),
        *list_options(HardwareSpec),
        Option(
            "--buffer",
            "bytes for the current tiles, such as 512KiB; needs no machine",
            "SIZE",
        ),
        *list_options(OrderSpec),
        Option("--verify", "tile and prove each combination; the tiled files are deleted"),
        Option(
            "--map",
            "map the matmuls to each machine of --machine A,B and each size of --capacity instead",
            manual="find the best mapping to each machine of `--machine a,b` and each size of `--capacity`,"
            " and mark the Pareto front of cycles over bytes of memory",
        ),
        *list_options(MappingSweepSpec),
        *list_options(MapSpec, "objective"),
        *FORMAT_SWEEP,
        "--draws",
        "--seed",
        *list_options(SweepRunSpec, "output"),
        *list_options(SweepViewSpec),
        *list_options(SweepRunSpec, "workers", "scheduler"),
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
        "explorer sweep a.onnx b.onnx --tile 32,64 --edges partial,padded --verify -o results.db",
        "explorer sweep results.db --beside 32,64,128 --markdown",
        "explorer sweep net.py:net --train lr=1e-4..1e-2,batch=64,256 --data train.npz --take 1:best.ckpt",
        "explorer sweep model.onnx --quantize int8,fixed8.4,mxfp4 --per-layer -o results.db",
        "explorer sweep model.onnx --quantize int8,mxfp4 --bits 6 --snr 20 --take found:mixed.toml",
        "explorer sweep model.onnx --map --machine gemmini,edge-npu --capacity 64K,256K,1M",
        "explorer sweep results.db --sort cycles --csv        (what a file of results holds)",
    ),
    _run,
    exits={**IF_PROVED, "limits missed": DIFFERENT, "some failed": BAD_INPUT},
    usage="sweep MODEL ... --tile 16,32,64 --machine npu.toml",
    manual="compares many tilings and marks the Pareto front: tile matmuls, utilization, traffic, buffer,"
    " cycles, and with `--verify` a proof; with `--quantize` compares number formats and searches a mixed"
    " precision; with `--map` compares machines and sizes of their memory; `-o FILE` keeps the rows and"
    " continues an interrupted sweep",
    group="change",
)
