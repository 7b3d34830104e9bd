"""Events of torch's profiler as times of rows: nested by time, and assigned to the module that called them.

An operator that no other operator calls is a kernel here: it belongs to its module. If a module has others in
it, its kernels belong to the rows of the functions that it calls, where these come in the same order under
the same names, and else to the module itself. A backward kernel belongs to the row of its forward operator,
by the sequence number that autograd gives both. On a CUDA device the time of an operator is that of the
kernels that it launched, which carry its number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, field

from explorer.facts import Layer
from explorer.facts.profile.recording import RecordedEvent, RecordedRun

MODULE, PHASE = "explorer module ", "explorer phase "
"""Prefixes of our ranges: a row, or a part of a training step, follows."""
LAUNCHED = "kernels of no operator"
"""Name for kernels that a module launches without an operator, such as Triton's."""
_CALLS = ("cpu_op", "user_annotation")
"""Kinds of events that are calls of the program, and not of the driver within them."""
_BACKWARD = "autograd::engine::evaluate_function: "
_MEMORY = "[memory]"


class Event(NamedTuple):
    """One event, in nanoseconds; `sequence` is autograd's number, `forward` the thread that gave it.

    `launched` is the time of the device's kernels that it launched itself; None where it computed itself.
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


def events_of(profiler: Any) -> list[Event]:
    """The processor events of a `torch.profiler.profile` that has ended."""
    every = profiler.profiler.kineto_results.events()
    return [_event(raw) for raw in every if raw.device_type().name == "CPU"]


def cuda_events_of(profiler: Any) -> tuple[list[Event], list[Event]]:
    """The profiler's CUDA events: calls, with launched time and memory; and kernels, by stream."""
    every = profiler.profiler.kineto_results.events()
    launched, kernels = dict[int, int](), list[Event]()
    for raw in every:
        # our own ranges are reported for the device, too, around the kernels within them
        if raw.device_type().name == "CUDA" and raw.name() != _MEMORY and not raw.is_user_annotation():
            number = raw.linked_correlation_id()
            launched[number] = launched.get(number, 0) + raw.end_ns() - raw.start_ns()
            kernels.append(_event(raw)._replace(thread=-1 - raw.device_resource_id()))
    calls = [
        _event(raw, launched.get(raw.correlation_id(), 0))
        for raw in every
        if (raw.name() == _MEMORY and raw.device_type().name == "CUDA") or raw.activity_type() in _CALLS
    ]
    return [part for call in calls for part in _parts(call)], kernels


def _event(raw: Any, launched: int | None = None) -> Event:
    return Event(
        raw.name(),
        raw.start_ns(),
        raw.end_ns(),
        raw.start_thread_id(),
        raw.sequence_nr(),
        raw.fwd_thread_id(),
        raw.nbytes(),
        raw.is_user_annotation(),
        launched,
    )


def _parts(call: Event) -> tuple[Event, ...]:
    """A call; of a range that launched kernels without an operator also one for them."""
    if not call.range or not call.launched:
        return (call,)
    launches = call._replace(name=LAUNCHED, end=call.start, range=False)
    return call._replace(launched=0), launches


class RowRun(Struct):
    """The work of a row, or under a name, in one run.

    Attributes:
        backward: The part of `seconds` behind the loss.
        ops: Seconds and calls by operator.
        requested_bytes: Allocated memory.
        held_bytes: The most that a call held at once.
    """

    seconds: float = 0.0
    backward: float = 0.0
    ops: dict[str, tuple[float, int]] = field(default_factory=dict)
    requested_bytes: int = 0
    held_bytes: int = 0


class OperatorRun(Struct):
    """All calls of one operator in one run, as in torch's `key_averages`.

    Attributes:
        seconds: With the operators that it calls; a call within another of the same name counts twice, as in
            torch.
        self_seconds: Without them.
        bytes: Memory that it allocated itself minus memory that it freed.
        total_bytes: With the operators that it calls.
        rows: Rows that it ran for.
    """

    calls: int = 0
    seconds: float = 0.0
    self_seconds: float = 0.0
    bytes: int = 0
    total_bytes: int = 0
    rows: set[int] = field(default_factory=set)


class ModuleRun(Struct):
    """One run of a module: work by row, by name outside rows, and by operator; and the called rows."""

    rows: dict[int, RowRun] = field(default_factory=dict)
    other: dict[str, RowRun] = field(default_factory=dict)
    operators: dict[str, OperatorRun] = field(default_factory=dict)
    called: set[int] = field(default_factory=set)


class _Open(Struct):
    """An event around `children` others.

    `functions` are rows that a module's own operators may belong to. `spent` are nanoseconds with the
    operators that it calls, which take `inside` of them.
    """

    event: Event
    row: int | None
    around: _Open | None = None
    children: int = 0
    top: _Open | None = None
    functions: list[tuple[str, int]] | None = None
    phase: str = ""
    spent: int = 0
    inside: int = 0
    bytes: int = 0
    total_bytes: int = 0
    requested: int = 0
    held: int = 0
    most: int = 0


class FunctionRows:
    """Rows that are functions called by a module, by the module's row; -1 for those of the model."""

    def __init__(self, layers: Sequence[Layer], modules: Iterable[int]) -> None:
        module_rows, self._of = {*modules}, dict[int, list[tuple[str, int]]]()
        for layer in layers:
            if layer.id not in module_rows and not layer.group:
                around = -1 if layer.parent is None else layer.parent
                self._of.setdefault(around, []).append((_bare(layer.kind), layer.id))

    def of(self, row: int | None) -> Sequence[tuple[str, int]]:
        """Those of a module, in their order, with their names."""
        return self._of.get(-1 if row is None else row, ())


def _bare(name: str) -> str:
    """An operator's name without its library, and without the suffix of in-place variants."""
    return name.rpartition("::")[2].rstrip("_")


def module_run(events: Sequence[Event], functions: FunctionRows) -> ModuleRun:
    """The work of each row in one run.

    Args:
        events: Events of the run.
        functions: Rows that are no modules.
    """
    return _Reader(functions).read(events)


def recorded(events: Sequence[Event]) -> RecordedRun:
    """A recorded run: parts of a training step, calls of modules, and operators, with one lane per thread."""
    ran = [event for event in events if event.name != _MEMORY]
    began, threads = min(event.start for event in ran), dict[int, int]()
    recorded_events = []
    for event in sorted(ran, key=lambda event: (event.start, -event.end)):
        at = threads.setdefault(event.thread, len(threads))
        when = (event.start - began) * 1e-9, (event.end - event.start) * 1e-9
        if event.range and event.name.startswith(MODULE):
            row = int(event.name.removeprefix(MODULE))
            recorded_events.append(RecordedEvent("", "module", *when, at, None if row < 0 else row))
        elif event.range and event.name.startswith(PHASE):
            recorded_events.append(RecordedEvent(event.name.removeprefix(PHASE), "phase", *when, at))
        else:
            recorded_events.append(RecordedEvent(event.name, "kernel", *when, at))
    return RecordedRun((max(event.end for event in ran) - began) * 1e-9, tuple(recorded_events))


class _Reader:
    def __init__(self, functions: FunctionRows) -> None:
        self._functions = functions
        self._module_run = ModuleRun()
        self._tops: list[_Open] = []
        self._ops: list[_Open] = []
        self._row_of_sequence: dict[tuple[int, int], int | None] = {}
        """The row of the last operator before a gradient of this thread and number was made."""

    def read(self, events: Sequence[Event]) -> ModuleRun:
        # ranges that begin together: the longer is around the other
        order = sorted(events, key=lambda event: (event.thread, event.start, -event.end))
        stack: list[_Open] = []
        for event in order:
            while stack and (stack[-1].event.thread != event.thread or stack[-1].event.end < event.end):
                stack.pop()
            if event.name == _MEMORY:
                _allocated(stack, event.bytes)
            else:
                stack.append(self._opened(event, stack))
        for top in self._tops:
            self._settle(top)
        for op in self._ops:
            self._add(op)
        return self._module_run

    def _opened(self, event: Event, stack: Sequence[_Open]) -> _Open:
        """An open event, linked to the event around it."""
        around = stack[-1] if stack else None
        entry = _Open(event, around.row if around else None, around)
        if around is not None:
            around.children += 1
            entry.top, entry.phase = around.top, around.phase
        if event.range:
            entry.functions = around.functions if around else None
            if event.name.startswith(MODULE):
                row = int(event.name.removeprefix(MODULE))
                entry.row = None if row < 0 else row
                self._module_run.called.add(row)
                entry.functions = [*self._functions.of(entry.row)]
            elif event.name.startswith(PHASE):
                entry.phase = event.name.removeprefix(PHASE)
            return entry
        if entry.top is None:
            self._begin(entry, around)
        _spend(entry, [open_ for open_ in reversed(stack) if not open_.event.range])
        self._ops.append(entry)
        if event.sequence >= 0 and not event.name.startswith(_BACKWARD) and entry.phase != "backward":
            assert entry.top is not None
            self._row_of_sequence[event.thread, event.sequence] = entry.top.row
        return entry

    def _begin(self, entry: _Open, around: _Open | None) -> None:
        """Registers an operator that no other operator calls."""
        entry.top = entry
        self._tops.append(entry)
        ahead = around.functions if around is not None and around.functions else []
        name = _bare(entry.event.name)
        at = next((at for at, (function_name, _) in enumerate(ahead) if function_name == name), None)
        if at is not None:
            entry.row = ahead[at][1]
            del ahead[: at + 1]

    def _settle(self, top: _Open) -> None:
        """Adds a kernel to its row; a backward kernel to the row of its forward operator."""
        event, backward = top.event, False
        if event.name.startswith(_BACKWARD) and (top.row is None or top.phase == "backward"):
            backward = True
            top.row = self._row_of_sequence.get((event.forward, event.sequence))
        took = top.spent * 1e-9
        name = event.name.removeprefix(_BACKWARD)
        if top.row is not None:
            ran = self._module_run.rows.setdefault(top.row, RowRun())
        else:
            label = top.phase if top.phase and top.phase != "forward" else name
            ran = self._module_run.other.setdefault(label, RowRun())
        ran.seconds += took
        ran.backward += took if backward else 0.0
        seconds, calls = ran.ops.get(name, (0.0, 0))
        ran.ops[name] = seconds + took, calls + 1
        ran.requested_bytes += top.requested
        ran.held_bytes = max(ran.held_bytes, top.most)

    def _add(self, op: _Open) -> None:
        event = op.event
        run = self._module_run.operators.setdefault(event.name, OperatorRun())
        around = op.around
        # an operator that calls only itself, for another kind of tensor, is one call
        if around is None or around.event.name != event.name or around.children > 1:
            run.calls += 1
            run.seconds += op.spent * 1e-9
            run.total_bytes += op.total_bytes
        run.self_seconds += (op.spent - op.inside) * 1e-9
        run.bytes += op.bytes
        if op.top is not None and op.top.row is not None:
            run.rows.add(op.top.row)


def _spend(entry: _Open, callers: Sequence[_Open]) -> None:
    """Adds the time of an operator to itself and to its callers, nearest first."""
    event = entry.event
    if event.launched is None:  # the callers' own times hold it
        entry.spent = event.end - event.start
        for caller in callers[:1]:
            caller.inside += entry.spent
        return
    entry.spent = event.launched
    for caller in callers:
        caller.spent += event.launched
        caller.inside += event.launched


def _allocated(stack: Sequence[_Open], size: int) -> None:
    """Adds allocated memory, or freed memory below 0, to the open operators."""
    callers = [entry for entry in stack if not entry.event.range]
    if not callers:
        return
    callers[-1].bytes += size
    for caller in callers:
        caller.total_bytes += size
    top = callers[-1].top
    assert top is not None
    top.requested += max(0, size)
    top.held += size
    top.most = max(top.most, top.held)
