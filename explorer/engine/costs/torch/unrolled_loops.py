"""Folds unrolled loops: equal consecutive steps become the rows of one step.

A traced file contains each step of a loop. A tiled model, for example, has a matrix product for each tile,
thousands in all. Their rows are folded into one step, like the body of a Scan in an ONNX graph.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from itertools import groupby

from msgspec import Struct, field

from explorer.engine.costs.layer_tree import Scope
from explorer.engine.costs.torch.records import Row, merge

MAX_SEPARATE_CALLS = 64
"""Maximum number of consecutive function calls of a module that are not folded."""
MIN_STEPS = 8
"""Minimum number of equal steps that are folded."""
LONGEST_STEP = 64
"""Maximum number of rows and loops in a step."""


class FoldedLoops(Struct):
    """The rows of a trace, with the steps of each loop merged into its first step.

    Attributes:
        rows: Remaining rows, in the order of execution.
        scopes: Loops that contain a row, outermost first, by id of the row.
        steps: Number of steps of each loop in one forward pass, by path of the loop.
    """

    rows: list[Row] = field(default_factory=list)
    scopes: dict[int, tuple[Scope, ...]] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)


class _Loop(Struct, eq=False):
    """A loop in place of its steps.

    Attributes:
        body: Rows and loops of the first step.
        steps: Number of steps in one run of the enclosing step.
    """

    body: list[Row | _Loop]
    steps: int


def fold_loops(rows: Sequence[Row], taken: Collection[str]) -> FoldedLoops:
    """Merges the equal steps of unrolled loops, where a module calls over `MAX_SEPARATE_CALLS` functions.

    Args:
        rows: Rows in the order of execution.
        taken: Paths that a loop cannot have.
    """
    folded = FoldedLoops()
    for (caller, is_function), run in groupby(rows, lambda row: (row.caller, row.module is None)):
        run_rows = list(run)
        if not is_function or len(run_rows) <= MAX_SEPARATE_CALLS:
            folded.rows += run_rows
            continue
        _place(_fold([*run_rows]), caller, (), 1, folded, taken)
    return folded


def _fold(parts: list[Row | _Loop]) -> list[Row | _Loop]:
    """Folds loops, shortest steps first, until no step repeats. Inner loops become parts of outer steps."""
    numbers: dict[Hashable, int] = {}
    signatures = [_compute_signature(part, numbers) for part in parts]
    period = 1
    while period <= min(LONGEST_STEP, len(parts) // MIN_STEPS):
        shorter = [*_fold_steps(parts, signatures, period)]
        if len(shorter) < len(parts):
            parts, period = shorter, 1
            signatures = [_compute_signature(part, numbers) for part in parts]
        else:
            period += 1
    return parts


def _fold_steps(
    parts: Sequence[Row | _Loop], signatures: Sequence[int], period: int
) -> Iterator[Row | _Loop]:
    """Yields the parts, with a loop in place of at least `MIN_STEPS` equal steps of `period` parts."""
    # for each part, the number of parts from it on that equal the part one step later
    equal = [0] * (len(parts) + 1)
    for index in range(len(parts) - period - 1, -1, -1):
        equal[index] = equal[index + 1] + 1 if signatures[index] == signatures[index + period] else 0
    index = 0
    while index < len(parts):
        steps = equal[index] // period + 1
        if steps < MIN_STEPS:
            yield parts[index]
            index += 1
            continue
        body = list(parts[index : index + period])
        for start in range(index + period, index + steps * period, period):
            for part, target in zip(parts[start : start + period], body, strict=True):
                _merge(part, target)
        # a step of one row needs no loop: the row says how often it is called
        yield body[0] if period == 1 and isinstance(body[0], Row) else _Loop(body, steps)
        index += steps * period


def _merge(part: Row | _Loop, target: Row | _Loop) -> None:
    if isinstance(part, Row):
        assert isinstance(target, Row)
        merge(part, target)
        target.calls += part.calls
        return
    assert isinstance(target, _Loop)
    for inner, inner_target in zip(part.body, target.body, strict=True):
        _merge(inner, inner_target)


def _compute_signature(part: Row | _Loop, numbers: dict[Hashable, int]) -> int:
    """Returns a number that equal parts share: equal functions on equal shapes, or loops of equal steps."""
    key: Hashable
    if isinstance(part, _Loop):
        key = part.steps, tuple(_compute_signature(inner, numbers) for inner in part.body)
    else:
        tensors = tuple((info.dtype, info.shape) for info in (*part.inputs, *part.outputs))
        figures = part.calls, part.macs, part.elementwise, part.read, part.stored_read, part.written
        key = part.kind, tensors, figures, part.unknown, str(part.bound)
    return numbers.setdefault(key, len(numbers))


def _place(
    parts: Sequence[Row | _Loop],
    caller: str,
    scopes: tuple[Scope, ...],
    runs: int,
    folded: FoldedLoops,
    taken: Collection[str],
) -> None:
    """Adds the rows of `parts` and their loops to `folded`.

    Args:
        parts: Rows and loops of a module or of a step.
        caller: Path of the module.
        scopes: Enclosing loops, outermost first.
        runs: Number of runs of the enclosing step in one forward pass.
        folded: Receives the rows and loops.
        taken: Paths that a loop cannot have.
    """
    for part in parts:
        if isinstance(part, Row):
            folded.rows.append(part)
            if scopes:
                folded.scopes[id(part)] = scopes
            continue
        number = len(folded.steps)
        while (path := _build_path(caller, number)) in folded.steps or path in taken:
            number += 1
        steps = runs * part.steps
        folded.steps[path] = steps
        scope = Scope(path, path.rpartition(".")[2], "loop")
        _place(part.body, caller, (*scopes, scope), steps, folded, taken)


def _build_path(caller: str, number: int) -> str:
    name = f"loop_{number}" if number else "loop"
    return f"{caller}.{name}" if caller else name
