"""Numbers in a session's models: statistics of weights and activations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from explorer.session.methods.base import SessionParts
from explorer.session.parts.models import Cancel, OnProgress

if TYPE_CHECKING:
    from explorer.facts.values import Activations, Weights


class ValueMethods(SessionParts):
    """What is in the weights, and what the layers put out."""

    def weights(
        self,
        names: Sequence[str] = (),
        *,
        bins: int = 32,
        index: int | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Weights:
        """Statistics of stored tensors, read a slab at a time.

        Args:
            names: Globs over the names of tensors and the paths of layers and groups; empty means all.
            bins: Intervals of the histograms.
            index: Which model of the history; None is the current one.
            on_progress: Told how many tensors are done.
            cancel: Asked at every slab; True stops.

        Raises:
            Misuse: A glob matches nothing, or there is no memory for the weights of a module.
            Cancelled: `cancel` said so.
        """
        return self._values.weights(names, bins, index, on_progress, cancel)

    def activations(
        self,
        layers: Sequence[str] = (),
        *,
        input: str | None = None,
        seed: int = 0,
        bins: int = 32,
        output: str | None = None,
        overwrite: bool = False,
        index: int | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Activations:
        """What the layers of a model put out for one input: statistics, and the values if asked for.

        Args:
            layers: Globs over the paths of layers; empty means every one.
            input: An .npy file, or an .npz file by names of inputs; None draws the input.
            seed: Of the drawn input, and the same for both kinds of model.
            bins: Intervals of the histograms.
            output: An .npz file that takes the values, named after their layers.
            overwrite: Whether an existing `output` may be replaced.
            index: Which model of the history; None is the current one.
            on_progress: Told how many layers have run.
            cancel: Asked at every layer; True stops, and nothing is written.

        Raises:
            Misuse: The input does not fit, a glob matches nothing, or `output` cannot be written.
            BadModel: The model fails before any of these layers has run; if it fails later, what ran until
                then is told, and `skipped` says where it failed and why.
            Cancelled: `cancel` said so.
        """
        return self._values.activations(
            layers, input, seed, bins, output, overwrite, index, on_progress, cancel
        )
