"""KV cache of a module: passes over a prompt, and steps with the cache that these return.

The module makes its cache, keeps it and reads it by its own code, on shapes: what a step costs is what that
code does, whatever it caches (keys and values of grouped heads, latents, windows, states of a recurrence).
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from msgspec import Struct, field
from torch import nn

from explorer.base.errors import BadModel, Misuse
from explorer.base.units import shape_text
from explorer.engine.compat import transformers as compat
from explorer.engine.costs.torch.branch_outcomes import traced
from explorer.engine.formats.torch_module.cache_tensors import tensors_of
from explorer.engine.formats.torch_module.configured_inputs import likely_shape
from explorer.engine.progress import Cancel, stop_if

_SHORT = 5
"""Tokens of a prompt from which a longer cache is grown; one more than the kernels of causal convolutions."""
_GROWN = 3
"""Tokens by which a short cache is grown to see whether growing gives what a prompt leaves."""
_HINT = "a step needs a forward with input_ids and a cache, which it returns, as those of transformers have"


class EncoderOutput(NamedTuple):
    """The output of an encoder, which code reads by position or by name."""

    last_hidden_state: torch.Tensor
    hidden_states: None = None
    attentions: None = None


class OwnCache(Struct):
    """A module with a cache of its own.

    Attributes:
        model: On the meta device, in evaluation mode.
        name: Of its argument for a cache.
        takes: Names of all arguments of its forward.
        encoder: It reads the prompt with an encoder; the cache is the decoder's.
        prompt_only: Whether what it computes for a prompt is asked for its last token alone.
        check: Asked at every module.
    """

    model: nn.Module
    name: str
    takes: frozenset[str]
    encoder: bool
    prompt_only: bool = False
    check: Callable[[int, int], None] = lambda done, modules: None
    _caches: dict[tuple[int, int, int], tuple[Any, Mapping[str, Any]]] = field(default_factory=dict)
    _grows: bool | None = None

    def prompt(self, tokens: int, batch: int = 1) -> dict[str, Any]:
        """Arguments of a pass over a prompt: of its encoder, and one token of its decoder, if it has both."""
        arguments = self._encoded(tokens, batch) if self.encoder else {"input_ids": _ids(batch, tokens)}
        if self.encoder:
            arguments["decoder_input_ids"] = _ids(batch, 1)
        return {**arguments, **self._switches()}

    def step(self, past: int, batch: int = 1, prompt: int = 0) -> dict[str, Any]:
        """Arguments of a pass over one token behind `past` others.

        Args:
            past: Tokens in the cache; 0 for none.
            batch: Sequences.
            prompt: Tokens that the encoder has read, of a model that has one.

        Raises:
            BadModel: It does not run over a prompt.
        """
        ids = "decoder_input_ids" if self.encoder else "input_ids"
        if not past:
            return self.prompt(prompt or _SHORT, batch) if self.encoder else self.prompt(1, batch)
        cache, more = self.cache(past, batch, prompt)
        position = compat.position_of_step(self.name, self.takes)
        return {**more, ids: _ids(batch, 1), self.name: cache, **position, **self._switches()}

    def cache(self, tokens: int, batch: int = 1, prompt: int = 0) -> tuple[Any, Mapping[str, Any]]:
        """The cache after so many tokens, and the encoder's output if a step needs one.

        Raises:
            BadModel: It does not run over a prompt.
        """
        key = tokens, batch, prompt
        if key not in self._caches:
            self._caches[key] = self._cache(tokens, batch, prompt)
        cache, more = self._caches[key]
        return copy.deepcopy(cache), more

    def encoder_reads(self) -> str:
        """The input of an encoder that reads no text, with its shape; '' for a text or no encoder."""
        name = getattr(self.model, "main_input_name", "input_ids")
        if not self.encoder or name == "input_ids":
            return ""
        return f"{name} {shape_text(tuple(self._encoded(1, 1)[name].shape))}"

    # inside

    def _cache(self, tokens: int, batch: int, prompt: int) -> tuple[Any, Mapping[str, Any]]:
        short = min(tokens, 1 if self.encoder else _SHORT)
        if tokens == short:
            return self._cache_after(short, batch, prompt)
        if self._grows is None:
            self._grows = self._grows_alike(batch, prompt)
        if not self._grows:
            return self._cache_after(tokens, batch, prompt)
        cache, more = self.cache(short, batch, prompt)
        return _longer(cache, tokens - short), more

    def _grows_alike(self, batch: int, prompt: int) -> bool:
        """Whether a short cache, grown by the code of its layers, equals the cache of a longer prompt."""
        short = 1 if self.encoder else _SHORT
        cache, _ = self.cache(short, batch, prompt)
        try:
            grown = _longer(cache, _GROWN)
        except Exception:
            return False
        expected, _ = self._cache_after(short + _GROWN, batch, prompt)
        return [entry.tensor.shape for entry in tensors_of(grown)] == [
            entry.tensor.shape for entry in tensors_of(expected)
        ]

    def _cache_after(self, tokens: int, batch: int, prompt: int) -> tuple[Any, Mapping[str, Any]]:
        """The cache after a pass over so many tokens, and the encoder's output."""
        arguments = self.prompt(prompt or _SHORT if self.encoder else tokens, batch)
        if self.encoder:
            arguments["decoder_input_ids"] = _ids(batch, tokens)
        read: list[Any] = []
        with _outputs_of(self._encoder_module(), read):
            run = traced(self.model, (), arguments, check=self.check).run
        if run.failed:
            raise BadModel(f"it fails over a prompt: {run.failed[1]}", where=type(self.model).__name__)
        result = run.result
        cache = compat.returned_cache(result, self.name)
        if cache is None:
            raise Misuse(
                "its forward takes a cache and returns none, so nothing is known behind one",
                where=type(self.model).__name__,
                hint="a step is counted behind the cache that a forward returns",
            )
        return cache, {"encoder_outputs": read[-1]} if read else self._encoder_output(result)

    def _encoder_module(self) -> nn.Module | None:
        """The encoder, whose output a step takes; None if unknown."""
        get_encoder = getattr(self.model, "get_encoder", None) if self.encoder else None
        encoder = get_encoder() if callable(get_encoder) else None
        return encoder if isinstance(encoder, nn.Module) and encoder is not self.model else None

    def _encoder_output(self, result: Any) -> Mapping[str, Any]:
        state = getattr(result, "encoder_last_hidden_state", None)
        return {"encoder_outputs": EncoderOutput(state)} if self.encoder and state is not None else {}

    def _encoded(self, tokens: int, batch: int) -> dict[str, Any]:
        name = getattr(self.model, "main_input_name", "input_ids")
        if name == "input_ids":
            return {name: _ids(batch, tokens)}
        shape = likely_shape(self.model, name)
        if shape is None:
            raise Misuse(f"how large its {name} is, is not known", where=type(self.model).__name__)
        dtype = next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32)
        return {name: torch.empty((batch, *shape[1:]), dtype=dtype, device="meta")}

    def _switches(self) -> dict[str, Any]:
        switches: dict[str, Any] = {"use_cache": True} if "use_cache" in self.takes else {}
        if self.prompt_only and "logits_to_keep" in self.takes:
            switches["logits_to_keep"] = 1
        return switches


def _ids(batch: int, tokens: int) -> torch.Tensor:
    return torch.empty((batch, tokens), dtype=torch.int64, device="meta")


def _longer(cache: Any, tokens: int) -> Any:
    """A cache with more tokens, added by the cache's own layers; states stay."""
    if not compat.grow(cache, tokens):
        raise Misuse("its cache has no layers")
    return cache


def of_module(model: nn.Module, source: str = "", *, cancel: Cancel = None) -> OwnCache:
    """The cache of a module's own.

    Args:
        model: On the meta device.
        source: What the user asked for.
        cancel: Asked at every module of a run.

    Raises:
        Misuse: Its forward takes no cache.
    """
    arguments = compat.forward_arguments(model)
    takes = _names(model, arguments)
    encoder = "decoder_input_ids" in takes

    def check(done: int, modules: int) -> None:
        stop_if(cancel)

    if "input_ids" in takes or encoder:
        name = compat.cache_argument(arguments)
        own_cache = OwnCache(model, name or "", takes, encoder, check=check)
        own_cache.name = name or _returned_argument(own_cache, arguments)
        if own_cache.name:
            return own_cache
    raise Misuse("it has no key-value cache of its own", where=source or type(model).__name__, hint=_HINT)


def _returned_argument(own_cache: OwnCache, arguments: Mapping[str, inspect.Parameter]) -> str:
    """The optional argument that a forward returns as an object of tensors; '' where that is not clear.

    It is returned under the argument's name, or it is the only optional argument and the only part of a tuple
    that is no tensor.
    """
    optional = [name for name, parameter in arguments.items() if parameter.default is None]
    if own_cache.encoder or not optional:
        return ""
    run = traced(own_cache.model, (), own_cache.prompt(_SHORT), check=own_cache.check).run
    if run.failed:
        return ""
    fields = compat.returned_fields(run.result)
    objects = [
        name for name, part in fields.items() if not isinstance(part, torch.Tensor) and tensors_of(part)
    ]
    named = [name for name in objects if name in optional]
    if named:
        return named[0]
    return optional[0] if isinstance(run.result, tuple) and len(objects) == len(optional) == 1 else ""


def _names(model: nn.Module, arguments: Mapping[str, inspect.Parameter]) -> frozenset[str]:
    """Names of the arguments of a forward; some of transformers hand `use_cache` on without naming it."""
    taken = inspect.signature(model.forward).parameters
    more = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in taken.values())
    # in a model that also reads pictures or sound, the decoder's configuration has it
    takes_use_cache = more and any(
        hasattr(config, "use_cache") for config in (getattr(model, "config", None), text_config(model))
    )
    return frozenset((*arguments, "use_cache")) if takes_use_cache else frozenset(arguments)


@contextlib.contextmanager
def _outputs_of(module: nn.Module | None, outputs: list[Any]) -> Iterator[None]:
    """Collects the outputs of a module."""
    if module is None:
        yield
        return
    hook = module.register_forward_hook(lambda module, args, output: outputs.append(output))
    try:
        yield
    finally:
        hook.remove()


def text_config(model: nn.Module) -> Any:
    """The configuration of a model's decoder; None if it has none."""
    config: Any = getattr(model, "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config
