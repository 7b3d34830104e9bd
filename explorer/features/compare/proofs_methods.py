"""Session methods that prove models equal, or show where they differ."""

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
    """Check early that the current model can run on a file of inputs.

    Args:
        input: Path of an .npy or .npz file.
        on_progress: Callback that receives the progress.

    Raises:
        Misuse: The file cannot be read, or does not fit the model.
    """
    session.parts.get_part(Prover).check_input(input, on_progress)


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
    """Verify that two models compute the same outputs.

    Both are states of the history; `other` replaces the second one by another model.

    Args:
        before: Index of the original state.
        after: Index of the state to verify, or None for the current state.
        draws: Number of random inputs to run both models on.
        seed: Seed of the first random input.
        dims: Sizes of open dimensions, one or several for each name, instead of those of the session.
        input: Path of an .npy or .npz file with inputs, or None for random inputs.
        tolerance: Largest permitted difference of the outputs. With it, only the outputs are compared.
        other: Path or name of a model, as for `Session`, instead of `after`.
        on_progress: Callback that receives the progress of the proof.
        cancel: Callback that is polled regularly; the work stops when it returns True.

    Raises:
        Misuse: A size or the input does not fit the model.
        BadModel: onnxruntime cannot run one of the models.
        Cancelled: `cancel` returned True.
    """
    models, a = session.parts.models, session.parts.models.resolve_index(before)
    other_models, b = session.parts.find_second_model(after, other)
    evidence = session.parts.get_part(Prover).verify(
        models.load_graph(a, on_progress),
        other_models.load_graph(b, on_progress),
        plan=plan_between(models.history, a, b) if other_models is models else None,
        state=a,
        draws=draws,
        seed=seed,
        dims=dims,
        input=input,
        tolerance=tolerance,
        on_progress=on_progress,
        cancel=cancel,
    )
    return replace(evidence, before=models.label(a), after=other_models.label(b))


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
    """Find the first layer at which one model departs from another, and how the error grows.

    Args:
        before: Index of the original state.
        after: Index of the state to compare, or None for the current state.
        spec: Tiling to apply to the current model, instead of `before` and `after`. The tiled model is
            compared with the current one and then discarded.
        draws: Number of random inputs to run both models on.
        seed: Seed of the first random input.
        dims: Sizes of open dimensions, one or several for each name, instead of those of the session.
        input: Path of an .npy or .npz file with inputs, or None for random inputs.
        other: Path or name of a model, as for `Session`, instead of `after`.
        on_progress: Callback that receives the progress.
        cancel: Callback that is polled regularly; the work stops when it returns True.

    Raises:
        Misuse: A size or the input does not fit the model.
        BadModel: onnxruntime cannot run one of the models.
        Cancelled: `cancel` returned True.
    """
    models = session.parts.models
    with contextlib.ExitStack() as stack:
        if spec is None:
            a, (other_models, b) = models.resolve_index(before), session.parts.find_second_model(after, other)
            graphs = models.load_graph(a, on_progress), other_models.load_graph(b, on_progress)
            labels = models.label(a), other_models.label(b)
        else:
            graphs = stack.enter_context(
                session.parts.get_part(Tiler).tile_temporarily(spec, on_progress, cancel)
            )
            labels = models.label(models.current), spec.label
        fact = session.parts.get_part(Prover).blame(
            *graphs, draws=draws, seed=seed, dims=dims, input=input, on_progress=on_progress, cancel=cancel
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
    """Compare two models node by node, as ONNX graphs or as modules; arguments as for `tree_diff`."""
    sides = session.parts.models.resolve_index(before), session.parts.find_second_model(after, other)
    return session.parts.get_part(Comparer).diff(*sides, on_progress, cancel)


def tree_diff(
    session: Facade,
    before: int = 0,
    after: int | None = None,
    *,
    other: PathText | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> TreeDiff:
    """Align the layer trees of two models with the matching rules of `diff`.

    Args:
        before: Index of a state of the history.
        after: Index of another state, or None for the current state.
        other: Path or name of a model, as for `Session`, instead of `after`.
        on_progress: Callback that receives the progress.
        cancel: Callback that is polled regularly; the work stops when it returns True.

    Raises:
        Misuse: The history has no such state, or the other model does not accept the session's options.
        BadModel: `other` cannot be read, or one model is a graph and the other cannot become one.
        Cancelled: `cancel` returned True.
    """
    sides = session.parts.models.resolve_index(before), session.parts.find_second_model(after, other)
    return session.parts.get_part(Comparer).tree(*sides, on_progress, cancel)


def compare(
    session: Facade,
    before: int = 0,
    after: int | None = None,
    *,
    other: PathText | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Comparison:
    """Compare the totals of two models and explain the differences; arguments as for `tree_diff`."""
    sides = session.parts.models.resolve_index(before), [session.parts.find_second_model(after, other)]
    return session.parts.get_part(Comparer).totals(*sides, on_progress, cancel)


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
    """Build a table of figures with a column for each of two or more states.

    Changes are relative to the first state, and the best value of each figure is marked.

    Args:
        states: Indices or names of states.
        others: Paths or names of other models. They are shown as opened and without a proof.
        hardware: Machine for times and cycles (see `explorer.settings.machines.find_hardware`).
        verify: Whether to verify each state against the first. Otherwise the proof recorded with each state
            is shown.
        draws: Number of random inputs for each proof.
        seed: Seed of the first random input.
        on_progress: Callback that receives the progress.
        cancel: Callback that is polled regularly; the work stops when it returns True.

    Raises:
        Misuse: Fewer than two models are named, a state does not exist, or `verify` is requested with
            `others`.
    """
    models = session.parts.models
    indices = [models.resolve_index(s) if isinstance(s, int) else models.history.state(s) for s in states]
    indices = list(dict.fromkeys(indices))
    if others and verify:
        raise Misuse("only states of the session can be proved here", hint="compare --verify proves models")
    if len(indices) + len(others) < 2:
        raise Misuse("there is nothing to compare with", hint="name two states or more")
    entries = [models.history.entries[index] for index in indices]
    titles = [
        e.name or (e.label if index else "as opened") for index, e in zip(indices, entries, strict=True)
    ]
    settings: dict[str, Any] = {"draws": draws, "seed": seed, "on_progress": on_progress, "cancel": cancel}
    names = [
        models.label(index) if others else f"{index} {name}"
        for index, name in zip(indices, titles, strict=True)
    ]
    other_models = [models.open_other(source) for source in others]
    try:
        return session.parts.get_part(Comparer).build_figure_columns(
            [*((models, index) for index in indices), *((model, 0) for model in other_models)],
            [*names, *others],
            on_progress,
            cancel,
            prove=_create_prover(session, indices[0], settings) if verify else None,
            hardware=hardware,
        )
    finally:
        for model in other_models:
            model.close()


def _create_prover(
    session: Facade, first: int, settings: Mapping[str, Any]
) -> Callable[[tuple[Models, int]], Verification]:
    """Return a function that proves a state equal to state `first`."""
    return lambda state: verify(session, first, state[1], **settings)
