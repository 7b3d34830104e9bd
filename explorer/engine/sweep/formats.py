"""Sweeps number formats: stores a row for every choice, and searches for a mixed precision."""

from __future__ import annotations

import contextlib
import glob
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import BadModel, Cancelled, ExplorerError, MissingExtra, Misuse
from explorer.engine.number_formats import find_format
from explorer.engine.progress import Cancel, OnProgress, report, stop_if
from explorer.engine.sweep import Subject, check_count, cluster, raise_common_error
from explorer.engine.sweep.fingerprint import compute_digest, compute_fingerprint
from explorer.engine.sweep.measure import SweepSession, Task
from explorer.engine.sweep.mixed_precision import (
    choose_outcome,
    find_next_move,
    get_average_bits,
    get_worst_snr,
)
from explorer.engine.sweep.processes import count_file_bytes, suggest_processes
from explorer.engine.sweep.store import Store
from explorer.facts import to_json
from explorer.facts.pareto_front import mark_format_front
from explorer.facts.quantize import (
    PARTS,
    FormatRow,
    FormatScope,
    FormatSweep,
    FormatSweepSpec,
    MixedPrecision,
    Quantization,
    QuantizeRequest,
    QuantizeRule,
    QuantizeSpec,
)
from explorer.host import input_files
from explorer.settings.quantize import BY_HAND, add_layer_choice, parse_formats, write_toml

CONFIG = "formats.toml"
"""Name of the configuration file in the command of a row whose choice options cannot express."""
_TRIAL_SECONDS, _BYTES_PER_SECOND = 0.1, 5e7
"""Approximate seconds of a trial, and bytes of a model that add a second to it."""


class FormatTrial(Struct, frozen=True):
    """A choice of number formats to measure.

    Attributes:
        scope: Whether all layers, one layer, or all layers but one get the format.
        format: The user's text of the format.
        layer: Name of the layer, or '' for all layers.
        spec: Settings of the quantization.
    """

    scope: FormatScope
    format: str
    layer: str
    spec: QuantizeSpec


class FormatTask(Task, frozen=True, kw_only=True):
    """A row of number formats that a worker measures.

    The worker keeps the model and the runs of the original model for its next task.

    Attributes:
        row: Row without figures.
        request: Settings of the trial, the calibration and the seed.
    """

    row: FormatRow
    request: QuantizeRequest

    def compute_rows(self, session: SweepSession) -> Iterator[FormatRow]:
        """Yields the measured row."""
        yield measure_row(session, self.row, self.request)


def measure_row(
    session: SweepSession,
    row: FormatRow,
    request: QuantizeRequest,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> FormatRow:
    """Returns the row with its figures, or with the error that prevents them."""
    try:
        trial = session.quantize_trial(
            request.spec,
            calibrate=request.calibrate or None,
            draws=request.draws,
            seed=request.seed,
            on_progress=on_progress,
            cancel=cancel,
        )
    except (Cancelled, MissingExtra):
        raise
    except ExplorerError as error:
        return replace(row, error=str(error))
    compared = [output for output in trial.outputs if output.snr_db is not None]
    worst_output = min(compared, key=lambda output: output.snr_db or 0.0) if compared else None
    return replace(
        row,
        changed=sum(not layer.reason for layer in trial.layers),
        layers=len(trial.layers),
        weight_bits=_average_weight_bits(trial),
        weight_bytes_before=trial.totals.weight_bytes.before,
        weight_bytes=trial.totals.weight_bytes.after,
        bitops_before=trial.totals.bitops.before,
        bitops=trial.totals.bitops.after,
        output=worst_output.name if worst_output else "",
        snr_db=worst_output.snr_db if worst_output else None,
        cosine=worst_output.cosine if worst_output else None,
        top1=worst_output.top1 if worst_output else None,
        top5=worst_output.top5 if worst_output else None,
        calibration=trial.calibration,
        seconds=trial.seconds,
        error="",
    )


def _average_weight_bits(quantization: Quantization) -> float | None:
    """Returns the average bits of a weight over all layers that store weights, or None without weights."""
    total_bits = weight_count = 0.0
    for layer in quantization.layers:
        bits_before, bits_after = layer.bits_before.weight, layer.bits.weight
        if layer.weight_bytes_before and bits_before and bits_after is not None:
            layer_weights = layer.weight_bytes_before * 8 / bits_before
            total_bits += layer_weights * bits_after
            weight_count += layer_weights
    return total_bits / weight_count if weight_count else None


class _ModelState(Struct):
    """State of one model in the sweep.

    Attributes:
        subject: The model.
        files: Paths of the model's files.
        content: Digest of the model's content.
        trials: The trials of the model.
        rows: The row of each trial.
    """

    subject: Subject
    files: tuple[str, ...] = ()
    content: str = ""
    trials: list[FormatTrial] = []
    rows: list[FormatRow] = []


def sweep_formats(
    subjects: Sequence[Subject],
    spec: FormatSweepSpec,
    *,
    output: str | None = None,
    scheduler: str | None = None,
    workers: int | None = None,
    seconds: float | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> FormatSweep:
    """Computes a row for every model and choice of number formats.

    Args:
        subjects: The models.
        spec: The trials.
        output: Path of a file of results, or None. Only rows that it lacks are computed, and added to it.
        scheduler: Address of a Dask cluster, or None.
        workers: Number of processes on this machine. A search for a mixed precision runs step by step in the
            present process.
        seconds: Time limit in seconds from the first row. No row is started after it, and the answer leaves
            out the rows that were not started. It does not limit rows in other processes.
        on_progress: Function called with the number of finished rows.
        cancel: Function called at intervals; True stops the sweep, and finished rows stay in `output`.

    Raises:
        Misuse: A format is unknown, there are too many rows, or every row fails with the same error.
        MissingExtra: A package is not installed.
        Cancelled: `cancel` returned True.
    """
    started = time.perf_counter()
    formats = dict.fromkeys(spec.formats)
    check_count(len(formats) * len(subjects), rows="rows")
    parts_by_format = {name: parse_parts(name) for name in formats}
    if not parts_by_format:
        raise Misuse("there is no format", where="--quantize", hint="name some: --quantize int8,fixed8.4")
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(Store(FormatRow, output)) if output is not None else None
        run = _Run(store, spec, parts_by_format, scheduler, workers, seconds, on_progress, cancel)
        states = [run.prepare(subject, is_only_model=len(subjects) == 1) for subject in subjects]
        run.fill(states)
        has_search = not run.open and (spec.bits is not None or spec.snr is not None)
        searches = [run.search_mixed_precision(state) for state in states] if has_search else []
    rows = mark_format_front(
        [row for state in states for row in state.rows if row.error or row.seconds is not None]
    )
    raise_common_error(rows)
    return FormatSweep(
        rows,
        tuple(search for search in searches if search is not None),
        made=run.made,
        kept=run.kept,
        open=run.open,
        output=output or "",
        workers=run.worker_count,
        seconds=time.perf_counter() - started,
    )


def read_stored_formats(path: str, formats: Sequence[str] = ()) -> FormatSweep:
    """Reads the rows of number formats in a file of results: all rows, or the rows of some formats."""
    with Store(FormatRow, path, changed=False) as store:
        rows = [row for row in store.rows() if not formats or {*row.format.split(",")} <= {*formats}]
    return FormatSweep(mark_format_front(rows), kept=len(rows), output=path)


def parse_parts(text: str) -> Mapping[str, str]:
    """Parses the formats of weight, input and bias: 'int8', 'weight=int4+input=int8'.

    Raises:
        Misuse: A format is unknown.
    """
    formats = parse_formats(text.replace("+", ","), "--quantize")
    for part in PARTS:
        if formats[part] != "auto":
            find_format(formats[part], "--quantize")
    return formats


class _Run:
    """State of one run of the sweep.

    Attributes:
        samples: Digest of the calibration samples, or the number and seed of random inputs.
        made, kept, open: Number of rows measured without an error, of rows stored before, and of rows not
            started because the time limit passed.
    """

    def __init__(
        self,
        store: Store[FormatRow] | None,
        spec: FormatSweepSpec,
        parts_by_format: Mapping[str, Mapping[str, str]],
        scheduler: str | None,
        workers: int | None,
        seconds: float | None,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> None:
        self.store, self.spec, self.parts_by_format = store, spec, parts_by_format
        self.scheduler, self.workers, self.seconds = scheduler, workers, seconds
        self.deadline: float | None = None
        self.on_progress, self.cancel = on_progress, cancel
        self.samples = _digest_samples(spec.calibrate) if spec.calibrate else f"{spec.draws} {spec.seed}"
        self.made = self.kept = self.worker_count = self.done = self.total = self.open = 0

    def prepare(self, subject: Subject, *, is_only_model: bool) -> _ModelState:
        """Creates the trials of a model. An unreadable model gets rows with the error.

        Raises:
            ExplorerError: The model cannot be read, and the sweep has no other model.
            Misuse: There are too many rows.
        """
        state = _ModelState(subject, trials=[], rows=[])
        trials = [FormatTrial("all", name, "", self._build_spec(name)) for name in self.parts_by_format]
        layers_by_format: dict[str, list[str]] = {}
        try:
            state.files = subject.list_files()
            report(self.on_progress, None, "reading the model")
            state.content = compute_fingerprint(state.files, self.cancel)
            if self.spec.per_layer or self.spec.bits is not None or self.spec.snr is not None:
                layers_by_format = self._find_layers(subject)
        except Cancelled:
            raise
        except ExplorerError as error:
            if is_only_model:
                raise
            state.rows = [replace(self._build_blank_row(state, trial), error=str(error)) for trial in trials]
            return state
        trials_per_layer = 2 if self.spec.per_layer else 1
        layers = sum(map(len, layers_by_format.values()))
        check_count(len(trials) + trials_per_layer * layers, rows="rows")
        state.trials = [*trials, *self._list_layer_trials(layers_by_format)]
        return state

    def _build_spec(self, name: str) -> QuantizeSpec:
        """Returns the settings of a quantization of all layers to a format."""
        return replace(self.spec.base, **self.parts_by_format[name])

    def _find_layers(self, subject: Subject) -> dict[str, list[str]]:
        """Returns the names of the layers that are tried alone, by format.

        A format that no layer can take is missing. So is a format that only one layer can take, unless a
        mixed precision is searched.
        """
        layers_by_format: dict[str, list[str]] = {}
        for name in self.parts_by_format:
            spec = self._build_spec(name)
            try:
                choice = subject.session.quantize_choice(
                    spec, as_graph=True, on_progress=self.on_progress
                ).layers
            except MissingExtra:
                raise
            except ExplorerError:
                continue  # the row of all layers reports the error
            layers = dict.fromkeys(layer.name for layer in choice if not layer.reason)
            if len(layers) == 1 and self.spec.bits is None and self.spec.snr is None:
                continue  # a trial of the only layer equals the trial of all layers
            layers_by_format[name] = list(layers)
        return layers_by_format

    def _list_layer_trials(self, layers_by_format: Mapping[str, Sequence[str]]) -> Iterator[FormatTrial]:
        """Yields a trial of each layer alone in each format; with `per_layer`, also of all other layers."""
        for name, layers in layers_by_format.items():
            spec = self._build_spec(name)
            for layer in layers:
                yield FormatTrial("only", name, layer, replace(spec, sites=(layer,), ops=()))
            if self.spec.per_layer and len(layers) > 1:
                yield from (
                    FormatTrial("without", name, other_layer, add_layer_choice(spec, other_layer, on=False))
                    for other_layer in layers
                )

    def _build_request(self, trial: FormatTrial) -> QuantizeRequest:
        """Returns the settings of a trial with its calibration and seed."""
        spec = self.spec
        return QuantizeRequest(trial.spec, spec.calibrate, spec.draws, spec.seed)

    def _build_blank_row(self, state: _ModelState, trial: FormatTrial) -> FormatRow:
        """Builds the row of a trial without figures."""
        subject, request = state.subject, self._build_request(trial)
        typed_request = request
        if trial.spec.rules:  # options cannot express rules, so the command names a configuration file
            typed_request = replace(request, spec=QuantizeSpec(rules=trial.spec.rules, config=CONFIG))
        return FormatRow(
            key=_compute_key(state.content, subject.opening, trial.spec, self.samples),
            model=subject.name,
            fingerprint=state.content,
            opening=subject.words,
            scope=trial.scope,
            format=trial.format,
            layer=trial.layer,
            config=write_toml(trial.spec),
            command=subject.build_command(typed_request),
        )

    def fill(self, states: Sequence[_ModelState]) -> None:
        """Fills the rows of all models, one for each trial.

        Rows that are not stored are measured in this process or in workers.
        """
        open_trials: list[tuple[_ModelState, int]] = []
        for state in states:
            for index, trial in enumerate(state.trials):
                row, is_stored = self._find_stored_row(self._build_blank_row(state, trial))
                state.rows.append(row)
                if not is_stored:
                    open_trials.append((state, index))
        self.total += len(open_trials)
        if not open_trials:
            return
        workers = self.workers or (1 if self.scheduler else _choose_worker_count(open_trials))
        if self.scheduler is None and workers == 1:
            for started_count, (state, index) in enumerate(open_trials):
                if self._is_late():
                    self.open += len(open_trials) - started_count
                    break
                state.rows[index] = self._measure(state, state.rows[index], state.trials[index])
            return
        self._measure_rows(open_trials, workers)

    def _find_stored_row(self, row: FormatRow) -> tuple[FormatRow, bool]:
        """Returns the stored row under the model's present name and True, or the passed row and False.

        A stored row with an error is not used, so that it is measured again.
        """
        stored_row = next(iter(self.store.rows([row.key])), None) if self.store is not None else None
        if stored_row is None or stored_row.error:
            return row, False
        self.kept += 1
        current_fields = {
            name: getattr(row, name) for name in ("model", "scope", "format", "layer", "command")
        }
        return replace(stored_row, **current_fields), True

    def _measure(self, state: _ModelState, row: FormatRow, trial: FormatTrial) -> FormatRow:
        """Measures a row in this process, and stores it."""
        stop_if(self.cancel)
        session, request = state.subject.session, self._build_request(trial)
        # only the runs of the original model, in the first trial, take long enough to show progress
        on_progress = None if self.done else self.on_progress
        measured_row = measure_row(session, row, request, on_progress, self.cancel)
        self._store_row(measured_row)
        return measured_row

    def _is_late(self) -> bool:
        """Whether the time limit has passed.

        The first call starts the limit, so each run measures at least one row.
        """
        now = time.perf_counter()
        if self.deadline is None and self.seconds is not None:
            self.deadline = now + self.seconds
        return self.deadline is not None and now >= self.deadline

    def _store_row(self, row: FormatRow) -> None:
        """Stores a measured row, and reports the number of finished rows."""
        if self.store is not None:
            self.store.add([row])
        self.made += not row.error
        self.done += 1
        report(self.on_progress, None, "sweeping", self.done, self.total)

    def _measure_rows(self, open_trials: Sequence[tuple[_ModelState, int]], workers: int) -> None:
        """Measures rows in other processes, on this machine or on a cluster."""
        tasks: list[Task] = []
        trial_by_task: dict[int, tuple[_ModelState, int]] = {}
        openers = {id(state): state.subject.opener(state.files) for state, _ in open_trials}
        for state, index in open_trials:
            task = FormatTask(
                opener=openers[id(state)],
                files=state.files,
                fingerprint=state.content,
                opening=state.subject.words,
                row=state.rows[index],
                request=self._build_worker_request(state.trials[index]),
            )
            tasks.append(task)
            trial_by_task[id(task)] = state, index

        def on_result(task: Task, outcome: tuple[Struct, ...] | ExplorerError) -> None:
            state, index = trial_by_task[id(task)]
            if isinstance(outcome, ExplorerError):
                # not stored: another worker, or a later run, may succeed
                state.rows[index] = replace(state.rows[index], error=str(outcome))
                return
            for row in outcome:
                if isinstance(row, FormatRow):
                    state.rows[index] = row
                    self._store_row(row)

        report(self.on_progress, None, "starting workers")
        self.worker_count = cluster.run_tasks(tasks, on_result, self.scheduler, workers, self.cancel)

    def _build_worker_request(self, trial: FormatTrial) -> QuantizeRequest:
        """Returns the request of a trial with an absolute path, since a worker may run in another folder."""
        request = self._build_request(trial)
        return (
            replace(request, calibrate=os.path.abspath(request.calibrate)) if request.calibrate else request
        )

    # mixed precision

    def search_mixed_precision(self, state: _ModelState) -> MixedPrecision | None:
        """Searches for a mixed precision, one layer per step.

        Each step gives one layer the format that adds the least noise per saved unit of cost. This noise is
        estimated from the trials of single layers. Every step is measured, and a step that falls below the
        minimum SNR is rejected.

        Returns:
            The best choice, or None if no trial of a single layer succeeded or the time limit passed.
        """
        spec = self.spec
        single_layer_rows = {
            (row.layer, row.format): row for row in state.rows if row.scope == "only" and not row.error
        }
        if not single_layer_rows:
            return None
        if spec.cost == "bitops" and any(row.bitops is None for row in single_layer_rows.values()):
            reason = "its BitOPs are not known, so choices cannot be ranked by what they save"
            return MixedPrecision(
                model=state.subject.name,
                bits=spec.bits,
                snr=spec.snr,
                met=False,
                row="",
                told=reason,
                cost=spec.cost,
            )
        format_by_layer: dict[str, str] = {}
        rejected: set[tuple[str, str]] = set()
        while (move := find_next_move(single_layer_rows, format_by_layer, rejected, spec.cost)) is not None:
            layer, name = move
            trial = self._build_mixed_trial(single_layer_rows, {**format_by_layer, layer: name}, layer)
            row, is_stored = self._find_stored_row(self._build_blank_row(state, trial))
            if not is_stored:
                if self._is_late():
                    self.open += 1
                    return None
                self.total += 1
                row = self._measure(state, row, trial)
            state.rows.append(row)
            if row.error or (spec.snr is not None and get_worst_snr(row) < spec.snr):
                rejected.add(move)
                continue
            format_by_layer[layer] = name
            if spec.bits is not None and get_average_bits(row) <= spec.bits:
                break
        return choose_outcome(state.subject.name, state.rows, spec)

    def _build_mixed_trial(
        self,
        single_layer_rows: Mapping[tuple[str, str], FormatRow],
        format_by_layer: Mapping[str, str],
        last_layer: str,
    ) -> FormatTrial:
        """Builds a trial in which the layers of `format_by_layer` have their formats.

        The other layers of `single_layer_rows` are not quantized. `last_layer` is the layer of the step.
        """
        rules = []
        for layer in dict.fromkeys(layer for layer, _ in single_layer_rows):
            site = glob.escape(layer)
            if layer in format_by_layer:
                rule = QuantizeRule(site=site, origin=BY_HAND)
                rules.append(replace(rule, **self.parts_by_format[format_by_layer[layer]]))
            else:
                rules.append(QuantizeRule(site=site, on=False, origin=BY_HAND))
        used_formats = ",".join(name for name in self.parts_by_format if name in format_by_layer.values())
        spec = replace(self.spec.base, rules=(*rules, *self.spec.base.rules))
        return FormatTrial("mixed", used_formats, last_layer, spec)


def _choose_worker_count(open_trials: Sequence[tuple[_ModelState, int]]) -> int:
    """Returns the number of processes on this machine that save time."""
    sizes = [count_file_bytes(state.files) for state, _ in open_trials]
    return suggest_processes(
        sum(_TRIAL_SECONDS + size / _BYTES_PER_SECOND for size in sizes), len(open_trials), max(sizes)
    )


def _compute_key(model: str, opening: Mapping[str, Any], spec: QuantizeSpec, samples: str) -> str:
    """Returns the key of a row: a digest of all inputs of its figures, without the origins of settings."""
    choice = {name: value for name, value in to_json(spec).items() if name not in ("origins", "config")}
    for rule in choice["rules"]:
        rule.pop("origin", None)
    return compute_digest({"model": model, "opening": opening, "formats": choice, "samples": samples})


def _digest_samples(path: str) -> str:
    """Returns a digest of the samples: a file, or all files of a folder in the order of their names.

    Raises:
        Misuse: The file or folder is missing, or a file cannot be read.
    """
    if not os.path.exists(path):
        raise Misuse("there is no such file", where=path)
    names = [path]
    if os.path.isdir(path):
        names = sorted(os.path.join(path, name) for name in input_files.list_names(path))
    try:
        return compute_fingerprint([name for name in names if os.path.isfile(name)])
    except BadModel as error:
        raise Misuse(error.what, where=path) from None
