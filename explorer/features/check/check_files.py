"""Check several models at once, with budgets of the caller and of `pyproject.toml`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from msgspec import Struct
from msgspec.structs import asdict

from explorer.base.checked import PathText
from explorer.base.errors import ExplorerError, Misuse, suggest_only_near
from explorer.facts.check import Baseline, BaselineModel, Check, CheckSpec, ModelCheck, find_worst
from explorer.features.check.baseline import check_baseline_target, name_model, read_baseline, write_baseline
from explorer.features.check.checker import (
    ModelFigures,
    check_needs,
    find_entry,
    is_empty,
    judge,
    measure,
    needs_baseline,
    read_budgets,
)
from explorer.features.check.project_file import Project, ProjectModel, read_project
from explorer.session.parts.models import Cancel, OnProgress
from explorer.session.session import Session
from explorer.settings.budgets import Budget
from explorer.settings.machines import find

if TYPE_CHECKING:
    from explorer.facts.roofline import Machine
    from explorer.session.parts.keywords import OpeningKeywords


class _Job(Struct, frozen=True):
    """A model to check: how it is opened, and its budgets.

    Attributes:
        name: Name in the answer.
        source: Path or name with which the model is opened.
        spec: Budgets as written.
        budgets: Budgets, parsed.
        machine: Machine of the least time, or None.
        options: Keywords of `Session`.
        where: Place in `pyproject.toml` that names the model, or '' if the caller named it.
    """

    name: str
    source: str
    spec: CheckSpec
    budgets: Mapping[str, Budget]
    machine: Machine | None
    options: Mapping[str, Any]
    where: str


def check_files(
    *models: str | os.PathLike[str],
    spec: CheckSpec | None = None,
    against: PathText | None = None,
    update: bool = False,
    overwrite: bool = False,
    config: PathText | None = None,
    machine: Machine | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **options: Unpack[OpeningKeywords],
) -> Check:
    """Compare the figures of models with their budgets.

    Args:
        models: Paths or names of models. Without one, the models that `pyproject.toml` lists.
        spec: Budgets for each model. They take precedence over those of `pyproject.toml`.
        against: Path of the baseline, or None for the one that `pyproject.toml` names.
        update: Whether to write the figures into the baseline. Changes such as '+5%' then refer to the new
            figures, and the table shows the change from the old ones.
        overwrite: Whether `update` may replace a file that is not a baseline.
        config: Path of a file with the table `[tool.explorer]`, or None for the `pyproject.toml` of the
            working folder or of the nearest folder above it that has one.
        machine: Machine for `max_seconds`; see `Session.check`.
        on_progress: Callback that receives the progress.
        cancel: Callback that is polled regularly; the work stops when it returns True.
        options: Options of `explorer.session.Session`.

    Raises:
        Misuse: There is no model or no budget, a limit is invalid, or the baseline is broken or lacks a model
            whose budget needs it.
        BadModel: A model is broken.
        Cancelled: `cancel` returned True. The baseline is unchanged.
    """
    project = read_project(config)
    path = against or (None if project is None else project.against)
    baseline: Baseline | None = None
    if path is not None and not update and (against is not None or os.path.lexists(path)):
        baseline = read_baseline(path)
    sources = [os.fspath(model) for model in models]
    jobs = _list_jobs(sources, project, spec, machine, options, update, has_baseline=baseline is not None)
    for job in jobs:
        if not (update and is_empty(job.spec)):
            check_needs(job.spec, job.budgets, has_baseline=path is not None, where=job.where)
    if update:
        if path is None:
            hint = 'add --against baseline.json, or against = "baseline.json" in [tool.explorer]'
            raise Misuse("needs the path of the baseline", where="--update", hint=hint)
        inputs = () if project is None else (project.path,)
        check_baseline_target(path, tuple(job.source for job in jobs), inputs, overwrite=overwrite)
        baseline = _read_old_baseline(path)
    elif path is not None and baseline is None and any(needs_baseline(j.spec, j.budgets) for j in jobs):
        baseline = read_baseline(path)
    folder = os.path.dirname(os.path.abspath(path or os.curdir))
    names = {job.source: name_model(job.source, folder) for job in jobs}
    if not update:
        for job in jobs:
            is_needed = needs_baseline(job.spec, job.budgets)
            find_entry(baseline, names[job.source], path or "", is_needed=is_needed)
    results, entries = list[ModelCheck](), dict[str, BaselineModel]()
    for job in jobs:
        model_figures = _measure(job, on_progress, cancel, is_only=len(jobs) == 1)
        old = None if baseline is None else baseline.models.get(names[job.source])
        entry = model_figures.build_baseline()
        entries[names[job.source]] = entry
        results.append(judge(job.name, job.spec, job.budgets, model_figures, entry if update else old, old))
    if update and path is not None:
        write_baseline(path, entries, overwrite=overwrite)
    baseline_path = path if baseline is not None or update else None
    return Check(
        tuple(results), baseline_path or "", update, find_worst(result.verdict for result in results)
    )


def _read_old_baseline(path: str) -> Baseline | None:
    """Read the baseline that an update replaces; None if the file does not exist or is not a baseline."""
    try:
        return read_baseline(path)
    except Misuse:  # there is no file yet, or `overwrite` allows to replace it
        return None


def _list_jobs(
    sources: list[str],
    project: Project | None,
    spec: CheckSpec | None,
    machine: Machine | None,
    options: OpeningKeywords,
    update: bool,
    *,
    has_baseline: bool,
) -> list[_Job]:
    """List the models to check, each with the budgets of the caller and of the project.

    Raises:
        Misuse: There is no model, or a model has no budget.
    """
    if not sources:
        if project is None or not project.models:
            hint = (
                'type explorer check MODEL --max-macs 4.1G, or add [tool.explorer."MODEL"] to pyproject.toml'
            )
            raise Misuse("names no model", where="check" if project is None else project.path, hint=hint)
        return [
            _build_job(entry.name, entry.source, project, entry, spec, machine, options, entry.where)
            for entry in project.models.values()
        ]
    jobs = []
    for source in dict.fromkeys(sources):
        entry = None if project is None else project.find(source)
        job = _build_job(source, source, project, entry, spec, machine, options, "")
        if is_empty(job.spec) and not update:
            suggestion = "" if project is None else suggest_only_near(source, project.models)
            limit = "+5%" if has_baseline else "4.1G"
            advice = f'add --max-macs {limit}, or a table [tool.explorer."{source}"] to pyproject.toml'
            raise Misuse("no budget is set for this model", where=source, hint=suggestion or advice)
        jobs.append(job)
    return jobs


def _build_job(
    name: str,
    source: str,
    project: Project | None,
    entry: ProjectModel | None,
    spec: CheckSpec | None,
    machine: Machine | None,
    options: OpeningKeywords,
    where: str,
) -> _Job:
    """Build a job from the values of the project. Budgets and options of the caller take precedence."""
    values = dict((project.values if entry is None else entry.values) if project is not None else {})
    machine_name = values.pop("machine", None)
    opening: dict[str, Any] = {key: values.pop(key) for key in ("dims", "input_shapes") if key in values}
    opening |= {key: value for key, value in options.items() if value or key not in opening}
    defaults = asdict(CheckSpec())
    typed = {} if spec is None else {k: v for k, v in asdict(spec).items() if v != defaults[k]}
    full_spec = CheckSpec(**{**values, **typed})
    if machine is None and machine_name is not None and full_spec.max_seconds is not None:
        machine = find(machine_name)
    return _Job(name, source, full_spec, read_budgets(full_spec), machine, opening, where)


def _measure(job: _Job, on_progress: OnProgress, cancel: Cancel, *, is_only: bool) -> ModelFigures:
    """Open a model and collect its figures.

    An error names the place in `pyproject.toml` that lists the model, or one of several models.
    """
    try:
        with Session(job.source, **job.options) as session:
            return measure(session, job.spec, job.machine, None, on_progress, cancel)
    except ExplorerError as error:
        if job.where:
            error.where = f"{job.where}: {error.where or job.name}"
        elif not is_only and job.name not in error.where:
            error.where = f"{job.name}: {error.where}" if error.where else job.name
        raise
