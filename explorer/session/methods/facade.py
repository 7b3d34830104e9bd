"""Parts of a session, fields that answer what it is asked.

Each is imported when it is first used: the first paint and `info` wait for none.
"""

from __future__ import annotations

import os
from collections.abc import Hashable
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

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


_T = TypeVar("_T")


class _Part(Generic[_T]):
    """A field that is made when it is first read: its module is imported then."""

    def __init__(self, home: str) -> None:
        self._home = home

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, parts: SessionParts, owner: type) -> _T:
        module, _, kind = self._home.rpartition(".")
        part: _T = getattr(import_module(f"explorer.session.{module}"), kind)(parts.models)
        setattr(parts, self._name, part)  # which is found before this is asked again
        return part


class SessionParts:
    """The models of a session, and what answers questions about them.

    Args:
        models: What was opened, and what was made of it.
    """

    values: _Part[ModelValues] = _Part("parts.values.ModelValues")
    tensors: _Part[TensorNumbers] = _Part("parts.tensor_values.TensorNumbers")
    tiler: _Part[Tiler] = _Part("parts.tiling.Tiler")
    quantizer: _Part[Quantizer] = _Part("parts.quantize.Quantizer")
    module_maker: _Part[ModuleMaker] = _Part("parts.torch_modules.ModuleMaker")
    prover: _Part[Prover] = _Part("parts.proofs.Prover")
    comparer: _Part[Comparer] = _Part("parts.compare.Comparer")
    exporter: _Part[Exporter] = _Part("parts.export.Exporter")
    over_sizes: _Part[CurveMaker] = _Part("sizes.size_curves.CurveMaker")
    server: _Part[Server] = _Part("sizes.server.Server")
    profiler: _Part[Profiler] = _Part("profile.profiles.Profiler")
    splitter: _Part[Splitter] = _Part("split.stages.Splitter")
    folding: _Part[ModelFolding] = _Part("fold.folding.ModelFolding")
    editor: _Part[Editor] = _Part("edit.editor.Editor")

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
    def graphs(self) -> ModelGraphs:
        """Drawings of models as graphs."""
        from explorer.engine.graph_view.graphs import ModelGraphs  # grandalf, numpy

        return ModelGraphs()


class Facade(Protocol):
    """A session as its methods know it: its parts.

    Attributes:
        parts: What answers.
    """

    parts: SessionParts
