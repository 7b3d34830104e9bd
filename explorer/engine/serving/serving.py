"""Serving of a language model: its parameters, passes and cache, and their times on a machine.

All is counted on the module's own code with its own cache; nothing is taken from a list of architectures.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import nn

from explorer.base.errors import BadModel, Misuse
from explorer.base.units import many_text
from explorer.engine.costs.decode.module_cache import OwnCache, text_config
from explorer.engine.formats.tensor_index import named_few
from explorer.engine.formats.torch_module import stored_form
from explorer.engine.number_formats import format_of
from explorer.engine.serving import bounds, weights
from explorer.engine.serving.bounds import PassWork
from explorer.engine.serving.closed_forms import BetweenCounts, over_context, over_prompt
from explorer.engine.serving.kv_cache import element_bits, served_cache, windows
from explorer.engine.serving.layouts import (
    LayerCuts,
    LayoutContext,
    PassOfLayers,
    blocks,
    layouts,
)
from explorer.engine.serving.passes import PROMPTS, Passes
from explorer.engine.serving.prediction import predicted
from explorer.engine.serving.weights import block_of
from explorer.facts.profile.machine import MeasuredMachine
from explorer.facts.roofline import Machine
from explorer.facts.serving.forms import ClosedForm
from explorer.facts.serving.serving import DeviceLayout, PassFigures, ServedLayer, Serving, ServingTime
from explorer.facts.serving.spec import ServingSpec
from explorer.host.gc_pause import gc_pause

_TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_SHORT = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "f32": "float32", "f16": "float16"}
_SHORT |= {"fp8": "float8e4m3", "fp4": "mxfp4"}
_KEPT = 12
"""Layouts that are listed for each number of devices, context and batch."""


class StoredTypes(Struct, frozen=True):
    """The types in which weights, keys and values are stored.

    Attributes:
        compute: The type in which the module computes; None: its own.
        scale: Factor for the bytes of its weights.
        kv_bits: Bits of an element of keys and values; None: those of its own type.
    """

    compute: torch.dtype | None
    scale: float
    kv_bits: float | None


def stored_types(spec: ServingSpec) -> StoredTypes:
    """The types that a question names.

    Raises:
        Misuse: There is no such number format.
    """
    kv_bits = bits_of(spec.kv_dtype, "--kv-dtype") if spec.kv_dtype else None
    if not spec.dtype:
        return StoredTypes(None, 1.0, kv_bits)
    name = _SHORT.get(spec.dtype, spec.dtype)
    compute = _TYPES.get(name)
    if compute is not None:
        return StoredTypes(compute, 1.0, kv_bits)
    # weights of a narrower type are unpacked before they are multiplied
    return StoredTypes(torch.bfloat16, bits_of(spec.dtype, "--dtype") / 16, kv_bits)


def bits_of(name: str, where: str) -> float:
    """Bits of an element of a type, by its name or its short one.

    Raises:
        Misuse: There is no such number format.
    """
    number_format = format_of(_SHORT.get(name, name), where)
    return 32.0 if number_format is None else float(number_format.bits)


def passes_of(own_cache: OwnCache, spec: ServingSpec) -> Passes:
    """The passes of a model in the type that `spec` names; they answer every question in that type.

    Args:
        own_cache: The model and its cache; the model is not changed.
        spec: The question.

    Raises:
        Misuse: There is no such type.
    """
    compute = stored_types(spec).compute
    if compute is not None:
        model = copy.deepcopy(own_cache.model).to(compute)
        stored_form.forget(model)  # the question is about another type than the file's
        own_cache = OwnCache(model, own_cache.name, own_cache.takes, own_cache.encoder, check=own_cache.check)
    own_cache.prompt_only = True
    return Passes(own_cache, spec.prompt if own_cache.encoder else 0, lambda done: None)


@gc_pause()
def served(
    passes: Passes,
    spec: ServingSpec,
    machine: Machine | None = None,
    measured: MeasuredMachine | None = None,
) -> Serving:
    """The costs of running a language model.

    Args:
        passes: The model's; they cache earlier counts.
        spec: The question.
        machine: The machine of the times; None leaves times out.
        measured: Measurements of the machine, if there are any: times are predicted from them, too.

    Raises:
        Misuse: A type or a size is impossible.
        BadModel: The model does not run over a prompt, or behind its cache.
    """
    check(spec)
    try:
        serving = _Answer(passes, spec, stored_types(spec), machine).fact()
    except BadModel:
        serving = _within(passes, spec, machine)
        spec = serving.spec
    if measured is None or not measured.probes:
        return serving
    times = predicted(serving.times, passes, spec.prompt, serving.weight_bytes, measured)
    if not any(map(passes.predictable, spec.batches)):
        return replace(serving, times=times)
    return replace(serving, times=times, notes=(*serving.notes, _prediction_note(times, measured)))


def _within(passes: Passes, spec: ServingSpec, machine: Machine | None) -> Serving:
    """The answer at the longest context of the configuration, for code that fails on longer contexts.

    Raises:
        BadModel: The code fails at that context, too; or the user asked for another context.
    """
    longest = _longest(passes.own.model)
    if longest is None or longest < 2 or max(*spec.contexts, spec.prompt) < longest:
        raise
    # the new token takes a place, too
    most = longest - 1
    usual = replace(
        spec, prompt=min(spec.prompt, most), contexts=tuple([min(n, most) for n in spec.contexts])
    )
    serving = _Answer(passes, usual, stored_types(spec), machine).fact()
    if (spec.prompt, spec.contexts) != (ServingSpec().prompt, ServingSpec().contexts):
        raise BadModel(
            f"it does not run on more than the {longest:,} tokens that its configuration was made for",
            where=type(passes.own.model).__name__,
            hint=f"--prompt {usual.prompt} --context {','.join(map(str, dict.fromkeys(usual.contexts)))}",
        )
    note = (
        f"its code does not run on more than the {longest:,} tokens that its configuration was made for:"
        f" behind {most:,} is counted, not behind {spec.contexts[0]:,}"
    )
    return replace(serving, notes=(note, *serving.notes))


def _prediction_note(times: Sequence[ServingTime], measured: MeasuredMachine) -> str:
    """A note: the basis of the predictions, or the reason why there are none."""
    if all(row.token_predicted is None for row in times):
        return (
            "nothing is predicted: not every layer has a kernel like those that were measured,"
            " which are of float32 (--dtype f32)"
        )
    return (
        f"bounds hold whatever runs it; predicted are times of kernels of {measured.runtime} in float32,"
        f" {many_text(measured.threads, 'thread')}, as measured {measured.date}"
    )


def check(spec: ServingSpec) -> None:
    """Refuses an impossible question.

    Raises:
        Misuse: A number is below one, or too large.
    """
    named = {
        "--prompt": (spec.prompt,),
        "--context": spec.contexts,
        "--batch": spec.batches,
        "--devices": spec.devices,
    }
    for where, sizes in named.items():
        if not sizes or min(sizes) < 1:
            raise Misuse("there is one at least", where=where, hint="give whole numbers above 0")
    if max(spec.devices) > _MOST_DEVICES:
        raise Misuse(
            f"{max(spec.devices):,} are too many", where="--devices", hint=f"give {_MOST_DEVICES} at most"
        )


_MOST_DEVICES = 4096


class _Answer:
    def __init__(
        self, passes: Passes, spec: ServingSpec, types: StoredTypes, machine: Machine | None
    ) -> None:
        self.passes = passes
        self.spec = spec
        self.types = types
        self.machine = machine
        self.holders = passes.holders
        self.weights = round(sum(holder.weight_bytes for holder in self.holders) * types.scale)
        self.longest = _longest(passes.own.model)
        self.notes: list[str] = []
        self.uncut: list[str] = []

    def fact(self) -> Serving:
        spec, passes = self.spec, self.passes
        # some code has no place for a token behind the new one
        most = max(*spec.contexts, (self.longest or 0) - 1, 64)
        marks = windows(passes.cache(PROMPTS[0])[0])
        decode_macs = over_context(passes.macs, marks, most)
        prefill_macs, prefill = self._prefill()
        cache = served_cache(passes, spec.contexts[0], most, self.types.kv_bits, self.weights)
        self._note(decode_macs, cache.bytes)
        cache_bytes = {context: self._cache_bytes(cache.bytes, context) for context in spec.contexts}
        first, steps = self._works(prefill, decode_macs, cache.bytes, cache_bytes)
        step = passes.step(spec.contexts[0])
        return Serving(
            spec,
            type(passes.own.model).__name__,
            sum(holder.params for holder in self.holders),
            sum(weights.active(holder) for holder in self.holders),
            sum(holder.params for holder in self.holders if holder.table),
            self.weights,
            weights.parts(self.holders),
            self._scaled(prefill),
            self._scaled(passes.figures(step, 1), self._stored_share[None]),
            prefill_macs,
            decode_macs,
            cache,
            self._layers(),
            self.longest,
            self.machine,
            bounds.times(first, steps, self.machine, self.weights, spec.card),
            bounds.longest_contexts(cache.bytes, spec.batches, self.weights, spec.card),
            bounds.largest_batches(cache_bytes, self.weights, spec.card),
            self._layouts(decode_macs, cache.bytes),
            tuple(self.notes),
            tuple(self.uncut),
        )

    def _prefill(self) -> tuple[ClosedForm, PassFigures]:
        """The form over the prompt, and the pass over the requested prompt."""
        passes, prompt = self.passes, self.spec.prompt
        # the sizes share no divisor: code that processes a prompt in pieces processes the rest differently
        far = (5, 29, 43, *((prompt,) if passes.counted(prompt) else ()))
        checks = tuple([size for size in dict.fromkeys(far) if size not in PROMPTS])

        def form(name: str) -> ClosedForm:
            return over_prompt(lambda size: getattr(passes.prompt(size).figures, name), PROMPTS, checks)

        macs = form("macs")
        if passes.counted(prompt):
            if not macs.pieces:
                self.notes.append(
                    "no closed form over the prompt gives what was counted, as of code that goes over it in"
                    " pieces: the figures are those of the prompt that was asked for"
                )
            return macs, passes.prompt(prompt).figures
        self.notes.append(
            "its code goes over a prompt token by token: counted up to 43 tokens, "
            f"{'beyond by the closed form' if macs.pieces else 'and no closed form gives what was counted'}"
        )
        by_weights, moved = form("weight_macs"), form("activation_bytes")
        return macs, PassFigures(
            macs.at(prompt),
            by_weights.at(prompt),
            round(weights.read_bytes(self.holders, prompt, encoder=passes.own.encoder)),
            0,
            moved.at(prompt),
            passes.prompt(PROMPTS[-1]).figures.status,
        )

    def _cache_bytes(self, form: ClosedForm, context: int) -> int:
        size = form.at(context)
        if size is not None:
            return size
        tensors = self.passes.cache(context)[1]
        return round(sum(t.tensor.numel() * element_bits(t, self.types.kv_bits) for t in tensors) / 8)

    def _works(
        self, prefill: PassFigures, macs: ClosedForm, cache: ClosedForm, cache_bytes: Mapping[int, int]
    ) -> tuple[dict[int, PassWork], dict[tuple[int, int], PassWork]]:
        spec = self.spec
        written = self._cache_bytes(cache, spec.prompt)
        first = {
            batch: PassWork(
                None if prefill.macs is None else prefill.macs * batch,
                weights.read_bytes(self.holders, batch * spec.prompt, encoder=self.passes.own.encoder)
                * self.types.scale,
                written * batch,
            )
            for batch in spec.batches
        }
        steps = {
            (context, batch): PassWork(
                self._step_macs(macs, context) * batch,
                weights.read_bytes(self.holders, batch) * self.types.scale,
                cache_bytes[context] * batch,
            )
            for context in spec.contexts
            for batch in spec.batches
        }
        return first, steps

    def _step_macs(self, form: ClosedForm, context: int) -> int:
        macs = form.at(context)
        return macs if macs is not None else self.passes.macs(context)

    @cached_property
    def _stored_share(self) -> dict[int | None, float]:
        """Bytes of the stored cache over bytes of the cache in the code's types: by layer, and in total."""
        compute_bytes: dict[int | None, float] = {None: 0.0}
        stored_bytes: dict[int | None, float] = {None: 0.0}
        for tensor in self.passes.cache(self.spec.contexts[0])[1]:
            for bits, totals in ((None, compute_bytes), (self.types.kv_bits, stored_bytes)):
                size = tensor.tensor.numel() * element_bits(tensor, bits)
                for layer in (tensor.layer, None):
                    totals[layer] = totals.get(layer, 0.0) + size
        return {layer: stored_bytes[layer] / size if size else 1.0 for layer, size in compute_bytes.items()}

    def _scaled(self, figures: PassFigures, cached: float = 1.0) -> PassFigures:
        return PassFigures(
            figures.macs,
            figures.weight_macs,
            round(figures.weight_bytes * self.types.scale),
            round(figures.cache_bytes * cached),
            figures.activation_bytes,
            figures.status,
        )

    def _layers(self) -> tuple[ServedLayer, ...]:
        """Rows of a step that multiply or read the cache, with the cost of the prompt there."""
        passes = self.passes
        step = passes.step(self.spec.contexts[0])
        before = passes.prompt_layers(self.spec.prompt) if passes.counted(self.spec.prompt) else {}
        share = self._stored_share
        rows = []
        for layer in step.analysis.layers:
            if layer.group or not (layer.macs or layer.kv_cache_bytes):
                continue
            rows.append(
                ServedLayer(
                    layer.path,
                    layer.kind,
                    before.get(layer.path),
                    layer.macs,
                    round((layer.weight_bytes or 0) * self.types.scale),
                    round((layer.kv_cache_bytes or 0) * share.get(block_of(layer.path), share[None])),
                )
            )
        return tuple(rows)

    def _layouts(self, macs: ClosedForm, cached: ClosedForm) -> tuple[DeviceLayout, ...]:
        spec = self.spec
        if max(spec.devices) == 1:
            return ()
        cuts = LayerCuts(self.passes.own.model, self.holders)
        kept_layouts, refused = [], dict[str, None]()
        attention = BetweenCounts(macs, spec.contexts, self.passes.attention, self.passes.contexts)
        cache_bytes = BetweenCounts(cached, spec.contexts, self._cached)
        prompt = PassOfLayers(self._read(), self._cached(spec.prompt))
        counted = spec.prompt if self.passes.counted(spec.prompt) else 0
        for context in spec.contexts:
            step = PassOfLayers(attention.at(context), cache_bytes.at(context))
            layers = blocks(cuts, step, prompt, self.types.scale)
            for batch in spec.batches:
                laid = LayoutContext(
                    *(cuts, layers, context, batch, self.machine, spec.card, spec.links, self._item_bytes()),
                    prompt=counted,
                    encoder=self.passes.own.encoder,
                )
                for devices in spec.devices:
                    candidates, why = layouts(laid, devices)
                    refused.update(dict.fromkeys(why))
                    kept_layouts += sorted(candidates, key=_best)[:_KEPT]
        self.uncut = list(refused)[:3]
        self.notes += [f"not cut further: {why}" for why in self.uncut]
        if (
            self.machine is not None
            and spec.links is None
            and any(layout.link_bytes for layout in kept_layouts)
        ):
            self.notes.append("times of layouts that send need the rate of the links (--links)")
        return tuple(kept_layouts)

    def _read(self) -> dict[int | None, float]:
        """Multiply-accumulates of the prompt, by layer; empty where its rows are not counted."""
        macs_by_layer = dict[int | None, float]()
        prompt = self.spec.prompt
        rows = self.passes.prompt_layers(prompt) if self.passes.counted(prompt) else {}
        for path, macs in rows.items():
            number = block_of(path)
            macs_by_layer[number] = macs_by_layer.get(number, 0.0) + (macs or 0)
        return macs_by_layer

    def _cached(self, context: int) -> dict[int, float]:
        bytes_by_layer: dict[int, float] = {}
        for tensor in self.passes.cache(context)[1]:
            size = tensor.tensor.numel() * element_bits(tensor, self.types.kv_bits) / 8
            bytes_by_layer[tensor.layer] = bytes_by_layer.get(tensor.layer, 0.0) + size
        return bytes_by_layer

    def _item_bytes(self) -> int:
        parameter = next((p for p in self.passes.own.model.parameters() if p.is_floating_point()), None)
        return parameter.element_size() if parameter is not None else 4

    def _note_repeated(self) -> None:
        """Notes the weights that a step multiplies with the cached tokens, besides the new token."""
        context = self.spec.contexts[0]
        rows = [layer for layer in self.passes.step(context).analysis.layers if self.passes.of_weights(layer)]
        more = {layer.path: (layer.macs or 0) - self.passes.few.get(layer.path, 0) for layer in rows}
        paths = [path for path, macs in more.items() if macs > 0]
        if context > PROMPTS[0] and paths:
            named = named_few(list(dict.fromkeys(path.rpartition(".")[2] for path in paths)))
            macs = sum(more[path] for path in paths) * context // (context - PROMPTS[0])
            self.notes.append(
                f"its code multiplies {named} with every token of the cache in each step:"
                f" {macs:,} MACs behind {context:,} tokens, which engines that"
                " fold these weights into the queries do without"
            )

    def _note(self, macs: ClosedForm, cache: ClosedForm) -> None:
        longest = self.longest
        if longest is not None and max(*self.spec.contexts, self.spec.prompt) > longest:
            self.notes.append(
                f"its configuration was made for {longest:,} tokens; more are counted all the same"
            )
        reads = self.passes.own.encoder_reads()
        if reads:
            self.notes.append(f"its encoder reads {reads}, whatever the prompt")
        idle = (
            []
            if self.passes.own.encoder
            else [holder for holder in self.holders if holder.idle and holder.params]
        )
        if idle:
            named = named_few(list(dict.fromkeys(".".join(holder.path.split(".")[:2]) for holder in idle)))
            self.notes.append(
                f"the prompt is a text: {sum(holder.params for holder in idle):,} parameters that it does"
                f" not run ({named}) are held, and no pass is counted over what they read"
                " (explorer info with --input-shape of both counts one)"
            )
        if any(holder.routed for holder in self.holders):
            self.notes.append("experts are taken to be drawn evenly, each token's by itself")
        self.notes += weights.all_experts(self.passes.own.model, self.holders)
        self._note_repeated()
        self.notes += [f"figures with a sign depend on values: {why}" for why in self.passes.reasons]
        if not macs.pieces or not cache.pieces:
            self.notes.append("no closed form over the context gives what was counted")
        twice = self.passes.twice
        if twice > 2:
            self.notes.append(
                f"its code does {twice:.3f} times the work of one sequence in a step of two (its head over"
                " the last token alone), more than both apart: batches are told as sequences run apart,"
                " and no step of several is predicted"
            )
        elif twice != 2:
            # rounded to 2.000 it would read as exactly twice
            less = "less than " if f"{twice:.3f}" == "2.000" else ""
            self.notes.append(
                f"two sequences cost {less}{twice:.3f} times one, and batches are told as multiples"
            )


def _best(layout: DeviceLayout) -> tuple[bool, float, int]:
    """Sort key of layouts: first those that fit, then by time of a token, then by sent bytes."""
    return layout.fits is False, layout.token if layout.token is not None else float("inf"), layout.link_bytes


def _longest(model: nn.Module) -> int | None:
    config = text_config(model)
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx"):
        limit = getattr(config, name, None)
        if isinstance(limit, int) and limit > 0:
            return limit
    return None
