"""Verify, blame, diff and compare of model files; a session opens each file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Unpack

from msgspec.structs import replace

from explorer.base.checked import Count, Natural, PathText
from explorer.base.errors import Misuse
from explorer.engine.proof.proof import check_inputs
from explorer.engine.proof.regions.trials import FLOATS
from explorer.facts import Diff, Verification
from explorer.features.compare.compare import Comparer
from explorer.session.files import opened, opened_pair
from explorer.session.parts.models import Cancel, Models, OnProgress
from explorer.session.parts.proofs import Prover

if TYPE_CHECKING:
    from explorer.facts.blame import Blame
    from explorer.facts.comparison import Comparison, TreeDiff
    from explorer.facts.cost import Hardware
    from explorer.facts.verification import Tolerance
    from explorer.session.keywords import OpeningKeywords, PairKeywords


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
    **options: Unpack[PairKeywords],
) -> Verification:
    """Evidence that the models `a` and `b` compute the same, or differ by no more than `tolerance`.

    `options` as for `explorer.session.Session`; in `dims` a name may have several sizes. `input` is an .npy
    or .npz file with the inputs, in place of random ones.

    Raises:
        Misuse: They take other inputs, so that nothing can go into both; and see `Session.verify`.
    """
    with opened_pair(a, b, options) as (first, second):
        graphs = first.parts.models.graph(0, on_progress), second.parts.models.graph(0, on_progress)
        check_inputs(*graphs)
        evidence = first.parts.of(Prover).verify(
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
    **options: Unpack[PairKeywords],
) -> Blame:
    """Where the model `b` departs from `a`, layer by layer.

    `options` as for `explorer.session.Session`; in `dims` a name may have several sizes. `input` is an .npy
    or .npz file with the inputs, in place of random ones.
    """
    with opened_pair(a, b, options) as (first, second):
        graphs = first.parts.models.graph(0, on_progress), second.parts.models.graph(0, on_progress)
        check_inputs(*graphs, FLOATS)
        fact = first.parts.of(Prover).blame(
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
    **options: Unpack[PairKeywords],
) -> Diff:
    """What changed from the model `a` to the model `b`; `options` as for `explorer.session.Session`."""
    with opened_pair(a, b, options) as (first, second):
        return first.parts.of(Comparer).diff(0, (second.parts.models, 0), on_progress, cancel)


def tree_diff_files(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **options: Unpack[PairKeywords],
) -> TreeDiff:
    """The layer trees of two models side by side; `options` as for `explorer.session.Session`."""
    with opened_pair(a, b, options) as (first, second):
        return first.parts.of(Comparer).tree(0, (second.parts.models, 0), on_progress, cancel)


def compare_files(
    *sources: str | os.PathLike[str],
    hardware: Hardware | None = None,
    verify: bool = False,
    draws: Count = 1,
    first_seed: Natural = 0,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **options: Unpack[OpeningKeywords],
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

        def prove(state: tuple[Models, int]) -> Verification:
            graphs = first.graph(0, on_progress), state[0].graph(state[1], on_progress)
            settings: dict[str, Any] = {"input": None, "tolerance": None, "dims": options.get("dims")}
            return (
                sessions[0]
                .parts.of(Prover)
                .verify(
                    *graphs,
                    None,
                    draws=draws,
                    seed=first_seed,
                    on_progress=on_progress,
                    cancel=cancel,
                    **settings,
                )
            )

        beside = [(models, 0) for models in others]
        proved: dict[str, Any] = {"prove": prove if verify else None, "hardware": hardware}
        return sessions[0].parts.of(Comparer).totals(0, beside, on_progress, cancel, **proved)
