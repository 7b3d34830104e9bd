"""Stored form of parameters: the type and bytes that a file keeps them in, where a module computes in others.

A quantized weight is a tensor of bfloat16 to the code that multiplies with it, and half a byte a number in
its file. Each module of such parameters keeps what is known in a plain attribute, which copies of it share
and which makes two layers differ that store their weights differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import nn

from explorer.engine.compat.torch import parameters_of
from explorer.engine.formats.torch_module.modules import dtype_name, registered, size_of
from explorer.engine.formats.torch_module.sparse import parts
from explorer.engine.formats.torch_module.tensor_subclass import distinct, inner_tensors

_ATTRIBUTE = "_stored_as"


class StoredForm(NamedTuple):
    """How a file holds a parameter: the type of its numbers, and all its bytes with scales and tables."""

    dtype: str
    nbytes: int


def attach(module: nn.Module, forms: Mapping[str, StoredForm]) -> None:
    """Tells the modules in `module` how their parameters are stored, by the parameters' names."""
    by_owner: dict[str, list[tuple[str, str, int]]] = {}
    for name, form in forms.items():
        owner, _, last = name.rpartition(".")
        by_owner.setdefault(owner, []).append((last, form.dtype, form.nbytes))
    for path, part in module.named_modules(remove_duplicate=False):
        if path in by_owner:
            vars(part)[_ATTRIBUTE] = tuple(by_owner[path])


def attach_wrapped(module: nn.Module, twin: nn.Module) -> None:
    """Tells the modules of a copy how subclasses and sparse tensors in `module` keep numbers.

    The type is that of the largest inner tensor, the bytes those of all of them.
    """
    for (_, part), (_, twin_part) in zip(registered(module), registered(twin), strict=True):
        known_forms = of_module(twin_part)
        forms = []
        for name, parameter in parameters_of(part).items():
            inner = () if parameter is None else distinct(inner_tensors(parameter) or parts(parameter))
            if inner and name not in known_forms:
                largest = max(inner, key=size_of)
                forms.append((name, dtype_name(largest.dtype), sum(map(size_of, inner))))
        if forms:
            vars(twin_part)[_ATTRIBUTE] = (*vars(twin_part).get(_ATTRIBUTE, ()), *forms)


def of_module(module: nn.Module) -> Mapping[str, StoredForm]:
    """How the own parameters of a module are stored, by name, as far as files were matched with it."""
    return {name: StoredForm(dtype, nbytes) for name, dtype, nbytes in vars(module).get(_ATTRIBUTE, ())}


def forget(module: nn.Module) -> None:
    """Takes what is known of files from a module that is to be told in its own types."""
    for part in module.modules():
        vars(part).pop(_ATTRIBUTE, None)


def of_own(module: nn.Module) -> dict[nn.Parameter, StoredForm]:
    """How the own parameters of a module are stored: as files hold them, else as they are."""
    file_forms = of_module(module)
    parameters = {name: p for name, p in parameters_of(module).items() if p is not None}
    return {
        p: file_forms.get(name) or StoredForm(dtype_name(p.dtype), p.nbytes) for name, p in parameters.items()
    }
