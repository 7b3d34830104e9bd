"""Facts: records of plain values, in which the engine gives its results to the rest of the program.

Facts are frozen structs. They are pickled through the worker's pipe, printed as JSON and drawn on the screen.
One place computes each number, so the screen, the text tables and the JSON agree. The screen imports this
module before anything heavy. The structs are msgspec's, because creating and copying one takes a twentieth of
a frozen dataclass's time, and a large graph has 100,000 of them.

Conventions: every count is an exact integer. None means unknown (JSON null, `?` in text); an unknown count is
never 0. Sizes are bytes. A shape is a tuple of dimensions: an int, a str for a symbolic dimension, or None
for an unknown dimension. A shape of None means that even the rank is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from msgspec import Struct, field

from explorer.base.fact import Fact, TableFact
from explorer.base.version import SCHEMA_VERSION
from explorer.facts.external.overlay import Overlay
from explorer.facts.external.placement import Placement
from explorer.facts.history import History, HistoryEntry, describe_states
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
    "LayerRow",
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
    "list_dimension_sizes",
    "build_stored_totals",
    "describe_states",
    "to_json",
    "sum_activation_bytes",
    "build_total_row",
]

Dim = int | str | None
Shape = tuple[Dim, ...]
Status = Literal["exact", "bound", "unknown"]
Reach = Literal["exact", "bound", "assumed", "unknown"]
"""Status of a total, see `Totals.status`."""


class TensorInfo(Fact, frozen=True):
    """A named tensor: its dtype in numpy's spelling ('float32'), its shape, and the origin of both.

    `origin` is one of 'declared' (written in the file), 'inferred' (by shape inference), 'observed' (seen in
    a run), 'bound' (an upper bound, because a size depends on the data) and 'unknown'. `conflict` describes a
    disagreement: another shape that the file or shape inference gives, or the reason why no run can produce
    the tensor. Without a disagreement it is ''.
    """

    name: str
    dtype: str | None
    shape: Shape | None
    origin: str = "inferred"
    conflict: str = ""


class Layer(Fact, frozen=True):
    """One row of the layer tree: an operator, a leaf module, or a group that carries totals.

    Layers are listed in pre-order: parents before children, siblings in execution order. `id` is the index in
    that list. `path` is unique, with dots or slashes as in the source, and `name` is its last component. The
    figures of a group are the sums over its leaves. `params` of a group counts each shared parameter once.

    Attributes:
        calls: Number of runs of the layer in one forward pass.
        params: Number of parameters that the layer uses. A shared parameter counts once.
        weight_bytes: Bytes of these parameters as stored.
        macs: Multiply-accumulates of one forward pass, all calls together.
        formula: Formula of `macs` with its numbers, or of `elementwise_ops` if the layer has no MACs.
        activation_bytes: Bytes of the outputs.
        status: 'exact', 'bound' or 'unknown'. `reason` explains any status but 'exact'. A reason that begins
            with 'assumed' names an assumption: the true figures may be larger or smaller.
        assumed: Whether the figures of a 'bound' row rest on an assumption, which `reason` names.
        work_bound: Whether a 'bound' row bounds only its MACs and elementwise operations. Its sizes and bytes
            are then exact.
        shared_with: Paths of other layers that use the same stored parameter.
        weights: Parameters or initializers of this layer.
        attributes: Attributes under the names of the format: kernel_shape in ONNX, kernel_size in PyTorch.
        repeat: Length of a run of identical sibling groups (layers.0 to layers.11) on the first group of the
            run, 0 on its other groups, and 1 outside any run.
        weight_bytes_read: Part of `bytes_read` that the model stores (parameters, tables, buffers). The rest
            are activations.
        counted: Whether the totals include the layer. False for the cheaper branch of an If, which is listed
            but does not run.
        tiled: Whether the layer consists of tiles. `kind` is then the operator that the tiles replace, if the
            file records it.
        kv_cache_bytes: Decode mode only: bytes of cached keys and values that this layer reads, without those
            of the new token, or None if the layer reads no cache.
        trainable_params: Number of parameters with requires_grad, or None if the format does not record it.
        repeated_params: Number of parameters in `params` that an earlier layer of the same kind also uses; 0
            for a group.
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
    work_bound: bool = False

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("assumed", "work_bound")

    @property
    def kind_text(self) -> str:
        """Kind as text: 'Conv', 'Conv, tiled, 2 calls', 'Conv, at most 2 calls' if it may run less often."""
        bound_text = "at most " if self.status == "bound" and not (self.assumed or self.work_bound) else ""
        return (
            f"{self.kind}{', tiled' * self.tiled}{f', {bound_text}{self.calls:,} calls' * (self.calls > 1)}"
        )


class LayerRow(Layer, frozen=True):
    """A layer of a `LayerTable`.

    Attributes:
        module: Module of the layer in the user's own nn.Module, or None for another model and for a function.
    """

    module: Any = None

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = (*Layer.NOT_IN_JSON, "module")


NOTHING_KNOWN: Mapping[str, Any] = {
    "macs": None,
    "elementwise_ops": None,
    "bytes_read": None,
    "bytes_written": None,
    "activation_bytes": None,
    "weight_bytes_read": None,
    "status": "unknown",
}
"""Field values of a `Layer` with an unknown cost."""


def is_assumed(reason: str) -> bool:
    """Whether a figure of status 'bound' rests on an assumption, judged by its reason from JSON.

    In the program, read `Layer.assumed` instead.
    """
    return reason.startswith("assumed")


class Totals(Fact, frozen=True):
    """Figures of the full model.

    Each figure sums the known nodes, and `coverage` is the share of known nodes.

    Attributes:
        nodes: Number of operators (ONNX), or of leaf modules and functional operators (nn.Module). Each call
            counts.
        params: Number of parameters. Each stored parameter counts once.
        weight_bytes: Bytes of the parameters as they are stored.
        macs: Multiply-accumulates of one forward pass.
        elementwise_ops: Operations of biases, activations, normalization and pooling. No other figure
            includes them.
        bytes_read: Bytes of the inputs of all nodes, each input of a node once.
        bytes_written: Bytes of the outputs of all nodes, each output once.
        trainable_params: Number of parameters with requires_grad, or None if the format does not record it.
        flops: Floating-point operations of the matrix products: 2 x macs.
        activation_bytes_sum: Bytes of the outputs of every node (ONNX) or leaf module (nn.Module), each
            output once.
        activation_bytes_peak: Bytes of the largest set of tensors that are live at the same step of the
            execution order.
        peak_at: Path of the layer at which the peak occurs.
        peak_tensors: Tensors that are live at the peak, largest first (at most 16).
        coverage: Share of nodes whose operations and bytes are all known, 0 to 1.
        status: Status of `macs` and `flops`. 'exact'; 'bound': an upper bound; 'assumed': the true figure may
            be larger or smaller; 'unknown': a lower bound, because the cost of some nodes is unknown.
        activation_bytes_functional: nn.Module only: bytes of the outputs of functional operators. They are
            not leaf modules, so `activation_bytes_sum` does not include them.
        weight_bytes_read: Part of `bytes_read` that the model stores. The rest are activations.
        kv_cache_bytes: Decode mode only: bytes of the cached keys and values of all layers, without those of
            the new token.
        stored_status: Status of `params`, `trainable_params` and `weight_bytes`. 'exact', or 'bound' if
            tensors share memory in too many pieces to tell apart: the figures are then upper bounds.
        elementwise_status: Status of the elementwise operations, as `status`.
        moved_status: Status of the activations and the bytes, as `status`. It is 'bound' if a size depends
            on values, even if the MACs are exact.
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
    moved_status: Reach = "exact"
    elementwise_status: Reach = "exact"

    @property
    def stored_sign(self) -> str:
        """Sign in front of parameter counts and weight bytes: '<= ' for an upper bound, '' if exact."""
        return "" if self.stored_status == "exact" else "<= "

    @property
    def sign(self) -> str:
        """Sign in front of MACs and FLOPs: '<= ' for an upper bound, '>= ' a lower bound, '~ ' neither.

        It is '' for an exact figure.
        """
        return self._sign_of(self.status)

    @property
    def moved_sign(self) -> str:
        """Sign in front of activations and bytes, as `sign`."""
        return self._sign_of(self.moved_status)

    def sign_of(self, figure: str) -> str:
        """Returns the sign in front of a figure, given by the name of its field."""
        if figure in ("params", "trainable_params", "weight_bytes"):
            return self.stored_sign
        if figure == "elementwise_ops":
            return self._sign_of(self.elementwise_status)
        return self.sign if figure in ("macs", "flops") else self.moved_sign

    def _sign_of(self, status: Reach) -> str:
        if status in ("bound", "assumed"):
            return "<= " if status == "bound" else "~ "
        return ">= " if self.coverage < 1 else ""


def build_stored_totals(params: int, trainable_params: int | None, weight_bytes: int) -> Totals:
    """Builds the totals of a model of which only the stored parameters are known."""
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


class ModelInfo(Fact, frozen=True):
    """Source, format, inputs and outputs of a model.

    Attributes:
        format: Name of the format, as `explorer formats` lists it.
        producer: Program that wrote the file: 'pytorch 2.9'.
        notes: Remarks for the reader, in words.
        inference_died: Whether the process of shape inference died, perhaps for lack of memory. Another
            analysis may then give other figures.
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
        """Whether the rows are ONNX operators. A graph with custom domains only has no `opset`."""
        return self.format == "onnx" or self.opset is not None


class Info(Fact, frozen=True):
    """The answer of `explorer info`.

    `assumptions` holds the assumptions behind the numbers: {'dims': {'batch': 8}, 'weights': 'random, seed
    0', ...}. `tiled` describes the products that run on tiles, or is None if the model has none.
    `random_weights` tells whether the weights are random.
    """

    model: ModelInfo
    assumptions: Mapping[str, Any]
    totals: Totals
    tool: str = ""
    schema_version: int = SCHEMA_VERSION
    tiled: TiledMacs | None = None
    random_weights: bool = False

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("random_weights",)


class Analysis(TableFact, frozen=True):
    """Complete analysis of a model: its totals and every row of the layer tree."""

    ROWS: ClassVar[str] = "layers"

    info: Info
    layers: tuple[Layer, ...]


class LayerTable(TableFact, frozen=True):
    """Rows of the layer tree after filtering, folding and sorting, with the requested columns.

    Attributes:
        columns: Names of the columns, see `explorer.settings.columns`.
        layers: Rows in display order. If a filter removed layers of a group, the group has the sums of the
            remaining layers.
        values: Cell values, one tuple for each row.
        total: Sum of the rows as a row of its own. Without a filter it holds the totals of the model.
        totals: Cell values of `total`.
        found: Number of selected layers, plus the number of selected groups without a selected layer, or None
            without a filter.
        flat: Whether the layers are listed without their groups.
        style: Style of the column headers.
        overlay: Figures from outside the program, if some were given. `values` holds those of the rows.
        placement: Provider of onnxruntime that runs each layer, if it was requested.
        notes: Remarks on the figures, in words.
        modules: Modules of the user's own nn.Module by path, or {} for another model. A pickle has none.
    """

    ROWS: ClassVar[str] = "layers"

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("modules",)

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
    notes: tuple[str, ...] = ()
    modules: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, index: int) -> LayerRow:
        layer = self.layers[index]
        values = {name: getattr(layer, name) for name in Layer.__struct_fields__}
        return LayerRow(**values, module=self.modules.get(layer.path))

    def __iter__(self) -> Iterator[LayerRow]:
        return (self[index] for index in range(len(self.layers)))

    def __reduce__(self) -> tuple[Any, ...]:
        names = self.__struct_fields__
        return type(self), tuple(getattr(self, name) for name in names if name != "modules")


def sum_activation_bytes(totals: Totals) -> int | None:
    """Sums the output bytes of every node, leaf module and functional operator, each output once."""
    summed = totals.activation_bytes_sum
    return None if summed is None else summed + (totals.activation_bytes_functional or 0)


def build_total_row(
    totals: Totals, inputs: tuple[TensorInfo, ...] = (), outputs: tuple[TensorInfo, ...] = ()
) -> Layer:
    """Builds a row with the totals of a model and the id -1: the sum row of a table.

    The rows of an nn.Module include functional operators, so the row adds their outputs to
    `activation_bytes_sum`.
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
        activation_bytes=sum_activation_bytes(totals),
        weight_bytes_read=totals.weight_bytes_read,
    )


class Range(Fact, frozen=True):
    """Values of one attribute over all nodes of one operator type.

    `minimum` and `maximum` are ints, floats, or lists of the extremes at each position. `values` holds the
    distinct values with their counts, most frequent first, at most 16 of `distinct`.
    """

    minimum: Any
    maximum: Any
    distinct: int
    values: tuple[tuple[Any, int], ...]


class OpStat(Fact, frozen=True):
    """One operator type: the number of its nodes, their cost, and the range of every attribute.

    The attributes of convolution and pooling windows have ONNX's names for an nn.Module, too.

    Attributes:
        status: 'bound' if the operations of one of its layers are not exact, and else 'exact'.
        assumed: Whether a figure of one of its layers rests on an assumption.
    """

    op: str
    count: int
    macs: int | None
    params: int
    elementwise_ops: int | None
    attributes: Mapping[str, Range]
    status: Status = "exact"
    assumed: bool = False

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("status", "assumed")


class OpDiff(Fact, frozen=True):
    """Nodes of one operator type: `total` nodes before, and the counts of their changes."""

    op: str
    total: int
    changed: int
    unchanged: int
    added: int
    removed: int


class NodeDiff(Fact, frozen=True):
    """One row of a diff.

    Attributes:
        status: 'changed', 'added', 'removed', 'renamed', 'tiled', 'folded' (a row for all nodes that were
            folded in the same way), 'merged' (a tiled site became one product again), or 'quantized' (only
            the number formats of a layer differ).
        before: Name of the node in the first model, or None if it does not exist there. For 'folded', the
            first node.
        after: Name of the node in the second model, or None if it does not exist there.
        op_before: Operator in the first model.
        op_after: Operator in the second model.
        what: Difference in words: 'attribute alpha 1.0 -> 2.0', 'Gemm -> 9,216 products', 'Gemm -> int8, per
            channel, 38.2 dB' (of the stored weight).
        match: Property by which the two nodes were matched: 'name', 'structure', 'outputs', or '' for none.
        confidence: Confidence of the match, 0 to 1.
        children: Operators behind a tiled, merged or quantized row with their counts: ('2DMM_64x64x64',
            9216), ...
        became: New form of a tiled or quantized node, as in `what`.
        contents: Names of attributes that differ in their content, such as the body of a loop.
        weights: Names of weights that differ.
        has_other_changes: Whether the node also differs in something other than `contents` and `weights`.
        function: Domain, name and overload of a function. In a row about a function, this function. In the
            row of a call, the called function if its body is the only difference. None in other rows.
        is_helper: Whether only one graph has the node, and only tiled sites read its outputs.
        layer: Path of the module that the node comes from, or '' if the file does not say it.
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
    has_other_changes: bool = True
    function: tuple[str, str, str] | None = None
    is_helper: bool = False
    layer: str = ""

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = (
        "became",
        "contents",
        "weights",
        "has_other_changes",
        "function",
        "is_helper",
        "layer",
    )


class Diff(TableFact, frozen=True):
    """Differences between two graphs.

    Attributes:
        dims: Sizes of open dimensions to which the totals apply.
    """

    ROWS: ClassVar[str] = "nodes"

    before: str
    after: str
    equal: bool
    summary: tuple[OpDiff, ...]
    nodes: tuple[NodeDiff, ...]
    totals_before: Totals
    totals_after: Totals
    dims: Mapping[str, int] = field(default_factory=dict)

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("dims",)


class TileResult(Fact, frozen=True):
    """The answer of `explorer tile`. `verification` is None if none was requested."""

    plan: Plan
    output: str
    verification: Verification | None
    seconds: float
    command: str


class Progress(Fact, frozen=True):
    """Progress of a job: `done` steps of `total`. `total` is 0 while it is unknown."""

    phase: str
    done: int = 0
    total: int = 0


def list_dimension_sizes(info: Info) -> dict[str, int | None]:
    """Returns the named dimensions and their sizes; None for an unbound dimension."""
    dimension_names = dict.fromkeys(d for t in info.model.inputs for d in t.shape or () if isinstance(d, str))
    return {**dimension_names, **(info.assumptions.get("dims") or {})}


def to_json(fact: Any) -> Any:
    """Converts a fact to JSON values: structs and mappings to dicts, tuples to lists.

    It omits the fields that the struct lists in `NOT_IN_JSON`; other fields express them in words. NaN and
    infinities become the strings 'nan' and 'inf', because JSON cannot express them and null means unknown.
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
