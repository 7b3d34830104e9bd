"""Weights and activations of a session's models, and what would run them: what asks values or the runtime."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import Misuse, nearest
from explorer.engine.runtime.input_files import Array as InputArray
from explorer.engine.runtime.input_files import read_input
from explorer.engine.runtime.placement import placement
from explorer.engine.values import activations, weights
from explorer.engine.values.activations import Backward
from explorer.facts.beside.placement import Placement
from explorer.facts.values import Activations, Weights
from explorer.session.parts.models import Cancel, Models, OnProgress
from explorer.settings.statistics import DEFAULT, Choice, parse_statistics


class AskedStatistics(Struct, frozen=True):
    """Which statistics, and of what.

    Attributes:
        kinds: Operators or module types of layers; empty means all.
        stat: As `--stat` has it; None for none, which with an axis are the usual ones.
        axis: The axis whose indices are told apart.
        bins: Intervals of the histograms.
    """

    kinds: tuple[str, ...] = ()
    stat: str | None = None
    axis: int | None = None
    bins: int = 32

    def choices(self) -> tuple[Choice, ...]:
        """The statistics by name.

        Raises:
            Misuse: One is not known.
        """
        stat = DEFAULT if self.stat is None and self.axis is not None else self.stat
        return () if stat is None else parse_statistics(stat)


_LOSSES = ("sum", "mse", "cross-entropy")


def _backward(loss: str, target: str | None) -> Backward:
    """Where a gradient begins: at one of the losses, or at what a file holds.

    Raises:
        Misuse: It is none of these, or a file cannot be read.
    """
    if loss not in _LOSSES and not loss.endswith((".npy", ".npz")):
        hint = nearest(loss, _LOSSES) or f"one of {', '.join(_LOSSES)}, or a .npy file with the gradient"
        raise Misuse(f"'{loss}' is no loss", where="--loss", hint=hint)
    wanted = None if target is None else _only(target)
    if loss in _LOSSES:
        if wanted is not None and loss == "sum":
            raise Misuse("the sum of the outputs has no target", where="--target", hint="--loss mse")
        return Backward(loss, wanted)
    if wanted is not None:
        raise Misuse("a gradient that is given has no target", where="--target", hint="leave it out")
    return Backward("", None, _only(loss))


def _only(path: str) -> InputArray:
    """The one array of a file."""
    found = list(read_input(path).arrays.values())
    if len(found) != 1:
        raise Misuse(f"it holds {len(found):,} arrays, and one is needed", where=path)
    return found[0]


class ModelValues:
    """Statistics of stored tensors and of what layers put out."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def weights(
        self,
        names: Sequence[str],
        asked: AskedStatistics,
        index: int | None,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> Weights:
        """Statistics of stored tensors, read a slab at a time."""
        at = self._models.at(index)
        layers = self._models.rows(at, on_progress, cancel)
        tensors, notes = self._models.opened(at, on_progress).tensors()
        return weights.weights(
            tensors,
            names,
            kinds=asked.kinds,
            choices=asked.choices(),
            axis=asked.axis,
            source=self._models.label(at),
            layers=layers,
            # whatever was made of random weights is as random as they are
            notes=self._models.random_weights() if at else notes,
            bins=asked.bins,
            on_progress=on_progress,
            cancel=cancel,
        )

    def activations(
        self,
        layers: Sequence[str],
        asked: AskedStatistics,
        input: str | None,
        batch: int | None,
        seed: int,
        loss: str | None,
        target: str | None,
        output: str | None,
        overwrite: bool,
        index: int | None,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> Activations:
        """What the layers of a model put out, or what flows back through them."""
        at = self._models.at(index)
        if output is not None:
            self._models.check_target(output, overwrite, *([input] if input else []))
        rows = self._models.rows(at, on_progress, cancel)
        found = activations.activations(
            lambda request: self._models.opened(at, on_progress).activations(request, rows),
            layers,
            source=self._models.label(at),
            kinds=asked.kinds,
            choices=asked.choices(),
            axis=asked.axis,
            rows=rows,
            input=input,
            batch=batch,
            seed=seed,
            backward=None if loss is None else _backward(loss, target),
            bins=asked.bins,
            output=output,
            overwrite=overwrite,
            on_progress=on_progress,
            cancel=cancel,
        )
        return replace(found, notes=(*self._models.random_weights(), *found.notes))

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
