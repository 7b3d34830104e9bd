"""Converts the events of torch's profiler to times of rows of the layer tree.

Events nest by time. An operator that no other operator calls is a kernel here, and belongs to the module that
called it. If that module contains other modules, its kernels belong to the rows of the functions that it
calls, matched by name in order; kernels without a match belong to the module.

A backward kernel belongs to the row of its forward operator; autograd gives both the same sequence number. On
a CUDA device, the time of an operator is the time of the kernels that it launched. They carry the operator's
number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, field

from explorer.facts import Layer
from explorer.facts.profile.recording import RecordedEvent, RecordedRun

MODULE, PHASE = "explorer module ", "explorer phase "
"""Prefixes of our profiler ranges. A row id or the name of a phase of a training step follows."""
LAUNCHED = "kernels of no operator"
"""Name for the kernels that a module launches without an operator, such as Triton's."""
_CALLS = ("cpu_op", "user_annotation")
"""Types of events that are calls of the program, instead of calls of the driver."""
_BACKWARD = "autograd::engine::evaluate_function: "
"""Prefix of the names of autograd's backward functions."""
_MEMORY = "[memory]"
"""Name of events that allocate or free memory."""


class Event(NamedTuple):
    """One event, with times in nanoseconds.

    Attributes:
        sequence: Sequence number of autograd.
        forward: Thread that gave a backward event its sequence number.
        bytes: Allocated bytes of a memory event, negative if memory was freed; 0 for other events.
        range: Whether the event is a range that this program marked, instead of an operator.
        launched: Time of the device's kernels that the call itself launched, or None if the processor did the
            work.
    """

    name: str
    start: int
    end: int
    thread: int
    sequence: int
    forward: int
    bytes: int
    range: bool
    launched: int | None = None


def read_events(profiler: Any) -> list[Event]:
    """Returns the processor events of a `torch.profiler.profile` that has ended."""
    raw_events = profiler.profiler.kineto_results.events()
    return [_build_event(raw) for raw in raw_events if raw.device_type().name == "CPU"]


def read_cuda_events(profiler: Any) -> tuple[list[Event], list[Event]]:
    """Returns the CUDA events of a profiler: calls with launched time and memory, and kernels by stream."""
    raw_events = profiler.profiler.kineto_results.events()
    launched, kernels = dict[int, int](), list[Event]()
    for raw in raw_events:
        # torch also reports this program's ranges for the device; skip them
        if raw.device_type().name == "CUDA" and raw.name() != _MEMORY and not raw.is_user_annotation():
            number = raw.linked_correlation_id()
            launched[number] = launched.get(number, 0) + raw.end_ns() - raw.start_ns()
            kernels.append(_build_event(raw)._replace(thread=-1 - raw.device_resource_id()))
    calls = [
        _build_event(raw, launched.get(raw.correlation_id(), 0))
        for raw in raw_events
        if (raw.name() == _MEMORY and raw.device_type().name == "CUDA") or raw.activity_type() in _CALLS
    ]
    return [part for call in calls for part in _split_launches(call)], kernels


def _build_event(raw: Any, launched: int | None = None) -> Event:
    return Event(
        name=raw.name(),
        start=raw.start_ns(),
        end=raw.end_ns(),
        thread=raw.start_thread_id(),
        sequence=raw.sequence_nr(),
        forward=raw.fwd_thread_id(),
        bytes=raw.nbytes(),
        range=raw.is_user_annotation(),
        launched=launched,
    )


def _split_launches(call: Event) -> tuple[Event, ...]:
    """Splits off the kernels that a range launched without an operator, as a separate call."""
    if not call.range or not call.launched:
        return (call,)
    launches = call._replace(name=LAUNCHED, end=call.start, range=False)
    return call._replace(launched=0), launches


class RowRun(Struct):
    """The work of a row, or of the operators of one name outside rows, in one run.

    Attributes:
        seconds: Seconds of all its kernels.
        backward: The part of `seconds` in the backward pass.
        ops: Seconds and number of calls by operator.
        requested_bytes: Allocated memory.
        held_bytes: Maximum memory that one call held at the same time.
    """

    seconds: float = 0.0
    backward: float = 0.0
    ops: dict[str, tuple[float, int]] = field(default_factory=dict)
    requested_bytes: int = 0
    held_bytes: int = 0


class OperatorRun(Struct):
    """All calls of one operator in one run, as in torch's `key_averages`.

    Attributes:
        calls: Number of calls.
        seconds: Seconds with the operators that it calls. A call inside another of the same name counts
            twice, as in torch.
        self_seconds: Seconds without the operators that it calls.
        bytes: Memory that it allocated itself minus memory that it freed.
        total_bytes: The same with the operators that it calls.
        rows: Ids of the rows that it ran for.
    """

    calls: int = 0
    seconds: float = 0.0
    self_seconds: float = 0.0
    bytes: int = 0
    total_bytes: int = 0
    rows: set[int] = field(default_factory=set)


class ModuleRun(Struct):
    """One run of a module.

    Attributes:
        rows: Work by row id.
        unplaced_work: Work outside rows, by phase or operator.
        operators: Work by operator.
        called_rows: Ids of the rows of called modules; -1 for the outermost module.
    """

    rows: dict[int, RowRun] = field(default_factory=dict)
    unplaced_work: dict[str, RowRun] = field(default_factory=dict)
    operators: dict[str, OperatorRun] = field(default_factory=dict)
    called_rows: set[int] = field(default_factory=set)


class _OpenEvent(Struct):
    """An event on the stack, whose end has not been reached.

    Attributes:
        event: The event.
        row: Id of the row to which its time belongs, or None: the row of the function or module that it is,
            or of the module that contains it.
        parent: The event that contains it, or None.
        children: Number of events directly inside it.
        top: The outermost operator that contains it, or the event itself if it is the outermost.
        functions: Calls of functions that kernels of its module may belong to.
        phase: Phase of the training step, or ''.
        spent: Nanoseconds with the operators that it calls.
        nested: Nanoseconds of the operators that it calls.
        bytes, total_bytes: Allocated minus freed memory, without and with the operators that it calls.
        requested: Allocated memory.
        held_bytes, peak_bytes: Memory held now, and its maximum.
    """

    event: Event
    row: int | None
    parent: _OpenEvent | None = None
    children: int = 0
    top: _OpenEvent | None = None
    functions: list[ExpectedCall] | None = None
    phase: str = ""
    spent: int = 0
    nested: int = 0
    bytes: int = 0
    total_bytes: int = 0
    requested: int = 0
    held_bytes: int = 0
    peak_bytes: int = 0


class ExpectedCall(NamedTuple):
    """Calls of one function that a run of a module still makes.

    Attributes:
        function: Name of the function.
        row: Id of the row of its calls.
        calls: Number of calls.
        alternates: Whether the calls may alternate with the calls of later rows, because the row has several.
    """

    function: str
    row: int
    calls: int
    alternates: bool


class FunctionRows:
    """Rows of functions that modules call directly, by the module's row; -1 for the outermost module."""

    def __init__(self, layers: Sequence[Layer], modules: Iterable[int]) -> None:
        module_rows, self._calls_by_row = {*modules}, dict[int, list[ExpectedCall]]()
        children: dict[int, list[Layer]] = {}
        for layer in layers:
            children.setdefault(-1 if layer.parent is None else layer.parent, []).append(layer)

        def list_calls(row: int, runs: int) -> list[ExpectedCall]:
            """Returns the calls in one run of a module or in one step of a loop."""
            calls: list[ExpectedCall] = []
            for layer in children.get(row, ()):
                if layer.id in module_rows:
                    continue
                times = max(1, layer.calls // max(1, runs))
                if layer.group:  # a group that is not a module is a loop, which `unrolled_loops` folded
                    calls += list_calls(layer.id, layer.calls) * times
                else:
                    calls.append(ExpectedCall(_strip_name(layer.kind), layer.id, times, times > 1))
            return calls

        runs = {layer.id: layer.calls for layer in layers}
        for row in (-1, *children.keys() & module_rows):
            self._calls_by_row[row] = list_calls(row, runs.get(row, 1))

    def list_functions(self, row: int | None) -> Sequence[ExpectedCall]:
        """Returns the calls of a module's functions, in order."""
        return self._calls_by_row.get(-1 if row is None else row, ())


def take_call(expected: list[ExpectedCall], function: str) -> int | None:
    """Returns the row of the next call of a function, or None, and removes the call from `expected`.

    Calls before it were not made and are removed, too, unless they alternate with later calls.
    """
    index = next((index for index, call in enumerate(expected) if call.function == function), None)
    if index is None:
        return None
    call = expected[index]
    alternating = [earlier for earlier in expected[:index] if earlier.alternates]
    remaining = [call._replace(calls=call.calls - 1)] if call.calls > 1 else []
    expected[: index + 1] = [*alternating, *remaining]
    return call.row


def _strip_name(name: str) -> str:
    """Returns an operator's name without its library and without the suffix of in-place variants."""
    return name.rpartition("::")[2].rstrip("_")


def build_module_run(events: Sequence[Event], functions: FunctionRows) -> ModuleRun:
    """Computes the work of each row in one run.

    Args:
        events: Events of the run.
        functions: Rows of functions.
    """
    return _Reader(functions).read(events)


def build_recorded_run(events: Sequence[Event]) -> RecordedRun:
    """Builds a recorded run of phases, module calls and operators, with one lane for each thread."""
    operator_events = [event for event in events if event.name != _MEMORY]
    began, threads = min(event.start for event in operator_events), dict[int, int]()
    recorded_events = []
    for event in sorted(operator_events, key=lambda event: (event.start, -event.end)):
        lane = threads.setdefault(event.thread, len(threads))
        times = (event.start - began) * 1e-9, (event.end - event.start) * 1e-9
        if event.range and event.name.startswith(MODULE):
            row = int(event.name.removeprefix(MODULE))
            recorded_events.append(RecordedEvent("", "module", *times, lane, None if row < 0 else row))
        elif event.range and event.name.startswith(PHASE):
            recorded_events.append(RecordedEvent(event.name.removeprefix(PHASE), "phase", *times, lane))
        else:
            recorded_events.append(RecordedEvent(event.name, "kernel", *times, lane))
    return RecordedRun((max(event.end for event in operator_events) - began) * 1e-9, tuple(recorded_events))


class _Reader:
    """Reads the events of one run."""

    def __init__(self, functions: FunctionRows) -> None:
        self._functions = functions
        self._module_run = ModuleRun()
        self._tops: list[_OpenEvent] = []
        self._ops: list[_OpenEvent] = []
        self._row_of_sequence: dict[tuple[int, int], int | None] = {}
        """Row id of the last operator with this thread and sequence number in the forward pass."""

    def read(self, events: Sequence[Event]) -> ModuleRun:
        # of two ranges that begin together, the longer one contains the other
        order = sorted(events, key=lambda event: (event.thread, event.start, -event.end))
        stack: list[_OpenEvent] = []
        for event in order:
            while stack and (stack[-1].event.thread != event.thread or stack[-1].event.end < event.end):
                stack.pop()
            if event.name == _MEMORY:
                _add_memory(stack, event.bytes)
            else:
                stack.append(self._open_event(event, stack))
        for top in self._tops:
            self._add_kernel(top)
        for op in self._ops:
            self._add_operator(op)
        return self._module_run

    def _open_event(self, event: Event, stack: Sequence[_OpenEvent]) -> _OpenEvent:
        """Opens an event, and links it to the event that contains it."""
        parent = stack[-1] if stack else None
        entry = _OpenEvent(event, parent.row if parent else None, parent)
        if parent is not None:
            parent.children += 1
            entry.top, entry.phase = parent.top, parent.phase
        if event.range:
            entry.functions = parent.functions if parent else None
            if event.name.startswith(MODULE):
                row = int(event.name.removeprefix(MODULE))
                entry.row = None if row < 0 else row
                self._module_run.called_rows.add(row)
                entry.functions = [*self._functions.list_functions(entry.row)]
            elif event.name.startswith(PHASE):
                entry.phase = event.name.removeprefix(PHASE)
            return entry
        if entry.top is None:
            self._register_kernel(entry, parent)
        _add_time(entry, [open_ for open_ in reversed(stack) if not open_.event.range])
        self._ops.append(entry)
        if event.sequence >= 0 and not event.name.startswith(_BACKWARD) and entry.phase != "backward":
            assert entry.top is not None
            self._row_of_sequence[event.thread, event.sequence] = entry.top.row
        return entry

    def _register_kernel(self, entry: _OpenEvent, parent: _OpenEvent | None) -> None:
        """Registers an operator that no other operator calls, and finds its function row."""
        entry.top = entry
        self._tops.append(entry)
        remaining = parent.functions if parent is not None and parent.functions else []
        row = take_call(remaining, _strip_name(entry.event.name))
        entry.row = entry.row if row is None else row

    def _add_kernel(self, top: _OpenEvent) -> None:
        """Adds a kernel to its row. A backward kernel is added to the row of its forward operator."""
        event, backward = top.event, False
        if event.name.startswith(_BACKWARD) and (top.row is None or top.phase == "backward"):
            backward = True
            top.row = self._row_of_sequence.get((event.forward, event.sequence))
        kernel_seconds = top.spent * 1e-9
        name = event.name.removeprefix(_BACKWARD)
        if top.row is not None:
            row_run = self._module_run.rows.setdefault(top.row, RowRun())
        else:
            label = top.phase if top.phase and top.phase != "forward" else name
            row_run = self._module_run.unplaced_work.setdefault(label, RowRun())
        row_run.seconds += kernel_seconds
        row_run.backward += kernel_seconds if backward else 0.0
        seconds, calls = row_run.ops.get(name, (0.0, 0))
        row_run.ops[name] = seconds + kernel_seconds, calls + 1
        row_run.requested_bytes += top.requested
        row_run.held_bytes = max(row_run.held_bytes, top.peak_bytes)

    def _add_operator(self, op: _OpenEvent) -> None:
        """Adds a call to the figures of its operator."""
        event = op.event
        run = self._module_run.operators.setdefault(event.name, OperatorRun())
        parent = op.parent
        # an operator that only redispatches to itself for another tensor type counts as one call
        if parent is None or parent.event.name != event.name or parent.children > 1:
            run.calls += 1
            run.seconds += op.spent * 1e-9
            run.total_bytes += op.total_bytes
        run.self_seconds += (op.spent - op.nested) * 1e-9
        run.bytes += op.bytes
        if op.top is not None and op.top.row is not None:
            run.rows.add(op.top.row)


def _add_time(entry: _OpenEvent, callers: Sequence[_OpenEvent]) -> None:
    """Adds the time of an operator to itself and to its callers, nearest first."""
    event = entry.event
    if event.launched is None:  # the callers' durations include it already
        entry.spent = event.end - event.start
        for caller in callers[:1]:
            caller.nested += entry.spent
        return
    entry.spent = event.launched
    for caller in callers:
        caller.spent += event.launched
        caller.nested += event.launched


def _add_memory(stack: Sequence[_OpenEvent], size: int) -> None:
    """Adds allocated memory to the open operators. A negative size is freed memory."""
    callers = [entry for entry in stack if not entry.event.range]
    if not callers:
        return
    callers[-1].bytes += size
    for caller in callers:
        caller.total_bytes += size
    top = callers[-1].top
    assert top is not None
    top.requested += max(0, size)
    top.held_bytes += size
    top.peak_bytes = max(top.peak_bytes, top.held_bytes)
