"""Work that a run on shapes does not see: it happens outside of torch, in another thread, or only later.

Each such place makes the totals a lower bound, and becomes a row that says why. A tensor that no operator of
the run made comes from a thread or from native code. Numbers that went to Python or NumPy and come back as a
tensor may have been multiplied on the way. A generator computes when somebody reads it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from types import AsyncGeneratorType, CoroutineType
from typing import Any

import torch

from explorer.engine.formats.torch_module.modules import held

ELSEWHERE = (
    "a tensor was made where operators are not seen (another thread, native code): the figures are the least"
)
OUTSIDE = "numbers left torch as {how} and may have been worked on there: the figures are the least"
LATER = "the model returns a {kind}, which computes when it is read: the figures are the least"
NO_TENSOR = "the model returns a {kind}, in which no tensor is found: what it computes later is not counted"

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_LAZY = (Generator, Iterator, CoroutineType, AsyncGeneratorType)


class UnseenWork:
    """Where a run may have missed work.

    Attributes:
        places: What to call the work, and why it was not seen, by the path of the module around it.
    """

    def __init__(self) -> None:
        self.places: dict[str, tuple[str, str]] = {}
        self._left: tuple[str, str] | None = None
        self._numbers = 0
        self._arrays: dict[int, Any] = {}

    def made_elsewhere(self, path: str) -> None:
        """A tensor is used in the module at `path` that nothing in the run made."""
        self.places.setdefault(path, ("elsewhere", ELSEWHERE))

    def leaves(self, path: str, how: str, tensor: torch.Tensor, values: Any = None) -> None:
        """The values of a tensor go to Python or NumPy.

        Args:
            path: The module that asks for them.
            how: The method: 'numpy', 'tolist', 'item'.
            tensor: Whose values they are.
            values: What the method returns.
        """
        array = getattr(values, "__array_interface__", None)
        if array is not None:
            # it may come back as it is; held, so that no other array gets its place
            self._arrays[array["data"][0]] = values
        elif not (tensor.is_floating_point() or tensor.is_complex()):
            return  # sizes, positions and counts
        self._numbers += tensor.numel()
        self._left = self._left or (path, how)

    def comes_back(self, data: torch.Tensor) -> None:
        """A tensor is made of numbers that Python or NumPy holds."""
        # a single number that was read, or a constant beside it, is no product
        if self._left is None or self._numbers < 2 or data.numel() < 2 or data.data_ptr() in self._arrays:
            return
        path, how = self._left
        shown = "a NumPy array" if self._arrays else "Python numbers"
        self.places.setdefault(path, (how, OUTSIDE.format(how=shown)))

    def returned(self, result: Any) -> None:
        """The model is done, and `result` is what it returned."""
        for value in _parts(result):
            kind = type(value).__name__
            array = getattr(value, "__array_interface__", None)
            if array is not None:
                if self._left is not None and array["data"][0] not in self._arrays:
                    self.places.setdefault("", (self._left[1], OUTSIDE.format(how="a NumPy array")))
            elif isinstance(value, _LAZY) or (callable(value) and not isinstance(value, torch.nn.Module)):
                self.places.setdefault("", (kind, LATER.format(kind=kind)))
            elif not isinstance(value, (*_PLAIN, torch.Tensor)) and next(held_tensors(value), None) is None:
                self.places.setdefault("", (kind, NO_TENSOR.format(kind=kind)))


def held_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Tensors in containers and in attributes of objects, however deep, as in the layers of a cache."""
    return (tensor for _, tensor in held(value))


def _parts(value: Any) -> Iterator[Any]:
    """What is in tuples, lists and dicts, one within the other."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        for part in value:
            yield from _parts(part)
    else:
        yield value
