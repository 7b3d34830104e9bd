"""Proofs and differences between two states of a session."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from explorer.base.checked import Count, Natural, PathText
from explorer.base.errors import Misuse
from explorer.facts import Diff, TileSpec, Verification
from explorer.features.compare.compare import Comparer
from explorer.features.tiling.tiling import Tiler, plan_between
from explorer.session.methods.facade import Facade
from explorer.session.parts.models import Cancel, Dims, Models, OnProgress
from explorer.session.parts.proofs import Prover

if TYPE_CHECKING:
    from explorer.facts.blame import Blame
    from explorer.facts.comparison import Comparison, FigureTable, TreeDiff
    from explorer.facts.cost import Hardware
    from explorer.facts.verification import Tolerance


def check_input(session: Facade, input: PathText, *, on_progress: OnProgress = None) -> None:
    """Refuses, before anything is worked out, a file of inputs that the current model cannot be run on.

    Args:
        input: An .npy or .npz file.
        on_progress: Told where the job stands.

    Raises:
        Misuse: The file cannot be read, or does not fit the model.
    """
    session.parts.of(Prover).check_input(input, on_progress)


def verify(
    session: Facade,
    before: int = 0,
    after: int | None = None,
    *,
    draws: Count = 1,
    seed: Natural = 0,
    dims: Dims | None = None,
    input: PathText | None = None,
    tolerance: Tolerance | None = None,
    other: PathText | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Verification:
    """Evidence that two models compute the same, both of the history unless `other` names one.

    Args:
        before: The original.
        after: The other model; None is the current one.
        draws: Random inputs to run both on.
        seed: Of the first draw.
        dims: Sizes of open dimensions, or several of each, in place of those of the session.
        input: An .npy or .npz file with the inputs, in place of random ones.
        tolerance: By how much the outputs may differ: then only they are compared.
        other: A path or name, as for `Session`: a model in place of `after`.
        on_progress: Told where the proof stands.
        cancel: Asked now and then; True stops.

    Raises:
        Misuse: A size or the input does not fit the model.
        BadModel: onnxruntime cannot run one of them.
        Cancelled: `cancel` said so.
    """
    models, a = session.parts.models, session.parts.models.at(before)
    beside, b = session.parts.beside(after, other)
    evidence = session.parts.of(Prover).verify(
        models.graph(a, on_progress),
        beside.graph(b, on_progress),
        plan_between(models.history, a, b) if beside is models else None,
        state=a,
        draws=draws,
        seed=seed,
        dims=dims,
        input=input,
        tolerance=tolerance,
        on_progress=on_progress,
        cancel=cancel,
    )
    return replace(evidence, before=models.label(a), after=beside.label(b))


def blame(
    session: Facade,
    before: int = 0,
    after: int | None = None,
    *,
    spec: TileSpec | None = None,
    draws: Count = 3,
    seed: Natural = 0,
    dims: Dims | None = None,
    input: PathText | None = None,
    other: PathText | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Blame:
    """The first layer in which one model departs from another, and how the error grows.

    Args:
        before: The original.
        after: The other model; None is the current one.
        spec: In place of both: the current model, and what `tile` makes of it, which is looked at only.
        draws: Random inputs to run both on.
        seed: Of the first draw.
        dims: Sizes of open dimensions, or several of each, in place of those of the session.
        input: An .npy or .npz file with the inputs, in place of random ones.
        other: A path or name, as for `Session`: a model in place of `after`.
        on_progress: Told where the job stands.
        cancel: Asked now and then; True stops.

    Raises:
        Misuse: A size or the input does not fit the model.
        BadModel: onnxruntime cannot run one of them.
        Cancelled: `cancel` said so.
    """
    models = session.parts.models
    with contextlib.ExitStack() as stack:
        if spec is None:
            a, (beside, b) = models.at(before), session.parts.beside(after, other)
            graphs = models.graph(a, on_progress), beside.graph(b, on_progress)
            labels = models.label(a), beside.label(b)
        else:
            graphs = stack.enter_context(session.parts.of(Tiler).tried(spec, on_progress, cancel))
            labels = models.label(models.current), spec.label
        fact = session.parts.of(Prover).blame(
            *graphs,
            draws=draws,
            seed=seed,
            dims=dims,
            input=input,
            on_progress=on_progress,
            cancel=cancel,
        )
    return replace(fact, before=labels[0], after=labels[1])


def diff(
    session: Facade,
    before: int = 0,
    after: int | None = None,
    *,
    other: PathText | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Diff:
    """What changed between two models, as ONNX graphs; arguments as for `tree_diff`."""
    where = session.parts.models.at(before), session.parts.beside(after, other)
    return session.parts.of(Comparer).diff(*where, on_progress, cancel)


def tree_diff(
    session: Facade,
    before: int = 0,
    after: int | None = None,
    *,
    other: PathText | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> TreeDiff:
    """The layer trees of two models side by side, aligned as `diff` matches them.

    Args:
        before: A state of the history.
        after: Another; None is the current one.
        other: A path or name, as for `Session`: a model in place of `after`.
        on_progress: Told where the job stands.
        cancel: Asked now and then; True stops.

    Raises:
        Misuse: The history has no such entry, or the other model cannot be opened so.
        BadModel: The other is no model, or one of the two cannot be made a graph where the other is one.
        Cancelled: `cancel` said so.
    """
    where = session.parts.models.at(before), session.parts.beside(after, other)
    return session.parts.of(Comparer).tree(*where, on_progress, cancel)


def compare(
    session: Facade,
    before: int = 0,
    after: int | None = None,
    *,
    other: PathText | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Comparison:
    """The totals of two models side by side, and why they differ; arguments as for `tree_diff`."""
    where = session.parts.models.at(before), [session.parts.beside(after, other)]
    return session.parts.of(Comparer).totals(*where, on_progress, cancel)


def beside(
    session: Facade,
    states: Sequence[int | str],
    *,
    others: Sequence[str] = (),
    hardware: Hardware | None = None,
    verify: bool = False,
    draws: Count = 1,
    seed: Natural = 0,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> FigureTable:
    """Figures of two states or more beside each other, relative to the first, and which are the best.

    Args:
        states: Numbers or names.
        others: Paths or names of other models, as they are opened; nothing is proved of them.
        hardware: The machine for times and cycles (see `explorer.settings.machines.hardware`).
        verify: Hold each against the first; else the proof that was made with each is shown.
        draws: Random inputs for each proof.
        seed: Of the first draw.
        on_progress: Told where the job stands.
        cancel: Asked now and then; True stops.

    Raises:
        Misuse: There are fewer than two, or there is no such state.
    """
    models = session.parts.models
    numbers = [models.at(s) if isinstance(s, int) else models.history.state(s) for s in states]
    numbers = list(dict.fromkeys(numbers))
    if others and verify:
        raise Misuse("states of one session are proved equal here", hint="compare --verify proves models")
    if len(numbers) + len(others) < 2:
        raise Misuse("there is nothing to compare with", hint="name two states or more")
    entries = [models.history.entries[at] for at in numbers]
    titles = [e.name or (e.label if at else "as opened") for at, e in zip(numbers, entries, strict=True)]
    settings: dict[str, Any] = {"draws": draws, "seed": seed, "on_progress": on_progress, "cancel": cancel}
    names = [models.label(at) if others else f"{at} {name}" for at, name in zip(numbers, titles, strict=True)]
    opened = [models.beside(source) for source in others]
    try:
        return session.parts.of(Comparer).beside(
            [*((models, at) for at in numbers), *((model, 0) for model in opened)],
            [*names, *others],
            on_progress,
            cancel,
            prove=_against(session, numbers[0], settings) if verify else None,
            hardware=hardware,
        )
    finally:
        for model in opened:
            model.close()


def _against(
    session: Facade, first: int, settings: Mapping[str, Any]
) -> Callable[[tuple[Models, int]], Verification]:
    """A function that proves a state equal to `first`."""
    return lambda state: verify(session, first, state[1], **settings)
