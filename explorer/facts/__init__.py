"""Facts: what the engine tells the world.

Frozen structs of plain values: they pickle across the worker's pipe, print as JSON, and are drawn by the
screen. One fact is one number computed in one place, so the screen, the text tables
and the JSON cannot disagree. The screen imports this before
anything heavy; structs are msgspec's, of which one is made and copied in a twentieth of a frozen
dataclass's time: a large graph has a hundred thousand of them.

Conventions: every count is an exact integer; None means unknown and is never 0 (JSON null, `?` in
text). Sizes are bytes. A shape is a tuple of ints, of strings for symbolic dimensions, of None for
dimensions of which nothing is known; a shape of None means that not even the rank is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from msgspec import Struct, field

from explorer.base.version import SCHEMA_VERSION
from explorer.facts.external.overlay import Overlay
from explorer.facts.external.placement import Placement
from explorer.facts.history import History, HistoryEntry, states_text
from explorer.facts.tiling import (
    Edges,
    Form,
    LeftOver,
    Plan,
    SitePlan,
    SkippedSite,
    TiledMacs,
    TileRule,
    TileSpec,
)
from explorer.facts.verification import (
    OutputEvidence,
    RegionEvidence,
    SiteEvidence,
    VerdictKind,
    Verification,
)

__all__ = [
    "NOTHING_KNOWN",
    "SCHEMA_VERSION",
    "Analysis",
    "Diff",
    "Edges",
    "Form",
    "History",
    "HistoryEntry",
    "Info",
    "Layer",
    "LayerTable",
    "LeftOver",
    "ModelInfo",
    "NodeDiff",
    "OpDiff",
    "OpStat",
    "OutputEvidence",
    "Plan",
    "Progress",
    "Range",
    "Reach",
    "RegionEvidence",
    "SiteEvidence",
    "SitePlan",
    "SkippedSite",
    "TensorInfo",
    "TileResult",
    "TileRule",
    "TileSpec",
    "TiledMacs",
    "Totals",
    "VerdictKind",
    "Verification",
    "is_assumed",
    "stored_totals",
    "states_text",
    "to_json",
    "all_activations",
    "whole_model",
]

Dim = int | str | None
Shape = tuple[Dim, ...]
Status = Literal["exact", "bound", "unknown"]
Reach = Literal["exact", "bound", "assumed", "unknown"]


class TensorInfo(Struct, frozen=True):
    """A named tensor: its dtype in numpy's spelling ('float32'), its shape, and who said so.

    `origin` is 'declared' (written in the file), 'inferred' (by shape inference), 'observed' (seen in a
    run), 'bound' (a size depends on the data; the shape is the most that it can be) or 'unknown'.
    `conflict` says what inference gives or the file declares where that is something else, or why no run can
    make the tensor at all.
    """

    name: str
    dtype: str | None
    shape: Shape | None
    origin: str = "inferred"
    conflict: str = ""


class Layer(Struct, frozen=True):
    """One row of the layer tree: an operator, a leaf module, or a group that carries totals.

    Layers are listed in pre-order, parents before children, siblings in execution order; `id` is the
    position in that list. `path` is unique and dotted or slashed as the source has it; `name` is its
    last piece. For a group the figures are the sums over its leaves (params count each shared
    parameter once).

    Attributes:
        calls: How often the layer runs in one forward pass.
        params: Parameters this layer uses, each stored parameter once.
        weight_bytes: Bytes of those parameters as stored.
        macs: Multiply-accumulates of one forward pass, all calls together.
        formula: How `macs` (or, where there are none, `elementwise_ops`) comes about, with numbers.
        activation_bytes: Bytes of the outputs.
        status: 'exact', 'bound' or 'unknown'; `reason` says why when it is not exact. A reason that begins
            with 'assumed' names an assumption: the figures may be more or less.
        assumed: The figures of a 'bound' row rest on an assumption, which `reason` names.
        shared_with: Paths of other layers that use the same stored parameter.
        weights: The parameters or initializers of this layer.
        attributes: In the words of the format: kernel_shape in ONNX, kernel_size in PyTorch.
        repeat: On the first of a run of identical sibling groups (layers.0 ... layers.11) the length
            of the run, on the others of the run 0; 1 outside any run.
        weight_bytes_read: The part of `bytes_read` that is stored in the model (parameters, tables,
            buffers); the rest are activations.
        counted: False for what is shown and does not run beside the rest: the cheaper branch of an If.
        tiled: It is made of tiles; `kind` is that of the product which they make, as far as the file says it.
        kv_cache_bytes: Decode mode only: the keys and values of the tokens in the cache that this layer
            reads, without those of the new token; None for a layer that reads none.
        trainable_params: Those of `params` with requires_grad; None where the format does not say.
        repeated_params: Those of `params` that a layer of the same kind uses before it; of a group none.
    """

    id: int
    parent: int | None
    path: str
    name: str
    kind: str
    depth: int
    group: bool
    calls: int = 1
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    weights: tuple[TensorInfo, ...] = ()
    params: int = 0
    weight_bytes: int = 0
    macs: int | None = 0
    formula: str = ""
    elementwise_ops: int | None = 0
    bytes_read: int | None = 0
    bytes_written: int | None = 0
    activation_bytes: int | None = 0
    attributes: Mapping[str, Any] = field(default_factory=dict)
    status: Status = "exact"
    reason: str = ""
    shared_with: tuple[str, ...] = ()
    repeat: int = 1
    weight_bytes_read: int | None = 0
    counted: bool = True
    tiled: bool = False
    kv_cache_bytes: int | None = None
    trainable_params: int | None = None
    repeated_params: int = 0
    assumed: bool = False

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("assumed",)

    @property
    def kind_text(self) -> str:
        """The kind in words: 'Conv', 'Conv, tiled ×2', 'Conv, at most ×2' where it may run less often."""
        most = ", at most" if self.status == "bound" and not self.assumed else ""
        return f"{self.kind}{', tiled' * self.tiled}{f'{most} ×{self.calls}' * (self.calls > 1)}"


NOTHING_KNOWN: Mapping[str, Any] = {
    "macs": None,
    "elementwise_ops": None,
    "bytes_read": None,
    "bytes_written": None,
    "activation_bytes": None,
    "weight_bytes_read": None,
    "status": "unknown",
}
"""The fields of a `Layer` of whose cost nothing is known."""


def is_assumed(reason: str) -> bool:
    """Whether a figure of status 'bound' rests on an assumption, by its reason as JSON has it.

    The records themselves say so: see `Layer.assumed`.
    """
    return reason.startswith("assumed")


class Totals(Struct, frozen=True):
    """The figures of a whole model; each sums what is known, `coverage` says of how many nodes.

    Attributes:
        nodes: Operators (ONNX) or leaf modules and functional operators (nn.Module), calls counted.
        params: Each stored parameter once.
        weight_bytes: At the width that they are stored in.
        macs: Multiply-accumulates of one forward pass.
        elementwise_ops: Biases, activations, normalisations, pooling: in no other figure.
        bytes_read, bytes_written: Every input once, every output once, of each node.
        trainable_params: Parameters with requires_grad; None where the format does not say.
        flops: 2 x macs, and nothing else.
        activation_bytes_sum: Outputs of every node (ONNX) or leaf module (nn.Module), each once.
        activation_bytes_peak: Largest set of tensors live at one step of the execution order.
        peak_at: The path of the layer at which the peak occurs.
        peak_tensors: The tensors live there, largest first (at most 16).
        coverage: Share of nodes of which every figure is known, 0 to 1: operations and bytes.
        status: Of `macs` and `flops`: 'exact'; 'bound', they are at most this; 'assumed', they may be more or
            less; 'unknown', they are at least this, because the cost of some nodes is not known.
        activation_bytes_functional: nn.Module only: outputs of functional operators, which are not
            leaf modules and hence not in activation_bytes_sum.
        weight_bytes_read: The part of `bytes_read` that is stored in the model, not activations.
        kv_cache_bytes: Decode mode only: the keys and values of the tokens in the cache, of all layers,
            without those of the new token.
        stored_status: Of `params`, `trainable_params` and `weight_bytes`: 'exact', or 'bound' where tensors
            that share memory lie in too many pieces to be told apart: they are at most this.
    """

    nodes: int
    params: int
    trainable_params: int | None
    weight_bytes: int
    macs: int | None
    flops: int | None
    elementwise_ops: int | None
    activation_bytes_sum: int | None
    activation_bytes_peak: int | None
    bytes_read: int | None
    bytes_written: int | None
    coverage: float
    peak_at: str = ""
    peak_tensors: tuple[TensorInfo, ...] = ()
    activation_bytes_functional: int | None = None
    weight_bytes_read: int | None = None
    kv_cache_bytes: int | None = None
    status: Reach = "exact"
    stored_status: Reach = "exact"

    @property
    def stored_sign(self) -> str:
        """What goes before parameters and their bytes, as `sign` does before other figures."""
        return "" if self.stored_status == "exact" else "<= "

    @property
    def sign(self) -> str:
        """What goes before a figure: '<=' where it is the most, '>=' the least, '~' neither; '' if exact."""
        if self.status in ("bound", "assumed"):
            return "<= " if self.status == "bound" else "~ "
        return ">= " if self.coverage < 1 else ""


def stored_totals(params: int, trainable_params: int | None, weight_bytes: int) -> Totals:
    """The figures of a model of whose work nothing is known: what it stores."""
    return Totals(
        nodes=0,
        params=params,
        trainable_params=trainable_params,
        weight_bytes=weight_bytes,
        macs=None,
        flops=None,
        elementwise_ops=None,
        activation_bytes_sum=None,
        activation_bytes_peak=None,
        bytes_read=None,
        bytes_written=None,
        coverage=0.0,
        status="unknown",
    )


class ModelInfo(Struct, frozen=True):
    """Where a model came from and what goes in and out.

    Attributes:
        format: As `explorer formats` names it.
        producer: What wrote the file: 'pytorch 2.9'.
        notes: What a reader should know, in words.
        inference_died: Shape inference died on the way, perhaps by the machine's fault: another analysis may
            give other figures.
    """

    source: str
    format: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    opset: int | None = None
    sha256: str | None = None
    producer: str = ""
    file_bytes: int | None = None
    notes: tuple[str, ...] = ()
    inference_died: bool = False

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("inference_died",)

    @property
    def is_graph(self) -> bool:
        """Whether its rows are ONNX operators; a graph of custom domains alone has no `opset`."""
        return self.format == "onnx" or self.opset is not None


class Info(Struct, frozen=True):
    """The answer of `explorer info`. `assumptions` holds what was assumed to get the numbers:
    {'dims': {'batch': 8}, 'weights': 'random, seed 0', ...}. `tiled` says what runs on tiles; None for a
    model that has none. `random_weights` says whether the weights are random.
    """

    model: ModelInfo
    assumptions: Mapping[str, Any]
    totals: Totals
    tool: str = ""
    schema_version: int = SCHEMA_VERSION
    tiled: TiledMacs | None = None
    random_weights: bool = False

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("random_weights",)


class Analysis(Struct, frozen=True):
    """Everything known of a model: the totals and every row of the layer tree."""

    info: Info
    layers: tuple[Layer, ...]


class LayerTable(Struct, frozen=True):
    """Rows of the layer tree as they were asked for: filtered, folded, sorted, with columns.

    Attributes:
        columns: By name, see `explorer.settings.columns`.
        layers: In the order in which they are shown. A group of which a filter leaves some layers has the
            sums of those.
        values: What each row has in the columns.
        total: What the rows add up to, as a row; the model's totals unless a filter was given.
        totals: What that has in the columns.
        found: How many layers a filter found, and groups without any of their layers; None without one.
        flat: The layers stand one below the other, whatever group they lie in.
        style: Whose heads the columns have.
        overlay: Figures from outside, where some were given; those of the rows stand in `values`.
        placement: Which provider of onnxruntime runs what, where it was asked.
    """

    info: Info
    columns: tuple[str, ...]
    layers: tuple[Layer, ...]
    values: tuple[tuple[Any, ...], ...]
    total: Layer
    totals: tuple[Any, ...]
    found: int | None = None
    flat: bool = False
    style: str = "tree"
    overlay: Overlay | None = None
    placement: Placement | None = None


def all_activations(totals: Totals) -> int | None:
    """Outputs of every node, leaf module and functional operator, each once."""
    summed = totals.activation_bytes_sum
    return None if summed is None else summed + (totals.activation_bytes_functional or 0)


def whole_model(
    totals: Totals, inputs: tuple[TensorInfo, ...] = (), outputs: tuple[TensorInfo, ...] = ()
) -> Layer:
    """The totals of a model as a row of its own, with the id -1: what the rows of a table add up to.

    Rows of an nn.Module are functional operators, too, whose outputs are not in `activation_bytes_sum`.
    """
    return Layer(
        id=-1,
        parent=None,
        path="",
        name="total",
        kind="",
        depth=0,
        group=True,
        inputs=inputs,
        outputs=outputs,
        params=totals.params,
        trainable_params=totals.trainable_params,
        weight_bytes=totals.weight_bytes,
        macs=totals.macs,
        elementwise_ops=totals.elementwise_ops,
        bytes_read=totals.bytes_read,
        bytes_written=totals.bytes_written,
        activation_bytes=all_activations(totals),
        weight_bytes_read=totals.weight_bytes_read,
    )


class Range(Struct, frozen=True):
    """The values that an attribute takes over all nodes of one operator type.

    `minimum` and `maximum` are ints, floats or lists (elementwise per position); `values` holds the
    distinct values with their counts, most frequent first, at most 16 of `distinct`.
    """

    minimum: Any
    maximum: Any
    distinct: int
    values: tuple[tuple[Any, int], ...]


class OpStat(Struct, frozen=True):
    """One operator type: how many, what they cost, and the range of every attribute.

    A window's attributes are in ONNX's words for an nn.Module, too.
    """

    op: str
    count: int
    macs: int | None
    params: int
    elementwise_ops: int | None
    attributes: Mapping[str, Range]


class OpDiff(Struct, frozen=True):
    """Nodes of one operator type: `total` before, and what became of them."""

    op: str
    total: int
    changed: int
    unchanged: int
    added: int
    removed: int


class NodeDiff(Struct, frozen=True):
    """One row of a diff.

    Attributes:
        status: 'changed', 'added', 'removed', 'renamed', 'folded' for all nodes whose work others do in
            one way, 'tiled', 'merged' for a tiled site that is one product again, or 'quantized' for a layer
            whose number formats alone differ.
        before, after: Name of the node on each side, None where it does not exist; of 'folded' the first.
        op_before, op_after: Operator on each side.
        what: What differs, in words: 'attribute alpha 1.0 -> 2.0', 'Gemm -> 9,216 products',
            'Gemm -> int8, per channel, 38.2 dB' (of the stored weight).
        match: How the two were matched: 'name', 'structure', 'outputs', or '' for none.
        confidence: Of the match, 0 to 1.
        children: Operators behind a tiled, merged or quantized row: ('2DMM_64x64x64', 9216), ...
        became: What a tiled or quantized node became, as `what` says.
        contents: Attributes that differ in their content alone, such as the body of a loop.
        weights: Weights that differ.
        otherwise: It differs in something else, too.
    """

    status: str
    before: str | None
    after: str | None
    what: str
    op_before: str | None = None
    op_after: str | None = None
    match: str = ""
    confidence: float = 1.0
    children: tuple[tuple[str, int], ...] = ()
    became: str = ""
    contents: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    otherwise: bool = True

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("became", "contents", "weights", "otherwise")


class Diff(Struct, frozen=True):
    """What changed between two graphs."""

    before: str
    after: str
    equal: bool
    summary: tuple[OpDiff, ...]
    nodes: tuple[NodeDiff, ...]
    totals_before: Totals
    totals_after: Totals


class TileResult(Struct, frozen=True):
    """The answer of `explorer tile`. `verification` is None when it was not asked for."""

    plan: Plan
    output: str
    verification: Verification | None
    seconds: float
    command: str


class Progress(Struct, frozen=True):
    """Where a job stands. `total` is 0 while it is not known."""

    phase: str
    done: int = 0
    total: int = 0


def to_json(fact: Any) -> Any:
    """A fact as JSON-ready values: structs and mappings to dicts, tuples to lists.

    A fact's `NOT_IN_JSON` names fields that say for code what others say in words.

    NaN and infinities become strings ('nan', 'inf'), because JSON has no word for them and null is
    taken: it means unknown.
    """
    if isinstance(fact, float) and not math.isfinite(fact):
        return str(fact)
    if fact is None or isinstance(fact, (str, int, float, bool)):
        return fact
    if isinstance(fact, Struct):
        left_out = getattr(fact, "NOT_IN_JSON", ())
        names = [name for name in fact.__struct_fields__ if name not in left_out]
        return {name: to_json(getattr(fact, name)) for name in names}
    if isinstance(fact, Mapping):
        return {str(k): to_json(v) for k, v in fact.items()}
    if isinstance(fact, (list, tuple)):
        return [to_json(v) for v in fact]
    if isinstance(fact, bytes):
        return fact.decode("utf-8", "backslashreplace")
    return str(fact)
