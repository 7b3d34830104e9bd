"""Parts of a session, which answer what it is asked.

Each is imported when it is first used: the first paint and `info` wait for none.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from explorer.session.parts.models import Models

if TYPE_CHECKING:
    from explorer.engine.graph_view.graphs import ModelGraphs
    from explorer.session.parts.compare import Comparer
    from explorer.session.parts.export import Exporter
    from explorer.session.parts.figures import ModelFigures
    from explorer.session.parts.proofs import Prover
    from explorer.session.parts.tiling import Tiler
    from explorer.session.parts.torch_modules import ModuleTiler
    from explorer.session.parts.values import ModelValues


class SessionParts:
    """The models of a session, and what answers questions about them."""

    _models: Models

    @cached_property
    def _figures(self) -> ModelFigures:
        from explorer.session.parts.figures import ModelFigures

        return ModelFigures(self._models)

    @cached_property
    def _graphs(self) -> ModelGraphs:
        from explorer.engine.graph_view.graphs import ModelGraphs  # grandalf, numpy

        return ModelGraphs()

    @cached_property
    def _values(self) -> ModelValues:
        from explorer.session.parts.values import ModelValues

        return ModelValues(self._models)

    @cached_property
    def _tiler(self) -> Tiler:
        from explorer.session.parts.tiling import Tiler

        return Tiler(self._models)

    @cached_property
    def _module_tiler(self) -> ModuleTiler:
        from explorer.session.parts.torch_modules import ModuleTiler

        return ModuleTiler(self._models)

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
