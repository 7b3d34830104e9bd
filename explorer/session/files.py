"""Several model files at once: verify, blame, diff, compare, sweep; each is opened as a session opens it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from explorer.base.checked import Count, Natural, PathText, checked
from explorer.base.errors import ExplorerError, Misuse
from explorer.engine.models.opened_model import OpenOptions, check_names
from explorer.engine.proof.proof import check_inputs
from explorer.engine.proof.regions.trials import FLOATS
from explorer.facts import Diff, Verification
from explorer.session import sweep
from explorer.session.parts.evaluate import evaluated
from explorer.session.parts.models import Cancel, Dims, Models, OnProgress
from explorer.session.session import Session, argument_type, reopen

if TYPE_CHECKING:
    from explorer.facts.blame import Blame
    from explorer.facts.comparison import Comparison, TreeDiff
    from explorer.facts.cost import Hardware
    from explorer.facts.evaluate.evaluation import Evaluation, Task
    from explorer.facts.quantize import FormatSweep, FormatSweepSpec
    from explorer.facts.sweep import Sweep, SweepSpec
    from explorer.facts.verification import Tolerance

_OF_A_SWEEP = (
    *("hardware", "order", "verify", "draws", "output", "scheduler", "workers", "layers"),
    *("first_seed", "on_progress", "cancel"),
)


def verify_files(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    draws: Count = 1,
    seed: Natural = 0,
    input: PathText | None = None,
    tolerance: Tolerance | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **options: Any,
) -> Verification:
    """Evidence that the models `a` and `b` compute the same, or differ by no more than `tolerance`.

    `options` as for `explorer.session.Session`; in `dims` a name may have several sizes. `input` is an .npy
    or .npz file with the inputs, in place of random ones.

    Raises:
        Misuse: They take other inputs, so that nothing can go into both; and see `Session.verify`.
    """
    with _pair(a, b, options) as (first, second):
        graphs = first.parts.models.graph(0, on_progress), second.parts.models.graph(0, on_progress)
        check_inputs(*graphs)
        evidence = first.parts.prover.verify(
            *graphs,
            None,
            draws=draws,
            seed=seed,
            dims=options.get("dims"),
            input=input,
            tolerance=tolerance,
            on_progress=on_progress,
            cancel=cancel,
        )
        return replace(evidence, before=first.source, after=second.source)


def blame_files(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    draws: Count = 3,
    seed: Natural = 0,
    input: PathText | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **options: Any,
) -> Blame:
    """Where the model `b` departs from `a`, layer by layer.

    `options` as for `explorer.session.Session`; in `dims` a name may have several sizes. `input` is an .npy
    or .npz file with the inputs, in place of random ones.
    """
    with _pair(a, b, options) as (first, second):
        graphs = first.parts.models.graph(0, on_progress), second.parts.models.graph(0, on_progress)
        check_inputs(*graphs, FLOATS)
        fact = first.parts.prover.blame(
            *graphs,
            draws=draws,
            seed=seed,
            dims=options.get("dims"),
            input=input,
            on_progress=on_progress,
            cancel=cancel,
        )
        return replace(fact, before=first.source, after=second.source)


def diff_files(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **options: Any,
) -> Diff:
    """What changed from the model `a` to the model `b`; `options` as for `explorer.session.Session`."""
    with _pair(a, b, options) as (first, second):
        return first.parts.comparer.diff(0, (second.parts.models, 0), on_progress, cancel)


def tree_diff_files(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **options: Any,
) -> TreeDiff:
    """The layer trees of two models side by side; `options` as for `explorer.session.Session`."""
    with _pair(a, b, options) as (first, second):
        return first.parts.comparer.tree(0, (second.parts.models, 0), on_progress, cancel)


def compare_files(
    *sources: str | os.PathLike[str],
    hardware: Hardware | None = None,
    verify: bool = False,
    draws: Count = 1,
    first_seed: Natural = 0,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **options: Any,
) -> Comparison:
    """Figures of two or more models side by side, which are the best, and differences from the first.

    Args:
        sources: As for `explorer.session.Session`.
        hardware: The machine for times and cycles; None leaves them out.
        verify: Prove that each computes what the first does.
        draws: Random inputs for each proof.
        first_seed: Of the first draw of a proof.
        on_progress: Told the phase of each model.
        cancel: Asked now and then; True stops.
        options: As for `explorer.session.Session`; a dimension or input need only exist in one of the models.

    Raises:
        Misuse: There is only one model, or no model has a dimension or input that was named.
    """
    if len(sources) < 2:
        raise Misuse("there is nothing to compare with", hint="name two models or more")
    with opened(sources, options, on_progress) as sessions:
        first, *others = [session.parts.models for session in sessions]

        def prove(one: tuple[Models, int]) -> Verification:
            graphs = first.graph(0, on_progress), one[0].graph(one[1], on_progress)
            how: dict[str, Any] = {"input": None, "tolerance": None, "dims": options.get("dims")}
            return sessions[0].parts.prover.verify(
                *graphs, None, draws=draws, seed=first_seed, on_progress=on_progress, cancel=cancel, **how
            )

        beside = [(models, 0) for models in others]
        proved: dict[str, Any] = {"prove": prove if verify else None, "hardware": hardware}
        return sessions[0].parts.comparer.totals(0, beside, on_progress, cancel, **proved)


def evaluate_files(
    *sources: str | os.PathLike[str],
    data: PathText,
    labels: str = "",
    inputs: Sequence[str] = (),
    scores: str = "",
    batch: Count = 64,
    task: Task | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **options: Any,
) -> Evaluation:
    """How well models do on the samples of a file, side by side; arguments as for `Session.evaluate`.

    `options` as for `explorer.session.Session`; a dimension or input need only exist in one of the models.
    """
    with opened(sources, options, on_progress) as sessions:
        return evaluated(
            [(session.parts.models, 0) for session in sessions],
            data,
            labels=labels,
            inputs=inputs,
            output=scores,
            batch=batch,
            task=task,
            on_progress=on_progress,
            cancel=cancel,
        )


def sweep_files(*sources: str | os.PathLike[str], spec: SweepSpec, **options: Any) -> Sweep:
    """A row for every model and every combination.

    Args:
        sources: As for `Session`.
        spec: What is combined.
        options: Those of `Session.sweep`, its `seed` as `first_seed`, and those of `Session` for all models;
            a dimension or input that they name need only exist in one of them.
    """
    how = {name: options.pop(name) for name in _OF_A_SWEEP if name in options}
    how["seed"] = how.pop("first_seed", 0)
    with opened(sources, options, broken=True) as sessions:
        run = checked(sweep.sweep, argument_type)
        return run([(one, one.parts.models) for one in sessions], spec, reopen, **how)


def sweep_formats(*sources: str | os.PathLike[str], spec: FormatSweepSpec, **options: Any) -> FormatSweep:
    """A row for every model and every choice of number formats.

    Args:
        sources: As for `Session`.
        spec: What is tried.
        options: Those of `Session.sweep_formats`, and those of `Session` for all models.
    """
    how = {name: options.pop(name) for name in _OF_A_SWEEP if name in options}
    with opened(sources, options, broken=True) as sessions:
        run = checked(sweep.sweep_formats, argument_type)
        return run([(one, one.parts.models) for one in sessions], spec, reopen, **how)


@contextlib.contextmanager
def opened(
    sources: Sequence[str | os.PathLike[str]],
    options: Mapping[str, Any],
    on_progress: OnProgress = None,
    *,
    broken: bool = False,
) -> Iterator[list[Session]]:
    """Sessions with the same options; of several models a dimension need only exist in one.

    With `broken` one that cannot be opened is among them.
    """
    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(Session(source, **options)) for source in sources]
        several = [session.parts.models for session in sessions]
        for models in several:
            models.strict = len(several) == 1
        if not broken:
            for models in several:
                models.opened(0, on_progress)
        if len(several) > 1:
            _check_sizes(several)
        yield sessions


@contextlib.contextmanager
def _pair(
    a: str | os.PathLike[str], b: str | os.PathLike[str], options: Mapping[str, Any]
) -> Iterator[list[Session]]:
    """Two sessions with the same options; of several sizes of a dimension they have the first."""
    dims: Dims = options.get("dims") or {}
    options = {**options, "dims": {n: s if isinstance(s, int) else s[0] for n, s in dims.items()}}
    with opened((a, b), options) as sessions:
        yield sessions


def _check_sizes(several: Sequence[Models]) -> None:
    """Whether every dimension and input that was named is one of some model's; a broken model has none."""
    opened = []
    for models in several:
        with contextlib.suppress(ExplorerError):
            opened.append(models.opened())
    if len(opened) == len(several):
        check_names(opened, OpenOptions(**several[0].options))
