"""Functions in a module's attributes that use the module run the copy that is counted, not the original."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from explorer import BadModel, Session  # noqa: E402


class Base(nn.Module):
    """A product, then a second one through `second`, which subclasses define."""

    second: Callable[..., Any]

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 9), nn.Linear(9, 4)

    def forward(self, x: Any) -> Any:
        return self.second(self.one(x)).sin()


class Lambda(Base):
    def __init__(self) -> None:
        super().__init__()
        self.second = lambda y: self.two(y)


class Default(Base):
    def __init__(self) -> None:
        super().__init__()
        self.table = {"heads": [lambda y, *, head=self.two: head(y)]}

    def second(self, y: Any) -> Any:
        return self.table["heads"][0](y)


class Wrapped(Base):
    """Its `forward` is wrapped as libraries do that move tensors between devices."""

    def __init__(self) -> None:
        super().__init__()
        forward = self.forward

        @functools.wraps(forward)
        def watched(*args: Any) -> Any:
            return forward(*args)

        self.forward = watched

    def second(self, y: Any) -> Any:
        return self.two(y)


class Weight(Base):
    """A function that uses a parameter of the module, inside of another function."""

    def __init__(self) -> None:
        super().__init__()
        weight, bias = self.two.weight, self.two.bias
        self.second = functools.partial(lambda f, y: f(y), lambda y: nn.functional.linear(y, weight, bias))


class Hook(Base):
    def __init__(self) -> None:
        super().__init__()
        self.one.register_forward_hook(lambda module, inputs, output: self.two(output))
        self.second = nn.Identity()


class Compiled(Base):
    def __init__(self) -> None:
        super().__init__()
        self.second = torch.compile(self.last)

    def last(self, y: Any) -> Any:
        return self.two(y)


@pytest.mark.parametrize("make", [Lambda, Default, Wrapped, Weight, Hook, Compiled])
def test_functions_use_the_counted_modules(make: Callable[[], Any]) -> None:
    model = make()
    with Session(model, inputs=torch.zeros(3, 6), cache=False) as session:
        analysis, step = session.analysis(), session.training()
        memory = session.training_memory(measured=True).steps[0]
    assert analysis.info.model.notes == ()
    assert sum(layer.params for layer in analysis.layers if layer.macs) == 6 * 9 + 9 + 9 * 4 + 4
    assert (step.forward_macs, step.backward_macs) == (3 * 6 * 9 + 3 * 9 * 4, 3 * 6 * 9 + 2 * 3 * 9 * 4)
    assert (memory.counted, memory.kept_bytes) == ("autograd", 4 * 3 * (9 + 4))
    assert all(parameter.grad is None for parameter in model.parameters())


OUTSIDE = nn.Linear(9, 4)


class UsesGlobal(Base):
    def second(self, y: Any) -> Any:
        return OUTSIDE(y)


def test_the_gradient_of_a_layer_outside_the_model_is_counted() -> None:
    with Session(UsesGlobal(), inputs=torch.zeros(3, 6), cache=False) as session:
        assert session.training().backward_macs == 3 * 6 * 9 + 2 * 3 * 9 * 4


def test_a_masked_weight_may_be_converted_by_the_model() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            values, mask = torch.ones(5, 7), torch.arange(35).reshape(5, 7) % 2 == 0
            self.weight = nn.Parameter(torch.masked.masked_tensor(values, mask))

        def forward(self, x: Any) -> Any:
            return x @ self.weight.get_data() + x @ self.weight.to_tensor(0.0)

    with Session(Masked(), inputs=torch.zeros(3, 5), cache=False) as session:
        totals = session.info().totals
    assert (totals.macs, totals.params, totals.coverage) == (2 * 3 * 5 * 7, 35, 1.0)


def test_a_sharded_model_is_refused_with_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    model = nn.Sequential(nn.Linear(6, 9))
    monkeypatch.setattr(fsdp, "FSDPModule", nn.Linear)
    with Session(model, inputs=torch.zeros(3, 6), cache=False) as session, pytest.raises(BadModel) as caught:
        session.info()
    assert caught.value.hint == "open the model before `fully_shard`"
