"""Proofs and differences between two states of a session."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from msgspec.structs import replace

from explorer.facts import Diff, TileSpec, Verification
from explorer.session.methods.base import SessionParts
from explorer.session.parts import history as states
from explorer.session.parts.models import Cancel, Dims, OnProgress

if TYPE_CHECKING:
    from explorer.facts.blame import Blame
    from explorer.facts.verification import Tolerance


class ProofMethods(SessionParts):
    """Whether two states compute the same, what changed, and which layer departs first."""

    def verify(
        self,
        before: int = 0,
        after: int | None = None,
        *,
        draws: int = 1,
        seed: int = 0,
        dims: Dims | None = None,
        input: str | None = None,
        tolerance: Tolerance | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Verification:
        """Evidence that two models of the history compute the same.

        Args:
            before: The original.
            after: The other model; None is the current one.
            draws: Random inputs to run both on.
            seed: Of the first draw.
            dims: Sizes of open dimensions, or several of each, in place of those of the session.
            input: An .npy or .npz file with the inputs, in place of random ones.
            tolerance: By how much the outputs may differ: then only they are compared.
            on_progress: Told where the proof stands.
            cancel: Asked now and then; True stops.

        Raises:
            Misuse: A size or the input does not fit the model.
            BadModel: onnxruntime cannot run one of them.
            Cancelled: `cancel` said so.
        """
        models = self._models
        a, b = models.at(before), models.at(after)
        graphs = models.graph(a, on_progress), models.graph(b, on_progress)
        evidence = self._prover.verify(
            *graphs,
            states.plan_between(models.history, a, b),
            draws=draws,
            seed=seed,
            dims=dims,
            input=input,
            tolerance=tolerance,
            on_progress=on_progress,
            cancel=cancel,
        )
        return replace(evidence, before=models.label(a), after=models.label(b))

    def blame(
        self,
        before: int = 0,
        after: int | None = None,
        *,
        spec: TileSpec | None = None,
        draws: int = 3,
        seed: int = 0,
        dims: Dims | None = None,
        input: str | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Blame:
        """The first layer in which one model of the history departs from another, and how the error grows.

        Args:
            before: The original.
            after: The other model; None is the current one.
            spec: In place of both: the current model, and what `tile` makes of it, which is looked at only.
            draws: Random inputs to run both on.
            seed: Of the first draw.
            dims: Sizes of open dimensions, or several of each, in place of those of the session.
            input: An .npy or .npz file with the inputs, in place of random ones.
            on_progress: Told where the job stands.
            cancel: Asked now and then; True stops.

        Raises:
            Misuse: A size or the input does not fit the model.
            BadModel: onnxruntime cannot run one of them.
            Cancelled: `cancel` said so.
        """
        models = self._models
        with contextlib.ExitStack() as stack:
            if spec is None:
                a, b = models.at(before), models.at(after)
                graphs = models.graph(a, on_progress), models.graph(b, on_progress)
                labels = models.label(a), models.label(b)
            else:
                graphs = stack.enter_context(self._tiler.tried(spec, on_progress, cancel))
                labels = models.label(models.current), f"tile {'x'.join(map(str, spec.tile))}"
            fact = self._prover.blame(
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
        self,
        before: int = 0,
        after: int | None = None,
        *,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Diff:
        """What changed between two models of the history, as ONNX graphs."""
        return self._comparer.diff(before, after, on_progress, cancel)
