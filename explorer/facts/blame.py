"""Facts about where two models part: the error at every value of both, and the layer that begins it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from explorer.facts import Shape

ProbeState = Literal["equal", "rounding", "inherited", "coarser", "introduced", "unjudged"]
"""What became of a value: bit for bit the same; within the rounding that the original shows itself; off,
though its layer does nothing wrong with what it is given; off by what the coarser number types of its layer
explain; off by more than that, with the original's own inputs; its layer could not be run alone."""

BlameKind = Literal["equal", "rounding", "fault", "spread", "coarser", "amplified", "undecided", "unlike"]
"""The answer: nothing differs; rounding only; some layers are at fault; most layers with weights add error,
so no single one is at fault; coarser number types explain it; rounding that the model itself amplifies; the
models differ, and layers that could not be run alone may be at fault; the two cannot be compared."""


Change = Literal["", "inserted", "removed", "replaced", "changed", "connected otherwise", "behind the fault"]
"""What was done to the node at fault: the second model alone has it; the first alone has it; another operator
stands in its place; its attributes, weights or inputs are others; it reads other values; '' for nothing that
is known of; or the node only stands behind the fault, which no single change explains."""


class Probe(Struct, frozen=True):
    """One value that both models have, in the execution order of the first.

    Errors are those of the second model's value against the first's, over all draws, in float64. Relative
    ones are RMS error / RMS of the value; they are None where the value is zero throughout, or holds no
    floats (then only `max_abs` and `nonfinite` say something).

    Attributes:
        step: Position of the layer among the nodes of the first model.
        layer, op: The node of the first model that makes the value. Where error is introduced, the node at
            fault: one that was inserted is in the second model alone.
        layer_after: The node of the second model that makes the value, or the one at fault.
        change: See `Change`.
        value, value_after: What the two call it.
        layers: How many nodes of the first model lie between this probe and those that it reads from.
        dtype, dtype_after: In numpy's spelling.
        max_abs, rms, relative, cosine: Of the error.
        snr_db: -20 log10 of `relative`; None where that is 0 (infinite) or None.
        nonfinite: NaN or Inf of the second model where the first has none, or another.
        noise: Relative RMS error of the first model itself against float64; None where there is no float64
            run to believe.
        introduced: `relative`, when the layer of the second model is given the first one's own values, as
            they are; where only filling their zeros, or trying a part at a time, shows more than rounding,
            then so. None where that says nothing.
        introduced_noise: The same of the first model's layer against float64 on the same values.
        departs: The error is beyond what the first model's own noise explains.
        state: See `ProbeState`.
        reason: In words, why it is `introduced`, `coarser` or `unjudged`; '' otherwise.
        output: It is an output of the model.
        formats: Of the second model's layer, where it alone is quantized: 'int8, per channel'.
    """

    step: int
    layer: str
    op: str
    layer_after: str
    value: str
    value_after: str
    layers: int
    dtype: str
    dtype_after: str
    shape: Shape
    max_abs: float | None
    rms: float | None
    relative: float | None
    snr_db: float | None
    cosine: float | None
    nonfinite: int
    noise: float | None
    introduced: float | None
    introduced_noise: float | None
    departs: bool
    state: ProbeState
    reason: str = ""
    output: bool = False
    formats: str = ""
    change: Change = ""


class Blame(Struct, frozen=True):
    """Where two models part, and how the error grows along the graph.

    Attributes:
        kind: See `BlameKind`.
        same: Nothing departs beyond rounding.
        verdict: One sentence in words.
        criterion: How a layer that departs is told from one that inherits, in words.
        first: Position in `probes` of the first layer that introduces error; None if none does.
        worst: Position in `probes` of the largest relative error; None if there is none.
        most: Position in `probes` of the layer that introduces most; None if none introduces any.
        probes: Every value that both models have, in the execution order of the first.
        unpaired: Values of the first model that were not compared, and why.
        unpaired_count: How many those are; `unpaired` holds the first few.
        seeds: One seed per draw.
        inputs: How the inputs were drawn, per input.
        sizes: Of open dimensions, by name, as they were tried one after the other; those that have no name
            share the name ''.
        at: Those of them that the figures are of: where the models part first, or else the first.
        chunks: In how many parts the values were looked at.
        held_bytes: Most bytes of values that were held together, as estimated.
    """

    kind: BlameKind
    same: bool
    verdict: str
    criterion: str
    before: str
    after: str
    first: int | None
    worst: int | None
    most: int | None
    probes: tuple[Probe, ...]
    unpaired: tuple[tuple[str, str], ...]
    unpaired_count: int
    seeds: tuple[int, ...]
    inputs: tuple[str, ...]
    chunks: int
    held_bytes: int
    seconds: float
    sizes: tuple[Mapping[str, int], ...] = ()
    at: Mapping[str, int] = {}
