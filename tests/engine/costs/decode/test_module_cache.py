"""The cache argument of a forward: found by annotation, by name or by what the forward returns."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional, Union

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from explorer.base.errors import Misuse  # noqa: E402
from explorer.engine.costs.decode import module_cache, module_step  # noqa: E402

WIDTH, WORDS = 16, 40


class KeyCache:
    """Keys and values of one layer, as somebody writes them."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []


class Output(NamedTuple):
    """What a forward returns, with a cache under a name of its own."""

    logits: torch.Tensor
    memory: Any


@dataclass
class Answer:
    """What a forward returns, as an object."""

    logits: torch.Tensor
    kept: Any


class Attention(nn.Module):
    """One layer of attention with its embedding and head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.projection = nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def attend(self, ids: torch.Tensor, cache: Any) -> tuple[torch.Tensor, Any]:
        q, k, v = self.projection(self.table(ids)).chunk(3, -1)
        cache = cache or KeyCache()
        if cache.tensors:
            k, v = (torch.cat(pair, 1) for pair in zip(cache.tensors, (k, v), strict=True))
        cache.tensors = [k, v]
        return self.head(torch.softmax(q @ k.mT, -1) @ v), cache


class Annotated(Attention):
    def forward(self, input_ids: torch.Tensor, kv: KeyCache | None = None) -> dict[str, Any]:
        logits, cache = self.attend(input_ids, kv)
        return {"logits": logits, "kv": cache}


class OptionalText(Attention):
    def forward(self, input_ids: torch.Tensor, seen: Optional["KeyCache"] = None) -> Any:
        return self.attend(input_ids, seen)


class Unions(Attention):
    def forward(self, input_ids: torch.Tensor, seen: Union[list[KeyCache], KeyCache, None] = None) -> Any:  # noqa: UP007
        return self.attend(input_ids, seen)


class Named(Attention):
    def forward(self, input_ids: torch.Tensor, mask: Any = None, layer_past: Any = None) -> Any:
        logits, cache = self.attend(input_ids, layer_past)
        return Answer(logits, cache)


class UnknownName(Attention):
    def forward(self, input_ids: torch.Tensor, mask=None, memory=None):  # type: ignore[no-untyped-def]
        return Output(*self.attend(input_ids, memory))


class UnknownNameInATuple(Attention):
    def forward(self, input_ids: torch.Tensor, remembered=None):  # type: ignore[no-untyped-def]
        return self.attend(input_ids, remembered)


class AnotherName(Attention):
    """It takes the cache under one name and returns it under another."""

    def forward(self, input_ids: torch.Tensor, past: Any = None) -> dict[str, Any]:
        logits, cache = self.attend(input_ids, past)
        return {"logits": logits, "present": cache}


def wrapped(forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return forward(self, *args, **kwargs)

    return call


def enclosed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return forward(self, *args, **kwargs)

    return call


class Decorated(Annotated):
    forward = wrapped(Annotated.forward)


class Enclosed(Annotated):
    forward = enclosed(wrapped(enclosed(Annotated.forward)))


class Outer(nn.Module):
    """It hands everything on."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.model = Annotated()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)


class TwoCaches(Attention):
    """An argument whose class only sounds like the cache stands before it."""

    def forward(
        self, input_ids: torch.Tensor, padding_cache: KeyCache | None = None, cache: KeyCache | None = None
    ) -> Any:
        logits, kept = self.attend(input_ids, cache)
        return {"logits": logits, "cache": kept}


NAMES = {
    Annotated: "kv",
    OptionalText: "seen",
    Unions: "seen",
    Named: "layer_past",
    UnknownName: "memory",
    UnknownNameInATuple: "remembered",
    AnotherName: "past",
    Decorated: "kv",
    Enclosed: "kv",
    Outer: "kv",
    TwoCaches: "cache",
}


@pytest.mark.parametrize("kind", NAMES, ids=lambda kind: kind.__name__)
def test_a_step_is_counted_behind_the_cache_whatever_it_is_called(kind: type[nn.Module]) -> None:
    with torch.device("meta"):
        own = module_cache.find_own_cache(kind().eval())
    assert own.name == NAMES[kind]
    for past in (3, 30):
        totals = module_step.analyze_step_with_cache(own, own.step(past), past, 1).info.totals
        # the projections, scores and sums of one token with all before it, and itself
        assert totals.macs == 3 * WIDTH * WIDTH + 2 * WIDTH * (past + 1) + WIDTH * WORDS
        assert totals.kv_cache_bytes == 2 * past * WIDTH * 4
        assert totals.status == "exact"


class NoCache(Attention):
    def forward(self, input_ids: torch.Tensor, labels: Any = None, scale: Any = None) -> Any:
        logits, _ = self.attend(input_ids, None)
        return logits, [logits * 2]


def test_a_forward_without_a_cache_is_refused() -> None:
    with torch.device("meta"):
        model = NoCache().eval()
    with pytest.raises(Misuse, match="it has no key-value cache of its own"):
        module_cache.find_own_cache(model)
