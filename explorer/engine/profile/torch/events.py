"""Events of torch's profiler as what ran for each row: nested by time, given to the module that called.

An operator that no other calls is a kernel here: it is its module's. Those of a module with others in it are
the rows of the functions that it calls where they come in the same order under the same names, and else its
own. What runs backward is the row's whose operator made it, by the sequence number that autograd gives both.
On a CUDA device an operator's time is that of the kernels that it launched, which name it by its number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, field

from explorer.facts import Layer
from explorer.facts.profile.recording import RecordedEvent, RecordedRun

MODULE, PHASE = "explorer module ", "explorer phase "
"""What ranges of ours begin with: behind it a row, or what a training step does."""
LAUNCHED = "kernels of no operator"
"""What a module launches itself, as Triton's kernels are."""
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
    """What a `torch.profiler.profile` that has ended saw on the processor."""
    every = profiler.profiler.kineto_results.events()
    return [_event(one) for one in every if one.device_type().name == "CPU"]


def cuda_events_of(profiler: Any) -> tuple[list[Event], list[Event]]:
    """What it saw of a CUDA device: calls, what they launched and asked of its memory; kernels, by stream."""
    every = profiler.profiler.kineto_results.events()
    launched, kernels = dict[int, int](), list[Event]()
    for one in every:
        # a range of ours is told of the device, too, around the kernels within it
        if one.device_type().name == "CUDA" and one.name() != _MEMORY and not one.is_user_annotation():
            number = one.linked_correlation_id()
            launched[number] = launched.get(number, 0) + one.end_ns() - one.start_ns()
            kernels.append(_event(one)._replace(thread=-1 - one.device_resource_id()))
    calls = [
        _event(one, launched.get(one.correlation_id(), 0))
        for one in every
        if (one.name() == _MEMORY and one.device_type().name == "CUDA") or one.activity_type() in _CALLS
    ]
    return [part for call in calls for part in _parts(call)], kernels


def _event(one: Any, launched: int | None = None) -> Event:
    return Event(
        one.name(),
        one.start_ns(),
        one.end_ns(),
        one.start_thread_id(),
        one.sequence_nr(),
        one.fwd_thread_id(),
        one.nbytes(),
        one.is_user_annotation(),
        launched,
    )


def _parts(call: Event) -> tuple[Event, ...]:
    """A call; of a range that launched kernels without an operator also one for them."""
    if not call.range or not call.launched:
        return (call,)
    own = call._replace(name=LAUNCHED, end=call.start, range=False)
    return call._replace(launched=0), own


class RowRun(Struct):
    """What ran for a row, or under a name, in one run.

    Attributes:
        backward: Of `seconds`, those behind the loss.
        ops: Seconds and calls by operator.
        requested_bytes: Memory that was asked for.
        held_bytes: The most of it that a call held at once.
    """

    seconds: float = 0.0
    backward: float = 0.0
    ops: dict[str, tuple[float, int]] = field(default_factory=dict)
    requested_bytes: int = 0
    held_bytes: int = 0


class OperatorRun(Struct):
    """All calls of one operator in one run, as `key_averages` has them.

    Attributes:
        seconds: With the operators that it calls; one within another of its name counts twice, as there.
        self_seconds: Without them.
        bytes: What it asked for itself less what it gave back.
        total_bytes: With the operators that it calls.
        rows: That it ran for.
    """

    calls: int = 0
    seconds: float = 0.0
    self_seconds: float = 0.0
    bytes: int = 0
    total_bytes: int = 0
    rows: set[int] = field(default_factory=set)


class ModuleRun(Struct):
    """One run of a module: what ran for its rows, for none of them, by operator; rows that were called."""

    rows: dict[int, RowRun] = field(default_factory=dict)
    other: dict[str, RowRun] = field(default_factory=dict)
    operators: dict[str, OperatorRun] = field(default_factory=dict)
    called: set[int] = field(default_factory=set)


class _Open(Struct):
    """An event around others, `children` of them. `functions` are the rows that a module's own operators
    may be; `spent` nanoseconds are with what it calls, which has `inside` of them.
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
    """Rows that are functions which a module calls, by the module's row; -1 for those of the model."""

    def __init__(self, layers: Sequence[Layer], modules: Iterable[int]) -> None:
        known, self._of = {*modules}, dict[int, list[tuple[str, int]]]()
        for layer in layers:
            if layer.id not in known and not layer.group:
                around = -1 if layer.parent is None else layer.parent
                self._of.setdefault(around, []).append((_bare(layer.kind), layer.id))

    def of(self, row: int | None) -> Sequence[tuple[str, int]]:
        """Those of a module, in their order, with their names."""
        return self._of.get(-1 if row is None else row, ())


def _bare(name: str) -> str:
    """An operator's name without its library, and without what says that it works in place."""
    return name.rpartition("::")[2].rstrip("_")


def module_run(events: Sequence[Event], functions: FunctionRows) -> ModuleRun:
    """What ran for which row.

    Args:
        events: Of one run.
        functions: Rows that are no modules.
    """
    return _Reader(functions).read(events)


def recorded(events: Sequence[Event]) -> RecordedRun:
    """One run as it was: parts of a training step, calls of modules, operators, a lane a thread."""
    ran = [one for one in events if one.name != _MEMORY]
    began, threads = min(one.start for one in ran), dict[int, int]()
    found = []
    for one in sorted(ran, key=lambda one: (one.start, -one.end)):
        at = threads.setdefault(one.thread, len(threads))
        when = (one.start - began) * 1e-9, (one.end - one.start) * 1e-9
        if one.range and one.name.startswith(MODULE):
            row = int(one.name.removeprefix(MODULE))
            found.append(RecordedEvent("", "module", *when, at, None if row < 0 else row))
        elif one.range and one.name.startswith(PHASE):
            found.append(RecordedEvent(one.name.removeprefix(PHASE), "phase", *when, at))
        else:
            found.append(RecordedEvent(one.name, "kernel", *when, at))
    return RecordedRun((max(one.end for one in ran) - began) * 1e-9, tuple(found))


class _Reader:
    def __init__(self, functions: FunctionRows) -> None:
        self._functions = functions
        self._found = ModuleRun()
        self._tops: list[_Open] = []
        self._ops: list[_Open] = []
        self._made: dict[tuple[int, int], int | None] = {}
        """The row of the last operator before a gradient of this thread and number was made."""

    def read(self, events: Sequence[Event]) -> ModuleRun:
        # ranges that begin together: the longer is around the other
        order = sorted(events, key=lambda one: (one.thread, one.start, -one.end))
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
        return self._found

    def _opened(self, event: Event, stack: Sequence[_Open]) -> _Open:
        """An event with what is around it."""
        around = stack[-1] if stack else None
        one = _Open(event, around.row if around else None, around)
        if around is not None:
            around.children += 1
            one.top, one.phase = around.top, around.phase
        if event.range:
            one.functions = around.functions if around else None
            if event.name.startswith(MODULE):
                row = int(event.name.removeprefix(MODULE))
                one.row = None if row < 0 else row
                self._found.called.add(row)
                one.functions = [*self._functions.of(one.row)]
            elif event.name.startswith(PHASE):
                one.phase = event.name.removeprefix(PHASE)
            return one
        if one.top is None:
            self._begin(one, around)
        _spend(one, [open_ for open_ in reversed(stack) if not open_.event.range])
        self._ops.append(one)
        if event.sequence >= 0 and not event.name.startswith(_BACKWARD) and one.phase != "backward":
            assert one.top is not None
            self._made[event.thread, event.sequence] = one.top.row
        return one

    def _begin(self, one: _Open, around: _Open | None) -> None:
        """An operator that no other calls."""
        one.top = one
        self._tops.append(one)
        ahead = around.functions if around is not None and around.functions else []
        name = _bare(one.event.name)
        at = next((at for at, (known, _) in enumerate(ahead) if known == name), None)
        if at is not None:
            one.row = ahead[at][1]
            del ahead[: at + 1]

    def _settle(self, top: _Open) -> None:
        """Adds a kernel to its row; what runs backward to the row that made it."""
        event, backward = top.event, False
        if event.name.startswith(_BACKWARD) and (top.row is None or top.phase == "backward"):
            backward = True
            top.row = self._made.get((event.forward, event.sequence))
        took = top.spent * 1e-9
        name = event.name.removeprefix(_BACKWARD)
        if top.row is not None:
            ran = self._found.rows.setdefault(top.row, RowRun())
        else:
            known = top.phase if top.phase and top.phase != "forward" else name
            ran = self._found.other.setdefault(known, RowRun())
        ran.seconds += took
        ran.backward += took if backward else 0.0
        seconds, calls = ran.ops.get(name, (0.0, 0))
        ran.ops[name] = seconds + took, calls + 1
        ran.requested_bytes += top.requested
        ran.held_bytes = max(ran.held_bytes, top.most)

    def _add(self, op: _Open) -> None:
        event = op.event
        run = self._found.operators.setdefault(event.name, OperatorRun())
        around = op.around
        # one that calls nothing but itself, for another kind of tensor, is one call
        if around is None or around.event.name != event.name or around.children > 1:
            run.calls += 1
            run.seconds += op.spent * 1e-9
            run.total_bytes += op.total_bytes
        run.self_seconds += (op.spent - op.inside) * 1e-9
        run.bytes += op.bytes
        if op.top is not None and op.top.row is not None:
            run.rows.add(op.top.row)


def _spend(one: _Open, callers: Sequence[_Open]) -> None:
    """Adds the time of an operator to what it took, and to its callers, of whom the nearest comes first."""
    event = one.event
    if event.launched is None:  # the callers' own times hold it
        one.spent = event.end - event.start
        for caller in callers[:1]:
            caller.inside += one.spent
        return
    one.spent = event.launched
    for caller in callers:
        caller.spent += event.launched
        caller.inside += event.launched


def _allocated(stack: Sequence[_Open], size: int) -> None:
    """Memory that was asked for, or given back where it is below 0, within what is open."""
    callers = [one for one in stack if not one.event.range]
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
