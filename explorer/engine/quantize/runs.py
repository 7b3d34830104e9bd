"""Runs of the original model on samples, with few of its weights in memory at a time.

onnxruntime maps the weight file, and every page that it has read stays in memory as long as the session. A
model with large weights is therefore cut into stages that run one after the other. A stage holds at most the
weights of the largest layer plus 32 MiB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from explorer.engine import shapes
from explorer.engine.graph.dtypes import get_element_type
from explorer.engine.graph.model import Model, Value
from explorer.engine.proof.structure.probes import GraphProducers
from explorer.engine.runtime.batching import split_into_batches
from explorer.engine.runtime.observer import WIDER, Observer, estimate_bytes, observe
from explorer.engine.runtime.samples import Samples
from explorer.facts import TensorInfo

_EXTRA_STAGE_BYTES = 32 << 20
"""Bytes that a stage may hold in weights and observed values, in addition to the largest layer."""

Step = Callable[[int, int], None]


class _Stage(Struct, frozen=True):
    """A part of a graph that reads the values of earlier stages.

    Attributes:
        model: The stage as a model; its inputs are values of earlier stages or of the whole model.
        values: Values of the stage that are observed, or that a later stage reads.
        read_later: Names of all values that later stages read.
    """

    model: Model
    values: tuple[TensorInfo, ...]
    read_later: frozenset[str]


def get_sample_infos(model: Model, names: Iterable[str], samples: Samples) -> list[TensorInfo]:
    """Returns the types and shapes of values on the first sample. An unknown type or shape is None."""
    info_by_name = _get_value_infos(model, samples)
    return [info_by_name.get(name, TensorInfo(name, None, None)) for name in names]


def observe_values(
    model: Model,
    names: Iterable[str],
    samples: Samples,
    on_value: Callable[[str, Any], None],
    step: Step = lambda done, total: None,
) -> None:
    """Runs a model on every sample and calls `on_value` with the requested values, which are not stored.

    Args:
        model: The model.
        names: Names of the requested values.
        samples: Inputs of the model.
        on_value: Function called with the name and the array of each requested value.
        step: Function called before each run with the number of completed runs and of all runs. It raises
            `Cancelled` to stop.

    Raises:
        BadModel: onnxruntime cannot load or run the model.
    """
    info_by_name, value_names = _get_value_infos(model, samples), list(dict.fromkeys(names))
    stages = _split_into_stages(model, info_by_name, frozenset(value_names))
    if len(stages) < 2:
        infos = [info_by_name.get(name, TensorInfo(name, None, None)) for name in value_names]
        observe(model, infos, samples, on_value, step)
        return
    for number, feeds in enumerate(samples):
        values: dict[str, Any] = dict(feeds)
        for name in [name for name in value_names if name in values]:
            on_value(name, values[name])
        for stage_index, stage in enumerate(stages):
            step(number * len(stages) + stage_index, samples.count * len(stages))
            stage_feeds = {value.name: values[value.name] for value in stage.model.graph.inputs}
            stage_values = Observer(stage.model, stage.values).run(stage_feeds)
            for name in [name for name in value_names if name in stage_values]:
                on_value(name, stage_values[name])
            values = {
                name: value for name, value in {**values, **stage_values}.items() if name in stage.read_later
            }


def _get_value_infos(model: Model, samples: Samples) -> Mapping[str, TensorInfo]:
    first = next(iter(samples), {})
    return shapes.infer(model, None, {n: (get_element_type(a), a.shape) for n, a in first.items()}).values


def _iterate_producers(wiring: GraphProducers, starts: Iterable[int], follow_all: bool) -> Iterator[int]:
    """Yields the given nodes and their producers; without `follow_all`, only producers of constants."""
    visited, queue = set(starts), list(starts)
    while queue:
        node_index = queue.pop()
        yield node_index
        for name in wiring.reads[node_index]:
            producer = wiring.producer.get(name)
            is_followed = follow_all or name not in wiring.input_dependent
            if producer is not None and producer not in visited and is_followed:
                visited.add(producer)
                queue.append(producer)


def _split_into_stages(
    model: Model, info_by_name: Mapping[str, TensorInfo], value_names: frozenset[str]
) -> list[_Stage]:
    """Splits the graph into stages.

    Returns an empty list if one stage suffices, if the type of a value between stages is unknown, or if
    onnxruntime does not return it.
    """
    wiring, initializers = GraphProducers(model), model.graph.initializers
    if not value_names <= wiring.input_dependent:
        return []

    def count_bytes(node_index: int) -> int:
        indices = _iterate_producers(wiring, [node_index], follow_all=False)
        read_names = {name for index in indices for name in wiring.reads[index]}
        observed = [
            info_by_name[name]
            for name in wiring.nodes[node_index].outputs
            if name in value_names and name in info_by_name
        ]
        return sum(initializers[name].nbytes for name in read_names & initializers.keys()) + sum(
            map(estimate_bytes, observed)
        )

    needed_indices = _iterate_producers(
        wiring, [wiring.producer[name] for name in value_names if name in wiring.producer], follow_all=True
    )
    live_indices = [
        index
        for index in sorted(needed_indices)
        if not wiring.input_dependent.isdisjoint(wiring.nodes[index].outputs)
    ]
    sizes = {index: count_bytes(index) for index in live_indices}
    groups = list(
        split_into_batches(
            live_indices, sizes.__getitem__, max(sizes.values(), default=0) + _EXTRA_STAGE_BYTES
        )
    )
    if len(groups) < 2:
        return []
    stages: list[_Stage] = []
    read_later: frozenset[str] = frozenset()
    declared = {value.name: value for value in model.graph.inputs}
    for group in reversed(groups):
        indices = sorted(_iterate_producers(wiring, group, follow_all=False))
        nodes = [wiring.nodes[index] for index in indices]
        read_names = {name for index in indices for name in wiring.reads[index]}
        produced = {name for index in group for name in wiring.nodes[index].outputs if name}
        received = (read_names & wiring.input_dependent) - produced
        values = [
            info_by_name.get(name, TensorInfo(name, None, None))
            for name in sorted(produced & (value_names | read_later))
        ]
        if any(info.name in read_later and (info.dtype is None or info.dtype in WIDER) for info in values):
            return []
        inputs = [info_by_name.get(name, TensorInfo(name, None, None)) for name in sorted(received)]
        graph = replace(
            model.graph,
            nodes=tuple(nodes),
            inputs=tuple(declared.get(info.name) or Value(info.name, info.dtype, None) for info in inputs),
            outputs=(),
            initializers={name: tensor for name, tensor in initializers.items() if name in read_names},
            values=(),
            extra=(),
        )
        stages.append(_Stage(replace(model, graph=graph), tuple(values), read_later))
        read_later = (read_later | received) - produced
    return stages[::-1]
