"""JSON records: the parts of documents, such as models, totals, layers and tensors.

Scripts depend on the keys of the records, as on the keys in `explorer.report.document`.
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
_get_layer_values = operator.attrgetter(*_LAYER)


def envelope(tool: str) -> Document:
    """Return the keys that start every document."""
    return {"schema_version": SCHEMA_VERSION, "tool": tool}


def pick_fields(fact: Any, names: Sequence[str]) -> Document:
    """Return some fields of a fact, in the order of `names`."""
    return {name: to_json(getattr(fact, name)) for name in names}


def record_of(fact: Any) -> Document:
    """Return all fields of a fact."""
    document: Document = to_json(fact)
    return document


def encode_stats(fact: TensorStats) -> Document:
    """Return the value statistics of a tensor, with its name, dtype and shape."""
    document = record_of(fact)
    del document["tensor"]
    del document["chosen"]  # the document lists chosen statistics separately
    document["quantiles"] = [{"q": q, "value": to_json(value)} for q, value in fact.quantiles]
    return {**encode_tensor(fact.tensor), **document}


def encode_chosen_statistics(fact: StatisticsRow) -> Document:
    """Return the statistics that the user chose, one key for each, beside the fields of the layer."""
    document = record_of(fact)
    values = document.pop("values")
    return {**document, **values}


def encode_tensor(fact: TensorInfo) -> Document:
    """Return the name, dtype and shape of a tensor, their origin unless inferred, and any conflict."""
    shape = None if fact.shape is None else list(fact.shape)
    document: Document = {"name": fact.name, "dtype": fact.dtype, "shape": shape}
    if fact.origin != "inferred":
        document["origin"] = fact.origin
    if fact.conflict:
        document["conflict"] = fact.conflict
    return document


def encode_model(fact: ModelInfo, sha256: str | None) -> Document:
    """Return the facts about a model; `sha256` replaces the digest in `fact`."""
    document: Document = {
        "source": fact.source,
        "format": fact.format,
        "inputs": [encode_tensor(t) for t in fact.inputs],
        "outputs": [encode_tensor(t) for t in fact.outputs],
        "producer": fact.producer,
        "notes": list(fact.notes),
    }
    optional = {"sha256": sha256 or fact.sha256, "opset": fact.opset, "file_bytes": fact.file_bytes}
    return {**document, **{name: value for name, value in optional.items() if value is not None}}


def encode_totals(fact: Totals) -> Document:
    """Return the totals of a model, without keys that do not apply to its format."""
    document: Document = to_json(fact)
    document["peak_tensors"] = [encode_tensor(t) for t in fact.peak_tensors]
    return {k: v for k, v in document.items() if v is not None or k not in _OPTIONAL_TOTALS}


def encode_layer(fact: Layer) -> Document:
    """Return a row of the layer tree."""
    # a model has many rows, so only nested values are converted
    record: Document = dict(zip(_LAYER, _get_layer_values(fact), strict=True))
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
    record["inputs"] = [encode_tensor(t) for t in fact.inputs]
    record["outputs"] = [encode_tensor(t) for t in fact.outputs]
    record["weights"] = [encode_tensor(t) for t in fact.weights]
    return record


def encode_range(fact: Range) -> Document:
    """Return the minimum and maximum of an attribute, and how often each of its values occurs."""
    return {
        "min": to_json(fact.minimum),
        "max": to_json(fact.maximum),
        "distinct": fact.distinct,
        "values": [{"value": to_json(value), "count": count} for value, count in fact.values],
    }
