"""Trip counts: how often a loop of TensorFlow Lite runs, if the file tells.

A WHILE has a subgraph for its condition and one for its body. Keras' recurrent layers become such loops, with
conditions like `i < 28`; their costs need the number of iterations.
"""

from __future__ import annotations

from explorer.engine.formats.onnx.protobuf_wire import Buffer
from explorer.engine.formats.tflite.reader import Subgraph, TfliteOperator


def trips_of(
    buffer: Buffer, around: Subgraph, loop: TfliteOperator, asks: Subgraph, runs: Subgraph
) -> tuple[int | None, bool]:
    """Most iterations of a WHILE (None: unknown), and whether the number is exact.

    Supported are conditions `i < limit`, joined by `and`, where the body adds a constant to `i` and the limit
    is constant.

    Args:
        buffer: The file.
        around: The subgraph that contains the loop.
        loop: The operator.
        asks: The subgraph of the condition.
        runs: The subgraph of the body.
    """
    makers = {n: o for o in asks.operators for n in o.outputs}
    open_, limits, exact = [asks.outputs[0]], [], True
    for _ in range(len(asks.operators) + 1):
        if not open_:
            break
        operator = makers.get(open_.pop())
        if operator is not None and operator.op == "LOGICAL_AND":
            open_ += operator.inputs
            continue
        count = None
        if operator is not None and operator.op == "LESS":
            count = _loop_count(buffer, around, loop, asks, runs, operator)
        if count is None:
            exact = False
        else:
            limits.append(count)
    return (min(limits), exact and not open_) if limits else (None, False)


def _loop_count(
    buffer: Buffer,
    around: Subgraph,
    loop: TfliteOperator,
    asks: Subgraph,
    runs: Subgraph,
    less: TfliteOperator,
) -> int | None:
    """Number of iterations for which `i < limit` holds; None if unknown."""
    if len(less.inputs) != 2 or less.inputs[0] not in asks.inputs:
        return None
    place = asks.inputs.index(less.inputs[0])
    limit = _constant_integer(buffer, asks, less.inputs[1])
    if limit is None and less.inputs[1] in asks.inputs:
        # a limit that the body passes on unchanged
        limit_place = asks.inputs.index(less.inputs[1])
        if runs.outputs[limit_place] == runs.inputs[limit_place]:
            limit = _constant_integer(buffer, around, loop.inputs[limit_place])
    start = _constant_integer(buffer, around, loop.inputs[place])
    adds = next((o for o in runs.operators if runs.outputs[place] in o.outputs), None)
    if adds is None or adds.op != "ADD" or len(adds.inputs) != 2 or limit is None or start is None:
        return None
    counter = runs.inputs[place]
    steps = [_constant_integer(buffer, runs, n) for n in adds.inputs if n != counter]
    if len(steps) != 1 or steps[0] is None or steps[0] < 1:
        return None
    return max(-((start - limit) // steps[0]), 0)


def _constant_integer(buffer: Buffer, subgraph: Subgraph, number: int) -> int | None:
    """The integer in a constant scalar tensor; None for any other tensor."""
    tensor = subgraph.tensors[number] if number >= 0 else None
    if tensor is None or tensor.data is None or tensor.dtype not in ("int32", "int64"):
        return None
    at, size = tensor.data
    if size != (4 if tensor.dtype == "int32" else 8):
        return None
    return int.from_bytes(buffer[at : at + size], "little", signed=True)
