"""Opens a model that is known only by its tensors: a checkpoint or a file of weights.

The layer tree comes from the names, with a row for every tensor. The file does not describe the computation,
so MACs and activations are unknown, and the model cannot be run, tiled or verified. Parameters, bytes, types,
shapes and values are available as for other models.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.base.units import many_text
from explorer.engine.costs.layer_rows import build
from explorer.engine.costs.layer_tree import GroupFacts, LayerLeaf, Scope
from explorer.engine.costs.memory.liveness import AnalysisResult, BuiltRows, Schedule
from explorer.engine.formats.tensor_index import (
    StoredTensor,
    TensorIndex,
    count_stored,
    describe_bounds,
    list_rows,
)
from explorer.engine.models.opened_model import StaticModel
from explorer.engine.models.tensor_rows import TensorRows, build_leaf_layer
from explorer.facts import Info, ModelInfo, build_stored_totals
from explorer.host.gc_pause import pause_garbage_collector

if TYPE_CHECKING:
    from explorer.engine.models.opened_model import OpenOptions
    from explorer.engine.progress import Cancel, OnProgress
    from explorer.engine.values.numbers import Numbers
    from explorer.facts import Layer

_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
"""Endings of torch's names for batch normalization statistics, which are buffers."""

_HINT = "name the code that builds it (FILE.py:callable or package.module:callable), or export it to ONNX"

DescribedLeaves = tuple[list[LayerLeaf], dict[str, GroupFacts]]
"""Leaves in order, and facts about the enclosing groups by path."""

LAZY_ROWS = 20_000
"""Number of tensors above which rows are built lazily (`tensor_rows`)."""


class TensorFile(StaticModel):
    """A model that is known only by its tensors.

    Args:
        contents: Contents of the file headers.
        options: Options that the model is opened with. They change nothing: `check_names` refuses every
            dimension and input in them.
    """

    no_graph = "nothing can be tiled, verified or compared node by node"
    no_run = "nothing can be run"
    no_training = "its training step is unknown"

    def __init__(self, contents: TensorIndex, options: OpenOptions) -> None:
        self.contents = contents
        self.options = options
        self.format = contents.format
        self.source = contents.source
        self.files = contents.files
        self.strides: Mapping[
            str, tuple[int, ...]
        ] = {}  # in elements, of the tensors that are not contiguous

    def names(self) -> tuple[list[str], list[str]]:
        """See `OpenedModel`."""
        return [], []

    def examine(self, *, on_progress: OnProgress = None, cancel: Cancel = None) -> AnalysisResult:
        """See `OpenedModel`."""
        contents = self.contents
        params, size = count_stored(contents.tensors)
        totals = build_stored_totals(params, self._count_trainable(), size)
        bounded = describe_bounds(contents.tensors)
        if bounded:
            totals = replace(totals, stored_status="bound")
        unknown = f"{contents.why}: MACs, activations and the order of execution are not known"
        info = Info(
            model=ModelInfo(
                source=self.source,
                format=self.format,
                inputs=(),
                outputs=(),
                producer=contents.producer,
                file_bytes=contents.file_bytes,
                notes=(
                    unknown,
                    *map(str, contents.notes),
                    *bounded,
                    *_describe_buffers(contents),
                    *format_facts(contents.facts),
                ),
            ),
            assumptions={},
            totals=totals,
        )
        reason = f"{contents.why}: the order of execution is not known"
        order = Schedule((), (), (), reason, hint="open the code or the graph that the weights are for")
        return AnalysisResult(info, lambda: BuiltRows(self._create_rows(), lambda: order))

    def find_rows(self, names: Sequence[str]) -> list[Layer] | None:
        """Returns the rows of tensors by their names, without the tree, which takes seconds for very many.

        Returns:
            One row per name, without a place in the tree; None if a name is unknown or a pattern, or names a
            module, or a tensor with several names.
        """
        tensors = self.contents.tensors
        requested = set(names)
        entries = {entry.name: entry for entry in tensors if entry.name in requested}
        if len(entries) < len(requested) or any(entry.identity is not None for entry in entries.values()):
            return None
        module_prefixes = tuple(f"{name}{separator}" for name in requested for separator in "./")
        if any(entry.name.startswith(module_prefixes) for entry in tensors):
            return None
        why = self.contents.why
        return [build_leaf_layer(entry, name, why, params=entry.elements) for name, entry in entries.items()]

    def _create_rows(self) -> tuple[Layer, ...]:
        """Returns a row for every module in the names, and one for every tensor."""
        with pause_garbage_collector():
            if len(self.contents.tensors) > LAZY_ROWS:
                with contextlib.suppress(ValueError):
                    # behaves like a tuple, but builds its rows on first use
                    return cast("tuple[Layer, ...]", TensorRows(self.contents))
            return self._list_layers()

    def _list_layers(self) -> tuple[Layer, ...]:
        """Returns the rows of `_create_rows`, all built."""
        leaves, groups = build_tree(self.contents.tensors, self.contents.why, self.contents.kinds)
        trainable = self._list_trainable()
        parameter_ids = {key for tensor in trainable or () for key, _, _ in tensor.counted_pieces}
        return build(leaves, groups, trained=None if trainable is None else parameter_ids)

    def _count_trainable(self) -> int | None:
        """Returns the number of parameters with requires_grad, or None if the file does not say."""
        trainable = self._list_trainable()
        return None if trainable is None else count_stored(trainable)[0]

    def _list_trainable(self) -> list[StoredTensor] | None:
        """Returns the tensors with requires_grad, or None if the file does not say."""
        tensors = self.contents.tensors
        if not tensors or any(tensor.trainable is None for tensor in tensors):
            return None
        return [tensor for tensor in tensors if tensor.trainable]

    def tensors(self) -> tuple[Sequence[Numbers], tuple[str, ...]]:
        """See `OpenedModel`."""
        from explorer.engine.values import file_tensors  # numpy

        return file_tensors.list_stored(self.contents.tensors, self.strides)

    def refuse(self, why: str) -> NoReturn:
        """See `StaticModel`."""
        raise Misuse(f"{self.contents.why}: {why}", where=self.source, hint=_HINT)


def build_tree(
    tensors: Iterable[StoredTensor], reason: str, kinds: Mapping[str, str], role: str = ""
) -> DescribedLeaves:
    """Returns a leaf for every tensor. The tree comes from the names of the tensors.

    Args:
        tensors: Tensors in the order of the file.
        reason: Reason why the costs are unknown.
        kinds: Class of each module by its path, if known.
        role: Purpose of the tensors if they are outside the model, such as 'optimizer state', or ''.
    """
    leaves: list[LayerLeaf] = []
    groups: dict[str, GroupFacts] = {}
    scopes: tuple[Scope, ...] = ()
    unknown = GroupFacts(status="unknown", reason=reason)
    for row in list_rows(tensors):
        scopes = scopes[: row.depth]
        if row.stored is None:
            scopes = (*scopes, Scope(row.path, row.name, kinds.get(row.path, "")))
            groups[row.path] = unknown
        else:
            leaves.append(
                build_leaf(build_leaf_layer(row.stored, row.name, reason), scopes, [row.stored], role)
            )
    return leaves, groups


def build_leaf(
    layer: Layer, scopes: tuple[Scope, ...], tensors: Sequence[StoredTensor], role: str
) -> LayerLeaf:
    """Returns a leaf that stores tensors. Tensors with a role, outside the model, are not parameters."""
    if not role:
        return LayerLeaf(scopes, layer, list_stored_pieces(tensors))
    size = sum(tensor.nbytes for tensor in tensors)
    attributes = {**layer.attributes, "role": role, "bytes": size}
    return LayerLeaf(
        scopes, replace(layer, attributes=attributes, reason=f"{role}: it is not part of the model")
    )


def list_stored_pieces(tensors: Sequence[StoredTensor]) -> list[tuple[Any, int, int]]:
    """Returns the stored pieces of tensors: identity, elements, bytes."""
    return [piece for tensor in tensors for piece in tensor.counted_pieces]


def _describe_buffers(contents: TensorIndex) -> tuple[str, ...]:
    """Returns a note if tensors that count as parameters are buffers by their names."""
    buffers = [t for t in contents.tensors if t.trainable is None and t.name.endswith(_BUFFERS)]
    if not buffers:
        return ()
    numbers, _ = count_stored(buffers)
    return (
        f"buffers by their names ({', '.join(_BUFFERS)}): {many_text(len(buffers), 'tensor')} of"
        f" {many_text(numbers, 'number')} in all; the file does not say, so they count as parameters",
    )


FACTS = 48
"""Maximum number of facts of a file among the notes. `outline` lists all facts."""


def format_facts(facts: Sequence[tuple[str, str]]) -> list[str]:
    """Returns the first facts of a file as notes."""
    notes = [f"{key}: {text}" for key, text in facts[:FACTS]]
    if len(facts) > FACTS:
        notes.append(f"and {len(facts) - FACTS:,} more such lines: explorer outline has them all")
    return notes
