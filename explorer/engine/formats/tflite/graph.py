"""TensorFlow Lite file (.tflite) as a `Model`, for analysis, statistics and comparison.

An operator keeps its name from the schema, in the domain `tflite` (custom operators: `tflite.custom`).
Operators that run subgraphs become forms that the engine knows: IF and WHILE contain graphs like ONNX's If
and Loop, and CALL and STABLEHLO_COMPOSITE call local functions. A subgraph can have constants but an ONNX
function cannot, so they move to the main graph and the callers pass them in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from explorer.base.errors import BadModel
from explorer.engine.formats.tflite import schema
from explorer.engine.formats.tflite.loops import trips_of
from explorer.engine.formats.tflite.options import custom_options
from explorer.engine.formats.tflite.reader import Subgraph, TfliteFile, TfliteOperator, TfliteQuantization
from explorer.engine.formats.tflite.reader import TfliteTensor as FileTensor
from explorer.engine.graph.model import (
    DTYPES,
    FileSpan,
    Function,
    Graph,
    Model,
    Node,
    Source,
    Tensor,
    Value,
    dtype_code,
    int64_tensor,
)
from explorer.facts import Dim

DOMAIN = "tflite"
CUSTOM = "tflite.custom"

BATCH = "batch"
"""Name of a resizable first axis of an input; the file has no names for sizes."""

MAX_ELEMENTS = 1 << 48
"""Most elements that a stored tensor may claim."""

MAX_DEPTH = 32
"""Most levels of nested subgraphs; real models stay below 5."""

MAX_OPENED = 200_000
"""Most operators and values that all opened bodies of IF and WHILE may have; further bodies stay closed."""

_LARGEST = 1 << 62
"""Upper limit of the count of operators and values in opened bodies."""

_CALLS = {"CALL": "subgraph", "STABLEHLO_COMPOSITE": "decomposition_subgraph_index"}
_BRANCHES = {"IF": ("then_subgraph_index", "else_subgraph_index")}
_LOOPS = dict.fromkeys(("WHILE", "STABLEHLO_WHILE"), ("cond_subgraph_index", "body_subgraph_index"))
"""Operators that run subgraphs, and the options that name these."""

_ALIKE = 4096
"""Longest text of options for which operators are compared."""


class Tflite(Struct, frozen=True):
    """A file as read.

    Attributes:
        model: The first subgraph, and the subgraphs that it runs.
        sizes: The size that the file gives each of the model's symbolic dimensions.
        bodies: The subgraphs of the model's functions, with their declarations.
        made_up: Names of stored values that are not in the file.
        states: Tensors that keep their values between runs: name and bytes.
        quantized: Number of quantized tensors, by kind of quantization.
        scales: Quantization of stored tensors, by name.
        signatures: Names of the model's signatures.
    """

    model: Model
    sizes: Mapping[str, int]
    bodies: Mapping[tuple[str, str, str], Graph]
    made_up: frozenset[str]
    states: Mapping[str, int]
    quantized: Mapping[str, int]
    scales: Mapping[str, TfliteQuantization]
    signatures: tuple[str, ...]


def read(path: str) -> Tflite:
    """The model in the file at `path`, its weights left there.

    Raises:
        BadModel: The file is no TensorFlow Lite model, or contradicts itself.
        MissingExtra: The schema's package is not installed.
    """
    try:
        source = Source(path)
    except OSError as error:
        raise BadModel(f"cannot be read: {error.strerror or error}", where=path) from None
    try:
        return _Maker(source).read()
    except BadModel as error:
        raise BadModel(error.what, where=error.where or path, hint=error.hint) from None


class _Body(Struct):
    """A subgraph during its conversion to a graph.

    Attributes:
        subgraph: The subgraph as read.
        prefix: Prefix of its stored tensors' names outside it; empty for the main graph.
        names: Names of its values, by tensor number.
        runs: Subgraphs that each operator runs, by operator index.
        options: Options of the operators that run subgraphs.
    """

    subgraph: Subgraph
    prefix: str
    names: list[str]
    runs: dict[int, tuple[int, ...]] = field(default_factory=dict)
    options: dict[int, Mapping[str, Any]] = field(default_factory=dict)


class _Maker:
    """Builds one model; holds the state that its parts share."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.file = TfliteFile(source.map)
        self.opsets = {DOMAIN: self.file.version, CUSTOM: 1}
        self.bodies: dict[int, _Body] = {}
        self.sizes: dict[int, int] = {}
        self.opened = 0
        self.opening = False
        self.functions: dict[tuple[str, str, str], Function] = {}
        self.graphs: dict[tuple[str, str, str], Graph] = {}
        self.hoisted: dict[int, dict[str, Tensor]] = {}
        self.handed: dict[int, tuple[str, ...]] = {}
        self.decoders: dict[Any, tuple[bytes, Callable[[], Mapping[str, Any]]]] = {}
        self.counted: set[str] = set()
        self.symbols: dict[str, int] = {}
        self.made_up: dict[str, Tensor] = {}
        self.states: dict[str, int] = {}
        self.quantized: dict[str, int] = {}
        self.scales: dict[str, TfliteQuantization] = {}

    def read(self) -> Tflite:
        """Reads the whole file."""
        file = self.file
        self._measure(0, ())
        main = self.bodies[0]
        self._name_sizes(main)
        graph = self._graph(main, main.names, main.subgraph.name or "main")
        needed = self._called_constants(main)
        if not needed.keys().isdisjoint(main.names):
            raise BadModel("it calls a tensor as a tensor of another subgraph is called here")
        initializers = {**graph.initializers, **needed, **self.made_up}
        graph = Graph(graph.name, graph.nodes, graph.inputs, graph.outputs, initializers, graph.values)
        model = Model(graph, self.opsets, 0, self.functions, producer=file.description, path=self.source.path)
        for at, (key, number) in enumerate(file.signatures):
            if number >= file.count:
                raise BadModel(f"signature {at} '{key}' names subgraph {number:,} of {file.count:,}")
        return Tflite(
            model,
            self.symbols,
            self.graphs,
            frozenset(self.made_up),
            self.states,
            self.quantized,
            self.scales,
            tuple(key for key, _ in file.signatures),
        )

    # -- which subgraph runs which --------------------------------------------------------------

    def _measure(self, at: int, around: tuple[int, ...]) -> int:
        """Reads a subgraph and those that it runs; returns its size with all of them opened.

        Raises:
            BadModel: Subgraphs run each other in a circle, or nest too deeply.
        """
        if at in self.sizes:
            return self.sizes[at]
        if at in around:
            names = " -> ".join(str(n) for n in (*around[around.index(at) :], at))
            raise BadModel(f"its subgraphs run each other in a circle: {names}")
        if len(around) >= MAX_DEPTH:
            raise BadModel(f"its subgraphs are nested more than {MAX_DEPTH} deep")
        subgraph = self.file.subgraph(at)
        body = _Body(subgraph, f"{subgraph.name or 'subgraph'}#{at}/" if at else "", _names(subgraph.tensors))
        self.bodies[at] = body
        total = len(subgraph.operators) + len(subgraph.tensors)
        for number, operator in enumerate(subgraph.operators):
            fields = _subgraph_options(operator)
            if not fields:
                continue
            options = _options(operator)
            if any(name not in options for name in fields):
                raise BadModel(f"an operator {operator.op} does not say which subgraphs it runs")
            runs = tuple(int(options[name]) for name in fields)
            body.options[number] = options
            body.runs[number] = runs
            for inner in runs:
                total += self._measure(inner, (*around, at))
            self._check_ends(operator, runs)
        self.sizes[at] = min(total, _LARGEST)
        return self.sizes[at]

    def _check_ends(self, operator: TfliteOperator, runs: Sequence[int]) -> None:
        """Checks that an operator has as many inputs and outputs as the subgraphs that it runs.

        Raises:
            BadModel: It does not.
        """
        taken = operator.inputs[1:] if operator.op in _BRANCHES else operator.inputs
        for place, inner in enumerate(runs):
            subgraph = self.bodies[inner].subgraph
            asks = operator.op in _LOOPS and place == 0
            result_count = 1 if asks else len(operator.outputs)
            if len(subgraph.inputs) != len(taken) or len(subgraph.outputs) != result_count:
                raise BadModel(
                    f"an operator {operator.op} with {len(taken)} values runs subgraph {inner}, which takes"
                    f" {len(subgraph.inputs)} and gives {len(subgraph.outputs)}"
                )

    def _called_constants(self, body: _Body) -> dict[str, Tensor]:
        """Stored tensors of all functions that a subgraph calls, also indirectly, by name."""
        key = id(body)
        if key not in self.hoisted:
            constants: dict[str, Tensor] = {}
            for number, runs in body.runs.items():
                for inner in map(self.bodies.__getitem__, runs):
                    if body.subgraph.operators[number].op in _CALLS:
                        inner_constants = self._constants(inner, inner.names)
                        constants.update(
                            (inner.prefix + name, tensor) for name, tensor in inner_constants.items()
                        )
                    constants.update(self._called_constants(inner))
            self.hoisted[key] = constants
        return self.hoisted[key]

    # -- values ---------------------------------------------------------------------------------

    def _name_sizes(self, main: _Body) -> None:
        """Names the resizable sizes of inputs, and records their sizes in the file."""
        tensors = [main.subgraph.tensors[n] for n in main.subgraph.inputs]
        first = {t.shape[0] for t in tensors if t.signature[:1] == (-1,) and t.shape}
        for number, tensor in zip(main.subgraph.inputs, tensors, strict=True):
            if not tensor.shape:
                continue
            for axis, size in enumerate(tensor.signature):
                if size == -1:
                    shared = axis == 0 and len(first) == 1
                    name = BATCH if shared else f"{main.names[number]}_{axis}"
                    # a size missing in the file is 1
                    self.symbols[name] = max(tensor.shape[axis], 1)

    def _value(self, body: _Body, number: int, name: str, *, name_sizes: bool = False) -> Value:
        """The declaration of a value in a subgraph; `name_sizes` names the resizable sizes."""
        tensor = body.subgraph.tensors[number]
        dims: tuple[Dim, ...] | None = tensor.dims
        if dims is not None and tensor.signature:
            named: list[Dim] = []
            for axis, size in enumerate(dims):
                axis_symbol = f"{body.names[number]}_{axis}"
                symbol = axis_symbol if axis_symbol in self.symbols else BATCH
                named.append(size if size != -1 else symbol if name_sizes else None)
            dims = tuple(named)
        return Value(name, tensor.dtype, dims)

    def _constants(self, body: _Body, names: Sequence[str]) -> dict[str, Tensor]:
        """The stored tensors of a subgraph, under these names of its values."""
        tensors = body.subgraph.tensors
        return {
            name: self._tensor(tensor, name, tensors)
            for name, tensor in zip(names, tensors, strict=True)
            if tensor.stored
        }

    def _tensor(self, tensor: FileTensor, name: str, around: Sequence[FileTensor]) -> Tensor:
        """A stored tensor, its size checked against its bytes.

        Raises:
            BadModel: They do not fit, or its type is not known.
        """
        shape = tensor.shape or ()
        if tensor.dtype is None:
            raise BadModel(f"tensor '{name}' is stored and of the element type {tensor.type}")
        if -1 in shape:
            raise BadModel(f"tensor '{name}' is stored and has no fixed size")
        count = math.prod(shape)
        if (count or math.prod(d for d in shape if d)) > MAX_ELEMENTS:
            raise BadModel(f"tensor '{name}' claims {count:,} elements")
        bits = DTYPES[dtype_code(tensor.dtype)].bits
        needed = (count * bits + 7) // 8
        payload = None if tensor.data is None else FileSpan(self.source, *tensor.data)
        stored_count: int | None = None
        beside = tensor.indices
        if tensor.quantization is not None:
            if tensor.quantization.scales:
                self.scales[name] = tensor.quantization
            beside += tensor.quantization.nbytes
            for index in tensor.quantization.beside:
                if index < len(around) and (span := around[index].data) is not None:
                    beside += span[1]
        if tensor.sparse and payload is not None and bits:
            stored_count = _stored_values(tensor, payload.size, bits, count)
        elif payload is not None and bits and payload.size != needed:
            raise BadModel(
                f"tensor '{name}' of shape {list(shape)} and type {tensor.dtype} needs {needed:,} bytes"
                f" and has {payload.size:,}"
            )
        return Tensor(name, tensor.dtype, shape, payload, beside=beside, held=stored_count)

    # -- graphs ---------------------------------------------------------------------------------

    def _graph(
        self, body: _Body, names: Sequence[str], title: str, *, inputs: Sequence[Value] | None = None
    ) -> Graph:
        """A subgraph as a graph with these value names.

        Args:
            body: The subgraph.
            names: Names of its values, by tensor number.
            title: Name of the graph.
            inputs: Its inputs, if they differ from those of the subgraph.
        """
        subgraph = body.subgraph
        self._count_quantized(body)
        self._check_order(body)
        labels: set[str] = set()
        nodes = tuple(
            [self._node(body, at, operator, names, labels) for at, operator in enumerate(subgraph.operators)]
        )
        constants = self._constants(body, names)
        if inputs is None:
            # only the inputs of the main graph come from the user, so only their sizes have names
            name_sizes = not body.prefix
            inputs = [self._value(body, n, names[n], name_sizes=name_sizes) for n in subgraph.inputs]
        outputs = [self._value(body, n, names[n]) for n in subgraph.outputs]
        taken = {v.name for v in inputs}
        values = [
            self._value(body, n, names[n])
            for n, tensor in enumerate(subgraph.tensors)
            if not tensor.stored and names[n] not in taken
        ]
        return Graph(title, nodes, tuple(inputs), tuple(outputs), constants, tuple(values))

    def _count_quantized(self, body: _Body) -> None:
        """Counts quantized tensors and states, each subgraph once."""
        if body.prefix in self.counted:
            return
        self.counted.add(body.prefix)
        for number, tensor in enumerate(body.subgraph.tensors):
            if tensor.variable:
                bits = DTYPES[dtype_code(tensor.dtype)].bits if tensor.dtype else 0
                size = math.prod(tensor.shape or ()) * bits // 8
                self.states[body.prefix + body.names[number]] = max(size, 0)
            quantization = tensor.quantization
            if quantization is None or tensor.dtype in (None, "float32", "float16"):
                continue
            granularity = (
                "per block" if quantization.block else "per axis" if quantization.scales > 1 else "per tensor"
            )
            kind = f"{tensor.dtype} {granularity}"
            self.quantized[kind] = self.quantized.get(kind, 0) + 1

    def _check_order(self, body: _Body) -> None:
        """Checks that every value is made once and before its use: operators run in file order.

        Raises:
            BadModel: One is not.
        """
        subgraph, names = body.subgraph, body.names
        defined = {n for n, t in enumerate(subgraph.tensors) if t.stored or t.variable}
        defined.update(subgraph.inputs)
        for operator in subgraph.operators:
            for number in operator.inputs:
                if number >= 0 and number not in defined:
                    raise BadModel(
                        f"an operator {operator.op} takes '{names[number]}', which nothing makes before it"
                    )
            for number in operator.outputs:
                if number < 0:
                    continue
                if number in defined and not subgraph.tensors[number].variable:
                    raise BadModel(f"'{names[number]}' is made twice, the second time by {operator.op}")
                defined.add(number)
        for number in subgraph.outputs:
            if number not in defined:
                raise BadModel(f"nothing makes the output '{names[number]}'")

    def _node(
        self, body: _Body, at: int, operator: TfliteOperator, names: Sequence[str], labels: set[str]
    ) -> Node:
        """The node of an operator; `labels` are the labels in use in the graph."""
        inputs = [names[n] if n >= 0 else "" for n in operator.inputs]
        outputs = [names[n] if n >= 0 else "" for n in operator.outputs]
        first_output = next((n for n in operator.outputs if n >= 0), None)
        label = ""
        if first_output is not None:
            name = body.subgraph.tensors[first_output].name
            # a fused operator joins names with ';': take the first
            label = _label(name.partition(";")[0])
            if label in labels:
                label = _label(name)
            if label in labels:
                label = f"{label}#{first_output}"
            labels.add(label)
        runs = body.runs.get(at)
        if runs is not None:
            if operator.op in _CALLS:
                return self._call(body, operator, at, inputs, outputs, label)
            make = self._if if operator.op in _BRANCHES else self._while
            if self.opening:
                # the contents of a body were counted with it
                return make(body, at, inputs, outputs, label)
            size = sum(self.sizes[n] for n in runs)
            if self.opened + size <= MAX_OPENED:
                self.opened += size
                self.opening = True
                try:
                    return make(body, at, inputs, outputs, label)
                finally:
                    self.opening = False
        alike, decode = self._attributes(operator)
        domain = CUSTOM if operator.custom else DOMAIN
        return Node(operator.op, inputs, outputs, name=label, domain=domain, decode=decode, alike=alike)

    def _attributes(self, operator: TfliteOperator) -> tuple[bytes | None, Callable[[], Mapping[str, Any]]]:
        """Key that is equal for operators with equal options, and their common decoder."""
        key: Any = None
        kind = schema.options(*operator.kind) if operator.kind is not None else None
        if operator.custom:
            key = "custom", operator.own
        elif kind is None or operator.options is None:
            key = "none"
        elif kind.flat:
            key = kind.name, operator.options.raw
        else:
            key = kind.name, operator.options.at
        decoder = self.decoders.get(key)
        if decoder is None:
            if operator.custom:
                attributes: Mapping[str, Any] = custom_options(self.source.map, *operator.own)
            else:
                attributes = _options(operator)
            text = repr(attributes).encode() if attributes else b""
            decoder = self.decoders[key] = text, lambda: attributes
        alike, decode = decoder
        return (alike if len(alike) <= _ALIKE else None), decode

    def _call(
        self,
        body: _Body,
        operator: TfliteOperator,
        at: int,
        inputs: Sequence[str],
        outputs: Sequence[str],
        label: str,
    ) -> Node:
        """The call of a subgraph as a call of a local function."""
        number = body.runs[at][0]
        options = body.options[at]
        inner = self.bodies[number]
        op = str(options.get("name") or inner.subgraph.name or operator.op)
        key = DOMAIN, op, str(number)
        handed = self.handed.get(number)
        if handed is None:
            constant_names = (
                inner.prefix + name
                for name, t in zip(inner.names, inner.subgraph.tensors, strict=True)
                if t.stored
            )
            handed = self.handed[number] = (*constant_names, *self._called_constants(inner))
        # a thousand calls with a thousand constants each would be larger than their file
        self.file.budget.spend(len(handed))
        if key not in self.functions:
            names = [
                inner.prefix + name if tensor.stored else name
                for name, tensor in zip(inner.names, inner.subgraph.tensors, strict=True)
            ]
            graph = self._graph(inner, names, op)
            self.graphs[key] = graph
            taken = (*(v.name for v in graph.inputs), *handed)
            results = tuple(v.name for v in graph.outputs)
            self.functions[key] = Function(
                DOMAIN,
                op,
                taken,
                results,
                graph.nodes,
                self.opsets,
                overload=str(number),
            )
        attributes = {n: v for n, v in options.items() if n not in (*_CALLS.values(), "name")}
        return Node(
            op,
            (*inputs, *handed),
            outputs,
            name=label,
            domain=DOMAIN,
            overload=str(number),
            attributes=attributes,
        )

    def _body_names(self, number: int, outside: Iterable[str], taken: Sequence[str] | None) -> list[str]:
        """Unique names for the values of a body, not in `outside`; its inputs get those in `taken`."""
        inner = self.bodies[number]
        used = {*outside, *(taken or ())}
        names = []
        for name in inner.names:
            while name in used:
                name += "'"
            used.add(name)
            names.append(name)
        for at, name in zip(inner.subgraph.inputs, taken or (), strict=False):
            names[at] = name
        return names

    def _if(self, body: _Body, at: int, inputs: Sequence[str], outputs: Sequence[str], label: str) -> Node:
        """IF as If: IF passes its inputs on, while the graphs of If read them from the enclosing graph."""
        graphs = {}
        for branch, number in zip(("then_branch", "else_branch"), body.runs[at], strict=True):
            names = self._body_names(number, (), inputs[1:])
            graphs[branch] = self._graph(self.bodies[number], names, branch, inputs=())
        return Node("If", inputs[:1], outputs, name=label, attributes=graphs)

    def _while(self, body: _Body, at: int, inputs: Sequence[str], outputs: Sequence[str], label: str) -> Node:
        """WHILE as Loop: the body, followed by the condition."""
        asks, runs = (self.bodies[n] for n in body.runs[at])
        names = self._body_names(body.runs[at][1], (), None)
        graph = self._graph(runs, names, "body")
        results = [names[n] for n in runs.subgraph.outputs]
        question = self._body_names(body.runs[at][0], names, results)
        condition = self._graph(asks, question, "cond", inputs=())
        around = body.subgraph
        count, exact = trips_of(self.source.map, around, around.operators[at], asks.subgraph, runs.subgraph)
        going = Value("#going", "bool", ())
        after = going if exact else condition.outputs[0]
        loop = Graph(
            "body",
            (*graph.nodes, *condition.nodes),
            (Value("#iteration", "int64", ()), going, *graph.inputs),
            (after, *graph.outputs),
            {**graph.initializers, **condition.initializers},
            (*graph.values, *condition.values),
        )
        trips = ""
        if count is not None:
            trips = f"{label or outputs[0]}/iterations"
            self.made_up[trips] = int64_tensor(trips, [count])
        return Node("Loop", (trips, "", *inputs), outputs, name=label, attributes={"body": loop})


def _stored_values(tensor: FileTensor, size: int, bits: int, count: int) -> int:
    """Number of the `count` elements of a sparse tensor that are stored in `size` bytes.

    Raises:
        BadModel: Its indices name another number, more than there are, or the bytes are no whole numbers.
    """
    stored_count = tensor.values if tensor.values is not None else size * 8 // bits
    needed = (stored_count * bits + 7) // 8
    if size != needed:
        raise BadModel(
            f"tensor '{tensor.name}' is sparse: its {stored_count:,} numbers of type {tensor.dtype} need"
            f" {needed:,} bytes and it has {size:,}"
        )
    if stored_count > count:
        raise BadModel(f"tensor '{tensor.name}' is sparse, and stores {stored_count:,} of {count:,} numbers")
    return stored_count


def _subgraph_options(operator: TfliteOperator) -> tuple[str, ...]:
    """Names of the options in which an operator refers to the subgraphs that it runs."""
    if operator.custom:
        return ()
    called = _CALLS.get(operator.op)
    return (called,) if called else _BRANCHES.get(operator.op, ()) or _LOOPS.get(operator.op, ())


def _options(operator: TfliteOperator) -> Mapping[str, Any]:
    """The options of a builtin operator; empty if it has none, or unknown ones."""
    kind = schema.options(*operator.kind) if operator.kind is not None else None
    return {} if kind is None or operator.options is None else kind.read(operator.options)


def _names(tensors: Sequence[FileTensor]) -> list[str]:
    """Unique names for the values of a subgraph."""
    used: set[str] = set()
    names = []
    for number, tensor in enumerate(tensors):
        name = tensor.name or f"tensor_{number}"
        if name in used:
            name = f"{name}#{number}"
        while name in used:
            name += "'"
        used.add(name)
        names.append(name)
    return names


def _label(name: str) -> str:
    """The path of an operator from the name of its output; slashes separate levels, dots do not.

    A piece may be a class with its module (torch.nn.modules.conv.Conv2d_1); only the class is kept.
    """
    if "." not in name:
        return name
    pieces = []
    for piece in name.split("/"):
        parts = piece.split(".")
        pieces.append(parts[-1] if all(part.isidentifier() for part in parts) else "_".join(parts))
    return "/".join(pieces)
