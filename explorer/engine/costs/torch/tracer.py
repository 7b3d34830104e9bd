"""Traces an nn.Module on the meta device: records the operators that each module calls, and their costs.

Three observers run together. Hooks on the modules record the tree. A function mode records the functions that
the model's author wrote (`flatten`, `softmax`, `+`). A dispatch mode records the ATen operators and counts
their work. Weights and activations are not allocated or computed, because tensors on the meta device have
shapes only. Only small tensors with known values, such as indices, are computed on the CPU.

The model is restored afterwards, also after an error: its hooks, its train or eval state, and the fast path
of attention, which is off during the run, because it hides its matrix products from the dispatch mode.
"""

from __future__ import annotations

import dis
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from msgspec import Struct, field
from torch import nn

from explorer.base.errors import ExplorerError
from explorer.engine.compat.torch import (
    buffers_of,
    disable_compilation,
    get_mode_depths,
    hide_from_dispatch,
    intercept_calls,
    is_about_devices,
    is_about_meta,
    is_higher_order,
    is_of_torch,
    parameters_of,
    pop_function_mode,
    push_function_mode,
    replace_attention,
    schema_of,
    storage_key,
)
from explorer.engine.costs.assumption import is_assumption
from explorer.engine.costs.aten import (
    constant_values,
    data_dependent,
    device_questions,
    dispatch,
    kernels,
    meta_cache,
    packed_weights,
    recurrent,
    storages,
)
from explorer.engine.costs.aten.expert_routing import COUNTS, EVENLY, WATCHED, Classes
from explorer.engine.costs.aten.quantized_kernels import ANSWERS, QuantizedTensors
from explorer.engine.costs.torch import higher_order, jagged_attention, layer_cache
from explorer.engine.costs.torch.autograd import Gradients
from explorer.engine.costs.torch.chance import reads_the_date, watch_draws
from explorer.engine.costs.torch.data_dependence import ONCE, AnswerPolicy, ValueQueries, Variation
from explorer.engine.costs.torch.handed_on import pause_watching, watch_handed_on_work
from explorer.engine.costs.torch.held_after import is_held_by_code
from explorer.engine.costs.torch.hooks import Functions, Operators
from explorer.engine.costs.torch.model_code import list_code_modules, list_functions
from explorer.engine.costs.torch.module_state import take_snapshot
from explorer.engine.costs.torch.outsiders import Outsiders
from explorer.engine.costs.torch.records import (
    ModuleParameter,
    OperatorEvent,
    Row,
    TensorTrail,
    Trace,
    describe_function_inputs,
    describe_module_inputs,
    is_leaf,
    list_parameters,
    read_call_attributes,
)
from explorer.engine.costs.torch.unseen import EXPORTING_METHODS, UnseenWork, find_tensors
from explorer.engine.formats.torch_module import cache_tensors, jagged
from explorer.engine.formats.torch_module.modules import (
    collect_tensors,
    describe_tensors,
    find_unregistered_parameters,
    format_dtype,
    is_lazy,
    is_parameter,
    list_modules,
    list_other_tensors,
    walk_tensors,
)
from explorer.engine.formats.torch_module.sparse import SPARSE_LAYOUTS, mark_sparse, read_stored_elements
from explorer.engine.formats.torch_module.stored_form import read_stored_forms
from explorer.engine.formats.torch_module.tensor_subclass import list_inner_tensors
from explorer.engine.operators import cost_formulas
from explorer.engine.runtime.torch_fastpath import restore_modes
from explorer.facts import TensorInfo


class _RegisteredModule:
    """A module under its registered path.

    Attributes:
        path: Path of the module.
        row: Row of the module, or None before its first call.
        is_leaf: Whether the module is a leaf of the tree.
        is_torch_leaf: Whether it is one of torch's own leaf modules, whose operators are added to its row.
        hides_functions: Whether functions that it calls are not recorded.
    """

    __slots__ = ("hides_functions", "is_leaf", "is_torch_leaf", "path", "row")

    def __init__(self, path: str, module: nn.Module) -> None:
        self.path = path
        self.row: Row | None = None
        self.is_leaf = is_leaf(module)
        self.is_torch_leaf = self.is_leaf and is_of_torch(module)
        # calls inside torch's own leaves are not watched, except in recurrent layers, which run as one
        # operator
        self.hides_functions = self.is_torch_leaf and not isinstance(module, nn.RNNBase)


class _Frame(Struct):
    """A running module.

    Attributes:
        path: Path of the module.
        row: Row of the module if it is a leaf, else None.
        is_torch_leaf: Whether it is one of torch's own leaf modules, whose operators are added to `row`.
        counts: Number of calls so far, by function name.
    """

    path: str
    row: Row | None
    is_torch_leaf: bool
    counts: dict[str, int] = field(default_factory=dict)


MAX_STEPS = 1 << 16
"""Maximum number of steps of a traced loop."""


class _Loop:
    """A loop whose body is a function. The operators of every step are added to the rows of the first step.

    Attributes:
        counts: Number of calls so far in the enclosing module, by function name; shared with its `_Frame`.
        initial_counts: The counts before the loop.
        largest_counts: The largest counts after any step.
        assumed: How often each assumption was made, by its text.
        steps: Number of steps begun.
    """

    def __init__(self, counts: dict[str, int], assumed: Counter[str]) -> None:
        self.counts, self.initial_counts, self.largest_counts = counts, dict(counts), dict(counts)
        self.assumed = assumed
        self.steps = 0

    def step(self) -> None:
        """Begins a step and restarts the call numbers, so that its calls map to the rows of the first step.

        Raises:
            RuntimeError: The loop has more than `MAX_STEPS` steps, which a file may request.
        """
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise RuntimeError(f"a loop has more than {MAX_STEPS:,} steps")
        self._update_largest()
        self.counts.clear()
        self.counts.update(self.initial_counts)

    def assume_end(self) -> None:
        """Records that only one step of the loop runs, because a value decides whether the loop continues."""
        self.assumed[ONCE] += 1

    def end(self) -> None:
        """Ends the loop. Later calls are numbered after the calls of its longest step."""
        self._update_largest()
        self.counts.update(self.largest_counts)

    def _update_largest(self) -> None:
        """Records, for each function, the largest number of calls in any one step."""
        for name, number in self.counts.items():
            self.largest_counts[name] = max(number, self.largest_counts.get(name, 0))


class _Watch:
    """State shared by the observers of modules, functions and operators.

    Attributes:
        trail: Tensors that rows read and produce, or None in a run with gradients.
        check: Function to call at every module call; may raise to stop the run.
        named: Modules by path.
        registered: Modules by id, without TorchScript modules.
        children: Names of the direct children of each module, by the module's path.
        frames: Running modules, innermost last.
        rows: Rows of functional operators, by module path, name and call number.
        modules: Rows of modules, by path.
        order: Rows in the order of their first call.
        events: Operators in execution order.
        live_storages: Storages of this run by address, kept alive so that no other storage gets the address.
        given_storages: Storages of inputs and parameters, which exist before the run.
        bound_reasons: Reason why the size of a storage is not exact, by its address.
        outside_storages: Storages of other tensors that exist before the run, such as those of a closure.
        meta_copies: CPU tensors and their copies without values, by id of the tensor.
        copied_storages: Storage of a CPU tensor by the storage of its copy: one tensor of the model.
        stale_storages: CPU storages with outdated values, because an operator wrote to their meta copies.
        value_assumption: Latest assumption about a queried value, or ''.
        assumed: How often each assumption was made, by its text.
        has_assumed_sizes: Whether the size of a result was assumed.
        was_cut_short: Whether the run was ended because it had too many operators.
        failed: Path of the innermost module or function that raised the last error, and the error.
        can_replay: Whether equal layers may be replayed from the layer cache.
        tape: Figures of each operator of the layer that is recorded for the cache, or None.
        function: Name of the running function, or '' outside functions.
        function_row: Row of the running function, or None before its first operator.
        modes: Numbers of function modes and dispatch modes of torch that are active outside every module.
        next_hidden_address: Negative number for the next tensor inside a replayed layer, which has no memory.
        weights: Parameters by their storages.
        packed: Bytes in the file and bytes in memory, by storage, of parameters that differ in the two.
        constants: Storages of buffers.
        stored: Storages of parameters and buffers.
        sparse_reasons: Note for the storage of a sparse tensor, by its address.
    """

    def __init__(
        self,
        model: nn.Module,
        check: Callable[[int, int], None],
        gradients: Gradients | None,
        policy: AnswerPolicy,
    ) -> None:
        self.model = model
        # no trail with gradients: it would keep tensors alive that a training step frees
        self.trail = None if gradients is not None else TensorTrail()
        self.check = check
        self.gradients = gradients
        self.named = list_modules(model)
        self.registered = {
            id(module): _RegisteredModule(path, module)
            for path, module in self.named.items()
            if not isinstance(module, torch.jit.ScriptModule)
        }
        self.children: dict[str, set[str]] = {}
        self.frames: list[_Frame] = [_Frame("", None, False)]
        self.rows: dict[Any, Row] = {}
        self.modules: dict[str, Row] = {}
        self.order: list[Row] = []
        self.events: list[OperatorEvent] = []
        self.live_storages: dict[int, Any] = {}
        self.given_storages: frozenset[int] = frozenset()
        self.outside_storages: set[int] = set()
        self.bound_reasons: dict[int, str] = {}
        self.meta_copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.copied_storages: dict[int, int] = {}
        self.assumed: Counter[str] = Counter()
        self.policy = policy
        self.queries = ValueQueries(policy)
        self.classes = Classes(policy.uneven, policy.least)
        self.stale_storages: set[int] = set()
        self.value_assumption = ""
        self.has_assumed_sizes = self.was_cut_short = False
        self.operators: dict[Any, meta_cache.AtenOperator] = {}
        self.failed: tuple[str, BaseException] | None = None
        self.function: str = ""
        self.function_row: Row | None = None
        self.functions = Functions(self)
        self.call_count = 0
        self.unseen_work = UnseenWork()
        self.unregistered = list_other_tensors(self.named)
        self.outsiders = Outsiders(find_unregistered_parameters(self.named, self.unregistered))
        self.quantized = QuantizedTensors()
        # with gradients, each operator must be recorded, so no layer is replayed from the cache
        self.can_replay = gradients is None and layer_cache.is_enabled()
        self.tape: list[layer_cache.Booking] | None = None
        self.modes: tuple[int, int] | None = None
        self.next_hidden_address = 0
        self.parameters = list_parameters(model)
        self.weights: dict[int, list[ModuleParameter]] = {}
        for parameter in self.parameters.values():
            self.weights.setdefault(parameter.identity[0], []).append(parameter)
        self.packed = _sum_packed_bytes(self.named.values(), self.weights)
        module_buffers = [b for m in self.named.values() for b in buffers_of(m).values() if b is not None]
        buffers = [b for b in module_buffers if not is_lazy(b)]
        self.constants = {storage_key(b.untyped_storage()) for b in buffers}
        self.stored = self.constants | self.weights.keys()
        self.sparse_reasons: dict[int, str] = {}
        stored_tensors = [p for m in self.named.values() for p in parameters_of(m).values() if p is not None]
        unregistered = [tensor for _, tensor in self.unregistered if not is_lazy(tensor)]
        self.note_sparse([*(p for p in stored_tensors if not is_lazy(p)), *unregistered])
        for path in self.named:
            parent, _, name = path.rpartition(".")
            self.children.setdefault(parent, set()).add(name)

    def note_sparse(self, tensors: Iterable[torch.Tensor]) -> None:
        """Records which tensors represent sparse tensors."""
        for tensor in tensors:
            count = read_stored_elements(tensor)
            if count is not None:
                share = f"{count:,} of {tensor.numel():,} elements"
                reason = f"a sparse tensor is counted as dense: it stores {share}"
                self.sparse_reasons[storage_key(tensor.untyped_storage())] = reason
                # a layer with a sparse weight has another cost than a layer with a dense weight of this shape
                self.can_replay = False

    # -- modules

    def run(self, call: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Runs and records a call of a module. A module that the model does not register runs unrecorded."""
        registered = self.registered.get(id(module))
        if registered is None:
            return call(module, *args, **kwargs)
        # remove the function mode, because the model's author did not write the calls below
        is_popped = pop_function_mode(self.functions)
        try:
            self.call_count += 1
            self.check(self.call_count, len(self.named))
            layer_call = tape = None
            if (
                is_popped
                and registered.hides_functions
                and self.can_replay
                and self.modes
                and get_mode_depths() == self.modes
                and not self.value_assumption
            ):
                layer_call = layer_cache.find_layer_call(module, args, kwargs)
            # an equal layer may be called with another stored tensor, which a replay would not record
            if layer_call is not None and not self.has_exact_sizes(layer_call.addresses):
                layer_call = None
            if layer_call is not None:
                tape = layer_call.tape
            row = registered.row or self.create_row(registered, module)
            row.calls += 1
            if row.calls == 1:
                row.inputs = describe_module_inputs(module, args, kwargs) if tape is None else tape.inputs
            trail = self.trail if registered.is_leaf else None
            if trail is not None:
                trail.record_reads(row, args, kwargs)
            if layer_call is not None and tape is not None:
                result = self.replay(row, tape, layer_call)
                if trail is not None:
                    trail.record_outputs(row, result)
                return result
            self.tape = [] if layer_call is not None and layer_call.is_new else None
            depth = len(self.frames)
            self.frames.append(
                _Frame(registered.path, row if registered.is_leaf else None, registered.is_torch_leaf)
            )
            # under autocast, functions choose types; a quantized layer may ask if its input is quantized
            is_watching = torch.is_autocast_enabled("cpu") or bool(self.quantized)
            hides_functions = registered.hides_functions and not is_watching
            is_watching_functions = is_popped and not hides_functions
            if is_watching_functions:
                push_function_mode(self.functions)
            try:
                result = call(module, *args, **kwargs)
            except BaseException as error:
                if self.failed is None or self.failed[1] is not error:
                    self.failed = registered.path, error
                raise
            finally:
                del self.frames[depth:]
                if is_watching_functions:
                    pop_function_mode(self.functions)
                bookings, self.tape = self.tape, None
            if layer_call is not None and bookings is not None and not row.bound and not row.size_assumption:
                layer_cache.store_tape(
                    layer_call, describe_module_inputs(module, args, kwargs), bookings, result
                )
            if not row.outputs:
                row.outputs = describe_tensors(result, "output")
            row.activation += _count_bytes(result)
            if trail is not None:
                trail.record_outputs(row, result)
            if self.gradients is not None:
                self.gradients.record_result(row, result)
        finally:
            if is_popped:
                push_function_mode(self.functions)
        return result

    def note_thread_call(self, module: nn.Module) -> None:
        """Records that a module is called in another thread."""
        registered = self.registered.get(id(module))
        if registered is not None:
            self.unseen_work.note_started_work(registered.path)

    def note_started_work(self) -> None:
        """Records that the running module starts work in another thread or process."""
        self.unseen_work.note_started_work(self.frames[-1].path)

    def note_later_work(self) -> None:
        """Records that the running module registers code that may compute after the run."""
        self.unseen_work.note_later_work(self.frames[-1].path)

    def note_memory_access(self, method: str) -> None:
        """Records that the running module reads the memory of a tensor."""
        self.unseen_work.note_memory_access(self.frames[-1].path, method)

    def has_exact_sizes(self, addresses: Sequence[int]) -> bool:
        """Whether the storages hold activations of exact size, neither stored tensors nor upper bounds."""
        if not self.stored.isdisjoint(addresses):
            return False
        return not self.bound_reasons or self.bound_reasons.keys().isdisjoint(addresses)

    def replay(self, row: Row, tape: layer_cache.Tape, layer_call: layer_cache.LayerCall) -> Any:
        """Adds the recorded operators of an equal layer call to this row, and returns an equal result."""
        with hide_from_dispatch():
            result, parts = layer_cache.create_results(tape, layer_call.inputs)
        keys = list(dict.fromkeys(layer_call.addresses))
        # tensors inside the layer have no memory, so they get unique negative numbers as addresses
        hidden_count = tape.storage_count - len(keys)
        keys += range(self.next_hidden_address - hidden_count, self.next_hidden_address)
        self.next_hidden_address -= hidden_count
        for part, tensor in zip(tape.parts, parts, strict=True):
            if part is not None and tensor is not None and part.kind == meta_cache.FRESH:
                storage = tensor.untyped_storage()
                keys[part.source_index] = storage_key(storage)
                self.live_storages[storage_key(storage)] = storage
        for input_tensor in layer_call.inputs:
            if input_tensor.requires_grad:
                self.outsiders.note_use(row, input_tensor)
            self.note_read(input_tensor)
        row.operators += len(tape.bookings)
        for cost, read, stored_read, written, used, booked_outputs, moved in tape.bookings:
            row.add(cost)
            if moved:
                row.read += read
                row.stored_read += stored_read
                row.written += written
                outputs = [
                    (keys[position], TensorInfo(row.path, info.dtype, info.shape, "observed"), size)
                    for position, info, size in booked_outputs
                ]
                self.events.append(
                    OperatorEvent(row, tuple([keys[position] for position in used]), tuple(outputs))
                )
        if not row.outputs:
            row.outputs = tape.outputs
        row.activation += tape.size
        return result

    def create_row(self, registered: _RegisteredModule, module: nn.Module) -> Row:
        """Creates the row of a module at its first call."""
        path = registered.path
        name = path.rpartition(".")[2] or type(module).__name__
        row = registered.row = Row(path or name, name, type(module).__name__, path, module)
        self.modules[path] = row
        if registered.is_leaf:
            self.order.append(row)
        return row

    # -- functions

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs a function that the model calls, and records its operators on one row.

        A query for a device, for memory or for a value gets its answer without a run.
        """
        frame = self.frames[-1]
        name = getattr(func, "__name__", "")
        # a program from a file uses the operator's full name: 'scaled_dot_product_attention.default'
        if name.partition(".")[0] == _ATTENTION.__name__:
            attend = func if self.gradients is not None else partial(kernels.run, func)
            func = partial(jagged_attention.run, attend) if jagged_attention.applies(args, kwargs) else attend
        if name in recurrent.LAYERS and getattr(args[0], "is_meta", False):
            return self.run_recurrent(name, args, kwargs)
        if name == "__get__" and self.quantized.answers_query(func, args[0]):
            return True
        if frame.is_torch_leaf or self.function:
            result = self.run_with_cpu_types(func, args, kwargs)
            if name in constant_values.LISTS:
                self.note_read(result, lifted=True)
            return result
        if is_higher_order(func):
            if name not in higher_order.AS_ONE:
                return self.run_functions(func, args, kwargs)
            func = partial(self.run_as_one, func)
        if name.partition(".")[0] == "_nested_tensor_from_tensor_list":
            raise RuntimeError(jagged.STRIDED_INSIDE)
        if name == "__get__" or (name == "type" and len(args) == 1 and not kwargs):
            device_answer = device_questions.report_device(func, args[0])
            return func(*args, **kwargs) if device_answer is None else device_answer
        memory_answer = storages.answer_memory_query(func, args)
        if memory_answer is not None:
            return memory_answer
        func, args, kwargs = device_questions.replace_cpu(func, args, kwargs)
        if name in EXPORTING_METHODS and device_questions.is_model_asking():
            if name in ("__repr__", "__format__") and args[0].numel() == 1:
                self.unseen_work.note_number_text(frame.path, name, args[0])
            else:
                self.note_memory_access(name)
        if name == "__format__" and args[0].dim() == 0 and args[0].is_meta and args[1]:
            # torch formats a tensor of one number like that number
            return format(args[0].item(), args[1])
        assumed_values = data_dependent.assume_values(name, args)
        if assumed_values is not None:
            assumed_values = self.queries.answer(assumed_values)
            self.unseen_work.note_values_read(frame.path, name, args[0], assumed_values[0])
            self.assumed[assumed_values[1]] += 1
            self.value_assumption = assumed_values[1]
            return assumed_values[0]
        self.function, self.function_row = name, None
        first_event = len(self.trail.events) if self.trail is not None else 0
        if self.policy.valued and name in constant_values.LISTS:
            kwargs = {**kwargs, "device": "cpu"}
        try:
            try:
                result = self.run_with_cpu_types(func, args, kwargs)
            except (AssertionError, RuntimeError) as error:
                # some functions reject tensors of two devices before they call an operator
                is_expected = is_about_devices(error) or _has_sparse(collect_tensors((args, kwargs)))
                if not is_expected or not self.has_mixed_values(args, kwargs):
                    raise
                result = func(
                    *self.convert_to_meta(args), **{k: self.convert_to_meta(v) for k, v in kwargs.items()}
                )
        except Exception as error:
            if self.failed is None or self.failed[1] is not error:
                row = self.function_row
                path = f"{frame.path}.{name}" if frame.path else name
                self.failed = row.path if row is not None else path, error
            raise
        finally:
            row, self.function, self.function_row = self.function_row, "", None
        if name in constant_values.LISTS:
            self.note_read(result, lifted=True)
        if row is not None:
            if self.trail is not None:
                self.trail.record_reads(row, args, kwargs, index=first_event)
                self.trail.record_outputs(row, result)
            self.finish_function(row, name, args, kwargs, result)
        return result

    def run_with_cpu_types(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs a function. Autocast for the CPU ignores meta tensors, so the CPU's operators run on them."""
        attends_for_gradients = func is _ATTENTION and self.gradients is not None
        if torch.is_autocast_enabled("cpu") and not attends_for_gradients:
            return kernels.run(func, *args, **kwargs)
        return func(*args, **kwargs)

    def run_functions(self, operator: Any, args: Any, kwargs: Any) -> Any:
        """Runs an operator that calls functions, such as a branch; each call inside gets its own row."""
        push_function_mode(self.functions)
        loop = _Loop(self.frames[-1].counts, self.assumed)
        try:
            return higher_order.run(operator, loop, args, kwargs)
        finally:
            pop_function_mode(self.functions)
            loop.end()

    def run_as_one(self, operator: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs an operator that calls functions; all work inside is added to the operator's row."""
        return self.run_functions(operator, args, kwargs)

    def run_attention(self, *args: Any, **kwargs: Any) -> Any:
        """Runs attention called from code that the function mode does not cover."""
        is_popped = pop_function_mode(self.functions)
        try:
            return self.call(_ATTENTION, args, kwargs)
        finally:
            if is_popped:
                push_function_mode(self.functions)

    def finish_function(self, row: Row, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Adds a call of a function to its row: result, inputs and the function's own formula."""
        row.calls += 1
        row.activation += _count_bytes(result)
        if self.gradients is not None:
            self.gradients.record_result(row, result)
        if row.calls > 1:
            return
        row.outputs = describe_tensors(result, "output")
        row.inputs = describe_function_inputs(args, kwargs, self.is_weight)
        function_cost = dispatch.compute_function_cost(name, args, kwargs, result)
        # use the function's own formula if its MACs equal the sum over its operators
        if function_cost is not None and function_cost.macs == row.macs:
            row.formulas = Counter({function_cost.formula: 1})
            row.elementwise = function_cost.elementwise_ops or row.elementwise

    def run_recurrent(self, name: str, args: Any, kwargs: Any) -> Any:
        """Records a recurrent layer as one operator, in place of the equal operators of each step."""
        is_packed = isinstance(args[1], torch.Tensor) and args[1].dtype == torch.int64 and args[1].dim() == 1
        layer = getattr(torch.ops.aten, name)
        func = layer.data if is_packed else layer.input
        call = dispatch.build_call(func, args, kwargs, None)
        read_tensors = [t for argument in ("data", "input", "hx", "params") for t in call.tensors(argument)]

        def build_outputs() -> list[torch.Tensor]:
            return list(packed_weights.build_recurrent_results(call))

        if self.gradients is None:
            outputs = build_outputs()
        else:
            outputs = self.gradients.connect(build_outputs, read_tensors)
        cost = dispatch.compute_cost(func, args, kwargs, outputs)
        row = self.find_current_row(name)
        self.record(
            row,
            read_tensors,
            outputs,
            meta_cache.MetaAnswer(meta_cache.CALLED, (), None, cost, read_tensors, outputs),
        )
        if self.gradients is not None:
            self.gradients.record_operator(
                row, "a recurrent layer", func, args, kwargs, read_tensors, outputs, cost
            )
        if row is self.function_row:
            self.function_row = None
            self.finish_function(row, name, args, kwargs, tuple(outputs))
        return tuple(outputs)

    def is_weight(self, tensor: torch.Tensor) -> bool:
        try:
            return storage_key(tensor.untyped_storage()) in self.weights
        except NotImplementedError:
            # wrapper tensors (vmap, sparse, nested) have no storage of their own
            return False

    # -- operators

    def find_current_row(self, fallback: str) -> Row:
        """Returns the row of the current operator. The first operator of a row creates it.

        Args:
            fallback: Name of the row if no function is running.
        """
        frame = self.frames[-1]
        if frame.is_torch_leaf and frame.row is not None:
            return frame.row
        if self.function_row is not None:
            return self.function_row
        name = (self.function or fallback).strip("_") or fallback
        name = _DISPLAY_NAMES.get(name, name)
        number = frame.counts[name] = frame.counts.get(name, 0) + 1
        key = (frame.path, name, number)
        row = self.rows.get(key)
        if row is None:
            label = name if number == 1 else f"{name}_{number}"
            while label in self.children.get(frame.path, ()):
                label += "_"
            row = Row(f"{frame.path}.{label}" if frame.path else label, label, name, frame.path)
            self.rows[key] = row
            if frame.row is not None:
                frame.row.parts.append(row)
            else:
                self.order.append(row)
        if self.function:
            self.function_row = row
        else:
            row.calls += 1
        return row

    def note_subclass_call(self) -> None:
        """Records that a tensor subclass makes the next operator calls, after autograd saw its own call."""
        if self.gradients is not None:
            self.gradients.in_subclass = True

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an ATen operator on shapes, or repeats an earlier result, and records it."""
        operator = self.operators.get(func)
        if operator is None:
            operator = self.operators[func] = meta_cache.get_operator(func)
        inputs: list[torch.Tensor] = []
        signature: list[Any] = []
        is_determined = meta_cache.read_arguments(args, signature, inputs)
        if self.policy.valued and "device" in kwargs:
            kwargs = dict(constant_values.choose_device(operator.name, args, kwargs))
        if kwargs:
            signature.append(tuple(kwargs))
            is_determined = meta_cache.read_arguments(kwargs.values(), signature, inputs) and is_determined
        is_mixed = not is_determined and self.is_mixed(inputs)
        # torch converts a sparse tensor with its values; what it reads is recorded as dense
        values = (args, kwargs) if not is_mixed and not is_determined and _has_sparse(inputs) else None
        if (is_mixed or values is not None) and operator.name not in data_dependent.VALUES_BESIDE:
            args, kwargs = self.drop_values(operator, args, kwargs, inputs)
            inputs, signature = [], []
            is_determined = meta_cache.read_arguments(args, signature, inputs)
            signature.append(tuple(kwargs))
            is_determined = meta_cache.read_arguments(kwargs.values(), signature, inputs) and is_determined
        if operator.name == "aten::_to_copy" and "device" in kwargs and getattr(args[0], "is_meta", False):
            # a copy to another device stays on the meta device
            kwargs = {**kwargs, "device": torch.device("meta")}
        assumed = self.assume_result(func, operator, args, kwargs) if operator.is_bounded and inputs else None
        if assumed is not None and operator.name in data_dependent.VALUES:
            self.unseen_work.note_values_read(self.frames[-1].path, "item", args[0])
            assumed = self.queries.answer(assumed)
            self.value_assumption = assumed[1]
        is_quantized = self.quantized.concerns(operator.name, inputs)
        is_determined = is_determined and assumed is None and operator.is_repeatable and not is_quantized
        key = tuple(signature) if is_determined and values is None else None
        answer = None if key is None else operator.answers.get(key)
        if answer is not None and answer.kind != meta_cache.CALLED:
            result = answer.replay(args)
        elif assumed is not None:
            result = assumed[0]
            self.assumed[assumed[1]] += 1
        else:
            is_new = key is not None and answer is None
            is_new = is_new and values is None
            result = self.run_operator(func, operator, *(values or (args, kwargs)), is_new, is_quantized)
        if answer is None:
            parts = result if isinstance(result, (tuple, list)) else (result,)
            outputs = [t for t in parts if isinstance(t, torch.Tensor)]
            is_foreign = not outputs and bool(inputs) and operator.is_foreign
            if not outputs and assumed is None and not is_foreign:
                return result
            cost = cost_formulas.FREE
            if outputs or is_foreign:
                cost = dispatch.compute_cost(func, args, kwargs, result)
            if operator.has_one_activation:
                outputs = outputs[:1]
            # an operator without tensor arguments needs a dtype argument
            if key is not None and (inputs or kwargs.get("dtype") is not None):
                answer = meta_cache.store_answer(operator, key, args, inputs, result, cost)
            if answer is None:
                answer = meta_cache.MetaAnswer(meta_cache.CALLED, (), None, cost, inputs, outputs)
        elif answer.container is None or operator.has_one_activation:
            outputs = [result if answer.container is None else result[0]]
        else:
            outputs = list(result)
        if self.gradients is not None and operator.has_one_activation:
            self.keep_results(result)
        row = self.find_current_row(operator.short)
        self.record_operator(row, operator, func, args, kwargs, inputs, outputs, answer, result, assumed)
        if not self.function and row.module is None:
            self.finish_operator(row, inputs, outputs)
        return result

    def run_operator(
        self,
        func: Any,
        operator: meta_cache.AtenOperator,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        is_new: bool,
        is_quantized: bool,
    ) -> Any:
        """Returns the result of an operator on shapes, without the values of a random operator.

        Args:
            func: The operator as torch passes it.
            operator: Its facts.
            args: Its arguments.
            kwargs: Its keyword arguments.
            is_new: Whether a formula may compute the shapes of a repeatable call.
            is_quantized: Whether an argument is a quantized tensor.
        """
        result = meta_cache.compute_result(operator, args, kwargs) if is_new else None
        if is_quantized:
            # the layer cache does not distinguish quantized tensors from plain integers
            self.can_replay = False
            result = self.quantized.answer(func, dispatch.build_call(func, args, kwargs, None), args, kwargs)
        elif result is None:
            answer_packed = packed_weights.ANSWERS.get(operator.name) or ANSWERS.get(operator.name)
            has_values = isinstance(args[0], torch.Tensor) and not args[0].is_meta
            if answer_packed is None or has_values:
                result = self.call_operator(func, args, kwargs)
                if isinstance(result, torch.Tensor) and result.layout in SPARSE_LAYOUTS:
                    result = self.replace_sparse(result)
                result = kernels.match_cpu_kernel(operator.name, result, args)
            else:
                result = answer_packed(dispatch.build_call(func, args, kwargs, None))
        return self.without_random_values(operator, args, result) if operator.is_random else result

    def replace_sparse(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a dense tensor without values in place of a sparse tensor, which counts as a bound."""
        dense = mark_sparse(torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"), tensor)
        self.live_storages[storage_key(dense.untyped_storage())] = dense.untyped_storage()
        self.note_sparse([dense])
        return dense

    def call_operator(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Calls an operator on shapes. A scalar with a value may have to lose it, such as a single index."""
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            devices = {tensor.device for tensor in collect_tensors((args, kwargs))}
            if not is_about_devices(error) or len(devices) < 2:
                raise
        convert = partial(self.convert_to_meta, scalars=True)
        return func(*convert(args), **{name: convert(value) for name, value in kwargs.items()})

    def keep_results(self, results: Any) -> None:
        """Keeps the storages of all results alive: autograd may read results that are not activations."""
        for tensor in collect_tensors(results):
            storage = tensor.untyped_storage()
            self.live_storages.setdefault(storage_key(storage), storage)

    def finish_operator(
        self, row: Row, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> None:
        """Adds the results of an operator outside a torch function, as in TorchScript, to its row."""
        results = [t for t in outputs if storage_key(t.untyped_storage()) not in self.stored]
        row.activation += _count_bytes(results)
        if self.gradients is not None:
            self.gradients.record_result(row, results)
        if not row.outputs:
            row.outputs = describe_tensors(results, "output")
            row.inputs = describe_function_inputs(list(inputs), {}, self.is_weight)

    def without_random_values(self, operator: meta_cache.AtenOperator, args: Any, result: Any) -> Any:
        """Returns the result of a random operator without values, because each run draws others.

        If the operator writes in place, its tensors keep their values, which count as outdated from then on.
        """
        if not operator.mutates:
            return self.convert_to_meta(result, scalars=True)
        written: list[torch.Tensor] = []
        meta_cache.read_arguments((result,), [], written)
        self.stale_storages.update(storage_key(t.untyped_storage()) for t in written if not t.is_meta)
        return result

    def drop_values(
        self,
        operator: meta_cache.AtenOperator,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: Sequence[torch.Tensor],
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments of a call with meta tensors in place of tensors that have values.

        If the operator writes into one of `inputs`, the values of that tensor count as outdated from then on.
        """
        if operator.name == "aten::index" and not self.stale_storages:
            args = constant_values.convert_masks(args)
        if operator.mutates:
            self.stale_storages.update(storage_key(t.untyped_storage()) for t in inputs if not t.is_meta)
        return self.convert_to_meta(args), {k: self.convert_to_meta(v) for k, v in kwargs.items()}

    def record_operator(
        self,
        row: Row,
        operator: meta_cache.AtenOperator,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        answer: meta_cache.MetaAnswer,
        result: Any,
        assumed_result: tuple[Any, str] | None,
    ) -> None:
        """Records one operator: on its row, as an event, and for the gradients.

        Raises:
            RuntimeError: The run has more operators than the policy allows.
        """
        if operator.name in WATCHED:
            self.classes.note(operator.name, schema_of(func).overload_name, args, kwargs, result)
        assumption = ""
        if assumed_result is not None and operator.name not in data_dependent.VALUES:
            assumption, self.has_assumed_sizes = assumed_result[1], True
        if self.policy.events and len(self.events) > self.policy.events:
            self.was_cut_short = True
            raise RuntimeError(f"it runs more than {self.policy.events:,} operators")
        if self.trail is not None:
            if not self.function and not self.frames[-1].is_torch_leaf:
                self.trail.record_reads(row, inputs, {})
                self.trail.record_outputs(row, outputs)
            if operator.mutates:
                self.trail.record_writes(row, outputs)
        self.record(row, inputs, outputs, answer, operator, assumption)
        if self.gradients is not None:
            self.gradients.record_operator(
                row, operator.short, func, args, kwargs, inputs, outputs, answer.cost
            )
        if row.module is None and not row.attributes:
            if answer.attributes is None:
                answer.attributes = read_call_attributes(func, args, kwargs)
            row.attributes = answer.attributes

    def is_mixed(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether the values of some inputs must be dropped: they are stale, or other inputs have none."""
        return (bool(self.stale_storages) and any(map(self.is_stale, inputs))) or _is_mixed(inputs)

    def is_stale(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's values are outdated, because an operator wrote to its meta copy only."""
        if not self.stale_storages or tensor.is_meta:
            return False
        return storage_key(tensor.untyped_storage()) in self.stale_storages

    def assume_result(
        self, func: Any, operator: meta_cache.AtenOperator, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Any, str] | None:
        """Returns the assumed result of an operator that depends on values and the assumption, or None."""
        if self.policy.valued and self.classes and operator.name in COUNTS:
            class_count = self.classes.count_classes(operator.name, args, lambda: func(*args, **kwargs))
            if class_count is not None:
                return class_count, EVENLY
        return data_dependent.assume_result(
            func, args, self.classes, least=self.policy.least, valued=self.policy.valued
        )

    def record(
        self,
        row: Row,
        read_tensors: Sequence[torch.Tensor],
        output_tensors: Sequence[torch.Tensor],
        answer: meta_cache.MetaAnswer,
        operator: meta_cache.AtenOperator | None = None,
        assumption: str = "",
    ) -> None:
        """Adds one operator to its row: cost, bytes, parameters, and the lifetimes of its tensors."""
        row.operators += 1
        row.add(answer.cost)
        inputs: dict[int, int] = {}
        sparse_reasons: list[str] = []
        reason = assumption
        for index, (t, size) in enumerate(zip(read_tensors, answer.input_bytes, strict=True)):
            storage = t.untyped_storage()
            key = storage_key(storage)
            if key in self.weights:
                self.record_parameter(row, key, t)
            else:
                is_parameter = t.requires_grad or type(t) is not torch.Tensor or key in self.outsiders.held
                if is_parameter and self.outsiders.note_use(row, t, in_run_memory=key in self.live_storages):
                    self.live_storages.setdefault(key, storage)
                if key not in self.stored:
                    self.note_read(t, lifted=operator is not None and operator.name == "aten::lift_fresh")
            if self.sparse_reasons and key in self.sparse_reasons:
                sparse_reasons.append(self.sparse_reasons[key])
                if answer.cost.macs:
                    row.bound = row.bound or self.sparse_reasons[key]
            if self.bound_reasons and key in self.bound_reasons and not reason:
                reason = self.bound_reasons[key]
            if key not in inputs:
                inputs[key] = size
            elif not _is_repeated_view(t, read_tensors[:index]):
                # another part of the same storage, such as Q, K and V in the output of one projection
                inputs[key] = min(inputs[key] + size, storage.nbytes())
        outputs: list[tuple[int, TensorInfo, int]] = []
        bytes_written = 0
        mutates = operator is not None and operator.mutates
        for t, (dtype, shape, size) in zip(output_tensors, answer.outputs, strict=True):
            storage = t.untyped_storage()
            key = storage_key(storage)
            self.live_storages.setdefault(key, storage)
            if reason:
                self.bound_reasons[key] = reason
            if (
                sparse_reasons
                and key not in inputs
                and (not answer.cost.macs or len(sparse_reasons) == len(read_tensors))
            ):
                # the product of a sparse and a dense tensor is dense
                self.sparse_reasons.setdefault(key, sparse_reasons[0])
            if key in inputs and not mutates:
                continue
            bytes_written += size
            outputs.append((key, TensorInfo(row.path, dtype, shape, "observed"), storage.nbytes()))
        if operator is not None and (size := kernels.count_workspace(operator.name, read_tensors)):
            outputs.append(self.create_workspace(row, size))
        row.value_assumption = row.value_assumption or self.value_assumption
        if reason and (
            not row.size_assumption or (is_assumption(reason) and not is_assumption(row.size_assumption))
        ):
            row.size_assumption = reason
        if output_tensors and not outputs:
            if self.tape is not None:
                self.tape.append(layer_cache.Booking(answer.cost))
            return
        if read_tensors and operator is not None and operator.gathers:
            # a gather reads only the rows that it returns, not the full table
            table = storage_key(read_tensors[0].untyped_storage())
            inputs[table] = min(inputs[table], bytes_written)
        self.record_traffic(row, answer.cost, inputs, outputs, bytes_written)

    def create_workspace(self, row: Row, size: int) -> tuple[int, TensorInfo, int]:
        """Returns `size` bytes of temporary memory as an output without readers: key, tensor, bytes."""
        storage = torch.empty(size, dtype=torch.uint8, device="meta").untyped_storage()
        self.live_storages[storage_key(storage)] = storage
        return storage_key(storage), TensorInfo(row.path, "uint8", (size,), "observed"), size

    def note_read(self, tensor: torch.Tensor, *, lifted: bool = False) -> None:
        """Records a tensor that an operator reads. A tensor of unknown origin counts as unseen work.

        Args:
            tensor: Tensor that is read.
            lifted: Whether the model created the tensor from Python or NumPy values.
        """
        storage = tensor.untyped_storage()
        key = storage_key(storage)
        if key in self.live_storages or key in self.stored:
            return
        self.live_storages[key] = storage
        if not lifted and not tensor.is_meta:
            self.outside_storages.add(key)
        if not lifted and tensor.is_meta and tensor.is_floating_point() and tensor.numel():
            # torch creates indices from Python lists without an operator; they are not floating-point numbers
            self.unseen_work.note_foreign_tensor(self.frames[-1].path)
        elif lifted:
            self.unseen_work.note_values_returned(tensor)

    def note_result(self, result: Any, inputs: Any, returned: Iterable[torch.Tensor]) -> None:
        """Records that the model returned `result`, which contains the tensors `returned`, for `inputs`."""
        for tensor in returned:
            self.note_read(tensor)
        self.unseen_work.finish(result, inputs, self.is_computed)

    def is_computed(self, tensor: torch.Tensor) -> bool:
        """Whether the run computed a tensor, which did not exist before."""
        if tensor.layout is not torch.strided or list_inner_tensors(tensor):
            return True
        try:
            key = storage_key(tensor.untyped_storage())
            return key not in self.given_storages and key not in self.outside_storages
        except NotImplementedError:
            # only a transformation of the run makes wrapper tensors (torch.func.grad)
            return True

    def record_traffic(
        self,
        row: Row,
        cost: cost_formulas.Cost,
        inputs: Mapping[int, int],
        outputs: Sequence[tuple[int, TensorInfo, int]],
        written: int,
    ) -> None:
        """Adds the bytes that one operator reads (by storage) and writes to its row; records the event."""
        read_keys = []
        read = stored_read = 0
        for key, size in inputs.items():
            if key in self.packed:
                file_bytes, memory_bytes = self.packed[key]
                size = size * file_bytes // memory_bytes
            read += size
            if key in self.stored:
                stored_read += size
            else:
                read_keys.append(self.copied_storages.get(key, key))
        row.read += read
        row.stored_read += stored_read
        row.written += written
        if self.copied_storages:
            outputs = [(self.copied_storages.get(key, key), info, size) for key, info, size in outputs]
        event = OperatorEvent(row, tuple(read_keys), tuple(outputs))
        self.events.append(event)
        if self.tape is not None:
            self.tape.append(
                layer_cache.Booking(cost, read, stored_read, written, event.inputs, event.outputs, True)
            )

    def record_parameter(self, row: Row, key: int, tensor: torch.Tensor) -> None:
        """Adds the parameters of a storage that `tensor` views to a row."""
        candidates = self.weights[key]
        offset = tensor.storage_offset()
        matching = [s for s in candidates if s.identity[1] == offset]
        # a view of the full parameter is not a slice that starts at the same offset
        matching = [s for s in matching if s.elements == tensor.numel()] or matching
        for parameter in candidates if len(candidates) == 1 else matching:
            row.stored.setdefault(parameter.identity, parameter)

    def has_mixed_values(self, args: Any, kwargs: Any) -> bool:
        """Whether some tensors among the arguments have values and others do not."""
        return _is_mixed(collect_tensors((args, kwargs)))

    def convert_to_meta(self, value: Any, *, scalars: bool = False) -> Any:
        """Returns `value` with tensors on the CPU replaced by meta tensors.

        A zero-dimensional tensor keeps its value, unless the value is outdated or `scalars` is True.
        """
        if isinstance(value, torch.Tensor):
            is_kept = not value.dim() and not scalars and not self.is_stale(value)
            if value.is_meta or is_kept:
                return value
            value_and_copy = self.meta_copies.get(id(value))
            if value_and_copy is None and value.layout is not torch.strided:
                value_and_copy = self.meta_copies[id(value)] = value, self.replace_sparse(value)
            if value_and_copy is None:
                meta_copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
                # keep the original alive, so that no other tensor gets its id
                if is_parameter(value):
                    meta_copy = self.outsiders.make_parameter(meta_copy, value)
                elif self.gradients is not None:
                    self.gradients.note_copy(meta_copy, value)
                value_and_copy = self.meta_copies[id(value)] = (value, meta_copy)
                jagged.mark(meta_copy, value)
                reason = self.bound_reasons.get(storage_key(value.untyped_storage()))
                key = storage_key(meta_copy.untyped_storage())
                self.live_storages[key] = meta_copy.untyped_storage()
                original_key = storage_key(value.untyped_storage())
                if original_key not in self.live_storages:
                    self.outside_storages.add(original_key)
                if original_key not in self.stored:
                    self.copied_storages[key] = original_key
                if reason is not None:
                    self.bound_reasons[key] = reason
            return value_and_copy[1]
        if isinstance(value, (tuple, list)):
            return type(value)(self.convert_to_meta(v, scalars=scalars) for v in value)
        return "meta" if isinstance(value, torch.device) else value


def _has_sparse(tensors: Iterable[torch.Tensor]) -> bool:
    return any(tensor.layout in SPARSE_LAYOUTS for tensor in tensors)


_ATTENTION: Any = nn.functional.scaled_dot_product_attention

_DISPLAY_NAMES = {
    "rsub": "sub",
    "rdiv": "div",
    "rpow": "pow",
    "rmatmul": "matmul",
    "iadd": "add",
    "imul": "mul",
}
"""Display names of operators whose Python names differ."""


def _sum_packed_bytes(
    modules: Iterable[nn.Module], weights: Mapping[int, Sequence[ModuleParameter]]
) -> dict[int, tuple[int, int]]:
    """Returns the bytes in the file and in memory, by storage, of parameters that differ in the two."""
    sizes: dict[int, tuple[int, int]] = {}
    for module in modules:
        for name in read_stored_forms(module):
            p = parameters_of(module).get(name)
            if p is None or not p.nbytes:
                continue
            key = storage_key(p.untyped_storage())
            file_bytes = next(
                (w.bytes for w in weights[key] if w.identity[1] == p.storage_offset()), p.nbytes
            )
            if file_bytes != p.nbytes:
                sizes[key] = file_bytes, p.nbytes
    return sizes


def _is_mixed(inputs: Sequence[torch.Tensor]) -> bool:
    """Whether some tensors have values and others do not. Zero-dimensional tensors fit both kinds."""
    return any(t.is_meta for t in inputs) and any(t.dim() and not t.is_meta for t in inputs)


def _count_bytes(value: Any) -> int:
    """Returns the total bytes of the tensors in a result."""
    if type(value) is torch.Tensor:
        return value.numel() * value.element_size()
    return sum(t.numel() * t.element_size() for t in collect_tensors(value))


@contextmanager
def _observe_model(
    model: nn.Module,
    watch: _Watch,
    train: bool,
    modes: Sequence[bool],
    note_variation: Callable[[Variation], None],
    note_modes: Callable[[Iterable[bool]], None],
) -> Iterator[None]:
    """Observes every module in one mode without fast paths, and restores all state at the end."""
    modules = watch.named.values()
    functions = list_functions(modules)
    code_modules = list_code_modules(functions)
    if reads_the_date(functions):
        note_variation("date")
    with (
        restore_modes(modules),
        intercept_calls(watch.run, watch.note_thread_call),
        watch_handed_on_work(
            code_modules, watch.note_started_work, watch.note_later_work, partial(note_variation, "state")
        ),
        watch_draws(code_modules, watch.policy.draw, partial(note_variation, "draw")),
        storages.watch_storages(watch.note_memory_access),
        replace_attention(watch.run_attention),
        kernels.keep_casts(),
        disable_compilation(),
    ):
        if any(module.training != train for module in modules):
            model.train(train)
        for module, mode in zip(modules, modes, strict=False):
            module.training = mode
        initial_state = take_snapshot(modules, functions, code_modules)
        yield
        if initial_state != take_snapshot(modules, functions, code_modules):
            note_variation("state")
        note_modes(module.training for module in modules)


def trace(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    check: Callable[[int, int], None] = lambda done, modules: None,
    gradients: Gradients | None = None,
    train: bool = False,
    modes: Sequence[bool] = (),
    policy: AnswerPolicy = AnswerPolicy(),  # noqa: B008 (frozen)
    search_later_work: bool = True,
) -> Trace:
    """Runs `model` once on meta tensors and records every operator.

    Args:
        model: Module whose parameters are on the meta device.
        args: Positional arguments of its forward.
        kwargs: Keyword arguments of its forward.
        check: Called with the numbers of module calls so far and of modules; may raise to stop the run.
        gradients: Observer of the backward pass, or None. With it, the run records gradients.
        train: Whether all modules run in training mode, in place of evaluation mode.
        modes: Whether each module starts in training mode, as an earlier run left it; empty: use `train`.
        policy: Policy for operators whose result depends on values.
        search_later_work: Whether to search for code that outlives the run and holds tensors of it. The
            search takes up to seconds in a process with many objects.

    Returns:
        The trace. If the model raises, the trace ends there and names the module.
    """
    meta_cache.limit_answers()
    watch = _Watch(model, pause_watching()(check), gradients, policy)
    if gradients is not None:
        gradients.begin(watch.weights, watch.constants)
    run = Trace(
        *(watch.order, watch.modules, watch.events, watch.parameters),
        named=watch.named,
        assumed=watch.assumed,
        mode="training" if train else "evaluation",
    )
    args, kwargs = cache_tensors.copy_caches(args), cache_tensors.copy_caches(kwargs)
    inputs = [t for _, t in walk_tensors([list(args), dict(kwargs)])]
    if any(map(jagged.is_strided, inputs)):
        run.failed = "", jagged.STRIDED
        return run
    watch.outsiders.note_inputs(inputs)
    inputs = [inner for t in inputs for inner in list_inner_tensors(t) or (t,)]
    _record_existing_tensors(watch, inputs, args, kwargs)
    variations: list[Variation] = []
    left_modes: list[bool] = []
    with (
        _observe_model(model, watch, train, modes, variations.append, left_modes.extend),
        torch.set_grad_enabled(gradients is not None),
    ):
        try:
            with watch.functions, Operators(watch):
                depths = get_mode_depths()
                watch.modes = None if depths is None else (depths[0] - 1, depths[1])
                run.result = model(*args, **kwargs)
        except ExplorerError:
            raise
        except Exception as error:
            _record_failure(run, watch, error)
    if (
        search_later_work
        and not run.failed
        and watch.trail is not None
        and is_held_by_code(
            [*(tensors for _, _, tensors in watch.trail.events), *watch.meta_copies.values()],
            lambda: run.result,
            [args, kwargs, *watch.named.values()],
            watch.is_computed,
        )
    ):
        watch.note_later_work()
    run.inputs = inputs
    run.variations, run.modes = tuple(dict.fromkeys(variations)), left_modes
    _complete_trace(run, watch, args, kwargs)
    return run


def _complete_trace(run: Trace, watch: _Watch, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Copies the records of `watch` to the trace, and records the storages that the result keeps."""
    queries = watch.queries
    run.decided, run.endless, run.queries = tuple(queries.decided), queries.endless, queries.kinds
    # a branch that was taken under an assumption may fail where the model's own branch does not
    run.is_fault = run.is_fault and not (run.queries or run.decided or run.assumed)
    run.has_assumed_sizes, run.divides_classes = watch.has_assumed_sizes, watch.classes.used
    run.was_cut_short = watch.was_cut_short
    run.trail = watch.trail or run.trail
    results = [inner for _, t in walk_tensors(run.result) for inner in list_inner_tensors(t) or (t,)]
    returned = [*results, *cache_tensors.find_cache_tensors(run.result)]
    kept_keys = [storage_key(t.untyped_storage()) for t in returned]
    run.kept = tuple(watch.copied_storages.get(key, key) for key in kept_keys)
    watch.note_result(run.result, (args, kwargs), returned)
    run.unseen, run.outsiders = watch.unseen_work.work_by_path, watch.outsiders.list_used()


def _record_existing_tensors(
    watch: _Watch, inputs: Sequence[torch.Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Records the tensors that exist before the run: inputs, caches, parameters and unregistered tensors."""
    cached = [*cache_tensors.find_cache_tensors(args), *cache_tensors.find_cache_tensors(kwargs)]
    watch.note_sparse(inputs)
    watch.events.append(_build_input_event([*inputs, *cached]))
    argument_tensors = find_tensors([list(args), dict(kwargs)])
    parameters = [
        p for module in watch.named.values() for p in parameters_of(module).values() if p is not None
    ]
    unregistered = [tensor for _, tensor in watch.unregistered]
    for tensor in (*inputs, *cached, *argument_tensors, *parameters, *unregistered):
        if not is_lazy(tensor) and tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            watch.live_storages[storage_key(storage)] = storage
    watch.given_storages = frozenset(watch.live_storages)


def _record_failure(run: Trace, watch: _Watch, error: Exception) -> None:
    """Records the module that failed, the message, and whether the model itself is the cause."""
    failed_path = watch.frames[-1].path
    if watch.failed is not None and watch.failed[1] is error:
        failed_path = watch.failed[0]
    message = " ".join(str(error).split())[:300]
    run.failed = failed_path, f"{type(error).__name__}: {message}" if message else type(error).__name__
    run.refused = _is_raised_by_model(error)
    run.is_fault = _is_fault_of_model(error)


def _build_input_event(inputs: Sequence[torch.Tensor]) -> OperatorEvent:
    """Returns an event without an operator, whose outputs are the tensors that the model is called with."""
    outputs = tuple(
        (
            storage_key(t.untyped_storage()),
            TensorInfo("input", format_dtype(t.dtype), tuple(t.shape), "declared"),
            t.untyped_storage().nbytes(),
        )
        for t in inputs
    )
    return OperatorEvent(Row("input", "input", "input", ""), (), outputs)


def _is_raised_by_model(error: BaseException) -> bool:
    """Whether the model's own code raised the error, by `raise` or `assert`."""
    if isinstance(error, AssertionError):
        return True
    package, is_raised = _find_raising_package(error)
    return is_raised and package not in ("", "torch", "explorer")


def _is_fault_of_model(error: BaseException) -> bool:
    """Whether the model would fail with real tensors as well, as after a wrong input shape.

    All other errors happen only in a run on shapes: an operator has no rule for its shape, a tensor on the
    meta device has no values, or this program does not support a construct of the model.
    """
    package, is_raised = _find_raising_package(error)
    is_raised_here = package == "explorer" and is_raised
    return not (is_raised_here or isinstance(error, NotImplementedError) or is_about_meta(error))


def _find_raising_package(error: BaseException) -> tuple[str, bool]:
    """Returns the package of the innermost function of a traceback, and whether it raised the error."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return "", False
    package = traceback.tb_frame.f_globals.get("__name__", "").partition(".")[0]
    return package, traceback.tb_frame.f_code.co_code[traceback.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def _is_repeated_view(tensor: torch.Tensor, earlier: Sequence[torch.Tensor]) -> bool:
    """Whether an earlier tensor is the same view of the same memory."""
    key = storage_key(tensor.untyped_storage())
    view = (tensor.storage_offset(), tensor.shape, tensor.stride())
    return any(
        t is tensor
        or (storage_key(t.untyped_storage()) == key and (t.storage_offset(), t.shape, t.stride()) == view)
        for t in earlier
    )
