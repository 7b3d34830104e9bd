"""Loads weights into an nn.Module from safetensors, files of torch.save, or a trainer's checkpoint.

Explorer's own readers read the file one tensor at a time, so no code in it runs. Trainers add prefixes to the
names ('state_dict.', 'model.', 'module.', '_orig_mod.'). The prefix that makes the most names match is
removed from the names of the file, or added to them, and reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from torch import nn

from explorer.base.errors import Misuse
from explorer.base.units import bytes_text, many_text, printable, shape_text
from explorer.engine.formats.tensor_index import format_names
from explorer.engine.formats.torch_files.checkpoint_modules import ROLES
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.formats.torch_module.meta_copy import copy_module
from explorer.engine.formats.torch_module.modules import format_dtype, is_lazy
from explorer.engine.models.open_model import open_tensors
from explorer.engine.models.tensors import TensorFile
from explorer.engine.values.numbers import Numbers

_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Components that torch's wrappers insert anywhere in a name. No user module has such a name."""

_HINT = "explorer layers FILE lists what it holds"


def use_weights_file(loaded: LoadedModule, path: str) -> LoadedModule:
    """Returns the model with the weights of a file.

    The file is opened at once, and its tensors are copied each time the model is built. Tensors that the file
    lacks keep the values from the callable.

    Raises:
        Misuse: The file is a model, not a file of weights.
        BadModel: The file cannot be read.
    """
    opened = open_tensors(path)
    if not isinstance(opened, TensorFile):
        reason = "this is a model, not a file of weights"
        raise Misuse(reason, where=path, hint="give a state_dict (.pt, .pth, .ckpt) or .safetensors")
    build, is_shared, notes = loaded.build, loaded.trained, loaded.notes

    def build_filled() -> nn.Module:
        module = build()
        if is_shared:  # the user's module must stay unchanged
            module = copy_module(module)
        origin_text, fill_notes = _fill_module(module, opened.tensors()[0], path)
        loaded.weights_text, loaded.notes = origin_text, (*notes, *fill_notes)
        return module

    loaded.build = build_filled
    loaded.weights_text, loaded.weights_from, loaded.trained = f"of {path}", "file", True
    return loaded


class Match(Struct, frozen=True):
    """The tensors of a file that belong to the tensors of a module.

    Attributes:
        file_names: Name in the file by the matched name in the module.
        removed_prefix: Prefix removed from the file's names, or ''.
        added_prefix: Prefix added to the file's names, or ''.
        missing: Names in the module that the file lacks.
        unexpected: Names in the file that the module lacks.
        others: Other prefixes that, if removed, make as many names match.
    """

    file_names: Mapping[str, str]
    removed_prefix: str
    added_prefix: str
    missing: Sequence[str]
    unexpected: Sequence[str]
    others: Sequence[str]


def match(module_names: Iterable[str], file_names: Iterable[str]) -> Match:
    """Finds the prefix with which the most names match, if it is removed from the file's names or added.

    A prefix is added only if this makes more names match than any removal. Of equally good prefixes to
    remove, the first in the file wins, but prefixes of averaged copies and of optimizer states come last. Of
    equally good prefixes to add, the shortest wins.

    Args:
        module_names: Names of the module's tensors.
        file_names: Names of the file's tensors, in their order.
    """
    module_by_bare, file_by_bare = _strip_wrappers(module_names), _strip_wrappers(file_names)
    removed_counts = Counter(
        prefix for name in file_by_bare for prefix, suffix in _split_at_dots(name) if suffix in module_by_bare
    )
    added_counts = Counter(
        prefix
        for name in module_by_bare
        for prefix, suffix in _split_at_dots(name)
        if prefix and suffix in file_by_bare
    )
    removed_prefixes = sorted(
        removed_counts,
        key=lambda prefix: (-removed_counts[prefix], prefix.partition(".")[0].lower() in ROLES),
    )
    added_prefixes = sorted(added_counts, key=lambda prefix: (-added_counts[prefix], len(prefix)))
    removed_prefix = removed_prefixes[0] if removed_prefixes else ""
    added_prefix = ""
    if added_prefixes and added_counts[added_prefixes[0]] > removed_counts[removed_prefix]:
        removed_prefix, added_prefix = "", added_prefixes[0]
    matched = {}
    for name, file_name in file_by_bare.items():
        module_name = added_prefix + name.removeprefix(removed_prefix)
        if name.startswith(removed_prefix) and module_name in module_by_bare:
            matched[module_by_bare[module_name]] = file_name
    used_names = set(matched.values())
    return Match(
        matched,
        removed_prefix,
        added_prefix,
        [name for name in module_by_bare.values() if name not in matched],
        [name for name in file_by_bare.values() if name not in used_names],
        [
            prefix
            for prefix in removed_prefixes
            if prefix != removed_prefix and matched and removed_counts[prefix] == len(matched)
        ],
    )


def _split_at_dots(name: str) -> Iterator[tuple[str, str]]:
    """Yields a name cut at each of its dots: ('', 'a.b'), ('a.', 'b')."""
    position = 0
    while True:
        yield name[:position], name[position:]
        position = name.find(".", position) + 1
        if not position:
            return


def _strip_wrappers(names: Iterable[str]) -> dict[str, str]:
    """Maps names without torch's wrappers to the full names. If two would agree, maps names to themselves."""
    all_names = list(names)
    name_by_bare = {
        ".".join(piece for piece in name.split(".") if piece not in _WRAPPERS): name for name in all_names
    }
    return name_by_bare if len(name_by_bare) == len(all_names) else {name: name for name in all_names}


def _find_wrappers(name: str) -> list[str]:
    """Returns the components of a name that torch's wrappers inserted."""
    return [piece for piece in name.split(".") if piece in _WRAPPERS]


def _fill_module(module: nn.Module, tensors: Sequence[Numbers], path: str) -> tuple[str, Sequence[str]]:
    """Copies the tensors of a file into a module. Returns the origin of the weights, and notes.

    Raises:
        Misuse: Fewer than half of the tensors match (of the module or the file, whichever has fewer), or a
            tensor has another shape, complex values for a real tensor, or values that cannot be read.
    """
    module_tensors = {
        name: tensor
        for name, tensor in module.state_dict(keep_vars=True).items()
        if isinstance(tensor, torch.Tensor)
    }
    by_name = {numbers.name: numbers for numbers in tensors}
    matches = match(module_tensors, by_name)
    if 2 * len(matches.file_names) < min(len(module_tensors), len(by_name)) or not matches.file_names:
        file_name, module_name = (next(iter(matches.unexpected), "none"), next(iter(matches.missing), "none"))
        count_text = "none of its tensors is"
        if matches.file_names:
            count_text = f"only {len(matches.file_names):,} of its {len(by_name):,} tensors are"
        texts = printable(file_name), printable(module_name)
        reason = f"{count_text} in the model: '{texts[0]}' in the file, '{texts[1]}' in the model"
        raise Misuse(reason, where=path, hint=_HINT)
    pairs = [(name, module_tensors[name], by_name[file]) for name, file in matches.file_names.items()]
    mismatches = [
        (name, tuple(target.shape), numbers.shape)
        for name, target, numbers in pairs
        if not is_lazy(target) and tuple(target.shape) != numbers.shape
    ]
    if mismatches:
        name, *shapes = mismatches[0]
        module_shape, file_shape = (shape_text(shape) for shape in shapes)
        reason = f"'{printable(name)}' is {file_shape} there and {module_shape} in the model"
        suffix = f", and {len(mismatches) - 1:,} more differ" if len(mismatches) > 1 else ""
        raise Misuse(reason + suffix, where=path, hint=_HINT)
    for name, target, numbers in pairs:
        if numbers.dtype.startswith("complex") and not target.is_complex():
            reason = f"'{printable(name)}' is {numbers.dtype} there and {target.dtype} in the model"
            raise Misuse(reason.replace("torch.", ""), where=path, hint=_HINT)
    for name, target, numbers in pairs:
        _copy_tensor(module, name, target, numbers, path)
    return _describe_origin(matches, pairs, path), list(_describe_mismatches(matches, pairs, path))


def _copy_tensor(module: nn.Module, name: str, target: torch.Tensor, numbers: Numbers, path: str) -> None:
    """Copies one tensor, a slab at a time."""
    if is_lazy(target):
        copy_of_file = torch.empty(numbers.shape, dtype=target.dtype)
        _write_slabs(copy_of_file, numbers, path)
        # a lazy layer takes its shape from the loaded tensor
        module.load_state_dict({name: copy_of_file}, strict=False)
        return
    if target.is_contiguous():
        _write_slabs(target.detach(), numbers, path)
    else:
        copy_of_file = torch.empty(target.shape, dtype=target.dtype)
        _write_slabs(copy_of_file, numbers, path)
        target.detach().copy_(copy_of_file)


def _write_slabs(target: torch.Tensor, numbers: Numbers, path: str) -> None:
    """Copies the values of a file's tensor into a contiguous tensor. Raises Misuse if some cannot be read."""
    flat, position = target.view(-1), 0
    for slab in numbers.slabs():
        # torch takes no arrays of the types that numpy lacks, such as bfloat16
        native = slab if slab.dtype.kind in "biufc" else slab.astype(np.float32)
        flat[position : position + slab.size].copy_(torch.from_numpy(np.array(native)))
        position += slab.size
    if position != flat.numel():
        raise Misuse(f"the values of '{printable(numbers.name)}' cannot be read", where=path, hint=_HINT)


def _describe_origin(matches: Match, pairs: Sequence[tuple[str, Any, Numbers]], path: str) -> str:
    """Describes the origin of the weights: "of best.ckpt: 7 tensors, 528 B"."""
    size = sum(numbers.nbytes for _, _, numbers in pairs)
    text = f"of {path}: {many_text(len(pairs), 'tensor')}, {bytes_text(size)}"
    removed_components = {
        component: None
        for module_name, name in matches.file_names.items()
        for component in _find_wrappers(name)
        if component not in _find_wrappers(module_name)
    }
    removed = [*filter(None, (matches.removed_prefix,)), *(f"{piece}." for piece in removed_components)]
    if removed:
        text += f"; {' and '.join(printable(repr(word)) for word in removed)} removed from their names"
    if matches.added_prefix:
        text += f"; '{printable(matches.added_prefix)}' added before their names"
    return text


def _describe_mismatches(
    matches: Match, pairs: Sequence[tuple[str, Any, Numbers]], path: str
) -> Iterator[str]:
    """Yields notes on tensors that do not match, on other possible prefixes, and on converted types."""
    if matches.missing:
        yield f"not in {path}, and left as the callable made them: {format_names(matches.missing)}"
    if matches.unexpected:
        yield f"in {path} but not in the model: {format_names(matches.unexpected)}"
    if matches.others:
        yield f"the prefix {format_names(matches.others)} matches as many tensors, but was not used"
    converted = Counter(
        numbers.dtype for _, target, numbers in pairs if format_dtype(target.dtype) != numbers.dtype
    )
    for dtype, count in converted.items():
        verb = "was" if count == 1 else "were"
        yield f"{many_text(count, 'tensor')} of {dtype} there {verb} converted"
