"""Decomposes LSTM, GRU and RNN into a matmul over the whole sequence and a Scan over its steps.

One matmul multiplies the input of all steps by its weights. The state is multiplied in each step. Equations
and gate order are those of ONNX's operator documentation: input, output, forget, cell for an LSTM; update,
reset, hidden for a GRU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.graph.model import FileSpan, Inline, Node, Tensor, Value, build_tensor
from explorer.engine.tiling.builder import GraphBuilder, Size
from explorer.engine.tiling.sites import NoSite, SiteContext

_ACTIVATIONS = (
    *("Relu", "Tanh", "Sigmoid", "LeakyRelu", "ThresholdedRelu", "HardSigmoid", "Elu"),
    *("Softsign", "Softplus"),
)
"""Activations that exist as operators with the same defaults as in the recurrent operators."""


_DIRECTION_OPERATORS = ("Unsqueeze", "Concat")
"""Operators with which exporters add the axis of directions to a weight and join directions."""

_MAX_CHAIN = 4
"""Maximum number of these operators between a stored weight and the recurrent operator."""


class _Layer(Struct, frozen=True):
    """One recurrent operator.

    Attributes:
        node: The operator's node.
        dtype: Element type of its values.
        hidden: Size of the state.
        gates: Number of gates; W and R have `gates` times `hidden` rows.
        inputs: Value names by role, '' for an omitted input.
        activations: The activations of each direction.
        batch: The batch size, or (X, axis) if it is read from X at run time.
        sizes: Sizes of X as (steps, batch, features), None for an open size.
        is_batch_first: Whether the batch is the first axis.
    """

    node: Node
    dtype: str
    hidden: int
    gates: int
    inputs: Mapping[str, str]
    activations: tuple[tuple[str, ...], ...]
    batch: Size
    sizes: tuple[int | None, int | None, int]
    is_batch_first: bool

    @property
    def directions(self) -> int:
        return len(self.activations)

    def name_direction(self, d: int) -> str:
        """Returns 'forward' or 'backward', which becomes a part of value names."""
        return "backward" if self.is_backward(d) else "forward"

    def is_backward(self, d: int) -> bool:
        """Whether direction `d` runs from the end to the start."""
        return d == 1 or str(self.node.attributes.get("direction", "forward")) == "reverse"


class _Weights(Struct, frozen=True):
    """Value names of a direction's weights.

    Attributes:
        w: Weight of the input, transposed: (features, gates x hidden).
        r: Transposed weights of the state: one for all gates, or two if a GRU resets the state before the
            product of the last gate.
        bias: Bias that is added to the product of X over all steps, or ''.
        r_bias: Bias that a GRU adds to the state's product, or ''.
        peephole: Peephole weights of an LSTM, or empty.
    """

    w: str
    r: tuple[str, ...]
    bias: str
    r_bias: str
    peephole: tuple[str, ...]


Step = Callable[[GraphBuilder, _Layer, int, _Weights, str, Sequence[str]], list[str]]
"""Writes one step.

It takes the builder, the layer, the direction, its weights, the product of X, and the states; it returns the
new states, hidden state first.
"""

_OUTPUTS = ("Y", "Y_h", "Y_c")
"""Names of the outputs in ONNX's documentation."""

_ROLES = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
"""Names of the inputs in ONNX's documentation."""


def _make_decomposition(
    step: Step, gates: int, defaults: tuple[str, ...]
) -> Callable[[GraphBuilder, Node, SiteContext], None]:
    """Makes the function that decomposes an operator.

    Args:
        step: Writes one step.
        gates: Number of gates.
        defaults: Default activations of one direction.
    """

    def decompose_node(builder: GraphBuilder, node: Node, context: SiteContext) -> None:
        layer = _read_layer(node, context, gates, defaults)
        _write_layer(builder, layer, _store_weights(builder, layer, context, step), step)

    return decompose_node


def _read_layer(node: Node, context: SiteContext, gates: int, defaults: tuple[str, ...]) -> _Layer:
    """Reads the attributes and inputs of the node.

    Raises:
        NoSite: The node cannot be decomposed.
    """
    attributes = node.attributes
    inputs = dict.fromkeys(_ROLES, "") | dict(zip(_ROLES, node.inputs, strict=False))
    shape = context.get_shape(inputs["X"])
    if context.opset < 9:
        raise NoSite(f"opset {context.opset} has no Scan")
    if inputs["sequence_lens"]:
        raise NoSite("its sequences may differ in length")
    if attributes.get("activation_alpha") or attributes.get("activation_beta"):
        raise NoSite("its activations have parameters of their own")
    is_bidirectional = str(attributes.get("direction", "forward")) == "bidirectional"
    directions = 2 if is_bidirectional else 1
    names = [str(name) for name in attributes.get("activations", ())] or list(defaults) * directions
    if len(names) != len(defaults) * directions or not {n.lower() for n in names} <= {
        p.lower() for p in _ACTIVATIONS
    }:
        raise NoSite(f"its activations are {', '.join(names)}")
    operator_by_name = {p.lower(): p for p in _ACTIVATIONS}
    activations = [
        tuple(operator_by_name[n.lower()] for n in names[i : i + len(defaults)]) for i in (0, len(defaults))
    ]
    is_batch_first = bool(attributes.get("layout", 0))
    axes = (1, 0, 2) if is_batch_first else (0, 1, 2)
    open_axes = context.find_open_axes(inputs["X"])
    sizes = [None if axis in open_axes else shape[axis] for axis in axes]
    if sizes[2] is None:
        raise NoSite("the number of its features is not known")
    batch = sizes[1]
    return _Layer(
        node=node,
        dtype=context.get_dtype(inputs["X"]) or "float32",
        hidden=int(attributes["hidden_size"]),
        gates=gates,
        inputs=inputs,
        activations=tuple(activations[:directions]),
        batch=batch if batch is not None else (inputs["X"], axes[1]),
        sizes=(sizes[0], batch, sizes[2]),
        is_batch_first=is_batch_first,
    )


def _store_weights(builder: GraphBuilder, layer: _Layer, context: SiteContext, step: Step) -> list[_Weights]:
    """Stores the weights of each direction as new initializers; returns their value names.

    Raises:
        NoSite: A weight is computed, or its shape does not fit the attributes.
    """
    tensors: dict[str, Tensor] = {}
    for role in ("W", "R", "B", "P"):
        if name := layer.inputs[role]:
            tensors[role] = _find_stored_tensor(name, role, context)
    H, G = layer.hidden, layer.gates
    if tensors["W"].shape != (layer.directions, G * H, layer.sizes[2]):
        raise NoSite(f"its W is {list(tensors['W'].shape)}")
    if tensors["R"].shape != (layer.directions, G * H, H):
        raise NoSite(f"its R is {list(tensors['R'].shape)}")
    # a GRU without `linear_before_reset` resets the state before the product of its last gate, so that gate
    # needs a separate product
    is_split = step is _write_gru_step and not layer.node.attributes.get("linear_before_reset", 0)
    weights = []
    for d in range(layer.directions):
        names = [_store_gate_rows(builder, layer, tensors["W"], "W", d, 0, G)]
        gate_groups = ((0, 2), (2, 1)) if is_split else ((0, G),)
        names += [
            _store_gate_rows(builder, layer, tensors["R"], f"R{i or ''}", d, *gates)
            for i, gates in enumerate(gate_groups)
        ]
        turned = [
            builder.transpose(name, (1, 0), f"{layer.name_direction(d)}/turned_{i}")
            for i, name in enumerate(names)
        ]
        bias, r_bias = _store_biases(builder, layer, tensors.get("B"), d, step)
        peephole: tuple[str, ...] = ()
        if "P" in tensors:
            rows = tensors["P"].array()[d].reshape(3, H)
            peephole = tuple(
                _store_vector(builder, layer, row, f"P_{layer.name_direction(d)}_{i}")
                for i, row in enumerate(rows)
            )
        weights.append(_Weights(turned[0], tuple(turned[1:]), bias, r_bias, peephole))
    return weights


def list_nodes_before(name: str, context: SiteContext, max_chain: int = _MAX_CHAIN) -> Iterator[Node]:
    """Yields the nodes between a stored weight and the value `name` that a recurrent operator reads."""
    resolved = context.constants.resolve(name) if name else None
    node = context.constants.producers.get(name)
    if resolved is not None:
        yield from resolved[3]
    elif node is not None and not node.domain and node.op in _DIRECTION_OPERATORS and max_chain:
        yield node
        for part in node.inputs:
            yield from list_nodes_before(part, context, max_chain - 1)


def _find_stored_tensor(name: str, role: str, context: SiteContext, max_chain: int = _MAX_CHAIN) -> Tensor:
    """Returns the stored weight behind a value, through the operators that add an axis of directions."""
    resolved = context.constants.resolve(name)
    if resolved is not None:
        tensor, _, axes, _ = resolved
        if tensor.payload is None:
            raise NoSite(f"its {role} has no data")
        if axes != tuple(range(len(axes))) or not isinstance(tensor.payload, (FileSpan, Inline)):
            tensor = build_tensor(tensor.name, np.ascontiguousarray(tensor.array().transpose(axes)))
        return tensor
    node = context.constants.producers.get(name)
    if node is None or node.domain or node.op not in _DIRECTION_OPERATORS or not max_chain:
        producer_text = "" if node is None else f", but computed by {node.op}"
        raise NoSite(f"its {role} is not stored{producer_text}")
    parts = [_find_stored_tensor(part, role, context, max_chain - 1) for part in node.inputs]
    try:
        if node.op == "Concat":
            array = np.concatenate([part.array() for part in parts], axis=node.attributes["axis"])
            return build_tensor(name, array)
        axes = tuple(node.attributes["axes"] if "axes" in node.attributes else parts[1].array().tolist())
        shape = np.expand_dims(np.broadcast_to(np.int8(0), parts[0].shape), axes).shape
    except (ValueError, KeyError, IndexError):
        raise NoSite(f"its {role} has no shape") from None
    return replace(parts[0], shape=shape, record=None)


def _store_gate_rows(
    builder: GraphBuilder, layer: _Layer, tensor: Tensor, label: str, d: int, first: int, gates: int
) -> str:
    """Stores the rows of `gates` gates from gate `first` on, of direction `d` of W or R.

    The new tensor is a view of the stored bytes. Returns its name.
    """
    rows = layer.gates * layer.hidden
    width = tensor.shape[2]
    row_bytes = tensor.nbytes // (tensor.shape[0] * rows)
    start, size = (d * rows + first * layer.hidden) * row_bytes, gates * layer.hidden * row_bytes
    payload = tensor.payload
    if isinstance(payload, FileSpan):
        gate_payload: FileSpan | Inline = FileSpan(payload.source, payload.offset + start, size)
    else:
        assert isinstance(payload, Inline)
        gate_payload = Inline(payload.data[start : start + size])
    name = builder.emission.create_name(f"{builder.prefix}{label}_{layer.name_direction(d)}")
    shape = (gates * layer.hidden, width)
    builder.emission.initializers[name] = Tensor(name, tensor.dtype, shape, gate_payload)
    return name


def _store_biases(
    builder: GraphBuilder, layer: _Layer, tensor: Tensor | None, d: int, step: Step
) -> tuple[str, str]:
    """Stores the biases of a direction.

    Returns:
        Names of the bias of X's product, and of the bias that a GRU adds to the state's product before the
        reset, or '' if there is none.
    """
    if tensor is None:
        return "", ""
    rows, direction = layer.gates * layer.hidden, layer.name_direction(d)
    biases = tensor.array()[d].reshape(2, rows)
    if step is _write_gru_step and layer.node.attributes.get("linear_before_reset", 0):
        inner = biases[1].copy()
        inner[: 2 * layer.hidden] = 0
        outer = biases[0] + biases[1] - inner
        return (
            _store_vector(builder, layer, outer, f"B_{direction}"),
            _store_vector(builder, layer, inner, f"RB_{direction}"),
        )
    return _store_vector(builder, layer, biases[0] + biases[1], f"B_{direction}"), ""


def _store_vector(builder: GraphBuilder, layer: _Layer, array: Any, label: str) -> str:
    name = builder.emission.create_name(f"{builder.prefix}{label}")
    builder.emission.initializers[name] = build_tensor(name, np.ascontiguousarray(array).astype(layer.dtype))
    return name


def _write_layer(builder: GraphBuilder, layer: _Layer, weights: Sequence[_Weights], step: Step) -> None:
    """Writes the nodes of the operator."""
    x = layer.inputs["X"]
    if layer.is_batch_first:
        x = builder.transpose(x, (1, 0, 2), "x")
    states = 2 if step is _write_lstm_step else 1
    rows, last = [], []
    for d, direction_weights in enumerate(weights):
        inner = builder.create_inner(layer.name_direction(d))
        z = inner.add("MatMul", (x, direction_weights.w), "input")
        if direction_weights.bias:
            z = inner.add("Add", (z, direction_weights.bias), "input_biased")
        start = [_write_initial_state(inner, layer, role, d) for role in ("initial_h", "initial_c")[:states]]
        scanned = _scan_steps(inner, layer, d, direction_weights, step, z, start)
        rows.append(inner.unsqueeze(scanned[states], 1, "row"))
        last.append([inner.unsqueeze(state, 0, f"last_{i}") for i, state in enumerate(scanned[:states])])
        builder.nodes += inner.nodes
    outputs = [*layer.node.outputs, "", "", ""][: 1 + states]
    # for each output: the parts of its directions, the axis that joins them, and the axis order of a
    # batch-first layout
    results = [
        (rows, 1, (2, 0, 1, 3)),
        *(([finals[i] for finals in last], 0, (1, 0, 2)) for i in range(states)),
    ]
    for name, label, (parts, axis, perm) in zip(outputs, _OUTPUTS[: 1 + states], results, strict=True):
        if name:
            joined = builder.concat(parts, axis, f"{label}_joined")
            turned = builder.transpose(joined, perm, f"{label}_turned") if layer.is_batch_first else joined
            builder.add("Identity", (turned,), label, outputs=(name,))


def _write_initial_state(builder: GraphBuilder, layer: _Layer, role: str, d: int) -> str:
    """Writes the initial state of a direction, (batch, hidden)."""
    state = layer.inputs[role]
    if state:
        axis = 1 if layer.is_batch_first else 0
        index = builder.add_number(d, np.int64, f"{role}_which")
        return builder.add("Gather", (state, index), role, attributes={"axis": axis})
    sizes = builder.read_sizes((layer.batch, layer.hidden), f"{role}_size")
    zero = build_tensor("", np.zeros(1, layer.dtype))
    return builder.add("ConstantOfShape", (sizes,), role, attributes={"value": zero})


def _scan_steps(
    builder: GraphBuilder, layer: _Layer, d: int, weights: _Weights, step: Step, z: str, start: Sequence[str]
) -> list[str]:
    """Writes a Scan over the steps; returns the last states and the rows of all steps."""
    body = builder.create_inner("step")
    states_before = [body.name_value(f"before_{i}") for i in range(len(start))]
    z_row = body.name_value("z")
    states_after = step(body, layer, d, weights, z_row, states_before)
    row = body.add("Identity", (states_after[0],), "row")
    state = (layer.sizes[1], layer.hidden)
    inputs = [Value(name, layer.dtype, state) for name in states_before]
    inputs.append(Value(z_row, layer.dtype, (layer.sizes[1], layer.gates * layer.hidden)))
    outputs = [Value(name, layer.dtype, state) for name in (*states_after, row)]
    builder.scan(
        "steps", body, inputs=inputs, outputs=outputs, scanned=[z], state=start, backward=layer.is_backward(d)
    )
    return list(builder.nodes[-1].outputs)


def _write_clip(builder: GraphBuilder, layer: _Layer, x: str, label: str) -> str:
    """Clips the input of an activation if the operator has `clip`."""
    clip = layer.node.attributes.get("clip")
    if clip is None:
        return x
    if builder.emission.opset < 11:
        bounds = {"min": -float(clip), "max": float(clip)}
        return builder.add("Clip", (x,), f"{label}_clipped", attributes=bounds)
    low = builder.add_number(-clip, layer.dtype, f"{label}_low")
    high = builder.add_number(clip, layer.dtype, f"{label}_high")
    return builder.add("Clip", (x, low, high), f"{label}_clipped")


def _write_gates(builder: GraphBuilder, layer: _Layer, x: str, count: int, label: str) -> list[str]:
    """Splits `x`, (batch, count x hidden), into the values of `count` gates; returns their names."""
    names = [builder.name_value(f"{label}_{i}") for i in range(count)]
    builder.split(x, [layer.hidden] * count, 1, names, label)
    return names


def _write_one_minus(builder: GraphBuilder, layer: _Layer, x: str, label: str) -> str:
    one_value = builder.add_number(1, layer.dtype, f"{label}_one")
    return builder.add("Sub", (one_value, x), label)


def _write_lstm_step(
    builder: GraphBuilder, layer: _Layer, d: int, weights: _Weights, z: str, states: Sequence[str]
) -> list[str]:
    """Writes one step of an LSTM; see `Step`. `z` is a row of the product of X and its weights."""
    h, c = states
    f, g, squash = layer.activations[d]
    hidden = builder.add("MatMul", (h, weights.r[0]), "hidden")
    i, o, forget, cell = _write_gates(builder, layer, builder.add("Add", (z, hidden), "sums"), 4, "gate")

    def add_peephole(x: str, state: str, index: int, label: str) -> str:
        if not weights.peephole:
            return x
        term = builder.add("Mul", (weights.peephole[index], state), f"{label}_peep")
        return builder.add("Add", (x, term), f"{label}_peeped")

    def compute_gate(op: str, x: str, label: str) -> str:
        return builder.add(op, (_write_clip(builder, layer, x, label),), label)

    i = compute_gate(f, add_peephole(i, c, 0, "i"), "i")
    if layer.node.attributes.get("input_forget", 0):
        forget = _write_one_minus(builder, layer, i, "f")
    else:
        forget = compute_gate(f, add_peephole(forget, c, 2, "f"), "f")
    cell = compute_gate(g, cell, "c_new")
    remembered = builder.add("Mul", (forget, c), "kept")
    added = builder.add("Mul", (i, cell), "added")
    c = builder.add("Add", (remembered, added), "c")
    o = compute_gate(f, add_peephole(o, c, 1, "o"), "o")
    # as onnxruntime does, the inputs of gates are clipped, but not the cell state for the output
    squashed = builder.add(squash, (c,), "c_squashed")
    return [builder.add("Mul", (o, squashed), "h"), c]


def _write_gru_step(
    builder: GraphBuilder, layer: _Layer, d: int, weights: _Weights, z: str, states: Sequence[str]
) -> list[str]:
    """Writes one step of a GRU; see `Step`. `z` is a row of the product of X and its weights."""
    (h,) = states
    f, g = layer.activations[d]
    names = [builder.name_value(n) for n in ("z_zr", "z_h")]
    H = layer.hidden
    builder.split(z, [2 * H, H], 1, names, "z_parts")
    zr, new = names
    hidden = builder.add("MatMul", (h, weights.r[0]), "hidden")
    last = ""
    if len(weights.r) == 1:
        if weights.r_bias:
            hidden = builder.add("Add", (hidden, weights.r_bias), "hidden_biased")
        parts = [builder.name_value(n) for n in ("hidden_zr", "hidden_h")]
        builder.split(hidden, [2 * H, H], 1, parts, "hidden_parts")
        hidden, last = parts
    sums = _write_clip(builder, layer, builder.add("Add", (zr, hidden), "sums"), "zr")
    update, reset = _write_gates(builder, layer, builder.add(f, (sums,), "zr"), 2, "gate")
    if last:
        through = builder.add("Mul", (reset, last), "through")
    else:
        reset_state = builder.add("Mul", (reset, h), "left")
        through = builder.add("MatMul", (reset_state, weights.r[1]), "reset_hidden")
    candidate_input = _write_clip(builder, layer, builder.add("Add", (new, through), "inside"), "new")
    candidate = builder.add(g, (candidate_input,), "new")
    fresh = builder.add("Mul", (_write_one_minus(builder, layer, update, "rest"), candidate), "fresh")
    kept_state = builder.add("Mul", (update, h), "kept")
    return [builder.add("Add", (fresh, kept_state), "h")]


def _write_rnn_step(
    builder: GraphBuilder, layer: _Layer, d: int, weights: _Weights, z: str, states: Sequence[str]
) -> list[str]:
    """Writes one step of an RNN; see `Step`. `z` is a row of the product of X and its weights."""
    (h,) = states
    sums = builder.add("Add", (z, builder.add("MatMul", (h, weights.r[0]), "hidden")), "sums")
    return [builder.add(layer.activations[d][0], (_write_clip(builder, layer, sums, "h"),), "h")]


DECOMPOSITIONS: Mapping[tuple[str, str], Callable[[GraphBuilder, Node, SiteContext], None]] = {
    ("", "LSTM"): _make_decomposition(_write_lstm_step, 4, ("Sigmoid", "Tanh", "Tanh")),
    ("", "GRU"): _make_decomposition(_write_gru_step, 3, ("Sigmoid", "Tanh")),
    ("", "RNN"): _make_decomposition(_write_rnn_step, 1, ("Tanh",)),
}
