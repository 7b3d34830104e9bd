"""Parts of a session, fields that answer what it is asked.

All but the figures are imported when they are first used: the first paint and `info` wait for none.
"""

from __future__ import annotations

import os
from collections.abc import Hashable
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from explorer.session.parts.figures import ModelFigures
from explorer.session.parts.models import Models

if TYPE_CHECKING:
    from explorer.engine.graph_view.graphs import ModelGraphs
    from explorer.session.edit.editor import Editor
    from explorer.session.fold.folding import ModelFolding
    from explorer.session.parts.compare import Comparer
    from explorer.session.parts.export import Exporter
    from explorer.session.parts.proofs import Prover
    from explorer.session.parts.quantize import Quantizer
    from explorer.session.parts.tensor_values import TensorNumbers
    from explorer.session.parts.tiling import Tiler
    from explorer.session.parts.torch_modules import ModuleMaker
    from explorer.session.parts.values import ModelValues
    from explorer.session.profile.profiles import Profiler
    from explorer.session.sizes.server import Server
    from explorer.session.sizes.size_curves import CurveMaker
    from explorer.session.split.stages import Splitter


class SessionParts:
    """The models of a session, and what answers questions about them.

    Args:
        models: What was opened, and what was made of it.
    """

    def __init__(self, models: Models) -> None:
        self.models = models
        self._opened_beside: tuple[Hashable, Models] | None = None

    def beside(self, after: int | None, other: str | None) -> tuple[Models, int]:
        """The second of two models: a state, or another model, which is opened as this one was."""
        own = self.models
        if other is None:
            return own, own.at(after)
        try:
            written = os.stat(other).st_mtime_ns
        except OSError:
            written = 0  # a name; or nothing, which its opening says
        key = other, written, tuple(own.options["dims"].items())
        if self._opened_beside is None or self._opened_beside[0] != key:
            self.forget_beside()
            self._opened_beside = key, own.beside(other)
        return self._opened_beside[1], 0

    def forget_beside(self) -> None:
        """Closes the other model."""
        if self._opened_beside is not None:
            self._opened_beside[1].close()
            self._opened_beside = None

    @cached_property
    def figures(self) -> ModelFigures:
        """Figures of an analysis."""
        return ModelFigures(self.models)

    @cached_property
    def over_sizes(self) -> CurveMaker:
        """Curves over a size."""
        from explorer.session.sizes.size_curves import CurveMaker

        return CurveMaker(self.models)

    @cached_property
    def server(self) -> Server:
        """Serving of a language model."""
        from explorer.session.sizes.server import Server  # torch

        return Server(self.models)

    @cached_property
    def graphs(self) -> ModelGraphs:
        """Drawings of models as graphs."""
        from explorer.engine.graph_view.graphs import ModelGraphs  # grandalf, numpy

        return ModelGraphs()

    @cached_property
    def values(self) -> ModelValues:
        """Weights and activations."""
        from explorer.session.parts.values import ModelValues

        return ModelValues(self.models)

    @cached_property
    def tensors(self) -> TensorNumbers:
        """Numbers of one tensor."""
        from explorer.session.parts.tensor_values import TensorNumbers

        return TensorNumbers(self.models)

    @cached_property
    def tiler(self) -> Tiler:
        """Tilings of graphs."""
        from explorer.session.parts.tiling import Tiler

        return Tiler(self.models)

    @cached_property
    def quantizer(self) -> Quantizer:
        """Number formats."""
        from explorer.session.parts.quantize import Quantizer

        return Quantizer(self.models)

    @cached_property
    def module_maker(self) -> ModuleMaker:
        """Modules with other layers."""
        from explorer.session.parts.torch_modules import ModuleMaker

        return ModuleMaker(self.models)

    @cached_property
    def profiler(self) -> Profiler:
        """Times."""
        from explorer.session.profile.profiles import Profiler  # onnxruntime

        return Profiler(self.models)

    @cached_property
    def splitter(self) -> Splitter:
        """Stages and parts."""
        from explorer.session.split.stages import Splitter  # onnxruntime

        return Splitter(self.models)

    @cached_property
    def folding(self) -> ModelFolding:
        """Folded states."""
        from explorer.session.fold.folding import ModelFolding  # onnxruntime

        return ModelFolding(self.models)

    @cached_property
    def editor(self) -> Editor:
        """Edits by hand."""
        from explorer.session.edit.editor import Editor  # onnxruntime

        return Editor(self.models)

    @cached_property
    def prover(self) -> Prover:
        """Proofs and blame."""
        from explorer.session.parts.proofs import Prover

        return Prover(self.models)

    @cached_property
    def comparer(self) -> Comparer:
        """Differences."""
        from explorer.session.parts.compare import Comparer

        return Comparer(self.models)

    @cached_property
    def exporter(self) -> Exporter:
        """Files of other kinds."""
        from explorer.session.parts.export import Exporter

        return Exporter(self.models)


class Facade(Protocol):
    """A session as its methods know it: its parts.

    Attributes:
        parts: What answers.
    """

    parts: SessionParts
