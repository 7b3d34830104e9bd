"""Opens an adapter (LoRA, DoRA, IA3) with the figures of its merged base, if the base is on this machine.

The merged model has the same layers and MACs as its base. Notes give the adapter's share of the parameters,
and its cost if it is not merged. Values are not merged. Nothing is downloaded: the base is searched in
folders and in Hugging Face's cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, NoReturn

from explorer.base.errors import Misuse
from explorer.base.units import count_text, percent_text, printable, shape_text
from explorer.engine.formats.tensor_index import TensorIndex, count_stored, format_names
from explorer.engine.formats.transformers.config import BuildError
from explorer.engine.formats.weights import huggingface
from explorer.engine.models.opened_model import OpenedModel, OpenOptions
from explorer.engine.models.tensors import TensorFile
from explorer.engine.models.torch.transformers.module import ConfiguredModule, open_folder
from explorer.engine.values.numbers import Numbers
from explorer.facts import Info

_NAME_PREFIX = "base_model.model."
"""Prefix of the names of all adapter tensors."""
_REPLACED_MODULE = ".modules_to_save.default."
"""Part of the name of a tensor that replaces a tensor of the base."""
_Sizes = tuple[int, ...]
_SIZE_TESTS: Mapping[str, Callable[[_Sizes, _Sizes], bool]] = {
    ".lora_A.weight": lambda sizes, base: len(sizes) == 2 and sizes[1] == base[1],
    ".lora_B.weight": lambda sizes, base: len(sizes) == 2 and sizes[0] == base[0],
    ".lora_embedding_A": lambda sizes, base: len(sizes) == 2 and sizes[1] == base[0],
    ".lora_embedding_B": lambda sizes, base: len(sizes) == 2 and sizes[0] == base[1],
    ".lora_magnitude_vector": lambda sizes, base: prod(sizes) == base[0],
    ".lora_magnitude_vector.weight": lambda sizes, base: prod(sizes) == base[0],
    ".ia3_l": lambda sizes, base: prod(sizes) in base,
}
"""Functions that test whether the sizes of an adapter tensor fit the sizes of its weight, by name ending."""
_MULTIPLIED_ENDINGS = (".lora_A.weight", ".lora_B.weight")
"""Name endings of the tensors that a token is multiplied with."""


class AdaptedModule(ConfiguredModule):
    """A base model with the figures of a merged adapter. Its tensors are those of base and adapter."""

    adapter: TensorFile
    """The tensors of the adapter."""

    def tensors(self) -> tuple[Sequence[Numbers], tuple[str, ...]]:
        """See `OpenedModel`."""
        base, notes = super().tensors()
        adapter_tensors, adapter_notes = self.adapter.tensors()
        return [*base, *adapter_tensors], (*notes, *adapter_notes)

    def rests_on(self, info: Info) -> None:
        """Returns None, because the base is in another folder and may change there. See `OpenedModel`."""
        return None


def open_adapter(contents: TensorIndex, options: OpenOptions) -> OpenedModel:
    """Opens an adapter on its base. If this is impossible, opens its tensors, with the reason.

    Raises:
        BadModel: The base is broken, or its configuration asks for larger sizes than any model has.
    """
    file = TensorFile(contents, options)
    try:
        base = _find_base(contents)
        opened = open_folder(huggingface.read_contents(base), options)
        if not isinstance(opened, ConfiguredModule):
            why = opened.contents.why if isinstance(opened, TensorFile) else "it is not a module"
            raise BuildError(f"no module can be built from its base, {printable(base)}: {why}")
        notes = tuple(_describe_adapter(contents, opened, base))
    except BuildError as error:
        contents.why = str(error)
        return file
    opened.loaded.notes = (*opened.loaded.notes, *notes)
    opened.loaded.values = partial(_refuse_values, contents.source)
    adapted = AdaptedModule(opened.file, options, opened.loaded, opened.match)
    adapted.source, adapted.adapter = contents.source, file
    return adapted


def _refuse_values(source: str) -> NoReturn:
    reason = "an adapter is counted on its base and not merged into its values"
    raise Misuse(reason, where=source, hint="merge it with peft (merge_and_unload) and open the folder")


def _find_base(contents: TensorIndex) -> str:
    """Returns the folder of the base model.

    The base is searched by its path, relative to the current folder and to the adapter, and in Hugging Face's
    cache.

    Raises:
        BuildError: The base is not on this machine.
    """
    name = str(contents.config["base_model_name_or_path"])
    folder = contents.source if os.path.isdir(contents.source) else os.path.dirname(contents.source)
    for path in (
        name,
        os.path.join(folder, name),
        os.path.join(os.path.dirname(os.path.abspath(folder)), name),
    ):
        if name and "\0" not in path and os.path.isfile(os.path.join(path, "config.json")):
            return path
    # an import that costs nothing here, because transformers has already imported this package
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        cached = None
    if isinstance(cached, str):
        return os.path.dirname(cached)
    raise BuildError(f"this is an adapter, and its base '{printable(name)}' is not on this machine")


def _describe_adapter(contents: TensorIndex, base: ConfiguredModule, folder: str) -> Iterator[str]:
    """Yields notes on the adapter and its base.

    Raises:
        BuildError: A tensor of the adapter does not fit its weight in the base, or no tensor has a weight.
    """
    base_shapes = {name: tuple(parameter.shape) for name, parameter in base.loaded.meta().named_parameters()}
    added = multiplied_elements = replaced_elements = 0
    misfit_texts, unmatched_names = [], []
    for tensor in contents.tensors:
        ending = next((ending for ending in _SIZE_TESTS if tensor.name.endswith(ending)), "")
        path = tensor.name.removeprefix(_NAME_PREFIX).removesuffix(ending).replace(_REPLACED_MODULE, ".")
        shape = base_shapes.get(f"{path}.weight" if ending else path)
        if shape is None or (ending and len(shape) != 2):
            unmatched_names.append(tensor.name)
        elif not (_SIZE_TESTS[ending](tensor.shape, shape) if ending else tensor.shape == shape):
            misfit_texts.append(
                f"{printable(tensor.name)} is {shape_text(tensor.shape)} for {shape_text(shape)}"
            )
        elif ending:
            added += tensor.elements
            multiplied_elements += tensor.elements if ending in _MULTIPLIED_ENDINGS else 0
        else:
            replaced_elements += tensor.elements
    if misfit_texts or len(unmatched_names) == len(contents.tensors):
        misfits = format_names(misfit_texts or [printable(name) for name in unmatched_names], 2)
        raise BuildError(f"this adapter does not fit its base, {printable(folder)}: {misfits}")
    params, config = count_stored(contents.tensors)[0], contents.config
    total = base.stored().totals.params
    yield (
        f"adapter ({printable(str(config.get('peft_type', 'LoRA')))}{_format_rank(config)}) on"
        f" {printable(folder)}: {count_text(params)} parameters, {percent_text(params, total)} of the base's"
        f" {count_text(total)}; the figures are those of the merged model"
    )
    if added:
        macs_text = "as many" if added == multiplied_elements else f"{multiplied_elements:,}"
        yield f"if not merged, it adds {added:,} parameters to read and {macs_text} MACs for each token"
    if replaced_elements:
        yield f"{replaced_elements:,} of its parameters replace parameters of the base"
    if unmatched_names:
        yield f"tensors of the adapter that belong to no layer of the base: {format_names(unmatched_names)}"


def _format_rank(config: Mapping[str, Any]) -> str:
    rank = config.get("r")
    return f", rank {rank:,}" if isinstance(rank, int) else ""
