"""Parts of a session, which answer what it is asked.

All but the figures are imported when they are first used: the first paint and `info` wait for none.
"""

from __future__ import annotations

import os
from collections.abc import Hashable
from functools import cached_property
from typing import TYPE_CHECKING

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
    """The models of a session, and what answers questions about them."""

    _models: Models
    _opened_beside: tuple[Hashable, Models] | None = None

    def _beside(self, after: int | None, other: str | None) -> tuple[Models, int]:
        """The second of two models: a state, or another model, which is opened as this one was."""
        own = self._models
        if other is None:
            return own, own.at(after)
        try:
            written = os.stat(other).st_mtime_ns
        except OSError:
            written = 0  # a name; or nothing, which its opening says
        key = other, written, tuple(own.options["dims"].items())
        if self._opened_beside is None or self._opened_beside[0] != key:
            self._forget_beside()
            self._opened_beside = key, own.beside(other)
        return self._opened_beside[1], 0

    def _forget_beside(self) -> None:
        if self._opened_beside is not None:
            self._opened_beside[1].close()
            self._opened_beside = None

    @cached_property
    def _figures(self) -> ModelFigures:
        return ModelFigures(self._models)

    @cached_property
    def _over_sizes(self) -> CurveMaker:
        from explorer.session.sizes.size_curves import CurveMaker

        return CurveMaker(self._models)

    @cached_property
    def _server(self) -> Server:
        from explorer.session.sizes.server import Server  # torch

        return Server(self._models)

    @cached_property
    def _graphs(self) -> ModelGraphs:
        from explorer.engine.graph_view.graphs import ModelGraphs  # grandalf, numpy

        return ModelGraphs()

    @cached_property
    def _values(self) -> ModelValues:
        from explorer.session.parts.values import ModelValues

        return ModelValues(self._models)

    @cached_property
    def _tensors(self) -> TensorNumbers:
        from explorer.session.parts.tensor_values import TensorNumbers

        return TensorNumbers(self._models)

    @cached_property
    def _tiler(self) -> Tiler:
        from explorer.session.parts.tiling import Tiler

        return Tiler(self._models)

    @cached_property
    def _quantizer(self) -> Quantizer:
        from explorer.session.parts.quantize import Quantizer

        return Quantizer(self._models)

    @cached_property
    def _module_maker(self) -> ModuleMaker:
        from explorer.session.parts.torch_modules import ModuleMaker

        return ModuleMaker(self._models)

    @cached_property
    def _profiler(self) -> Profiler:
        from explorer.session.profile.profiles import Profiler  # onnxruntime

        return Profiler(self._models)

    @cached_property
    def _splitter(self) -> Splitter:
        from explorer.session.split.stages import Splitter  # onnxruntime

        return Splitter(self._models)

    @cached_property
    def _folding(self) -> ModelFolding:
        from explorer.session.fold.folding import ModelFolding  # onnxruntime

        return ModelFolding(self._models)

    @cached_property
    def _editor(self) -> Editor:
        from explorer.session.edit.editor import Editor  # onnxruntime

        return Editor(self._models)

    @cached_property
    def _prover(self) -> Prover:
        from explorer.session.parts.proofs import Prover

        return Prover(self._models)

    @cached_property
    def _comparer(self) -> Comparer:
        from explorer.session.parts.compare import Comparer

        return Comparer(self._models)

    @cached_property
    def _exporter(self) -> Exporter:
        from explorer.session.parts.export import Exporter

        return Exporter(self._models)
