"""Figures of a session's models beyond the totals: memory, roofline, training, operator types, search."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.engine.costs.memory import liveness
from explorer.engine.costs.memory import roofline as limits
from explorer.engine.costs.operator_stats import operator_stats
from explorer.engine.costs.training import step as training
from explorer.facts import Info, OpStat
from explorer.facts.memory import Memory
from explorer.facts.roofline import Machine, Roofline
from explorer.facts.training import Optimizer, Training
from explorer.session.models import Cancel, InputShapes, Models, OnProgress
from explorer.settings import filter


class ModelFigures:
    """What is computed from an analysis; nothing here changes a model."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def info_at(self, input_shapes: InputShapes, on_progress: OnProgress, cancel: Cancel) -> Info:
        """Totals of the opened model at other sizes of its inputs."""
        opened = self._models.opened(0, on_progress)
        usual = opened.options
        # the dimensions of a graph are its own; the one of a module says what these shapes say
        dims = usual.dims if opened.names() else {}
        opened.options = replace(usual, dims=dims, input_shapes={**usual.input_shapes, **input_shapes})
        try:
            return self._models.presented(0, opened.examine(on_progress=on_progress, cancel=cancel)).info
        finally:
            opened.options = usual

    def stored(self) -> Info:
        """What the opened module stores."""
        opened: Any = self._models.opened()
        if not self._models.from_torch:
            raise Misuse("only an nn.Module has inputs that nobody knows", where=self._models.source)
        info: Info = opened.stored()
        return info

    def memory(self, index: int | None) -> Memory:
        """Liveness and the arena."""
        return liveness.memory(self._models.ordered(index))

    def roofline(self, machine: Machine, index: int | None) -> Roofline:
        """Every layer against the limits of a machine."""
        return limits.roofline(self._models.ordered(index).analysis, machine)

    def training(self, batch: int | None, optimizer: Optimizer, index: int | None) -> Training:
        """One training step."""
        training.check(batch, optimizer)
        opened = self._models.opened(self._models.at(index))
        return training.training(opened.training(batch), optimizer)

    def ops(self, index: int | None) -> tuple[OpStat, ...]:
        """Operator types."""
        return operator_stats(self._models.examined(self._models.at(index)).analysis)

    def search(self, text: str, index: int | None) -> tuple[int, ...]:
        """Ids of the layers that match a query."""
        return filter.search(self._models.examined(self._models.at(index)).analysis.layers, text)
