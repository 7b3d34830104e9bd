"""Number formats in force for every layer of a model, and who said so."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from explorer.facts.settings import UnusedRule


class LayerSettings(Struct, frozen=True):
    """What is asked of one layer.

    Attributes:
        sizes: M, K and N of its matrix product; None where it is none, or they are not known.
        weight, input, bias: Number formats that hold; '' where there is no such part, or it stays.
        granularity, symmetric, block: As in `QuantizeSpec`; `symmetric` of its weight.
        form: How it is written: 'qdq', 'qoperator', 'function', 'nbits' (MatMulNBits).
        origins: Of what was asked: 'default', a file and its line, 'command line'.
        reason: Why it is left as it is; '' where it takes a format.
    """

    name: str
    op: str
    sizes: tuple[int, int, int] | None
    weight: str
    input: str
    bias: str
    granularity: str
    symmetric: bool
    block: int
    form: str
    origins: Mapping[str, str]
    reason: str = ""


class QuantizeSettings(Struct, frozen=True):
    """What is in force.

    Attributes:
        layers: All that multiply or hold weights, in the order of the graph.
        unused: Rules that mean none of them.
    """

    layers: tuple[LayerSettings, ...]
    unused: tuple[UnusedRule, ...] = ()
