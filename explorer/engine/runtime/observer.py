"""Observed values: makes inner values of a graph its outputs and runs the graph in onnxruntime.

onnxruntime returns all outputs of a run together. Each run therefore observes as many values as fit in a
budget, and the model runs again for the remaining values. The weights stay in their file, so models above 2
GiB run, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from explorer.engine.graph.model import Model, Node, Value, count_dense_bytes, get_dtype_code
from explorer.engine.runtime.batching import split_into_batches
from explorer.engine.runtime.onnxruntime import Array, RuntimeSession, expose
from explorer.facts import TensorInfo

BUDGET = 1 << 28
"""Maximum bytes of the observed values of one run."""

_ASSUMED_BYTES = BUDGET // 8
"""Assumed bytes of a value of unknown size."""

WIDER = {
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"), "float32"),
    **dict.fromkeys(("bfloat16", "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn"), "float32"),
    "float4_e2m1fn": "float32",
    **dict.fromkeys(("int4", "int2"), "int8"),
    **dict.fromkeys(("uint4", "uint2"), "uint8"),
}
"""Types that onnxruntime does not return, and for each a wider type that represents all its values."""


class Observer:
    """A session of a model that returns some of its inner values.

    Args:
        model: The model to run.
        values: Values to return (inputs, too), with their types if known.
        label: Name of the model in messages.

    Raises:
        BadModel: onnxruntime refuses the model.
    """

    def __init__(self, model: Model, values: Sequence[TensorInfo], label: str = "the model") -> None:
        inputs = {value.name for value in model.graph.inputs}
        inner = [info for info in values if info.name not in inputs]
        self._input_names = [info.name for info in values if info.name in inputs]
        self._output_names = {info.name: info.name for info in inner}
        self._session = inner and RuntimeSession(
            _add_outputs(model, inner, self._output_names), label=label, optimize=False
        )

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Any]:
        """Returns the values by name, as onnxruntime returns them. Types in `WIDER` are widened.

        Raises:
            BadModel: onnxruntime fails during the run.
        """
        results = self._session.run(feeds) if self._session else {}
        return {name: results[output_name] for name, output_name in self._output_names.items()} | {
            name: feeds[name] for name in self._input_names
        }


def observe(
    model: Model,
    values: Sequence[TensorInfo],
    samples: Iterable[Mapping[str, Array]],
    take: Callable[[str, Any], None],
    step: Callable[[int, int], None] = lambda completed, total: None,
) -> None:
    """Runs every sample and passes the observed values to `take` without storing them.

    Args:
        model: The model to run.
        values: Values to observe, with types and shapes if known.
        samples: Inputs of each sample; iterated once for each set of values that fits in `BUDGET`.
        take: Function called with the name and the value of each observed value.
        step: Function called before each run with the number of finished values and the total. It may raise
            `Cancelled` to stop.

    Raises:
        BadModel: onnxruntime cannot load or run the model.
    """
    completed = 0
    for chunk in split_into_batches(values, estimate_bytes, BUDGET):
        observer = Observer(model, chunk)
        for feeds in samples:
            step(completed, len(values))
            results = observer.run(feeds)
            for info in chunk:
                take(info.name, results.pop(info.name))
        completed += len(chunk)


def estimate_bytes(info: TensorInfo) -> int:
    """Returns the bytes of a value, or an assumed number if its shape is unknown or it holds strings."""
    size = count_dense_bytes(info.shape, info.dtype)
    return _ASSUMED_BYTES if size is None else size


def _add_outputs(model: Model, chunk: Sequence[TensorInfo], names: dict[str, str]) -> Model:
    """Returns the model with these outputs, and adds the names of outputs that are cast to `names`."""
    casts: list[Node] = []
    for info in chunk:
        name, wider = info.name, WIDER.get(info.dtype or "")
        if wider:
            names[name] = f"{name}/as {wider}"
            casts.append(Node("Cast", [name], [names[name]], attributes={"to": get_dtype_code(wider)}))
    part = expose(model, list(names.values()))
    if not casts:
        return part
    outputs = tuple(
        Value(v.name, v.name.rpartition("/as ")[2], None) if v.name.rpartition("/as ")[1] else v
        for v in part.graph.outputs
    )
    return replace(part, graph=replace(part.graph, nodes=(*part.graph.nodes, *casts), outputs=outputs))
