"""torch without what is assumed of it: a slower way that says the same, or one clear line."""

from __future__ import annotations

import importlib
import threading
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from explorer import Session  # noqa: E402
from explorer.base.errors import BadModel  # noqa: E402
from explorer.engine.compat import torch as compat  # noqa: E402
from explorer.engine.costs.torch import layer_cache  # noqa: E402

SHAPES = {"x": ("float32", (2, 4, 16))}


class Small(nn.Module):
    """Layers twice, a tied weight, a buffer, attention and an activation in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.register_buffer("scale", torch.ones(16))
        self.register_parameter("none", None)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.second(self.first(x))) * self.scale
        x, _ = self.attention(x, x, x)
        return self.norm(x.flatten(0, 1))


def figures(model: nn.Module) -> Any:
    layer_cache.forget()
    session = Session(model, input_shapes=SHAPES)
    analysis = session.analysis()
    rows = [(row.path, row.kind, row.macs, row.params, row.elementwise_ops) for row in analysis.layers]
    return analysis.info.totals, rows


@pytest.mark.parametrize(
    "name",
    [
        "_len_torch_function_stack",
        "_len_torch_dispatch_stack",
        "_pop_torch_function_stack",
        "_DisableTorchDispatch",
        "_is_any_autocast_enabled",
        "_global_forward_hooks",
    ],
)
def test_without_it_figures_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = figures(Small())
    # torch's own code uses the same names: only what is asked here lacks them
    monkeypatch.setattr(compat, "torch", without(torch, (name,)))
    monkeypatch.setattr(compat, "torch_module", without(compat.torch_module, (name,)))
    assert figures(Small()) == before


def without(module: Any, names: tuple[str, ...]) -> Any:
    """torch, whose `_C` has not these names."""

    class Lacking:
        def __init__(self, of: Any, gone: tuple[str, ...] = ()) -> None:
            self.of, self.gone = of, gone

        def __getattr__(self, name: str) -> Any:
            if name in self.gone:
                raise AttributeError(name, name=name, obj=self.of)
            return Lacking(self.of._C, names) if name == "_C" else getattr(self.of, name)

    return Lacking(module, names)


class Bare:
    """A module that does not keep what it has where torch's do."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def named_parameters(self, **options: Any) -> Any:
        return self.module.named_parameters(**options)

    def named_buffers(self, **options: Any) -> Any:
        return self.module.named_buffers(**options)

    def named_modules(self, **options: Any) -> Any:
        return self.module.named_modules(**options)


def test_what_a_module_has_is_told_without_its_dictionaries() -> None:
    model = Small()
    bare: Any = Bare(model)
    given = {name: value for name, value in compat.parameters_of(model).items() if value is not None}
    assert compat.parameters_of(bare) == given
    assert compat.buffers_of(bare) == compat.buffers_of(model)
    assert compat.children_of(bare) == compat.children_of(model)
    with pytest.raises(BadModel, match="it does not list the hooks of a module"):
        compat.list_forward_pre_hooks(bare)
    with pytest.raises(BadModel, match="its modules keep their tensors in another place"):
        compat.get_module_dicts(bare)


def test_storages_are_told_apart_without_their_address() -> None:
    class Storage:
        def __init__(self, of: Any) -> None:
            self.of = of

        def _weak_ref(self) -> Any:
            return self.of._weak_ref()

    whole = torch.zeros(4, device="meta")
    other = torch.zeros(4, device="meta")
    keys = [compat.storage_key(Storage(one.untyped_storage())) for one in (whole, whole[1:], other)]
    assert keys[0] == keys[1] != keys[2]
    assert compat.storage_key(whole.untyped_storage()) == compat.storage_key(whole[1:].untyped_storage())


def test_the_schema_of_an_operator_is_found_by_its_name() -> None:
    for operator in (torch.ops.aten.add.Tensor, torch.ops.aten.relu.default):
        named: Any = SimpleNamespace(name=operator.name)
        assert str(compat.schema_of(named)) == str(compat.schema_of(operator))


def test_leaves_are_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [1, (2, {"a": 3, "b": [4, None]}), torch.Size((5, 6))]
    whole = compat.leaves(values)
    monkeypatch.delattr("torch.utils._pytree.tree_leaves")
    assert compat.leaves(values) == whole == [1, 2, 3, 4, None, 5, 6]


def test_without_the_way_past_those_who_watch_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch.utils._python_dispatch._disable_current_modes")
    with (
        pytest.raises(BadModel, match="cannot switch off the modes that watch its operators"),
        compat.hide_from_modes(),
    ):
        pass


def test_a_layer_with_other_tensors_computes_the_same_without_its_dictionary() -> None:
    layer, weight, x = nn.Linear(3, 2), torch.ones(2, 3), torch.ones(1, 3)
    twin = compat.copy_with_tensors(layer, {"weight": weight, "bias": None})
    assert nn.Linear.forward(twin, x).tolist() == [[3.0, 3.0]]
    assert layer.bias is not None

    class Odd(nn.Linear):
        """Keeps its parameters elsewhere, as far as `vars` says."""

        __slots__ = ()

    odd = Odd(3, 2)
    held = vars(odd).pop("_parameters")
    object.__setattr__(odd, "_parameters", held)
    twin = compat.copy_with_tensors(odd, {"weight": weight, "bias": None})
    assert nn.Linear.forward(twin, x).tolist() == [[3.0, 3.0]]


@pytest.mark.parametrize("names", [("_autograd",), ("_current_autograd_node",)])
def test_a_step_of_training_has_the_same_memory_without_numbers_of_steps(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def step() -> Any:
        (fact,) = Session(Small(), input_shapes=SHAPES).training_memory().steps
        return fact

    before = step()
    monkeypatch.setattr(compat, "torch", without(torch, names))
    after = step()
    assert after.counted == "autograd"
    assert (after.peak_bytes, after.kept_bytes) == (before.peak_bytes, before.kept_bytes)


def test_threads_that_end_in_another_order_leave_the_compiler_as_it_was() -> None:
    importlib.import_module("torch._dynamo")
    first, second = threading.Event(), threading.Event()

    def outer() -> None:
        with compat.disable_compilation():
            first.set()
            second.wait(10)

    thread = threading.Thread(target=outer)
    thread.start()
    first.wait(10)
    with compat.disable_compilation():
        assert torch.compile(len) is len
        second.set()
        thread.join(10)
    compiled = torch.compile(lambda x: x + 1, backend=lambda graph, inputs: lambda *given: (given[0] + 5,))
    assert compiled(torch.zeros(())) == 5, "what is compiled runs compiled again"
