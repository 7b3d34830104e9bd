"""Functions that verify, blame, diff and compare model files. Each opens a session for every file."""

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
from explorer.session.files import open_pair, open_sessions
from explorer.session.parts.models import Cancel, Models, OnProgress
from explorer.session.parts.proofs import Prover

if TYPE_CHECKING:
    from explorer.facts.blame import Blame
    from explorer.facts.comparison import Comparison, TreeDiff
    from explorer.facts.cost import Hardware
    from explorer.facts.verification import Tolerance
    from explorer.session.parts.keywords import OpeningKeywords, PairKeywords


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
    """Verify that the models `a` and `b` compute the same outputs, or outputs within `tolerance`.

    `options` are those of `explorer.session.Session`; a name in `dims` may have several sizes. `input` is the
    path of an .npy or .npz file with inputs; None draws random inputs.

    Raises:
        Misuse: The models take different inputs; see also `Session.verify`.
    """
    with open_pair(a, b, options) as (first, second):
        graphs = first.parts.models.load_graph(0, on_progress), second.parts.models.load_graph(0, on_progress)
        are_modules = first.parts.models.from_torch, second.parts.models.from_torch
        check_inputs(*graphs, are_modules=are_modules, where=second.source)
        evidence = first.parts.get_part(Prover).verify(
            *graphs,
            plan=None,
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
    """Find the layers at which the values of the model `b` begin to differ from those of `a`.

    `options` are those of `explorer.session.Session`; a name in `dims` may have several sizes. `input` is the
    path of an .npy or .npz file with inputs; None draws random inputs.
    """
    with open_pair(a, b, options) as (first, second):
        graphs = first.parts.models.load_graph(0, on_progress), second.parts.models.load_graph(0, on_progress)
        are_modules = first.parts.models.from_torch, second.parts.models.from_torch
        check_inputs(*graphs, FLOATS, are_modules=are_modules, where=second.source)
        fact = first.parts.get_part(Prover).blame(
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
    """Compare the models `a` and `b` node by node; `options` are those of `explorer.session.Session`."""
    with open_pair(a, b, options) as (first, second):
        return first.parts.get_part(Comparer).diff(0, (second.parts.models, 0), on_progress, cancel)


def tree_diff_files(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **options: Unpack[PairKeywords],
) -> TreeDiff:
    """Align the layer trees of two models; `options` are those of `explorer.session.Session`."""
    with open_pair(a, b, options) as (first, second):
        return first.parts.get_part(Comparer).tree(0, (second.parts.models, 0), on_progress, cancel)


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
    """Compare the figures of two or more models with those of the first, and mark the best of each figure.

    Args:
        sources: Paths or names of models, as for `explorer.session.Session`.
        hardware: Machine for times and cycles, or None to leave them out.
        verify: Whether to prove that each model computes the same as the first.
        draws: Number of random inputs for each proof.
        first_seed: Seed of the first random input of each proof.
        on_progress: Callback that receives the phase of each model.
        cancel: Callback that is polled regularly; the work stops when it returns True.
        options: Options of `explorer.session.Session`. A dimension or input needs to exist in only one of the
            models.

    Raises:
        Misuse: There is only one model, or no model has a named dimension or input.
    """
    if len(sources) < 2:
        raise Misuse("there is nothing to compare with", hint="name two models or more")
    with open_sessions(sources, options, on_progress) as sessions:
        first, *other_models = [session.parts.models for session in sessions]

        def prove(state: tuple[Models, int]) -> Verification:
            graphs = first.load_graph(0, on_progress), state[0].load_graph(state[1], on_progress)
            proof_settings: dict[str, Any] = {"input": None, "tolerance": None, "dims": options.get("dims")}
            return (
                sessions[0]
                .parts.get_part(Prover)
                .verify(
                    *graphs,
                    plan=None,
                    draws=draws,
                    seed=first_seed,
                    on_progress=on_progress,
                    cancel=cancel,
                    **proof_settings,
                )
            )

        other_states = [(models, 0) for models in other_models]
        settings: dict[str, Any] = {"prove": prove if verify else None, "hardware": hardware}
        return sessions[0].parts.get_part(Comparer).totals(0, other_states, on_progress, cancel, **settings)
