"""Folding of a session's models, and the states that it makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from explorer.base.checked import Count, Natural, PathText
from explorer.facts.change import ProofRequest
from explorer.facts.split.fold import FOLDS, FoldKind, FoldSpec
from explorer.features.rewrite import fold as folding
from explorer.session.methods.facade import Facade
from explorer.session.parts.models import Cancel, OnProgress

if TYPE_CHECKING:
    from explorer.facts.split.fold import Fold


def fold_choice(
    session: Facade,
    kinds: Sequence[FoldKind] = FOLDS,
    *,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Fold:
    """What `fold` would do to the current model, without doing it; and what would stay, and why.

    Raises:
        BadModel: The model cannot be made a graph.
        Cancelled: `cancel` said so.
    """
    return folding.choice(session.parts.models, kinds, on_progress, cancel)


def fold(
    session: Facade,
    kinds: FoldSpec | Sequence[FoldKind] = FOLDS,
    *,
    output: PathText | None = None,
    overwrite: bool = False,
    verify: bool = True,
    draws: Count = 1,
    seed: Natural = 0,
    input: PathText | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Fold:
    """Folds the current model; every kind of rewrite that finds something makes a state of its own.

    Weights are computed in float64 and rounded once to their type.

    Args:
        kinds: 'identity' (Identity, and Dropout in inference), 'constants', 'batchnorm'; done in this
            order, whatever the order here; or the record that says so.
        output: Where to write the last state; None keeps it in the session's folder until `save`.
        overwrite: Whether an existing `output` may be replaced.
        verify: Prove every state against the one before. One that fails is not kept, nor what would
            follow: then `Fold.output` is empty.
        draws: Random inputs for each proof.
        seed: Of the first draw.
        input: An .npy or .npz file with the inputs for the proofs, in place of random ones.
        on_progress: Told where the job stands.
        cancel: Asked now and then; True stops the job and leaves nothing behind.

    Raises:
        Misuse: There is nothing to fold, and no `output` to copy the model to; or `output` cannot be written
            or exists.
        BadModel: onnxruntime cannot run the model for the proof.
        Cancelled: `cancel` said so.
    """
    options = kinds if isinstance(kinds, FoldSpec) else FoldSpec(tuple(kinds))
    fact: Fold = session.do(
        "fold",
        options,
        proof=ProofRequest(verify, draws, seed, input),
        output=output,
        overwrite=overwrite,
        on_progress=on_progress,
        cancel=cancel,
    )
    return fact
