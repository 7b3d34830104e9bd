"""Stored form of parameters: element type and bytes in the file, if the module computes in another type.

For example, a quantized weight has half a byte per element in its file, but the module computes with a
bfloat16 tensor. The stored forms are in a plain attribute of each module. Copies of the module share the
attribute, and layers with different stored forms are not equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import nn

from explorer.engine.compat.torch import parameters_of
from explorer.engine.formats.torch_module.modules import format_dtype, size_of, walk_modules
from explorer.engine.formats.torch_module.sparse import list_parts
from explorer.engine.formats.torch_module.tensor_subclass import drop_equal_views, list_inner_tensors

_ATTRIBUTE = "_stored_as"
"""Name of the attribute of a module that holds the stored forms of its parameters."""


class StoredForm(NamedTuple):
    """Stored form of a parameter.

    Attributes:
        dtype: Element type in the file.
        nbytes: Bytes in the file, including scales and tables.
    """

    dtype: str
    nbytes: int


def attach(module: nn.Module, forms: Mapping[str, StoredForm]) -> None:
    """Attaches stored forms, by full parameter name, to the modules in `module`."""
    by_owner: dict[str, list[tuple[str, str, int]]] = {}
    for name, form in forms.items():
        owner, _, last = name.rpartition(".")
        by_owner.setdefault(owner, []).append((last, form.dtype, form.nbytes))
    for path, part in module.named_modules(remove_duplicate=False):
        if path in by_owner:
            vars(part)[_ATTRIBUTE] = tuple(by_owner[path])


def attach_wrapped(module: nn.Module, twin: nn.Module) -> None:
    """Attaches the stored forms of tensor subclasses and sparse tensors in `module` to a copy of it.

    The type is the type of the largest inner tensor. The bytes are the sum over all inner tensors.
    """
    for (_, part), (_, twin_part) in zip(walk_modules(module), walk_modules(twin), strict=True):
        known_forms = read_stored_forms(twin_part)
        forms = []
        for name, parameter in parameters_of(part).items():
            inner = (
                ()
                if parameter is None
                else drop_equal_views(list_inner_tensors(parameter) or list_parts(parameter))
            )
            if inner and name not in known_forms:
                largest = max(inner, key=size_of)
                forms.append((name, format_dtype(largest.dtype), sum(map(size_of, inner))))
        if forms:
            vars(twin_part)[_ATTRIBUTE] = (*vars(twin_part).get(_ATTRIBUTE, ()), *forms)


def read_stored_forms(module: nn.Module) -> Mapping[str, StoredForm]:
    """Returns the attached stored forms of a module's own parameters, by name."""
    return {name: StoredForm(dtype, nbytes) for name, dtype, nbytes in vars(module).get(_ATTRIBUTE, ())}


def list_stored_forms(module: nn.Module) -> dict[str, StoredForm]:
    """Returns the attached stored forms of all parameters of a module, by full name."""
    return {
        f"{path}.{name}" if path else name: form
        for path, part in module.named_modules(remove_duplicate=False)
        for name, form in read_stored_forms(part).items()
    }


def forget(module: nn.Module) -> None:
    """Removes the stored forms attached to a module, so that the types of its tensors are counted."""
    for part in module.modules():
        vars(part).pop(_ATTRIBUTE, None)


def read_own_forms(module: nn.Module) -> dict[nn.Parameter, StoredForm]:
    """Returns the stored form of each own parameter of a module; by default its type and bytes in memory."""
    file_forms = read_stored_forms(module)
    parameters = {name: p for name, p in parameters_of(module).items() if p is not None}
    return {
        p: file_forms.get(name) or StoredForm(format_dtype(p.dtype), p.nbytes)
        for name, p in parameters.items()
    }
