"""Builds the KV cache of a module: runs a prompt on shapes, and keeps the cache that the module returns.

The module's own code creates, updates and reads the cache. The cost of a step is therefore the cost of this
code, whatever it caches (keys and values of grouped heads, latents, windows, recurrent states).
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
from explorer.engine.costs.torch.branch_outcomes import trace_model
from explorer.engine.formats.torch_module.cache_tensors import list_cache_tensors
from explorer.engine.formats.torch_module.configured_inputs import guess_shape
from explorer.engine.progress import Cancel, stop_if

_INITIAL_TOKENS = 5
"""Length of the prompt whose cache is grown; above the usual kernel size 4 of causal convolutions."""
_TEST_GROWTH = 3
"""Number of tokens by which a cache is grown to test whether growing equals a longer prompt."""
_HINT = "a step needs a forward with input_ids and a cache, which it returns, as those of transformers have"


class EncoderOutput(NamedTuple):
    """The output of an encoder, readable by position and by name."""

    last_hidden_state: torch.Tensor
    hidden_states: None = None
    attentions: None = None


class OwnCache(Struct):
    """A module that creates its own cache.

    Attributes:
        model: Model on the meta device, in evaluation mode.
        name: Name of the forward's cache argument.
        takes: Names of all arguments of the forward, also of those that it passes on (`use_cache`).
        encoder: Whether an encoder reads the prompt; the cache then belongs to the decoder.
        prompt_only: Whether a pass over a prompt computes logits for its last token only.
        check: Function called at every module; may raise to stop a run.
    """

    model: nn.Module
    name: str
    takes: frozenset[str]
    encoder: bool
    prompt_only: bool = False
    check: Callable[[int, int], None] = lambda done, modules: None
    _caches: dict[tuple[int, int, int], tuple[Any, Mapping[str, Any]]] = field(default_factory=dict)
    _can_grow: bool | None = None

    def build_prompt(self, tokens: int, batch: int = 1) -> dict[str, Any]:
        """Returns the arguments for a prompt of `tokens` tokens. Beside an encoder, the decoder gets one."""
        arguments = (
            self._build_encoder_arguments(tokens, batch)
            if self.encoder
            else {"input_ids": _make_token_ids(batch, tokens)}
        )
        if self.encoder:
            arguments["decoder_input_ids"] = _make_token_ids(batch, 1)
        return {**arguments, **self._list_switches()}

    def step(self, past: int, batch: int = 1, prompt: int = 0) -> dict[str, Any]:
        """Returns the arguments of a pass over one token after `past` cached tokens.

        Args:
            past: Number of cached tokens.
            batch: Number of sequences.
            prompt: Number of tokens that the encoder has read, if there is one.

        Raises:
            BadModel: The model fails over a prompt.
        """
        ids = "decoder_input_ids" if self.encoder else "input_ids"
        if not past:
            if self.encoder:
                return self.build_prompt(prompt or _INITIAL_TOKENS, batch)
            return self.build_prompt(1, batch)
        cache, encoder_arguments = self.build_cache(past, batch, prompt)
        position = compat.build_step_position(self.name, self.takes)
        return {
            **encoder_arguments,
            ids: _make_token_ids(batch, 1),
            self.name: cache,
            **position,
            **self._list_switches(),
        }

    def build_cache(self, tokens: int, batch: int = 1, prompt: int = 0) -> tuple[Any, Mapping[str, Any]]:
        """Returns the cache after `tokens` tokens, and the encoder's output if a step needs it.

        Raises:
            BadModel: The model fails over a prompt.
            Misuse: The model returns no cache, or the shape of the encoder's input is unknown.
        """
        key = tokens, batch, prompt
        if key not in self._caches:
            self._caches[key] = self._create_cache(tokens, batch, prompt)
        cache, encoder_arguments = self._caches[key]
        return copy.deepcopy(cache), encoder_arguments

    def describe_encoder_input(self) -> str:
        """Returns the name and shape of the input of an encoder for other data than text; '' otherwise."""
        name = getattr(self.model, "main_input_name", "input_ids")
        if not self.encoder or name == "input_ids":
            return ""
        return f"{name} {shape_text(tuple(self._build_encoder_arguments(1, 1)[name].shape))}"

    def _create_cache(self, tokens: int, batch: int, prompt: int) -> tuple[Any, Mapping[str, Any]]:
        """Returns the cache after `tokens` tokens, grown from a short cache if possible."""
        initial_tokens = min(tokens, 1 if self.encoder else _INITIAL_TOKENS)
        if tokens == initial_tokens:
            return self._run_prompt(initial_tokens, batch, prompt)
        if self._can_grow is None:
            self._can_grow = self._check_growth(batch, prompt)
        if not self._can_grow:
            return self._run_prompt(tokens, batch, prompt)
        cache, encoder_arguments = self.build_cache(initial_tokens, batch, prompt)
        return _grow(cache, tokens - initial_tokens), encoder_arguments

    def _check_growth(self, batch: int, prompt: int) -> bool:
        """Whether a short cache, grown by its layers' code, equals the cache of a longer prompt."""
        initial_tokens = 1 if self.encoder else _INITIAL_TOKENS
        cache, _ = self.build_cache(initial_tokens, batch, prompt)
        try:
            grown_cache = _grow(cache, _TEST_GROWTH)
        except Exception:
            return False
        expected, _ = self._run_prompt(initial_tokens + _TEST_GROWTH, batch, prompt)
        return [entry.tensor.shape for entry in list_cache_tensors(grown_cache)] == [
            entry.tensor.shape for entry in list_cache_tensors(expected)
        ]

    def _run_prompt(self, tokens: int, batch: int, prompt: int) -> tuple[Any, Mapping[str, Any]]:
        """Returns the cache after a pass over `tokens` tokens, and the encoder's output.

        Raises:
            BadModel: The model fails.
            Misuse: The model returns no cache.
        """
        arguments = self.build_prompt(prompt or _INITIAL_TOKENS if self.encoder else tokens, batch)
        if self.encoder:
            arguments["decoder_input_ids"] = _make_token_ids(batch, tokens)
        encoder_results: list[Any] = []
        with _collect_outputs(self._find_encoder(), encoder_results):
            run = trace_model(self.model, (), arguments, check=self.check).run
        if run.failed:
            raise BadModel(f"it fails on a prompt: {run.failed[1]}", where=type(self.model).__name__)
        result = run.result
        cache = compat.find_returned_cache(result, self.name)
        if cache is None:
            raise Misuse(
                "its forward takes a cache but returns none, so a decode step is unknown",
                where=type(self.model).__name__,
                hint="return the cache from forward: a decode step is counted on it",
            )
        return cache, {
            "encoder_outputs": encoder_results[-1]
        } if encoder_results else self._read_encoder_output(result)

    def _find_encoder(self) -> nn.Module | None:
        """Returns the encoder, whose output a step reads, or None if unknown."""
        get_encoder = getattr(self.model, "get_encoder", None) if self.encoder else None
        encoder = get_encoder() if callable(get_encoder) else None
        return encoder if isinstance(encoder, nn.Module) and encoder is not self.model else None

    def _read_encoder_output(self, result: Any) -> Mapping[str, Any]:
        state = getattr(result, "encoder_last_hidden_state", None)
        return {"encoder_outputs": EncoderOutput(state)} if self.encoder and state is not None else {}

    def _build_encoder_arguments(self, tokens: int, batch: int) -> dict[str, Any]:
        """Returns the encoder's input by name: token ids, or a tensor of the guessed shape for other data.

        Raises:
            Misuse: No shape can be guessed.
        """
        name = getattr(self.model, "main_input_name", "input_ids")
        if name == "input_ids":
            return {name: _make_token_ids(batch, tokens)}
        shape = guess_shape(self.model, name)
        if shape is None:
            raise Misuse(f"the shape of its input {name} is not known", where=type(self.model).__name__)
        dtype = next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32)
        return {name: torch.empty((batch, *shape[1:]), dtype=dtype, device="meta")}

    def _list_switches(self) -> dict[str, Any]:
        """Returns the options that make the forward return its cache, and limit its logits."""
        switches: dict[str, Any] = {"use_cache": True} if "use_cache" in self.takes else {}
        if self.prompt_only and "logits_to_keep" in self.takes:
            switches["logits_to_keep"] = 1
        return switches


def _make_token_ids(batch: int, tokens: int) -> torch.Tensor:
    return torch.empty((batch, tokens), dtype=torch.int64, device="meta")


def _grow(cache: Any, tokens: int) -> Any:
    """Adds tokens to a cache through the cache's own layers; recurrent states keep their size.

    Raises:
        Misuse: The cache has no layers.
    """
    if not compat.grow_cache(cache, tokens):
        raise Misuse("its cache has no layers")
    return cache


def find_own_cache(model: nn.Module, source: str = "", *, cancel: Cancel = None) -> OwnCache:
    """Finds the cache of a module.

    Args:
        model: Model on the meta device.
        source: The name under which the user opened the model.
        cancel: Called at every module of a run; a true result stops it.

    Raises:
        Misuse: The module's forward takes no cache.
    """
    arguments = compat.list_forward_arguments(model)
    argument_names = _list_argument_names(model, arguments)
    has_encoder = "decoder_input_ids" in argument_names

    def check(done: int, modules: int) -> None:
        stop_if(cancel)

    if "input_ids" in argument_names or has_encoder:
        name = compat.find_cache_argument(arguments)
        own_cache = OwnCache(model, name or "", argument_names, has_encoder, check=check)
        own_cache.name = name or _find_returned_argument(own_cache, arguments)
        if own_cache.name:
            return own_cache
    raise Misuse("it has no key-value cache of its own", where=source or type(model).__name__, hint=_HINT)


def _find_returned_argument(own_cache: OwnCache, arguments: Mapping[str, inspect.Parameter]) -> str:
    """Finds the optional argument that the forward also returns as an object of tensors; '' if ambiguous.

    Either the result names it, or it is the only optional argument and the only non-tensor in a result tuple.
    """
    optional = [name for name, parameter in arguments.items() if parameter.default is None]
    if own_cache.encoder or not optional:
        return ""
    run = trace_model(own_cache.model, (), own_cache.build_prompt(_INITIAL_TOKENS), check=own_cache.check).run
    if run.failed:
        return ""
    fields = compat.list_returned_fields(run.result)
    objects = [
        name
        for name, part in fields.items()
        if not isinstance(part, torch.Tensor) and list_cache_tensors(part)
    ]
    named = [name for name in objects if name in optional]
    if named:
        return named[0]
    return optional[0] if isinstance(run.result, tuple) and len(objects) == len(optional) == 1 else ""


def _list_argument_names(model: nn.Module, arguments: Mapping[str, inspect.Parameter]) -> frozenset[str]:
    """Returns names of a forward's arguments, with `use_cache` if the forward passes it on as a keyword."""
    parameters = inspect.signature(model.forward).parameters
    has_keywords = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    # in a multimodal model, the option is in the configuration of the decoder
    takes_use_cache = has_keywords and any(
        hasattr(config, "use_cache") for config in (getattr(model, "config", None), get_text_config(model))
    )
    return frozenset((*arguments, "use_cache")) if takes_use_cache else frozenset(arguments)


@contextlib.contextmanager
def _collect_outputs(module: nn.Module | None, outputs: list[Any]) -> Iterator[None]:
    """Collects the outputs of a module while the context is active."""
    if module is None:
        yield
        return
    hook = module.register_forward_hook(lambda module, args, output: outputs.append(output))
    try:
        yield
    finally:
        hook.remove()


def get_text_config(model: nn.Module) -> Any:
    """Returns the configuration of a model's decoder, or None if it has none."""
    config: Any = getattr(model, "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config
