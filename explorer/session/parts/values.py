"""Weights and activations of a session's models, and what would run them: what asks values or the runtime."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.engine.runtime.placement import placement
from explorer.engine.values import activations, weights
from explorer.facts.beside.placement import Placement
from explorer.facts.values import Activations, Weights
from explorer.session.parts.models import Cancel, Models, OnProgress


class ModelValues:
    """Statistics of stored tensors and of what layers put out."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def weights(
        self, names: Sequence[str], bins: int, index: int | None, on_progress: OnProgress, cancel: Cancel
    ) -> Weights:
        """Statistics of stored tensors, read a slab at a time."""
        at = self._models.at(index)
        layers = self._models.rows(at, on_progress, cancel)
        tensors, notes = self._models.opened(at, on_progress).tensors()
        return weights.weights(
            tensors,
            names,
            source=self._models.label(at),
            layers=layers,
            # whatever was made of random weights is as random as they are
            notes=self._models.random_weights() if at else notes,
            bins=bins,
            on_progress=on_progress,
            cancel=cancel,
        )

    def activations(
        self,
        layers: Sequence[str],
        input: str | None,
        seed: int,
        bins: int,
        output: str | None,
        overwrite: bool,
        index: int | None,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> Activations:
        """What the layers of a model put out for one input."""
        at = self._models.at(index)
        if output is not None:
            self._models.check_target(output, overwrite, *([input] if input else []))
        rows = self._models.rows(at, on_progress, cancel)
        found = activations.activations(
            lambda request: self._models.opened(at, on_progress).activations(request, rows),
            layers,
            source=self._models.label(at),
            input=input,
            seed=seed,
            bins=bins,
            output=output,
            overwrite=overwrite,
            on_progress=on_progress,
            cancel=cancel,
        )
        return replace(found, notes=self._models.random_weights())

    def placement(self, providers: Sequence[str], index: int | None) -> Placement:
        """Which execution provider of onnxruntime runs what."""
        at = self._models.at(index)
        if not at and not self._models.is_graph:
            raise Misuse(
                "onnxruntime runs ONNX graphs, and this is none",
                where=self._models.source,
                hint="explorer convert MODEL -o OUT.onnx, and that",
            )
        analysis = self._models.examined(at).analysis
        return placement(self._models.graph(at), analysis, providers, scratch=self._models.workdir)
