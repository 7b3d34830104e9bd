"""JSON records: what documents are put together from, a model, its totals, a layer, a tensor.

The names are promised as those of the documents are (see `explorer.report.document`).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from explorer.facts import SCHEMA_VERSION, Layer, ModelInfo, Range, TensorInfo, Totals, to_json

if TYPE_CHECKING:
    from explorer.facts.values import StatisticsRow, TensorStats

Document = dict[str, Any]

_OPTIONAL_TOTALS = ("trainable_params", "activation_bytes_functional", "kv_cache_bytes")
_LAYER = (
    *("id", "parent", "path", "name", "kind", "depth", "group", "calls", "params", "weight_bytes", "macs"),
    *("formula", "elementwise_ops", "bytes_read", "weight_bytes_read", "bytes_written", "activation_bytes"),
    *("attributes", "counted", "status", "reason", "shared_with", "repeat"),
)
_of_layer = operator.attrgetter(*_LAYER)


def envelope(tool: str) -> Document:
    """What every document begins with."""
    return {"schema_version": SCHEMA_VERSION, "tool": tool}


def picked_fields(fact: Any, names: Sequence[str]) -> Document:
    """Some fields of a fact, in this order."""
    return {name: to_json(getattr(fact, name)) for name in names}


def record_of(fact: Any) -> Document:
    """All fields of a fact."""
    document: Document = to_json(fact)
    return document


def stats_record(fact: TensorStats) -> Document:
    """The values of a tensor, with its name, dtype and shape beside them."""
    document = record_of(fact)
    del document["tensor"]
    del document["chosen"]  # they stand beside the layers
    document["quantiles"] = [{"q": q, "value": to_json(value)} for q, value in fact.quantiles]
    return {**tensor_record(fact.tensor), **document}


def statistics_record(fact: StatisticsRow) -> Document:
    """Chosen statistics of one tensor under their own names, beside what is known of its layer."""
    document = record_of(fact)
    values = document.pop("values")
    return {**document, **values}


def tensor_record(fact: TensorInfo) -> Document:
    """A tensor by name, number type and shape; where they come from, if that is not inference."""
    shape = None if fact.shape is None else list(fact.shape)
    document: Document = {"name": fact.name, "dtype": fact.dtype, "shape": shape}
    if fact.origin != "inferred":
        document["origin"] = fact.origin
    if fact.conflict:
        document["conflict"] = fact.conflict
    return document


def model_record(fact: ModelInfo, sha256: str | None) -> Document:
    """A model; `sha256` is in place of what the fact says."""
    document: Document = {
        "source": fact.source,
        "format": fact.format,
        "inputs": [tensor_record(t) for t in fact.inputs],
        "outputs": [tensor_record(t) for t in fact.outputs],
        "producer": fact.producer,
        "notes": list(fact.notes),
    }
    optional = {"sha256": sha256 or fact.sha256, "opset": fact.opset, "file_bytes": fact.file_bytes}
    return {**document, **{name: value for name, value in optional.items() if value is not None}}


def totals_record(fact: Totals) -> Document:
    """Totals of a model, without what makes no sense for its format."""
    document: Document = to_json(fact)
    document["peak_tensors"] = [tensor_record(t) for t in fact.peak_tensors]
    return {k: v for k, v in document.items() if v is not None or k not in _OPTIONAL_TOTALS}


def layer_record(fact: Layer) -> Document:
    """A row of the layer tree."""
    # a file has very many: only what is no plain value is looked into
    record: Document = dict(zip(_LAYER, _of_layer(fact), strict=True))
    record["attributes"] = to_json(fact.attributes) if fact.attributes else {}
    record["shared_with"] = list(fact.shared_with)
    if fact.kv_cache_bytes is not None:
        record["kv_cache_bytes"] = fact.kv_cache_bytes
    if fact.trainable_params is not None:
        record["trainable_params"] = fact.trainable_params
    if fact.repeated_params:
        record["repeated_params"] = fact.repeated_params
    if fact.tiled:
        record["tiled"] = True
    record["inputs"] = [tensor_record(t) for t in fact.inputs]
    record["outputs"] = [tensor_record(t) for t in fact.outputs]
    record["weights"] = [tensor_record(t) for t in fact.weights]
    return record


def range_record(fact: Range) -> Document:
    """The values of an attribute: least, greatest, and how often each."""
    return {
        "min": to_json(fact.minimum),
        "max": to_json(fact.maximum),
        "distinct": fact.distinct,
        "values": [{"value": to_json(value), "count": count} for value, count in fact.values],
    }
