"""Trip counts: computes the number of iterations of a WHILE in TensorFlow Lite, if its limits are constant.

A WHILE has one subgraph for its condition and one for its body. Recurrent layers of Keras become such loops,
with conditions like `i < 28`. The cost of a loop depends on its number of iterations.
"""

from __future__ import annotations

from explorer.engine.formats.onnx.protobuf_wire import Buffer
from explorer.engine.formats.tflite.reader import Subgraph, TfliteOperator


def count_trips(
    buffer: Buffer, outer: Subgraph, loop: TfliteOperator, condition: Subgraph, body: Subgraph
) -> tuple[int | None, bool]:
    """Computes the maximum number of iterations of a WHILE.

    The condition must be a conjunction of terms `i < limit`. The limit must be constant, and the body must
    add a constant to `i`. Other terms are ignored, and the result is then only an upper bound.

    Args:
        buffer: Bytes of the file.
        outer: Subgraph that contains the loop.
        loop: WHILE operator.
        condition: Subgraph of the condition.
        body: Subgraph of the body.

    Returns:
        The number of iterations, or None if unknown; and whether the number is exact.
    """
    producers = {n: o for o in condition.operators for n in o.outputs}
    pending, limits, exact = [condition.outputs[0]], [], True
    for _ in range(len(condition.operators) + 1):
        if not pending:
            break
        operator = producers.get(pending.pop())
        if operator is not None and operator.op == "LOGICAL_AND":
            pending += operator.inputs
            continue
        count = None
        if operator is not None and operator.op == "LESS":
            count = _count_iterations(buffer, outer, loop, condition, body, operator)
        if count is None:
            exact = False
        else:
            limits.append(count)
    return (min(limits), exact and not pending) if limits else (None, False)


def _count_iterations(
    buffer: Buffer,
    outer: Subgraph,
    loop: TfliteOperator,
    condition: Subgraph,
    body: Subgraph,
    less: TfliteOperator,
) -> int | None:
    """Returns number of iterations for which the term `less` (`i < limit`) is true, or None if unknown."""
    if len(less.inputs) != 2 or less.inputs[0] not in condition.inputs:
        return None
    index = condition.inputs.index(less.inputs[0])
    limit = _read_constant_integer(buffer, condition, less.inputs[1])
    if limit is None and less.inputs[1] in condition.inputs:
        # the limit is a loop variable that the body returns unchanged
        limit_index = condition.inputs.index(less.inputs[1])
        if body.outputs[limit_index] == body.inputs[limit_index]:
            limit = _read_constant_integer(buffer, outer, loop.inputs[limit_index])
    first = _read_constant_integer(buffer, outer, loop.inputs[index])
    increment = next((o for o in body.operators if body.outputs[index] in o.outputs), None)
    if (
        increment is None
        or increment.op != "ADD"
        or len(increment.inputs) != 2
        or limit is None
        or first is None
    ):
        return None
    counter = body.inputs[index]
    steps = [_read_constant_integer(buffer, body, n) for n in increment.inputs if n != counter]
    if len(steps) != 1 or steps[0] is None or steps[0] < 1:
        return None
    return max(-((first - limit) // steps[0]), 0)


def _read_constant_integer(buffer: Buffer, subgraph: Subgraph, number: int) -> int | None:
    """Returns the value of a constant integer scalar, or None for any other tensor."""
    tensor = subgraph.tensors[number] if number >= 0 else None
    if tensor is None or tensor.data is None or tensor.dtype not in ("int32", "int64"):
        return None
    offset, size = tensor.data
    if size != (4 if tensor.dtype == "int32" else 8):
        return None
    return int.from_bytes(buffer[offset : offset + size], "little", signed=True)
