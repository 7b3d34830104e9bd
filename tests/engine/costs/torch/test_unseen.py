"""Work that a run on shapes does not see makes a lower bound or `?`; what only looks like it stays exact."""

from __future__ import annotations

import copy
import ctypes
import io
import pickle
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from explorer import Session  # noqa: E402
from explorer.engine.costs.torch.unseen import find_tensors  # noqa: E402
from explorer.facts import Info, Layer  # noqa: E402
from explorer.facts.training import Training  # noqa: E402


class Two(nn.Module):
    """Two products of 6 rows of 4; `function` puts them together."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


def info(function: Callable[..., Any]) -> Info:
    with Session(Two(function), inputs=(torch.rand(6, 4),), cache=False) as session:
        return session.info()


def reasons(function: Callable[..., Any]) -> list[str]:
    with Session(Two(function), inputs=(torch.rand(6, 4),), cache=False) as session:
        return [row.reason for row in session.analysis().layers if row.status == "unknown"]


def _layers(function: Callable[..., Any]) -> Sequence[Layer]:
    with Session(Two(function), inputs=(torch.rand(6, 4),), cache=False) as session:
        return session.analysis().layers


# -- work that is not seen


def in_a_thread(model: Two, x: Any) -> Any:
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(x @ model.second.weight))
    thread.start()
    thread.join()
    return model.first(x) + made[0]


def a_modules_thread(model: Two, x: Any) -> Any:
    made: dict[str, Any] = {}
    thread = threading.Thread(target=lambda: made.update(y=model.second(x)))
    thread.start()
    thread.join()
    return made


def in_numpy(model: Two, x: Any) -> Any:
    return model.first(
        torch.from_numpy(np.einsum("ij,jk->ik", x.detach().numpy(), np.ones((4, 4), np.float32)))
    )


def numpy_result(model: Two, x: Any) -> Any:
    return np.dot(model.first(x).detach().numpy(), np.ones((4, 4), np.float32))


def in_python(model: Two, x: Any) -> Any:
    rows = [[sum(a * b for a, b in zip(row, row, strict=True)) for _ in range(4)] for row in x.tolist()]
    return model.first(torch.tensor(rows))


def number_by_number(model: Two, x: Any) -> Any:
    sums = [x[row, 0].item() * x[row, 1].item() for row in range(6)]
    return model.first(x) * torch.tensor(sums)[:, None]


def later(model: Two, x: Any) -> Iterator[Any]:
    yield model.first(x)
    yield model.second(x)


def a_function(model: Two, x: Any) -> Any:
    return {"first": model.first(x), "rest": lambda: model.second(x)}


class Promise:
    """Holds no tensor yet."""

    def __init__(self, model: Two) -> None:
        self.model = model


def a_promise(model: Two, x: Any) -> Any:
    return Promise(model)


class Head(Promise):
    """Holds a tensor, and computes with the model when a property is read."""

    value: Any

    @property
    def scores(self) -> Any:
        return self.model.second(self.value)


def a_property_of_the_model(model: Two, x: Any) -> Any:
    held = Head(model)
    held.value = model.first(x)
    return held


class Lazy:
    """Rows that are computed when an index is read."""

    def __init__(self, layer: Any, x: Any) -> None:
        self.layer, self.x = layer, x

    def __getitem__(self, index: int) -> Any:
        return self.x[index] @ self.layer.weight


def rows_on_demand(model: Two, x: Any) -> Any:
    return Lazy(model.second, x)


def products_on_demand(model: Two, x: Any) -> Any:
    return Lazy(SimpleNamespace(weight=model.second.weight), x)


def property_of_a_local_class(model: Two, x: Any) -> Any:
    class Outcome:
        code = model.first(x)

        def __init__(self) -> None:
            self.value = self.code

        @property
        def logits(self) -> Any:
            return model.second(self.value)

    return Outcome()


def tensor_of_a_local_class(model: Two, x: Any) -> Any:
    weight = model.second.weight

    class Projected(torch.Tensor):
        def project(self) -> Any:
            return self @ weight

    return model.first(x).as_subclass(Projected)


def result_is_dropped(model: Two, x: Any) -> Any:
    thread = threading.Thread(target=model.second, args=(x,))
    thread.start()
    thread.join()
    return model.first(x)


POOL = ThreadPoolExecutor(1)
POOL.submit(int).result()


def into_a_known_tensor(model: Two, x: Any) -> Any:
    # the thread of the pool runs already
    made = torch.empty(6, 4)
    POOL.submit(lambda: torch.mm(x, model.second.weight.detach(), out=made)).result()
    return model.first(made)


def into_the_array(model: Two, x: Any) -> Any:
    array = x.detach().clone().numpy()
    array[:] = array @ np.ones((4, 4), np.float32)
    return model.first(torch.from_numpy(array))


def into_memory_of_a_tensor(model: Two, x: Any) -> Any:
    made = torch.empty(6, 4)
    made.numpy()[:] = x.detach().numpy() * 2
    return model.first(made)


def as_a_factor(model: Two, x: Any) -> Any:
    return model.first(x) * sum(a * b for row in x.tolist() for a, b in zip(row, row, strict=True))


def sum_of_items(model: Two, x: Any) -> Any:
    total = 0.0
    for row in x:
        total += row[0].item() * row[1].item()
    return model.first(x) + total


def by_address(model: Two, x: Any) -> Any:
    y = model.first(x)
    ctypes.c_void_p(y.data_ptr())
    return y


def by_compared_call(model: Two, x: Any) -> Any:
    # code outside torch gets the address, and its result is compared
    return model.first(x) if hash(x.data_ptr()) == 0 else model.first(x + 1)


def by_assigned_address(model: Two, x: Any) -> Any:
    return model.first(x) if (address := x.data_ptr()) == 1 or ctypes.c_void_p(address) else None


def by_address_of_storage(model: Two, x: Any) -> Any:
    places = [x.untyped_storage().data_ptr(), x.storage().data_ptr()]
    return model.first(x) if places else None


def bytes_of_storage(model: Two, x: Any) -> Any:
    return model.first(x) * (len(bytes(x.untyped_storage()[:4])) if x.untyped_storage() else 1)


def numbers_of_storage(model: Two, x: Any) -> Any:
    return model.first(x) * (x.storage()[0] if x.storage().size() else 1)


def in_a_text(model: Two, x: Any) -> Any:
    return one_or_two(model, x, "meta" in repr(x))


def in_a_formatted_text(model: Two, x: Any) -> Any:
    return model.first(x) * float(f"{x.sum(0)}".strip("tensor([.").isdigit())


def pickled(model: Two, x: Any) -> Any:
    return model.first(x) * (pickle.dumps({"rows": [x]})[0] > 1)


def reduced(model: Two, x: Any) -> Any:
    build, arguments = x.__reduce_ex__(4)[:2]
    return model.first(x) if callable(build) and arguments else None


def saved(model: Two, x: Any) -> Any:
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    return model.first(x) * len(file.getvalue())


def texts_of_elements(model: Two, x: Any) -> Any:
    return model.first(x) * len(",".join(str(number) for number in x[0]))


def elements_in_several_lines(model: Two, x: Any) -> Any:
    left = x[0, 0].item()
    right = x[0, 1].item()
    return model.first(x) * left * right


def operator_without_result(model: Two, x: Any) -> Any:
    torch.ops.explorer_tests.consume(model.first(x))
    return model.first(x)


def operator_with_a_number(model: Two, x: Any) -> Any:
    return model.first(x) * torch.ops.explorer_tests.measure(x)


LIBRARY = torch.library.Library("explorer_tests", "DEF")
LIBRARY.define("consume(Tensor x) -> ()")
LIBRARY.impl("consume", lambda x: None, "Meta")
LIBRARY.define("measure(Tensor x) -> float")
LIBRARY.impl("measure", lambda x: 1.0, "Meta")


@pytest.mark.parametrize("function", [operator_without_result, operator_with_a_number])
def test_an_operator_of_a_library_without_a_tensor_as_result_is_unknown(
    function: Callable[..., Any],
) -> None:
    totals = info(function).totals
    assert totals.status == "unknown"
    assert totals.coverage < 1
    assert any("explorer_tests::" in reason for reason in reasons(function))


def constants_in_numpy(model: Two, x: Any) -> Any:
    table = np.arange(24, dtype=np.float32).reshape(6, 4) @ np.eye(4, dtype=np.float32)
    return model.second(model.first(x + torch.from_numpy(table)))


def integers(model: Two, x: Any) -> Any:
    numbers = (x[:, 0] * 100).long().tolist()
    return model.second(model.first(x)) + sum(a * b for a in numbers for b in numbers)


def caught_error(model: Two, x: Any) -> Any:
    try:
        torch.linalg.cholesky(x[:4])
    except RuntimeError:
        return model.first(x)
    return model.second(model.first(x))


def copied(model: Two, x: Any) -> Any:
    return model.second(copy.copy(copy.deepcopy(model.first(copy.copy(x)))))


@pytest.mark.parametrize("function", [constants_in_numpy, integers, copied])
def test_work_that_leaves_no_trace_counts_as_the_work_of_torch(function: Callable[..., Any]) -> None:
    totals = info(function).totals
    assert (totals.macs, totals.status) == (2 * 6 * 4 * 4, "exact")


def test_an_operator_that_fails_on_some_values_only_is_taken_to_succeed() -> None:
    products = [row.macs for row in _layers(caught_error) if row.path in ("first", "second")]
    assert products == [6 * 4 * 4, 6 * 4 * 4]


def in_an_object(model: Two, x: Any) -> Any:
    return SimpleNamespace(first=model.first(x), rest=lambda: model.second(x))


@pytest.mark.parametrize(
    "function",
    [
        result_is_dropped,
        into_a_known_tensor,
        into_the_array,
        into_memory_of_a_tensor,
        as_a_factor,
        sum_of_items,
        by_address,
        by_compared_call,
        by_assigned_address,
        by_address_of_storage,
        bytes_of_storage,
        numbers_of_storage,
        pickled,
        reduced,
        saved,
        texts_of_elements,
        elements_in_several_lines,
        in_a_text,
        in_a_formatted_text,
        in_an_object,
        in_a_thread,
        a_modules_thread,
        in_numpy,
        numpy_result,
        in_python,
        number_by_number,
        later,
        a_function,
        a_promise,
        a_property_of_the_model,
        rows_on_demand,
        products_on_demand,
        property_of_a_local_class,
        tensor_of_a_local_class,
    ],
)
def test_work_that_is_not_seen_makes_a_lower_bound_with_its_reason(function: Callable[..., Any]) -> None:
    totals = info(function).totals
    # numbers that Python read were taken as 1, which may be more or less
    assert totals.status in ("unknown", "assumed")
    assert totals.sign in (">= ", "~ ")
    assert totals.coverage < 1
    assert any("lower bounds" in reason or "not counted" in reason for reason in reasons(function))


def test_a_module_that_does_not_run_is_unknown_if_other_work_was_not_seen() -> None:
    with Session(Two(in_numpy), inputs=(torch.rand(6, 4),), cache=False) as session:
        rows = {row.path: row for row in session.analysis().layers}
    assert (rows["first"].status, rows["second"].status, rows["second"].macs) == ("exact", "unknown", None)
    assert rows["second"].reason


# -- what only looks like it


def untouched(model: Two, x: Any) -> Any:
    return model.second(model.first(torch.from_numpy(x.detach().numpy())))


def sizes(model: Two, x: Any) -> Any:
    rows = torch.tensor([3, 3]).tolist()
    return torch.cat([model.second(model.first(part)) for part in x.split(rows)])


def one_number(model: Two, x: Any) -> Any:
    return model.second(model.first(x)) * x.max().item()


def constants(model: Two, x: Any) -> Any:
    return model.second(model.first(x)) + torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.from_numpy(np.ones(4))


def ends_early(model: Two, x: Any) -> Any:
    for _ in range(2):
        x = model.second(model.first(x)) if x.max().item() > 2 else x
    return model.second(model.first(x))


def an_object(model: Two, x: Any) -> Any:
    held = Promise(model)
    held.value = [model.second(model.first(x))]  # type: ignore[attr-defined]
    return held


def an_object_of_a_local_class(model: Two, x: Any) -> Any:
    scale = 2.0

    class Outcome:
        def __init__(self, value: Any) -> None:
            self.value = value

        def scaled(self) -> Any:
            return self.value * scale

    return Outcome(model.second(model.first(x)))


def a_message(model: Two, x: Any) -> Any:
    assert x.shape[0] == 6, f"{x.shape[0]} rows, the largest number is {x.max()}, a mean of {x.mean()!r}"
    return model.second(model.first(x)) if f"at most {x.max()}" else x


def a_number(model: Two, x: Any) -> Any:
    return float(model.second(model.first(x)).sum())


@pytest.mark.parametrize(
    "function",
    [untouched, sizes, one_number, constants, an_object, an_object_of_a_local_class, a_message, a_number],
)
def test_values_that_are_only_handed_on_leave_the_count_exact(function: Callable[..., Any]) -> None:
    totals = info(function).totals
    assert (totals.macs, totals.status, totals.coverage) == (2 * 6 * 4 * 4, "exact", 1.0)


def logs_a_number(model: Two, x: Any) -> Any:
    y = model.second(model.first(x))
    print(f"mean {y.mean():.3f}, at most {y.max():>8.2e}, first {y[0, 0].detach():g}")
    return y


def test_a_formatted_number_changes_nothing() -> None:
    totals = info(logs_a_number).totals
    assert (totals.macs, totals.status, totals.coverage) == (2 * 6 * 4 * 4, "exact", 1.0)


def test_a_branch_on_a_formatted_number_is_an_assumption() -> None:
    totals = info(lambda model, x: model.second(x) if f"{x.mean():.1f}" == "37.5" else x).totals
    assert (totals.macs, totals.status) == (6 * 4 * 4, "assumed")


def test_a_number_that_is_compared_with_a_limit_is_not_worked_on() -> None:
    totals = info(ends_early).totals
    assert (totals.sign, totals.coverage) == ("~ ", 1.0)


# -- the device


def stored_device(model: Two, x: Any) -> Any:
    device = model.first.weight.device
    shift = torch.zeros(4, device=device)
    return model.first(x) + shift if device.type == "cpu" else model.second(model.first(x))


def is_processor(device: Any) -> bool:
    return bool(device.type == "cpu")


def one_or_two(model: Two, x: Any, condition: bool) -> Any:
    return model.first(x) if condition else model.second(model.first(x))


def made_beside(model: Two, x: Any) -> Any:
    places = {"device": x.device}
    generator = torch.Generator(device=x.device)
    noise = torch.rand(4, generator=generator, **places)
    shift = torch.zeros(4, **places) + torch.arange(4, device=model.first.weight.device).to(x.device)
    return model.first(x + shift + noise)


@pytest.mark.parametrize(
    "function",
    [
        lambda model, x: model.first(x) if x.is_cpu else model.second(model.first(x)),
        lambda model, x: (
            model.second(model.first(x)) if x.device.type in ("cuda", "meta") else model.first(x)
        ),
        lambda model, x: model.first(x) if x.device == torch.device("cpu") else model.second(model.first(x)),
        lambda model, x: model.second(model.first(x)) if x.is_cuda else model.first(x),
        stored_device,
        lambda model, x: model.first(x) if is_processor(x.device) else model.second(model.first(x)),
        lambda model, x: (
            model.first(x) if [str(t.device) for t in (x,)] == ["cpu"] else model.second(model.first(x))
        ),
        lambda model, x: model.second(model.first(x)) if x.is_meta else model.first(x),
        lambda model, x: model.first(x) if x.type() == "torch.FloatTensor" else model.second(model.first(x)),
        made_beside,
        lambda model, x: one_or_two(model, x, x.storage().untyped().device.type == "cpu"),
        lambda model, x: one_or_two(model, x, model.first.weight.untyped_storage().device.type == "cpu"),
        lambda model, x: one_or_two(model, x, x.storage().type() == "torch.FloatStorage"),
        lambda model, x: one_or_two(model, x, x.storage_type() is torch.FloatStorage),
        lambda model, x: one_or_two(model, x, torch.device(x.device).type == "cpu"),
        lambda model, x: one_or_two(model, x, int(x.__dlpack_device__()[0]) == 1),
        lambda model, x: one_or_two(model, x, x.cpu() is x and x.to(device="cpu") is x),
        lambda model, x: one_or_two(model, x, torch.typename(x) == "torch.FloatTensor"),
        lambda model, x: one_or_two(model, x, isinstance(x, torch.FloatTensor)),
        lambda model, x: one_or_two(
            model, x, not isinstance(x, (torch.DoubleTensor, torch.cuda.FloatTensor))
        ),
        lambda model, x: one_or_two(model, x, isinstance(torch.LongTensor([1, 2]), torch.LongTensor)),
    ],
)
def test_a_branch_on_the_device_goes_the_way_of_the_processor(function: Callable[..., Any]) -> None:
    totals = info(function).totals
    assert (totals.macs, totals.status) == (6 * 4 * 4, "exact")


@torch.jit.script
def scripted_by_device(x: torch.Tensor, weight: torch.Tensor):  # type: ignore[no-untyped-def]
    if x.is_cuda or x.device.type == "xpu":
        x = x @ weight
    if x.is_meta:
        return x @ weight @ weight
    return x @ weight


@torch.jit.script
def scripted_by_cuda(x: torch.Tensor, weight: torch.Tensor):  # type: ignore[no-untyped-def]
    if x.is_cuda or x.device.type == "cuda":
        x = x @ weight
    return x @ weight + torch.zeros(4, device=x.device)


def test_a_branch_on_the_device_in_torchscript_is_not_counted_as_exact() -> None:
    unknown = info(lambda model, x: scripted_by_device(model.first(x), model.second.weight)).totals
    assert (unknown.macs, unknown.status) == (6 * 4 * 4, "unknown")
    assert any(
        "'scripted_by_device' branches on the device" in reason
        for reason in reasons(lambda model, x: scripted_by_device(model.first(x), model.second.weight))
    )
    known = info(lambda model, x: scripted_by_cuda(model.first(x), model.second.weight)).totals
    assert (known.macs, known.status) == (2 * 6 * 4 * 4, "exact")


# -- the memory of a tensor


def address_in_variable(model: Two, x: Any) -> Any:
    address = x.data_ptr()
    return one_or_two(model, x, address == x.view(-1).data_ptr() and address % 16 == 0)


@pytest.mark.parametrize(
    "function",
    [
        lambda model, x: one_or_two(model, x, x.untyped_storage().nbytes() == 96),
        lambda model, x: one_or_two(model, x, len(x[2:].storage()) == 24),
        lambda model, x: one_or_two(model, x, x.storage().dtype == torch.float32),
        lambda model, x: one_or_two(model, x, x.t().is_set_to(x.t()) and not x.t().is_set_to(x)),
        lambda model, x: one_or_two(model, x, (x + 1).data_ptr() != x.data_ptr()),
        lambda model, x: one_or_two(model, x, x[1:].data_ptr() - x.data_ptr() == 16),
        lambda model, x: one_or_two(
            model, x, x[1:].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        ),
        address_in_variable,
    ],
)
def test_a_question_about_the_memory_of_a_tensor_gets_the_answer_of_the_processor(
    function: Callable[..., Any],
) -> None:
    totals = info(function).totals
    assert (totals.macs, totals.status) == (6 * 4 * 4, "exact")


@pytest.mark.parametrize(
    "move",
    [
        lambda x: x.cpu(),
        lambda x: x.to("cpu"),
        lambda x: x.to(device=torch.device("cpu"), dtype=torch.float32),
        lambda x: x.type("torch.FloatTensor"),
        lambda x: x.type(torch.FloatTensor),
    ],
)
def test_a_move_to_the_processor_copies_nothing(move: Callable[[Any], Any]) -> None:
    moved = info(lambda model, x: model.second(move(model.first(x)))).totals
    plain = info(lambda model, x: model.second(model.first(x))).totals
    assert (moved.bytes_read, moved.bytes_written, moved.nodes) == (
        plain.bytes_read,
        plain.bytes_written,
        plain.nodes,
    )


def test_the_memory_of_a_step_follows_the_branch_of_the_processor() -> None:
    def kept(function: Callable[..., Any]) -> int | None:
        with Session(Two(function), inputs=(torch.rand(6, 4),), cache=False) as session:
            return session.training_memory().steps[0].kept_bytes

    by_storage = kept(lambda model, x: one_or_two(model, x, x.untyped_storage().device.type == "cpu"))
    by_address = kept(lambda model, x: one_or_two(model, x, (x + 1).data_ptr() != x.data_ptr()))
    assert by_storage == by_address == kept(lambda model, x: model.first(x))
    assert by_storage != kept(lambda model, x: model.second(model.first(x)))


def test_storages_are_as_before_after_a_run() -> None:
    def attributes() -> list[Any]:
        owners = (torch.UntypedStorage, torch.TypedStorage, torch.Tensor)
        return [type(torch.FloatTensor), *(dict(vars(owner)) for owner in owners)]

    before = attributes()
    info(by_address_of_storage)
    assert before == attributes()


# -- gradients of functions that the model defines


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad @ torch.ones(4, 4) * 2


def training(function: Callable[..., Any]) -> Training:
    with Session(Two(function), inputs=(torch.rand(6, 4),), cache=False) as session:
        return session.training()


@pytest.mark.parametrize(
    "function",
    [
        lambda model, x: Twice.apply(model.first(x)),
        lambda model, x: model.second(Twice.apply(model.first(x))),
        lambda model, x: checkpoint(model.second, model.first(x), use_reentrant=True),
    ],
)
def test_a_backward_that_the_model_defines_is_not_known(function: Callable[..., Any]) -> None:
    fact = training(function)
    assert fact.coverage < 1
    assert any("autograd function of the model" in row.reason for row in fact.layers)


def hooked_activation(model: Two, x: Any) -> Any:
    y = model.first(x)
    if y.requires_grad:
        y.register_hook(lambda grad: grad @ torch.ones(4, 4))
    return model.second(y)


def test_a_tensor_whose_gradient_a_forward_asks_for_is_no_parameter() -> None:
    def force(model: Two, x: Any) -> Any:
        with torch.enable_grad():
            place = x.detach().requires_grad_()
            return torch.autograd.grad(model.second(model.first(place)).sum(), place)[0]

    fact = info(force)
    # two products forward, and the gradient of the input of each
    assert (fact.totals.macs, fact.totals.status) == (4 * 6 * 4 * 4, "exact")
    assert not [note for note in fact.model.notes if "belong to no module" in note]


def test_a_hook_on_a_gradient_may_compute_anything() -> None:
    fact = training(hooked_activation)
    assert fact.coverage < 1
    assert any("with a hook" in row.reason for row in fact.layers)
    model = Two(lambda model, x: model.second(model.first(x)))
    model.first.weight.register_hook(lambda grad: grad @ torch.ones(4, 4))
    with Session(model, inputs=(torch.rand(6, 4),), cache=False) as session:
        fact = session.training()
    assert [bool(row.reason) for row in fact.layers if row.forward_macs] == [True, False]


def hooked_result(model: Two, x: Any) -> Any:
    y = model.second(model.first(x))
    if y.requires_grad:
        y.register_hook(lambda grad: grad @ torch.ones(4, 4))
    return y


def computed_again(model: Two, x: Any) -> Any:
    return model.second(checkpoint(model.first, x, use_reentrant=False))


def compressed(model: Two, x: Any) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.half(), lambda t: t.float() @ torch.eye(4)):
        return model.second(model.first(x))


@pytest.mark.parametrize("function", [hooked_result, computed_again, compressed])
def test_work_of_hooks_in_the_backward_pass_is_not_known(function: Callable[..., Any]) -> None:
    fact = training(function)
    assert fact.coverage < 1
    assert any("hook" in row.reason for row in fact.layers)


def kept_elsewhere(model: Two, x: Any) -> Any:
    with torch.autograd.graph.save_on_cpu():
        return model.second(model.first(x))


def test_hooks_that_only_move_tensors_leave_the_count_exact() -> None:
    fact = training(kept_elsewhere)
    assert (fact.coverage, fact.backward_macs) == (1, 3 * 6 * 4 * 4)


def derivative(model: Two, x: Any) -> Any:
    return model.second(torch.func.grad(lambda y: model.first(y).sum())(x))


def test_a_derivative_in_the_forward_counts_its_products() -> None:
    totals = info(derivative).totals
    assert (totals.macs, totals.status) == (3 * 6 * 4 * 4, "exact")
    fact = training(derivative)
    assert fact.backward_macs is None
    assert fact.param_bytes == totals.weight_bytes


def test_a_function_of_the_model_that_no_gradient_runs_through_is_in_no_doubt() -> None:
    fact = training(lambda model, x: model.first(x) + Twice.apply(model.second(x)).detach())
    assert fact.coverage == 1


def test_tensors_of_a_cache_are_found_by_its_layers_and_objects_in_a_circle_end() -> None:
    keys, values = torch.zeros(2), torch.ones(3)
    layer = SimpleNamespace(keys=keys, windows=[{"values": (values,)}])
    cache = SimpleNamespace(own=SimpleNamespace(layers=[layer]))
    layer.cache = cache
    assert [id(one) for one in find_tensors([[], {"cache": cache}])] == [id(keys), id(values)]


class Updating(nn.Module):
    """Writes into the tensor of the object that it takes, and returns it, as mamba does."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)

    def forward(self, x: Any, state: Any) -> Any:
        state.last.copy_(x)
        return self.first(x), state


def test_an_argument_that_a_model_returns_is_no_later_computation() -> None:
    state = SimpleNamespace(last=torch.zeros(6, 4))
    with Session(Updating(), inputs=(torch.rand(6, 4), state), cache=False) as session:
        totals = session.info().totals
    assert (totals.macs, totals.status) == (96, "exact")


class Pair(NamedTuple):
    """Two tensors without methods."""

    left: Any
    right: Any


class Product(Pair):
    """Multiplies its tensors when a property is read."""

    @property
    def value(self) -> Any:
        return self.left @ self.right


class Scores(dict[str, Any]):
    """Multiplies its tensors in a method."""

    def similarity(self) -> Any:
        return torch.einsum("ik,jk->ij", self["queries"], self["keys"])


class Scaled(Pair):
    """Has methods that multiply no matrices."""

    @property
    def half(self) -> Any:
        return self.left / 2

    def __len__(self) -> int:
        return 2


def _multiply(pair: Pair) -> Any:
    return pair.left @ pair.right


class Hidden(Pair):
    """Multiplies in a function that its property calls."""

    @property
    def value(self) -> Any:
        return _multiply(self)


class OnDemand(dict[str, Any]):
    """Calls a function of its own for each key that it lacks."""

    def __missing__(self, key: str) -> Any:
        return self.compute(key)  # type: ignore[attr-defined]


class Rest(list[Any]):
    """Has attributes besides its elements."""


class Reading:
    """Computes when an attribute is read."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return instance.layer(instance.value)


class Read:
    """Has an attribute that computes, and no method."""

    scores = Reading()

    def __init__(self, layer: Any, value: Any) -> None:
        self.layer, self.value = layer, value


class Slots:
    """Keeps its attributes outside of `__dict__`."""

    __slots__ = ("__value", "other")

    def __init__(self, value: Any) -> None:
        self.__value = value

    def half(self) -> Any:
        return self.__value / 2


class Forwarding:
    """Answers any attribute with an error of its own."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


def with_attribute(value: Any, name: str, attribute: Any) -> Any:
    setattr(value, name, attribute)
    return value


@pytest.mark.parametrize(
    "function",
    [
        lambda model, x: Product(x, model.second.weight),
        lambda model, x: Product(model.first(x), model.second(x)),
        lambda model, x: {"outputs": [Product(model.first(x), x)]},
        lambda model, x: Scores(queries=model.first(x), keys=model.second(x)),
        lambda model, x: Scaled(model.first(x), model.second.weight),
        lambda model, x: defaultdict(lambda: model.second(x), first=model.first(x)),
        lambda model, x: [SimpleNamespace(rows=defaultdict(lambda: model.second(x)), first=model.first(x))],
        lambda model, x: with_attribute(OnDemand(a=model.first(x)), "compute", lambda _: model.second(x)),
        lambda model, x: with_attribute(Rest([model.first(x)]), "rest", lambda: model.second(x)),
        lambda model, x: with_attribute(model.first(x), "rest", lambda: model.second(x)),
        lambda model, x: Read(model.second, model.first(x)),
    ],
)
def test_a_returned_container_that_multiplies_later_makes_the_count_a_lower_bound(
    function: Callable[..., Any],
) -> None:
    assert info(function).totals.sign == ">= "
    assert any("computes when it is read" in reason for reason in reasons(function))


@pytest.mark.parametrize(
    "function",
    [
        lambda model, x: Pair(model.first(x), model.second(x)),
        lambda model, x: Pair(model.first(x), model.second(x) @ model.first.weight)[:1],
        lambda model, x: Scaled(model.first(x), model.second(x)),
        lambda model, x: Hidden(model.first(x), model.second(x)),
        lambda model, x: Slots(model.second(model.first(x))),
        lambda model, x: Forwarding(model.second(model.first(x))),
        lambda model, x: defaultdict(list, rows=[model.second(model.first(x))]),
        lambda model, x: with_attribute(Rest([model.second(model.first(x))]), "scale", 2.0),
        lambda model, x: (
            model.second(model.first(x)),
            x.dtype,
            x.device,
            np.float32(2),
            range(2),
            nn.Linear,
        ),
    ],
)
def test_a_returned_container_without_products_of_its_own_leaves_the_count_exact(
    function: Callable[..., Any],
) -> None:
    totals = info(function).totals
    assert (totals.sign, totals.status) == ("", "exact")


def test_a_step_behind_a_cache_of_transformers_is_exact() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).eval()
    with Session(model, past=9, cache=False) as session:
        analysis = session.analysis()
    assert [row.reason for row in analysis.layers if row.status == "unknown"] == []
    assert analysis.info.totals.coverage == 1
