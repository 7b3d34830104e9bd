"""Assumptions about transformers: caches of its models, and internals of configurations and modules.

Every function takes objects of transformers, or of code with the same interface. This module does not import
transformers.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from types import FunctionType
from typing import Any, get_args

import torch
from torch import nn

_CACHE_NAMES = (
    "cache",
    "past_key_values",
    "cache_params",
    "state",
    "past_key_value",
    "layer_past",
    "kv_cache",
    "past_kv",
    "past",
)
"""Argument names of a forward's cache, the newest of transformers first."""
_CACHE_CLASS = re.compile(r"\b\w*Cache\b")


def list_forward_arguments(model: nn.Module) -> dict[str, inspect.Parameter]:
    """Returns the arguments of a forward by name, including arguments that the forward only passes on.

    Assumes: a forward with `**kwargs` passes them to the function that a decorator wraps, or to the first
    submodule that takes tokens.
    Seen: 5.0 to 5.24, whose decorators use functools.wraps.
    Otherwise: only the arguments in the signature are known.
    """
    arguments: dict[str, inspect.Parameter] = {}
    for forward in _iterate_forwards(model):
        parameters = inspect.signature(forward).parameters
        for name, parameter in parameters.items():
            if name != "self" and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                arguments.setdefault(name, parameter)
        if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters.values()):
            break
        if _has_token_argument(arguments) and find_cache_argument(arguments):
            break
    return arguments


def _iterate_forwards(model: nn.Module) -> Iterator[Callable[..., Any]]:
    """Yields the forward, functions that its decorators enclose, and the forwards of parts with tokens."""
    yield model.forward
    yield from _list_enclosed_functions(getattr(model.forward, "__func__", model.forward), set())
    for part in model.modules():
        if part is not model and _has_token_argument(inspect.signature(part.forward).parameters):
            yield part.forward


def _list_enclosed_functions(function: Any, visited: set[int]) -> Iterator[FunctionType]:
    """Yields the functions that a decorated function encloses, outermost first."""
    for cell in getattr(inspect.unwrap(function), "__closure__", None) or ():
        try:
            inner = cell.cell_contents
        except ValueError:  # an empty cell
            continue
        if isinstance(inner, FunctionType) and id(inner) not in visited:
            visited.add(id(inner))
            yield inner
            yield from _list_enclosed_functions(inner, visited)


def _has_token_argument(arguments: Mapping[str, Any]) -> bool:
    return "input_ids" in arguments or "decoder_input_ids" in arguments


def find_cache_argument(arguments: Mapping[str, inspect.Parameter]) -> str | None:
    """Returns the name of a forward's cache argument, or None.

    Assumes: its annotation names a class whose name ends in Cache, or the argument has a known name.
    Seen: 5.0 to 5.23 (`past_key_values`, `cache_params`, `state`), 5.24 (`cache`).
    Otherwise: None, and the caller examines the result of the forward.
    """
    annotated = [name for name, argument in arguments.items() if _names_cache(argument.annotation)]
    for names in ([name for name in _CACHE_NAMES if name in annotated], annotated):
        if names:
            return names[0]
    return next((name for name in _CACHE_NAMES if name in arguments), None)


def _names_cache(annotation: Any) -> bool:
    """Whether an annotation is a cache class, a text with its name, or a union or list with a cache class."""
    if isinstance(annotation, str):
        return bool(_CACHE_CLASS.search(annotation))
    if parts := get_args(annotation):
        return any(map(_names_cache, parts))
    if isinstance(annotation, type) and annotation is not inspect.Parameter.empty:
        return any(base.__name__.endswith("Cache") for base in annotation.__mro__)
    return bool(_CACHE_CLASS.search(getattr(annotation, "__forward_arg__", "")))


def build_step_position(argument: str, argument_names: Collection[str]) -> dict[str, torch.Tensor]:
    """Returns the position of a decode step as keyword arguments, or {} if the forward needs none.

    Assumes: a forward with `cache_params` and `cache_position` needs the positions of the new tokens, and
    reads only their number.
    Seen: 5.0 (Mamba, Mamba 2, Falcon Mamba); later versions have no such argument.
    Otherwise: the step fails, and the error line gives the reason.
    """
    if argument != "cache_params" or "cache_position" not in argument_names:
        return {}
    return {"cache_position": torch.empty(1, dtype=torch.int64, device="meta")}


def find_returned_cache(result: Any, argument: str) -> Any:
    """Returns the cache in the result of a forward, or None.

    Assumes: it has the argument's name or another name of caches. In a tuple, or under another name, it is
    the only object of a class called Cache, or else the only part that is not a tensor.
    Seen: 5.0 to 5.24, which return an object with the argument's name.
    Otherwise: None, and the caller says that the forward returns no cache.
    """
    fields = list_returned_fields(result)
    for name in (argument, *_CACHE_NAMES):
        if fields.get(name) is not None:
            return fields[name]
    parts = [part for part in fields.values() if part is not None and not isinstance(part, torch.Tensor)]
    named = [part for part in parts if any(k.__name__.endswith("Cache") for k in type(part).__mro__)]
    if len(named) == 1:
        return named[0]
    return parts[0] if len(parts) == 1 and not named else None


def list_returned_fields(result: Any) -> dict[str, Any]:
    """Returns the parts of a forward's result by name; parts of a tuple by their index.

    Assumes: a result is a mapping, a tuple or an object whose attributes are its parts.
    Seen: 5.0 to 5.24, whose results are mappings.
    Otherwise: an empty dictionary.
    """
    if isinstance(result, Mapping):
        return {str(name): part for name, part in result.items()}
    if isinstance(result, tuple):
        names = getattr(result, "_fields", None) or map(str, range(len(result)))
        return dict(zip(names, result, strict=True))
    return dict(getattr(result, "__dict__", {}))


def list_cache_layers(cache: Any) -> list[Any]:
    """Returns the layers of a cache, or an empty list for other caches.

    The layers of self-attention come first for an encoder-decoder.

    Assumes: a cache has `layers`, that of an encoder-decoder `self_attention_cache` and
    `cross_attention_cache`.
    Seen: 5.0 to 5.24.
    Otherwise: an empty list. The cache then cannot grow, and each length is counted with a prompt of that
    length.
    """
    self_attention = getattr(cache, "self_attention_cache", None)
    if self_attention is not None:
        return [
            *list_cache_layers(self_attention),
            *list_cache_layers(getattr(cache, "cross_attention_cache", None)),
        ]
    return list(getattr(cache, "layers", None) or ())


def grow_cache(cache: Any, tokens: int) -> bool:
    """Adds tokens to a cache, by the method with which a model adds them. Recurrent states do not grow.

    Of an encoder-decoder's cache, only self-attention grows. Returns whether the cache has layers.

    Assumes: layers have `keys` and `values`, with tokens in the second-last axis, and `update(keys, values)`.
    Seen: 5.0 to 5.24.
    Otherwise: False, or the error of `update`. The caller compares a grown cache with one that a prompt
    filled.
    """
    layers = list_cache_layers(getattr(cache, "self_attention_cache", cache))
    for layer in layers:
        key_and_value = [getattr(layer, name, None) for name in ("keys", "values")]
        if all(isinstance(tensor, torch.Tensor) and tensor.numel() for tensor in key_and_value):
            layer.update(
                *(
                    tensor.new_empty((*tensor.shape[:-2], tokens, tensor.shape[-1]))
                    for tensor in key_and_value
                    if tensor is not None
                )
            )
    return bool(layers)


def get_window(layer: Any) -> int | None:
    """Returns the maximum number of tokens that a layer of a cache keeps, or None for no limit.

    Assumes: the layer has it as `sliding_window`.
    Seen: 5.0 to 5.24.
    Otherwise: None. The closed form then misses the limit, and reports that its counts do not fit.
    """
    size = getattr(layer, "sliding_window", None)
    return size if isinstance(size, int) else None


def is_cache(value: Any) -> bool:
    """Whether an object is a cache, by the name of its class or a base class.

    Assumes: the names of such classes end in Cache.
    Seen: 5.0 to 5.24.
    Otherwise: False. Its tensors are not inputs of a step then, and the step fails with one line.
    """
    return any(kind.__name__.endswith("Cache") for kind in type(value).__mro__)


def is_configured(kind: Any) -> bool:
    """Whether a class of modules is built from a configuration.

    Assumes: the class has `_from_config`, or the documented `config_class`.
    Seen: 5.0 to 5.24.
    Otherwise: the class for the model type is built instead.
    """
    return hasattr(kind, "_from_config") or getattr(kind, "config_class", None) is not None


def build_configured(kind: Any, settings: Any, dtype: torch.dtype | None) -> nn.Module:
    """Builds a module without values from its class and its configuration.

    Assumes: `_from_config` of the class builds it with the given element type.
    Seen: 5.0 to 5.24.
    Otherwise: the class is called with the configuration, in float32, and the module is converted.
    """
    build = getattr(kind, "_from_config", None)
    if build is not None:
        return build(settings, **({} if dtype is None else {"dtype": dtype}))  # type: ignore[no-any-return]
    module: nn.Module = kind(settings)
    return module if dtype is None else module.to(dtype)


def list_wide_parts(module: Any, dtype: torch.dtype | None) -> list[str]:
    """Returns regular expressions for the parameters that stay in float32 in a model of a narrower type.

    Assumes: `_keep_in_fp32_modules_strict` names those of all narrower types, `_keep_in_fp32_modules` those
    of float16 only.
    Seen: 5.0 to 5.24.
    Otherwise: an empty list, so that these parameters count with the bytes of the narrower type.
    """
    names: list[str] = []
    if dtype in (torch.float16, torch.bfloat16):
        names += getattr(module, "_keep_in_fp32_modules_strict", None) or ()
    if dtype is torch.float16:
        names += getattr(module, "_keep_in_fp32_modules", None) or ()
    return [name.replace("*", ".*") for name in names]
