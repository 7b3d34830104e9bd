"""Converts a TensorFlow Lite file (.tflite) to a `Model`, for analysis, statistics and comparison.

An operator keeps its name from the schema, in the domain `tflite` or, for custom operators, `tflite.custom`.
Operators that run subgraphs are converted: IF and WHILE become If and Loop of ONNX, which contain the
subgraphs. CALL and STABLEHLO_COMPOSITE become calls of local functions. A subgraph can have constants, but a
function cannot, so these constants become initializers of the main graph, and every call passes them as
inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from explorer.base.errors import BadModel
from explorer.engine.formats.tflite import schema
from explorer.engine.formats.tflite.loops import count_trips
from explorer.engine.formats.tflite.options import decode_custom_options
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
    build_int64_tensor,
    get_dtype_code,
)
from explorer.facts import Dim

DOMAIN = "tflite"
"""Domain of the built-in operators."""
CUSTOM = "tflite.custom"
"""Domain of custom operators."""

BATCH = "batch"
"""Symbol of the first axis if it is resizable and of one size in all inputs. The file names no sizes."""

MAX_ELEMENTS = 1 << 48
"""Maximum number of elements that a stored tensor may declare."""

MAX_DEPTH = 32
"""Maximum depth of nested subgraphs; real models stay below 5."""

MAX_OPENED = 200_000
"""Maximum number of operators and values in all converted bodies of IF and WHILE together. Beyond it, IF and
WHILE stay plain nodes without graphs."""

_MAX_SIZE = 1 << 62
"""Largest number that `_read_and_measure` returns. Nested calls multiply the numbers, without a limit."""

_CALLS = {"CALL": "subgraph", "STABLEHLO_COMPOSITE": "decomposition_subgraph_index"}
_BRANCHES = {"IF": ("then_subgraph_index", "else_subgraph_index")}
_LOOPS = dict.fromkeys(("WHILE", "STABLEHLO_WHILE"), ("cond_subgraph_index", "body_subgraph_index"))
"""Operators that run subgraphs, each with the options that hold the indices of the subgraphs."""

_MAX_KEY_BYTES = 4096
"""Maximum bytes of the options as text for which operators share a key."""


class Tflite(Struct, frozen=True):
    """The contents of a TensorFlow Lite file.

    Attributes:
        model: Model of the first subgraph, with the subgraphs that it runs.
        sizes: Size in the file of each symbolic dimension.
        bodies: Graphs of the local functions, with value declarations, by function key.
        made_up: Names of initializers that are not in the file, such as iteration counts of loops.
        states: Bytes of each tensor that keeps its values between runs, by name.
        quantized: Number of quantized tensors, by element type and granularity.
        scales: Quantization of the stored tensors that have scales, by name.
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
    """Reads the TensorFlow Lite file at `path`; its weights stay in the file.

    Raises:
        BadModel: The file is not a TensorFlow Lite model, or contradicts itself.
        MissingExtra: The package `tflite` is not installed.
    """
    try:
        source = Source(path)
    except OSError as error:
        raise BadModel(f"cannot be read: {error.strerror or error}", where=path) from None
    try:
        return _ModelBuilder(source).read()
    except BadModel as error:
        raise BadModel(error.what, where=error.where or path, hint=error.hint) from None


class _Body(Struct):
    """A subgraph during its conversion to a graph.

    Attributes:
        subgraph: Subgraph as read from the file.
        prefix: Prefix of the names of its constants in the main graph; empty for the main graph itself.
        names: Names of its values, by tensor number.
        runs: Numbers of the subgraphs that an operator runs, by index of the operator.
        options: Options of the operators that run subgraphs, by index of the operator.
    """

    subgraph: Subgraph
    prefix: str
    names: list[str]
    runs: dict[int, tuple[int, ...]] = field(default_factory=dict)
    options: dict[int, Mapping[str, Any]] = field(default_factory=dict)


class _ModelBuilder:
    """Builds the model of one file.

    Attributes:
        bodies: Subgraphs read so far, by number.
        sizes: Number of operators and values of a subgraph, including the subgraphs that it runs.
        expanded_size: Number of operators and values in all converted bodies of IF and WHILE.
        is_expanding: Whether the current graph is in a body of IF or WHILE.
        functions: Local functions by key.
        graphs: Graphs of the local functions by key.
        called_constants: Constants of called functions that become initializers of the main graph, by `id` of
            the caller's `_Body`.
        passed_constants: Names of the constants that a call passes to its function, by subgraph number.
        decoders: Attribute key and decoder, by table and bytes (or offset) of the options.
        counted_prefixes: Prefixes of the subgraphs whose quantized tensors are counted.
        symbols: Size of each symbolic dimension.

    The other attributes are those of `Tflite`.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.file = TfliteFile(source.map)
        self.opsets = {DOMAIN: self.file.version, CUSTOM: 1}
        self.bodies: dict[int, _Body] = {}
        self.sizes: dict[int, int] = {}
        self.expanded_size = 0
        self.is_expanding = False
        self.functions: dict[tuple[str, str, str], Function] = {}
        self.graphs: dict[tuple[str, str, str], Graph] = {}
        self.called_constants: dict[int, dict[str, Tensor]] = {}
        self.passed_constants: dict[int, tuple[str, ...]] = {}
        self.decoders: dict[Any, tuple[bytes, Callable[[], Mapping[str, Any]]]] = {}
        self.counted_prefixes: set[str] = set()
        self.symbols: dict[str, int] = {}
        self.made_up: dict[str, Tensor] = {}
        self.states: dict[str, int] = {}
        self.quantized: dict[str, int] = {}
        self.scales: dict[str, TfliteQuantization] = {}

    def read(self) -> Tflite:
        """Converts the file."""
        file = self.file
        self._read_and_measure(0, ())
        main = self.bodies[0]
        self._name_sizes(main)
        graph = self._convert_graph(main, main.names, main.subgraph.name or "main")
        needed = self._collect_called_constants(main)
        if not needed.keys().isdisjoint(main.names):
            raise BadModel("a tensor has a name that Explorer gives to a tensor of another subgraph")
        initializers = {**graph.initializers, **needed, **self.made_up}
        graph = Graph(graph.name, graph.nodes, graph.inputs, graph.outputs, initializers, graph.values)
        model = Model(graph, self.opsets, 0, self.functions, producer=file.description, path=self.source.path)
        for index, (key, number) in enumerate(file.signatures):
            if number >= file.count:
                raise BadModel(f"signature {index} '{key}' names subgraph {number:,} of {file.count:,}")
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

    # -- subgraphs that run other subgraphs ------------------------------------------------------

    def _read_and_measure(self, subgraph_number: int, callers: tuple[int, ...]) -> int:
        """Reads a subgraph and the subgraphs that it runs.

        Args:
            subgraph_number: Number of the subgraph.
            callers: Numbers of the subgraphs that run it, outermost first.

        Returns:
            Number of operators and values, including operators and values of the subgraphs that it runs.

        Raises:
            BadModel: Subgraphs run each other in a cycle, or nest too deeply.
        """
        if subgraph_number in self.sizes:
            return self.sizes[subgraph_number]
        if subgraph_number in callers:
            names = " -> ".join(str(n) for n in (*callers[callers.index(subgraph_number) :], subgraph_number))
            raise BadModel(f"its subgraphs run each other in a circle: {names}")
        if len(callers) >= MAX_DEPTH:
            raise BadModel(f"its subgraphs are nested more than {MAX_DEPTH} deep")
        subgraph = self.file.read_subgraph(subgraph_number)
        body = _Body(
            subgraph,
            f"{subgraph.name or 'subgraph'}#{subgraph_number}/" if subgraph_number else "",
            _choose_names(subgraph.tensors),
        )
        self.bodies[subgraph_number] = body
        total = len(subgraph.operators) + len(subgraph.tensors)
        for number, operator in enumerate(subgraph.operators):
            fields = _list_subgraph_options(operator)
            if not fields:
                continue
            options = _read_options(operator)
            if any(name not in options for name in fields):
                raise BadModel(f"an operator {operator.op} names no subgraphs to run")
            runs = tuple(int(options[name]) for name in fields)
            body.options[number] = options
            body.runs[number] = runs
            for inner_number in runs:
                total += self._read_and_measure(inner_number, (*callers, subgraph_number))
            self._check_value_counts(operator, runs)
        self.sizes[subgraph_number] = min(total, _MAX_SIZE)
        return self.sizes[subgraph_number]

    def _check_value_counts(self, operator: TfliteOperator, runs: Sequence[int]) -> None:
        """Checks that an operator has as many inputs and outputs as each subgraph that it runs.

        Raises:
            BadModel: The numbers differ.
        """
        inputs = operator.inputs[1:] if operator.op in _BRANCHES else operator.inputs
        for position, inner in enumerate(runs):
            subgraph = self.bodies[inner].subgraph
            is_condition = operator.op in _LOOPS and position == 0
            result_count = 1 if is_condition else len(operator.outputs)
            if len(subgraph.inputs) != len(inputs) or len(subgraph.outputs) != result_count:
                raise BadModel(
                    f"an operator {operator.op} with {len(inputs)} values runs subgraph {inner}, which takes"
                    f" {len(subgraph.inputs)} and gives {len(subgraph.outputs)}"
                )

    def _collect_called_constants(self, body: _Body) -> dict[str, Tensor]:
        """Returns constants of the functions that a subgraph calls, at any depth, by main-graph name."""
        key = id(body)
        if key not in self.called_constants:
            constants: dict[str, Tensor] = {}
            for number, runs in body.runs.items():
                for inner in map(self.bodies.__getitem__, runs):
                    if body.subgraph.operators[number].op in _CALLS:
                        inner_constants = self._convert_constants(inner, inner.names)
                        constants.update(
                            (inner.prefix + name, tensor) for name, tensor in inner_constants.items()
                        )
                    constants.update(self._collect_called_constants(inner))
            self.called_constants[key] = constants
        return self.called_constants[key]

    # -- values ---------------------------------------------------------------------------------

    def _name_sizes(self, main: _Body) -> None:
        """Creates a symbol for each resizable size of the inputs, and records its size in the file."""
        tensors = [main.subgraph.tensors[n] for n in main.subgraph.inputs]
        first = {t.shape[0] for t in tensors if t.signature[:1] == (-1,) and t.shape}
        for number, tensor in zip(main.subgraph.inputs, tensors, strict=True):
            if not tensor.shape:
                continue
            for axis, size in enumerate(tensor.signature):
                if size == -1:
                    shared = axis == 0 and len(first) == 1
                    name = BATCH if shared else f"{main.names[number]}_{axis}"
                    # the file gives an unknown size as 1, 0 or -1
                    self.symbols[name] = max(tensor.shape[axis], 1)

    def _declare_value(self, body: _Body, number: int, name: str, *, name_sizes: bool = False) -> Value:
        """Declares a value of a subgraph; `name_sizes` says whether resizable sizes become symbols."""
        tensor = body.subgraph.tensors[number]
        dims: tuple[Dim, ...] | None = tensor.dims
        if dims is not None and tensor.signature:
            named_dims: list[Dim] = []
            for axis, size in enumerate(dims):
                axis_symbol = f"{body.names[number]}_{axis}"
                symbol = axis_symbol if axis_symbol in self.symbols else BATCH
                named_dims.append(size if size != -1 else symbol if name_sizes else None)
            dims = tuple(named_dims)
        return Value(name, tensor.dtype, dims)

    def _convert_constants(self, body: _Body, names: Sequence[str]) -> dict[str, Tensor]:
        """Returns the stored tensors of a subgraph by name; `names` holds the names of its values."""
        tensors = body.subgraph.tensors
        return {
            name: self._convert_tensor(tensor, name, tensors)
            for name, tensor in zip(names, tensors, strict=True)
            if tensor.is_stored
        }

    def _convert_tensor(self, tensor: FileTensor, name: str, siblings: Sequence[FileTensor]) -> Tensor:
        """Converts a stored tensor, and checks its shape against its bytes.

        Args:
            tensor: Tensor of the file.
            name: Name of the tensor in the graph.
            siblings: All tensors of its subgraph, which may hold its scales and zero points.

        Raises:
            BadModel: Shape and bytes do not match, or the element type is unknown.
        """
        shape = tensor.shape or ()
        if tensor.dtype is None:
            raise BadModel(f"tensor '{name}' is stored and of the element type {tensor.type}")
        if -1 in shape:
            raise BadModel(f"tensor '{name}' is stored and has no fixed size")
        count = math.prod(shape)
        if (count or math.prod(d for d in shape if d)) > MAX_ELEMENTS:
            raise BadModel(f"tensor '{name}' claims {count:,} elements")
        bits = DTYPES[get_dtype_code(tensor.dtype)].bits
        needed = (count * bits + 7) // 8
        payload = None if tensor.data is None else FileSpan(self.source, *tensor.data)
        stored_count: int | None = None
        extra_bytes = tensor.index_bytes
        if tensor.quantization is not None:
            if tensor.quantization.scales:
                self.scales[name] = tensor.quantization
            extra_bytes += tensor.quantization.nbytes
            for index in tensor.quantization.scale_tensors:
                if index < len(siblings) and (span := siblings[index].data) is not None:
                    extra_bytes += span[1]
        if tensor.is_sparse and payload is not None and bits:
            stored_count = _count_stored_values(tensor, payload.size, bits, count)
        elif payload is not None and bits and payload.size != needed:
            raise BadModel(
                f"tensor '{name}' of shape {list(shape)} and type {tensor.dtype} needs {needed:,} bytes"
                f" and has {payload.size:,}"
            )
        return Tensor(name, tensor.dtype, shape, payload, beside=extra_bytes, stored_elements=stored_count)

    # -- graphs ---------------------------------------------------------------------------------

    def _convert_graph(
        self, body: _Body, names: Sequence[str], title: str, *, inputs: Sequence[Value] | None = None
    ) -> Graph:
        """Converts a subgraph to a graph.

        Args:
            body: Subgraph to convert.
            names: Names of its values, by tensor number.
            title: Name of the graph.
            inputs: Inputs of the graph, or None for the inputs of the subgraph.
        """
        subgraph = body.subgraph
        self._count_quantized(body)
        self._check_order(body)
        labels: set[str] = set()
        nodes = tuple(
            [
                self._convert_node(body, index, operator, names, labels)
                for index, operator in enumerate(subgraph.operators)
            ]
        )
        constants = self._convert_constants(body, names)
        if inputs is None:
            # only the inputs of the main graph come from the user, so only their sizes get symbols
            name_sizes = not body.prefix
            inputs = [self._declare_value(body, n, names[n], name_sizes=name_sizes) for n in subgraph.inputs]
        outputs = [self._declare_value(body, n, names[n]) for n in subgraph.outputs]
        input_names = {v.name for v in inputs}
        values = [
            self._declare_value(body, n, names[n])
            for n, tensor in enumerate(subgraph.tensors)
            if not tensor.is_stored and names[n] not in input_names
        ]
        return Graph(title, nodes, tuple(inputs), tuple(outputs), constants, tuple(values))

    def _count_quantized(self, body: _Body) -> None:
        """Counts the quantized tensors and records the states of a subgraph, once for each subgraph."""
        if body.prefix in self.counted_prefixes:
            return
        self.counted_prefixes.add(body.prefix)
        for number, tensor in enumerate(body.subgraph.tensors):
            if tensor.is_variable:
                bits = DTYPES[get_dtype_code(tensor.dtype)].bits if tensor.dtype else 0
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
        """Checks that every value is computed once and before its use, in the order of the file.

        A tensor that keeps its values between runs has a value from the start, and may be computed again.

        Raises:
            BadModel: A value is computed twice, or used before it is computed.
        """
        subgraph, names = body.subgraph, body.names
        defined = {n for n, t in enumerate(subgraph.tensors) if t.is_stored or t.is_variable}
        defined.update(subgraph.inputs)
        for operator in subgraph.operators:
            for number in operator.inputs:
                if number >= 0 and number not in defined:
                    raise BadModel(
                        f"{operator.op} reads '{names[number]}', which no earlier operator computes"
                    )
            for number in operator.outputs:
                if number < 0:
                    continue
                if number in defined and not subgraph.tensors[number].is_variable:
                    raise BadModel(f"'{names[number]}' is computed twice, the second time by {operator.op}")
                defined.add(number)
        for number in subgraph.outputs:
            if number not in defined:
                raise BadModel(f"no operator computes the output '{names[number]}'")

    def _convert_node(
        self, body: _Body, index: int, operator: TfliteOperator, names: Sequence[str], labels: set[str]
    ) -> Node:
        """Converts an operator to a node.

        Args:
            body: Subgraph that contains the operator.
            index: Index of the operator.
            operator: Operator to convert.
            names: Names of the subgraph's values, by tensor number.
            labels: Node labels in use in the graph; the new label is added.
        """
        inputs = [names[n] if n >= 0 else "" for n in operator.inputs]
        outputs = [names[n] if n >= 0 else "" for n in operator.outputs]
        first_output = next((n for n in operator.outputs if n >= 0), None)
        label = ""
        if first_output is not None:
            name = body.subgraph.tensors[first_output].name
            # the output of a fused operator has several names joined by ';': use the first
            label = _derive_path(name.partition(";")[0])
            if label in labels:
                label = _derive_path(name)
            if label in labels:
                label = f"{label}#{first_output}"
            labels.add(label)
        runs = body.runs.get(index)
        if runs is not None:
            if operator.op in _CALLS:
                return self._convert_call(body, operator, index, inputs, outputs, label)
            convert = self._convert_if if operator.op in _BRANCHES else self._convert_while
            if self.is_expanding:
                # the size of the enclosing body includes this one
                return convert(body, index, inputs, outputs, label)
            size = sum(self.sizes[n] for n in runs)
            if self.expanded_size + size <= MAX_OPENED:
                self.expanded_size += size
                self.is_expanding = True
                try:
                    return convert(body, index, inputs, outputs, label)
                finally:
                    self.is_expanding = False
        key, decode = self._share_decoder(operator)
        domain = CUSTOM if operator.is_custom else DOMAIN
        return Node(operator.op, inputs, outputs, name=label, domain=domain, decode=decode, alike=key)

    def _share_decoder(
        self, operator: TfliteOperator
    ) -> tuple[bytes | None, Callable[[], Mapping[str, Any]]]:
        """Returns a key that is equal for operators with equal options, and the decoder that they share.

        Large options have no key (None).
        """
        key: Any = None
        kind = schema.find_options_table(*operator.kind) if operator.kind is not None else None
        if operator.is_custom:
            key = "custom", operator.custom_options
        elif kind is None or operator.options is None:
            key = "none"
        elif kind.is_flat:
            key = kind.name, operator.options.raw
        else:
            key = kind.name, operator.options.start
        decoder = self.decoders.get(key)
        if decoder is None:
            if operator.is_custom:
                attributes: Mapping[str, Any] = decode_custom_options(
                    self.source.map, *operator.custom_options
                )
            else:
                attributes = _read_options(operator)
            options_key = repr(attributes).encode() if attributes else b""
            decoder = self.decoders[key] = options_key, lambda: attributes
        shared_key, decode = decoder
        return (shared_key if len(shared_key) <= _MAX_KEY_BYTES else None), decode

    def _convert_call(
        self,
        body: _Body,
        operator: TfliteOperator,
        index: int,
        inputs: Sequence[str],
        outputs: Sequence[str],
        label: str,
    ) -> Node:
        """Converts the call of a subgraph to a call of a local function, which is built at its first call."""
        number = body.runs[index][0]
        options = body.options[index]
        inner = self.bodies[number]
        op = str(options.get("name") or inner.subgraph.name or operator.op)
        key = DOMAIN, op, str(number)
        constant_inputs = self.passed_constants.get(number)
        if constant_inputs is None:
            constant_names = (
                inner.prefix + name
                for name, t in zip(inner.names, inner.subgraph.tensors, strict=True)
                if t.is_stored
            )
            constant_inputs = self.passed_constants[number] = (
                *constant_names,
                *self._collect_called_constants(inner),
            )
        # a thousand calls that pass a thousand constants each would be larger than the file
        self.file.budget.spend(len(constant_inputs))
        if key not in self.functions:
            names = [
                inner.prefix + name if tensor.is_stored else name
                for name, tensor in zip(inner.names, inner.subgraph.tensors, strict=True)
            ]
            graph = self._convert_graph(inner, names, op)
            self.graphs[key] = graph
            parameters = (*(v.name for v in graph.inputs), *constant_inputs)
            results = tuple(v.name for v in graph.outputs)
            self.functions[key] = Function(
                DOMAIN, op, parameters, results, graph.nodes, self.opsets, overload=str(number)
            )
        attributes = {n: v for n, v in options.items() if n not in (*_CALLS.values(), "name")}
        return Node(
            op,
            (*inputs, *constant_inputs),
            outputs,
            name=label,
            domain=DOMAIN,
            overload=str(number),
            attributes=attributes,
        )

    def _choose_body_names(
        self, number: int, reserved: Iterable[str], input_names: Sequence[str] | None
    ) -> list[str]:
        """Chooses unique names for the values of a body.

        Args:
            number: Number of the subgraph.
            reserved: Names that may not be used.
            input_names: Names of the inputs, or None to choose these too.
        """
        inner = self.bodies[number]
        used = {*reserved, *(input_names or ())}
        names = []
        for name in inner.names:
            while name in used:
                name += "'"
            used.add(name)
            names.append(name)
        for index, name in zip(inner.subgraph.inputs, input_names or (), strict=False):
            names[index] = name
        return names

    def _convert_if(
        self, body: _Body, index: int, inputs: Sequence[str], outputs: Sequence[str], label: str
    ) -> Node:
        """Converts IF to If.

        IF passes inputs to its subgraphs. The subgraphs of If read them from the outer graph.
        """
        graphs = {}
        for branch, number in zip(("then_branch", "else_branch"), body.runs[index], strict=True):
            names = self._choose_body_names(number, (), inputs[1:])
            graphs[branch] = self._convert_graph(self.bodies[number], names, branch, inputs=())
        return Node("If", inputs[:1], outputs, name=label, attributes=graphs)

    def _convert_while(
        self, body: _Body, index: int, inputs: Sequence[str], outputs: Sequence[str], label: str
    ) -> Node:
        """Converts WHILE to Loop. The body of the Loop contains the body of the WHILE, then its condition."""
        condition_body, loop_body = (self.bodies[n] for n in body.runs[index])
        names = self._choose_body_names(body.runs[index][1], (), None)
        graph = self._convert_graph(loop_body, names, "body")
        results = [names[n] for n in loop_body.subgraph.outputs]
        condition_names = self._choose_body_names(body.runs[index][0], names, results)
        condition = self._convert_graph(condition_body, condition_names, "cond", inputs=())
        outer = body.subgraph
        count, exact = count_trips(
            self.source.map, outer, outer.operators[index], condition_body.subgraph, loop_body.subgraph
        )
        continues = Value("#going", "bool", ())
        # with an exact number of iterations, the condition cannot end the loop
        condition_value = continues if exact else condition.outputs[0]
        loop = Graph(
            "body",
            (*graph.nodes, *condition.nodes),
            (Value("#iteration", "int64", ()), continues, *graph.inputs),
            (condition_value, *graph.outputs),
            {**graph.initializers, **condition.initializers},
            (*graph.values, *condition.values),
        )
        count_name = ""
        if count is not None:
            count_name = f"{label or outputs[0]}/iterations"
            self.made_up[count_name] = build_int64_tensor(count_name, [count])
        return Node("Loop", (count_name, "", *inputs), outputs, name=label, attributes={"body": loop})


def _count_stored_values(tensor: FileTensor, size: int, bits: int, count: int) -> int:
    """Returns the number of stored elements of a sparse tensor.

    Args:
        tensor: Sparse tensor.
        size: Bytes of its stored elements.
        bits: Bits of an element.
        count: Number of elements of the dense shape.

    Raises:
        BadModel: The bytes contradict the indices, are not a whole number of elements, or exceed the shape.
    """
    stored_count = tensor.value_count if tensor.value_count is not None else size * 8 // bits
    needed = (stored_count * bits + 7) // 8
    if size != needed:
        raise BadModel(
            f"tensor '{tensor.name}' is sparse: its {stored_count:,} numbers of type {tensor.dtype} need"
            f" {needed:,} bytes and it has {size:,}"
        )
    if stored_count > count:
        raise BadModel(f"tensor '{tensor.name}' is sparse, and stores {stored_count:,} of {count:,} numbers")
    return stored_count


def _list_subgraph_options(operator: TfliteOperator) -> tuple[str, ...]:
    """Returns the names of the options that hold the numbers of the subgraphs that an operator runs."""
    if operator.is_custom:
        return ()
    subgraph_option = _CALLS.get(operator.op)
    if subgraph_option:
        return (subgraph_option,)
    return _BRANCHES.get(operator.op, ()) or _LOOPS.get(operator.op, ())


def _read_options(operator: TfliteOperator) -> Mapping[str, Any]:
    """Reads the options of a builtin operator by name; empty without options or if the schema lacks them."""
    kind = schema.find_options_table(*operator.kind) if operator.kind is not None else None
    return {} if kind is None or operator.options is None else kind.read(operator.options)


def _choose_names(tensors: Sequence[FileTensor]) -> list[str]:
    """Returns unique names for the values of a subgraph."""
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


def _derive_path(name: str) -> str:
    """Derives the path of an operator from the name of its output. Slashes separate levels, dots do not.

    A level may be a class with its module (torch.nn.modules.conv.Conv2d_1); the path keeps only the class.
    """
    if "." not in name:
        return name
    levels = []
    for level in name.split("/"):
        parts = level.split(".")
        levels.append(parts[-1] if all(part.isidentifier() for part in parts) else "_".join(parts))
    return "/".join(levels)
