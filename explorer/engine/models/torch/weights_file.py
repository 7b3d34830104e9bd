"""State dict of a file put into an nn.Module: safetensors, torch.save's files, a trainer's checkpoint.

The file is read by our own readers, so nothing in it runs, and its tensors come one at a time. Trainers put
words in front of the names ('state_dict.', 'model.', 'module.', '_orig_mod.'): those in front of the most
tensors are taken off, and said.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from torch import nn

from explorer.base.errors import Misuse
from explorer.base.units import bytes_text, many_text, printable, shape_text
from explorer.engine.formats.tensor_index import named_few
from explorer.engine.formats.torch_files.checkpoint_modules import ROLES
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.formats.torch_module.modules import dtype_name, is_lazy
from explorer.engine.models.open_model import open_tensors
from explorer.engine.models.tensors import TensorFile
from explorer.engine.values.numbers import Numbers

_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Pieces that torch's wrappers put anywhere into a name; no module of anybody's is called so."""

_HINT = "explorer layers FILE lists what it holds"


def with_file(loaded: LoadedModule, path: str) -> LoadedModule:
    """The model, built with the weights of a file; what the file lacks is as the callable makes it.

    Raises:
        Misuse: The file holds no tensors with names.
        BadModel: It cannot be read.
    """
    opened = open_tensors(path)
    if not isinstance(opened, TensorFile):
        reason = "this is a model and no file of weights"
        raise Misuse(reason, where=path, hint="give a state_dict (.pt, .pth, .ckpt) or .safetensors")
    build, shares, notes = loaded.build, loaded.trained, loaded.notes

    def filled() -> nn.Module:
        module = build()
        if shares:  # the tensors are a module's that exists already, and stays as it is
            module = copy.deepcopy(module)
        fit, fill_notes = _fill(module, opened.tensors()[0], path)
        loaded.weights_text, loaded.notes = fit, (*notes, *fill_notes)
        return module

    loaded.build = filled
    loaded.weights_text, loaded.weights_from, loaded.trained = f"of {path}", "file", True
    return loaded


class Match(Struct, frozen=True):
    """Which tensor of a file belongs to which of a module.

    Attributes:
        found: Names in the module, and in the file.
        taken_off: In front of the file's names; `put_on`: in front of the module's.
        missing: Of the module, in no file; `unexpected`: in the file, and not of the module.
        others: Other words in front under which as many would fit.
    """

    found: Mapping[str, str]
    taken_off: str
    put_on: str
    missing: Sequence[str]
    unexpected: Sequence[str]
    others: Sequence[str]


def match(module_names: Iterable[str], file_names: Iterable[str]) -> Match:
    """Finds the words in front of names that fit the most tensors; of equal ones the first in the file.

    Averaged copies and what an optimizer keeps come last.

    Args:
        module_names: Names of the module's tensors.
        file_names: Names of the file's, in its order.
    """
    ours, theirs = _without_wrappers(module_names), _without_wrappers(file_names)
    off = Counter(front for name in theirs for front, rest in _splits(name) if rest in ours)
    on = Counter(front for name in ours for front, rest in _splits(name) if front and rest in theirs)
    ranked = sorted(off, key=lambda front: (-off[front], front.partition(".")[0].lower() in ROLES))
    reverse = sorted(on, key=lambda front: (-on[front], len(front)))
    taken_off = ranked[0] if ranked else ""
    put_on = ""
    if reverse and on[reverse[0]] > off[taken_off]:
        taken_off, put_on = "", reverse[0]
    matched = {}
    for name, real in theirs.items():
        inner = put_on + name.removeprefix(taken_off)
        if name.startswith(taken_off) and inner in ours:
            matched[ours[inner]] = real
    used = set(matched.values())
    return Match(
        matched,
        taken_off,
        put_on,
        [name for name in ours.values() if name not in matched],
        [name for name in theirs.values() if name not in used],
        [front for front in ranked if front != taken_off and matched and off[front] == len(matched)],
    )


def _splits(name: str) -> Iterator[tuple[str, str]]:
    """A name cut at each of its dots: ('', 'a.b'), ('a.', 'b')."""
    at = 0
    while True:
        yield name[:at], name[at:]
        at = name.find(".", at) + 1
        if not at:
            return


def _without_wrappers(names: Iterable[str]) -> dict[str, str]:
    """Names without the pieces of torch's wrappers, and as they are."""
    every = list(names)
    bare = {".".join(p for p in name.split(".") if p not in _WRAPPERS): name for name in every}
    return bare if len(bare) == len(every) else {name: name for name in every}


def _wrappers(name: str) -> list[str]:
    return [piece for piece in name.split(".") if piece in _WRAPPERS]


def _fill(module: nn.Module, tensors: Sequence[Numbers], path: str) -> tuple[str, Sequence[str]]:
    """Copies the tensors of a file into a module; says where its weights come from, and what to know of it.

    Raises:
        Misuse: Few of them are the module's, or one has another shape or values that cannot be read.
    """
    module_tensors = {
        name: t for name, t in module.state_dict(keep_vars=True).items() if isinstance(t, torch.Tensor)
    }
    by_name = {numbers.name: numbers for numbers in tensors}
    fit = match(module_tensors, by_name)
    if 2 * len(fit.found) < min(len(module_tensors), len(by_name)) or not fit.found:
        theirs, ours = next(iter(fit.unexpected), "none"), next(iter(fit.missing), "none")
        few = (
            f"only {len(fit.found):,} of its {len(by_name):,} tensors are"
            if fit.found
            else "none of its tensors is"
        )
        reason = f"{few} the model's: '{printable(theirs)}' there, '{printable(ours)}' here"
        raise Misuse(reason, where=path, hint=_HINT)
    pairs = [(name, module_tensors[name], by_name[theirs]) for name, theirs in fit.found.items()]
    others = [
        (n, tuple(t.shape), k.shape) for n, t, k in pairs if not is_lazy(t) and tuple(t.shape) != k.shape
    ]
    if others:
        name, *shapes = others[0]
        here, there = (shape_text(shape) for shape in shapes)
        reason = f"'{printable(name)}' is {there} there and {here} in the model"
        more = f", and {len(others) - 1:,} more differ" if len(others) > 1 else ""
        raise Misuse(reason + more, where=path, hint=_HINT)
    for name, target, numbers in pairs:
        if numbers.dtype.startswith("complex") and not target.is_complex():
            reason = f"'{printable(name)}' is {numbers.dtype} there and {target.dtype} in the model"
            raise Misuse(reason.replace("torch.", ""), where=path, hint=_HINT)
    for name, target, numbers in pairs:
        _copy(module, name, target, numbers, path)
    return _origin(fit, pairs, path), list(_match_notes(fit, pairs, path))


def _copy(module: nn.Module, name: str, target: torch.Tensor, numbers: Numbers, path: str) -> None:
    """One tensor, a slab at a time."""
    if is_lazy(target):
        copy_of_file = torch.empty(numbers.shape, dtype=target.dtype)
        _write(copy_of_file, numbers, path)
        # a layer that waits for its first input takes its shape from what is loaded
        module.load_state_dict({name: copy_of_file}, strict=False)
        return
    if target.is_contiguous():
        _write(target.detach(), numbers, path)
    else:
        copy_of_file = torch.empty(target.shape, dtype=target.dtype)
        _write(copy_of_file, numbers, path)
        target.detach().copy_(copy_of_file)


def _write(target: torch.Tensor, numbers: Numbers, path: str) -> None:
    flat, at = target.view(-1), 0
    for slab in numbers.slabs():
        native = slab if slab.dtype.kind in "biufc" else slab.astype(np.float32)
        flat[at : at + slab.size].copy_(torch.from_numpy(np.array(native)))
        at += slab.size
    if at != flat.numel():
        raise Misuse(f"the values of '{printable(numbers.name)}' cannot be read", where=path, hint=_HINT)


def _origin(fit: Match, pairs: Sequence[tuple[str, Any, Numbers]], path: str) -> str:
    """Where the weights come from: "of best.ckpt: 7 tensors, 528 B; 'model.' taken off their names"."""
    size = sum(numbers.nbytes for _, _, numbers in pairs)
    text = f"of {path}: {many_text(len(pairs), 'tensor')}, {bytes_text(size)}"
    gone = {p: None for ours, name in fit.found.items() for p in _wrappers(name) if p not in _wrappers(ours)}
    words = [*filter(None, (fit.taken_off,)), *(f"{piece}." for piece in gone)]
    if words:
        text += f"; {' and '.join(printable(repr(word)) for word in words)} taken off their names"
    if fit.put_on:
        text += f"; '{printable(fit.put_on)}' put in front of their names"
    return text


def _match_notes(fit: Match, pairs: Sequence[tuple[str, Any, Numbers]], path: str) -> Iterator[str]:
    """What does not fit, or fits in another way, too."""
    if fit.missing:
        yield f"not in {path}, and as the callable makes them: {named_few(fit.missing)}"
    if fit.unexpected:
        yield f"in {path} and not the model's: {named_few(fit.unexpected)}"
    if fit.others:
        yield f"as many fit under {named_few(fit.others)}, which were not taken"
    cast = Counter(n.dtype for _, t, n in pairs if dtype_name(t.dtype) != n.dtype)
    for dtype, count in cast.items():
        were = "was" if count == 1 else "were"
        yield f"{many_text(count, 'tensor')} of {dtype} there {were} converted"
