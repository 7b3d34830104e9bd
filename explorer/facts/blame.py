"""Facts about the layer where two models start to differ, and the error of each value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from explorer.base.fact import Fact, TableFact
from explorer.facts import Shape

ProbeState = Literal["equal", "rounding", "inherited", "coarser", "introduced", "unjudged"]
"""State of a value in the second model. 'equal': bit for bit the same. 'rounding': within the rounding error
of the first model itself. 'inherited': different, but only because the inputs of its layer are. 'coarser':
different by as much as the coarser number types of its layer explain. 'introduced': different by more than
that on the first model's own inputs. 'unjudged': its layer could not run alone.
"""

BlameKind = Literal["equal", "rounding", "fault", "spread", "coarser", "amplified", "undecided", "unlike"]
"""Kind of the answer. 'equal': nothing differs. 'rounding': all differences are rounding. 'fault': some
layers are at fault. 'spread': most layers with weights add error, so no single one is at fault. 'coarser':
coarser number types explain the error. 'amplified': the model itself amplifies rounding. 'undecided': the
models differ, and layers that could not run alone may be at fault. 'unlike': the two models cannot be
compared.
"""


Change = Literal["", "inserted", "removed", "replaced", "changed", "connected otherwise", "behind the fault"]
"""Change of the node at fault. 'inserted': only the second model has the node. 'removed': only the first
model has it. 'replaced': another operator is in its place. 'changed': its attributes, weights or inputs
differ. 'connected otherwise': it reads other values. 'behind the fault': the node only follows the fault, and
no single change explains it. '': no change is known.
"""


class Probe(Fact, frozen=True):
    """One value that both models compute. Probes are in the execution order of the first model.

    Errors compare the second model's value with the first's, over all draws, in float64. A relative error is
    the RMS error divided by the RMS of the value. It is None if the value is zero throughout or holds no
    floats. For a value without floats, only `max_abs` and `nonfinite` are known.

    Attributes:
        step: Index of the layer among the nodes of the first model.
        layer: Node of the first model that produces the value. If the error is introduced here, the node at
            fault, which may be an inserted node of the second model.
        op: Operator of the node `layer`.
        layer_after: Node of the second model that produces the value, or the node at fault.
        change: Change of the node at fault, see `Change`.
        value: Name of the value in the first model.
        value_after: Name of the value in the second model.
        layers: Number of nodes of the first model between this probe and the probes that it reads.
        dtype: Number type in the first model, in numpy's spelling.
        dtype_after: Number type in the second model.
        max_abs: Largest absolute error.
        rms: Root mean square of the error.
        relative: RMS error divided by the RMS of the value.
        cosine: Cosine of the angle between the two values.
        snr_db: Signal-to-noise ratio in dB, -20 log10 of `relative`, or None if `relative` is 0 (an infinite
            ratio) or None.
        nonfinite: Number of NaN or Inf elements of the second model where the first model has another value.
        noise: Relative RMS error of the first model itself against a float64 run, or None if there is no
            reliable float64 run.
        introduced: Relative error of the second model's layer on the first model's values. If a second run
            (with zeros replaced, or with one part of the node at a time) shows more error than rounding, the
            error of that run. None if neither run is conclusive.
        introduced_noise: Relative RMS error of the first model's layer against float64 on the same values.
        departs: Whether the error exceeds the noise of the first model.
        state: State of the value, see `ProbeState`.
        reason: Reason for the states 'introduced', 'coarser' and 'unjudged' in words, or '' for other states.
        output: Whether the value is an output of the model.
        formats: Number formats of the second model's layer if only the second is quantized: 'int8, per
            channel'.
        module: Path of the module that the node `layer` comes from, or '' if the file does not say it.
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
    module: str = ""

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("module",)


class Blame(TableFact, frozen=True):
    """Where two models start to differ, and how the error grows along the graph.

    Attributes:
        kind: Kind of the answer, see `BlameKind`.
        same: Whether no value differs by more than rounding.
        verdict: Answer in one sentence.
        criterion: Rule that separates layers that introduce error from layers that inherit it, in words.
        first: Index in `probes` of the first layer that introduces error, or None if none does.
        worst: Index in `probes` of the largest relative error, or None if there is none.
        most: Index in `probes` of the layer that introduces the largest error, or None if none does.
        probes: Values that both models compute, in the execution order of the first.
        unpaired: Names of the first few values of the first model that were not compared, with the reasons.
        unpaired_count: Number of values that were not compared.
        seeds: Seed of each draw.
        inputs: Description of how each input was drawn.
        sizes: Sizes of open dimensions by name, one mapping for each attempt. Unnamed dimensions share the
            name ''.
        at: Sizes to which the figures apply: the first sizes at which the models differ, or the first sizes
            tried.
        chunks: Number of chunks in which the values were examined.
        held_bytes: Estimated peak bytes of values in memory at the same time.
    """

    ROWS: ClassVar[str] = "probes"

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
