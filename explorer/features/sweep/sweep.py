"""Sweeps over models of sessions: describes the models to `explorer.engine.sweep`, which runs the trials.

The description tells which files hold a model, and how a worker process opens it. The engine does not use
sessions. A file of results is a database that keeps the rows of sweeps.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.checked import Count, Natural, PathText, Seconds
from explorer.base.errors import BadModel, ExplorerError, Misuse
from explorer.engine import convert
from explorer.engine import sweep as engine
from explorer.engine.evaluate import data_file
from explorer.engine.sweep import formats, mappings, trainings
from explorer.engine.sweep.fingerprint import compute_digest, compute_fingerprint, list_files
from explorer.engine.sweep.measure import ProofSpec, SweepSession
from explorer.engine.sweep.store import Store, has_rows, is_store
from explorer.facts import TileSpec, to_json
from explorer.facts.comparison import FigureTable, build_tilings_table
from explorer.facts.evaluate.training_sweep import TrainingSweep, TrainingTrial
from explorer.facts.mapping import MemoryMachine, Objective, build_products_spec
from explorer.facts.mapping_sweep import MappingRow, MappingSweep, mark_mapping_front
from explorer.facts.quantize import FormatRow, FormatSweep, FormatSweepSpec
from explorer.facts.serving.sweep import ServingRow, ServingSweep, mark_serving_front
from explorer.facts.sweep import Sweep, SweepRow, SweepSpec, sort_tilings
from explorer.features.quantize.quantize import Quantizer
from explorer.host import input_files
from explorer.host.output_files import check_target
from explorer.session.parts.models import Cancel, Models, OnProgress
from explorer.session.parts.worker_models import (
    FIGURE_OPTIONS,
    Reopen,
    build_open_arguments,
    open_worker_model,
    reopen_module,
)
from explorer.settings.memories import find_memory_machine
from explorer.settings.parse import parse_capacity, parse_tiles, write_opening_words
from explorer.settings.steps.trials import parse_trials


def sweep(
    sessions: Sequence[tuple[SweepSession, Models]],
    spec: SweepSpec,
    reopen: Reopen,
    *,
    verify: bool = False,
    draws: Count = 1,
    seed: Natural = 0,
    output: PathText | None = None,
    on_progress: OnProgress = None,
    **options: Any,
) -> Sweep:
    """Compute a row for every combination of `spec`, for the current model of every session.

    `sessions` are pairs of a session and its models. `reopen` opens a session for an ONNX file; a worker
    process imports `reopen` by its name. A dimension or input in the options may be missing from the file.
    The remaining arguments are those of `Session.sweep`.
    """
    if output is not None:
        engine.check_output(output, [models.source for _, models in sessions])
    if verify:
        for _, models in sessions:
            models.check_no_step(models.current, on_progress)
    return engine.sweep(
        [
            _describe_module(session, models, reopen)
            if not verify and _is_traced(models, on_progress)
            else _build_subject(session, models, reopen, on_progress)
            for session, models in sessions
        ],
        spec,
        proof=ProofSpec(draws, seed) if verify else None,
        output=output,
        on_progress=on_progress,
        **options,
    )


def sweep_formats(
    sessions: Sequence[tuple[SweepSession, Models]],
    spec: FormatSweepSpec,
    reopen: Reopen,
    *,
    output: PathText | None = None,
    seconds: Seconds | None = None,
    on_progress: OnProgress = None,
    **options: Any,
) -> FormatSweep:
    """Compute a row for every choice of number formats, for the current model of every session.

    With `seconds` and without `output`, the rows are kept in the working folder of the first session.
    The remaining arguments are those of `sweep` and of `Session.sweep_formats`.
    """
    if output is not None:
        engine.check_output(output, [models.source for _, models in sessions])
    subjects = [_build_subject(session, models, reopen, on_progress) for session, models in sessions]
    target = output
    if seconds is not None:
        options["workers"] = 1
        target = output or os.path.join(sessions[0][1].workdir, "trials.db")
    fact = formats.sweep_formats(
        subjects, spec, output=target, seconds=seconds, on_progress=on_progress, **options
    )
    return replace(fact, output=output or "")


def sweep_trainings(
    session: SweepSession,
    models: Models,
    data: PathText,
    over: str,
    reopen: Reopen,
    *,
    trials: int | None = None,
    seed: Natural = 0,
    output: PathText | None = None,
    overwrite: bool = False,
    take: tuple[int, str] | None = None,
    scheduler: str | None = None,
    workers: Count | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **training: Any,
) -> TrainingSweep:
    """Train the session's module once for every combination of `over`; see `Session.sweep_training`."""
    combinations = parse_trials(over, trials, seed)
    if output is not None:
        engine.check_output(output, [models.source, data])
    if take is not None:
        models.check_output_path(take[1], overwrite, data, output)
        _check_take(*take, len(combinations))
    module = session.module_digest()  # raises MissingExtra without torch
    # check the data before its digest, which takes long for large files
    data_file.read_within_memory(data, labels=training.get("labels", ""), inputs=training.get("inputs", ()))
    samples = compute_fingerprint([data], cancel)
    source, options = build_open_arguments(models)
    words = shlex.join(write_opening_words(models.options))
    figure_options = {name: models.options[name] for name in FIGURE_OPTIONS}
    settings = {**training, "opening": figure_options, "rules": _digest_rules(models.options["rules"])}
    tasks = []
    for combination in combinations:
        row = TrainingTrial(key="", model=models.source, opening=words, data=data, seed=seed, **combination)
        key = trainings.compute_key(row, module, samples, settings)
        tasks.append(
            trainings.TrainingTask(
                opener=partial(reopen_module, reopen, source, **options),
                files=(data,),
                fingerprint=samples,
                opening=f"{module} {words}",
                row=replace(row, key=key),
                options=training,
                module=module,
            )
        )
    return trainings.sweep_trainings(
        session,
        tasks,
        keep_in_process=models.module is not None,
        output=output,
        take=None if take is None else (*take, overwrite),
        scheduler=scheduler,
        workers=workers,
        on_progress=on_progress,
        cancel=cancel,
    )


def sweep_mappings(
    session: SweepSession,
    models: Models,
    machines: Sequence[str],
    reopen: Reopen,
    *,
    capacity: str = "",
    objective: Objective = "cycles",
    sites: tuple[str, ...] = (),
    output: PathText | None = None,
    on_progress: OnProgress = None,
    **options: Any,
) -> MappingSweep:
    """Map the session's model to every machine with every size; see `Session.sweep_mappings`."""
    sizes = parse_capacity(capacity) if capacity else []
    names = dict.fromkeys(machines)
    engine.check_count(len(names) * max(len(sizes), 1))
    if output is not None:
        engine.check_output(output, [models.source])
    if not session.plan(build_products_spec("batch", (1, 1, 1), sites), on_progress=on_progress).sites:
        raise Misuse("no matmul here can be mapped", where="--map")
    resized: list[MemoryMachine] = []
    for machine in map(find_memory_machine, names):
        if len(machine.memories) == 1:
            name = machine.hardware.name
            hint = f"add [[machine.{name}.memory]] with a size"
            raise Misuse(f"{name} has no memory on the chip", where="--machine", hint=hint)
        outer, first, *inner = machine.memories
        resized += [
            replace(machine, memories=(outer, replace(first, size=size), *inner)) for size in sizes
        ] or [machine]
    return mappings.sweep_mappings(
        _describe_module(session, models, reopen)
        if _is_traced(models, on_progress)
        else _build_subject(session, models, reopen, on_progress),
        resized,
        objective=objective,
        globs=sites,
        keep_in_process=models.module is not None,
        output=output,
        on_progress=on_progress,
        **options,
    )


def _check_take(row: int, target: str, rows: int) -> None:
    """Check that the row exists and that `target` is a valid name of a checkpoint."""
    convert.check_name(target, "checkpoint")
    if not 1 <= row <= rows:
        raise Misuse(f"there is no row {row}", where="--take", hint=f"there are {rows:,}")


def training_results(
    path: str, over: str | None = None, take: tuple[int, str] | None = None, overwrite: bool = False
) -> TrainingSweep:
    """Read all trainings of a file of results, or the trainings of `over`; `take` writes a row's weights."""
    if take is not None:
        check_target(take[1], overwrite=overwrite, models=[path], weights=())
        convert.check_name(take[1], "checkpoint")
    combinations = parse_trials(over) if over else ({},)
    return trainings.read_stored_trainings(path, combinations, None if take is None else (*take, overwrite))


def is_results(path: str) -> bool:
    """Return whether a path is a file of results."""
    return os.path.isfile(path) and is_store(path)


def results(path: str) -> Sweep:
    """Read all tilings of a file of results."""
    return engine.read_sweep(path)


def format_results(path: str, names: Sequence[str] = ()) -> FormatSweep:
    """Read the rows of number formats in a file of results: all rows, or the rows of some formats."""
    return formats.read_stored_formats(path, names)


def serving_results(path: str) -> ServingSweep:
    """Read the serving rows of a file of results."""
    with Store(ServingRow, path, changed=False) as store:
        rows = mark_serving_front(list(store.rows()))
    return ServingSweep(rows=rows, kept=len(rows), output=path)


def mapping_results(path: str) -> MappingSweep:
    """Read the rows of mappings in a file of results."""
    with Store(MappingRow, path, changed=False) as store:
        rows, front = mark_mapping_front(list(store.rows()))
    return MappingSweep(rows=rows, front=front, kept=len(rows), output=path)


def kinds(path: str) -> tuple[str, ...]:
    """Return the kinds of rows in a file of results: 'tilings', 'formats', 'trainings', ..."""
    structs: dict[str, type[Struct]] = {
        "tilings": SweepRow,
        "formats": FormatRow,
        "trainings": TrainingTrial,
        "servings": ServingRow,
        "mappings": MappingRow,
    }
    return tuple(name for name, kind in structs.items() if has_rows(path, kind))


def sort_rows(fact: Sweep, figure: str) -> Sweep:
    """Sort the rows of a sweep by a figure of `facts.sweep.SORTS`."""
    return replace(fact, rows=sort_tilings(fact.rows, figure))


def compare_tilings(fact: Sweep, choice: str) -> FigureTable:
    """Build a table with a column for each chosen tiling of a sweep.

    Args:
        fact: The sweep.
        choice: 'all', 'front' (the Pareto front), or tile sizes: '64,128x32x64'.

    Raises:
        Misuse: No tiling has such a tile, or fewer than two tilings are chosen.
    """
    if choice in ("all", "front"):
        return build_tilings_table([row for row in fact.rows if choice == "all" or row.pareto])
    sizes = parse_tiles(choice, "--beside")
    missing = [tile for tile in sizes if all(row.tile != tile for row in fact.rows)]
    if missing:
        tile_text = "x".join(map(str, missing[0]))
        raise Misuse(f"no tiling has the tile {tile_text}", where="--beside", hint="name one that --tile has")
    return build_tilings_table([row for tile in sizes for row in fact.rows if row.tile == tile])


def _build_subject(
    session: SweepSession, models: Models, reopen: Reopen, on_progress: OnProgress
) -> engine.Subject:
    options = models.options
    opening = {name: options[name] for name in FIGURE_OPTIONS}
    return engine.Subject(
        name=models.label(models.current),
        session=session,
        # models of other formats are exported to ONNX
        list_files=lambda: list_files(models.load_graph(models.current, on_progress)),
        opener=partial(_make_opener, reopen, options),
        opening={**opening, "rules": _digest_rules(options["rules"])},
        words=shlex.join(write_opening_words(options)),
        build_command=lambda request: Quantizer(models).command(request, None),
    )


def _is_traced(models: Models, on_progress: OnProgress) -> bool:
    """Return whether a model is planned without an export.

    The result is False for a model that cannot be opened; its rows report the reason.
    """
    try:
        return models.is_planned_as_traced(models.current, on_progress)
    except ExplorerError:
        return False


def _describe_module(session: SweepSession, models: Models, reopen: Reopen) -> engine.Subject:
    """Describe a module that is planned without an export, identified by a digest of its matrix products."""
    source, options = build_open_arguments(models)
    return engine.Subject(
        name=models.label(models.current),
        session=session,
        list_files=lambda: (),
        digest_content=partial(_digest_products, session),
        opener=lambda _: partial(
            open_worker_model, reopen, source, options, _digest_products, _digest_products(session)
        ),
        opening={name: options[name] for name in FIGURE_OPTIONS}
        | {"rules": _digest_rules(models.options["rules"])},
        words=shlex.join(write_opening_words(models.options)),
    )


def _digest_products(session: SweepSession) -> str:
    """Return a digest of the matrix products of a model, on which all figures of a tiling depend."""
    return compute_digest({"plan": to_json(session.plan(TileSpec()))})


def _make_opener(
    reopen: Reopen, options: Mapping[str, Any], files: Sequence[str]
) -> Callable[[], SweepSession]:
    """Return a function that opens the ONNX file of the model again, in any process."""
    opening = {name: value for name, value in options.items() if name not in ("weights", "seed")}
    if opening["rules"] is not None:
        opening["rules"] = os.path.abspath(opening["rules"])
    return partial(reopen, files[0], **opening)


def _digest_rules(rules: str | None) -> str:
    """Return a digest of the rules file, on which figures depend; '' without a file."""
    if rules is None:
        return ""
    try:
        return hashlib.sha256(input_files.read_content(rules)).hexdigest()
    except OSError as error:
        raise BadModel(f"cannot be read ({error.strerror or error})", where=rules) from None
