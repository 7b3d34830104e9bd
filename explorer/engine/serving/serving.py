"""Computes the costs of serving a language model: parameters, passes, KV cache, and times on a machine.

All figures are counted on the module's own code with its own KV cache. No figure comes from a list of
architectures.
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
from explorer.engine.costs.decode.module_cache import OwnCache, get_text_config
from explorer.engine.formats.tensor_index import format_names
from explorer.engine.formats.torch_module import stored_form
from explorer.engine.number_formats import find_format
from explorer.engine.serving import bounds, weights
from explorer.engine.serving.bounds import PassWork
from explorer.engine.serving.closed_forms import InterpolatedCounts, fit_contexts, fit_prompt
from explorer.engine.serving.kv_cache import describe_cache, get_element_bits, list_windows
from explorer.engine.serving.layouts import (
    LayerCuts,
    LayoutContext,
    PassOfLayers,
    build_blocks,
    compute_layouts,
)
from explorer.engine.serving.passes import PROMPTS, Passes
from explorer.engine.serving.prediction import add_predictions
from explorer.engine.serving.weights import find_layer_number
from explorer.facts.profile.machine import MeasuredMachine
from explorer.facts.roofline import Machine
from explorer.facts.serving.forms import ClosedForm
from explorer.facts.serving.serving import DeviceLayout, PassFigures, ServedLayer, Serving, ServingTime
from explorer.facts.serving.spec import ServingSpec
from explorer.host.gc_pause import pause_garbage_collector

_COMPUTE_TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
"""Types in which a module can compute."""

_LONG_NAMES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "f32": "float32", "f16": "float16"}
_LONG_NAMES |= {"fp8": "float8e4m3", "fp4": "mxfp4"}
"""Names of number formats, by their short names."""

_MAX_LAYOUTS = 12
"""Maximum number of layouts listed for each number of devices, context and batch."""


class StoredTypes(Struct, frozen=True):
    """Storage types of the weights, keys and values.

    Attributes:
        compute: Type in which the module computes, or None for the module's own type.
        scale: Factor from the weight bytes in the `compute` type to the stored weight bytes.
        kv_bits: Bits of an element of keys and values, or None for the width of their own type.
    """

    compute: torch.dtype | None
    scale: float
    kv_bits: float | None


def resolve_types(spec: ServingSpec) -> StoredTypes:
    """Returns the storage types that a serving question names.

    Raises:
        Misuse: A type name is not a known number format.
    """
    kv_bits = get_bits(spec.kv_dtype, "--kv-dtype") if spec.kv_dtype else None
    if not spec.dtype:
        return StoredTypes(None, 1.0, kv_bits)
    name = _LONG_NAMES.get(spec.dtype, spec.dtype)
    compute = _COMPUTE_TYPES.get(name)
    if compute is not None:
        return StoredTypes(compute, 1.0, kv_bits)
    # a narrower type only stores the weights: the code unpacks them before each product
    return StoredTypes(torch.bfloat16, get_bits(spec.dtype, "--dtype") / 16, kv_bits)


def get_bits(name: str, where: str) -> float:
    """Returns the bits of an element of a number format, given its name or its short name.

    Raises:
        Misuse: The name is not a known number format.
    """
    number_format = find_format(_LONG_NAMES.get(name, name), where)
    return 32.0 if number_format is None else float(number_format.bits)


def create_passes(own_cache: OwnCache, spec: ServingSpec) -> Passes:
    """Creates the `Passes` of a model, in the compute type that `spec` names.

    Args:
        own_cache: The model and its cache. The model is copied before a change of type.
        spec: The serving question.

    Raises:
        Misuse: A type name is not a known number format.
    """
    compute = resolve_types(spec).compute
    if compute is not None:
        model = copy.deepcopy(own_cache.model).to(compute)
        stored_form.forget(model)  # the requested type replaces the type in the file
        own_cache = OwnCache(model, own_cache.name, own_cache.takes, own_cache.encoder, check=own_cache.check)
    own_cache.prompt_only = True
    return Passes(own_cache, spec.prompt if own_cache.encoder else 0, lambda done: None)


@pause_garbage_collector()
def compute_serving(
    passes: Passes, spec: ServingSpec, machine: Machine | None = None, measured: MeasuredMachine | None = None
) -> Serving:
    """Computes the costs of running a language model.

    Args:
        passes: The passes of the model, which cache earlier counts.
        spec: The serving question.
        machine: Machine for which times are computed, or None for no times.
        measured: Measurements of the machine, which add predicted times, or None.

    Raises:
        Misuse: A type or a size is impossible.
        BadModel: The model fails over a prompt or in a decode step.
    """
    check_spec(spec)
    try:
        serving = _Answer(passes, spec, resolve_types(spec), machine).build_fact()
    except BadModel:
        serving = _answer_within_longest_context(passes, spec, machine)
        spec = serving.spec
    if measured is None or not measured.probes:
        return serving
    times = add_predictions(serving.times, passes, spec.prompt, serving.weight_bytes, measured)
    if not any(map(passes.can_predict, spec.batches)):
        return replace(serving, times=times)
    return replace(serving, times=times, notes=(*serving.notes, _describe_prediction(times, measured)))


def _answer_within_longest_context(passes: Passes, spec: ServingSpec, machine: Machine | None) -> Serving:
    """Answers the question at the longest context of the configuration, after a longer context failed.

    Call it while the error of that failure is handled.

    Raises:
        BadModel: The question is within the longest context or that context is unknown (the error of the
            failure), the code fails at that context, too, or the user asked for other sizes than the default.
    """
    longest = _find_longest_context(passes.own.model)
    if longest is None or longest < 2 or max(*spec.contexts, spec.prompt) < longest:
        raise  # the error that the caller handles
    # one position is left for the new token
    most_cached = longest - 1
    shortened_spec = replace(
        spec,
        prompt=min(spec.prompt, most_cached),
        contexts=tuple([min(n, most_cached) for n in spec.contexts]),
    )
    serving = _Answer(passes, shortened_spec, resolve_types(spec), machine).build_fact()

    if (spec.prompt, spec.contexts) != (ServingSpec().prompt, ServingSpec().contexts):
        contexts_text = ",".join(map(str, dict.fromkeys(shortened_spec.contexts)))
        raise BadModel(
            f"it does not run on more than the {longest:,} tokens that its configuration was made for",
            where=type(passes.own.model).__name__,
            hint=f"--prompt {shortened_spec.prompt} --context {contexts_text}",
        )
    note = (
        f"its code does not run on more than the {longest:,} tokens that its configuration was made for:"
        f" figures are for a context of {most_cached:,} tokens instead of {spec.contexts[0]:,}"
    )
    return replace(serving, notes=(note, *serving.notes))


def _describe_prediction(times: Sequence[ServingTime], measured: MeasuredMachine) -> str:
    """Returns a note on the basis of the predictions, or on the reason why no time is predicted."""
    if all(row.token_predicted is None for row in times):
        return (
            "no time is predicted: some layers have no kernel like the measured ones, which compute in"
            " float32 (--dtype f32)"
        )
    return (
        f"bounds hold for any software; predicted times are those of the kernels of {measured.runtime} in"
        f" float32 with {many_text(measured.threads, 'thread')}, measured {measured.date}"
    )


def check_spec(spec: ServingSpec) -> None:
    """Checks that every number of a question is at least 1, and that there are not too many devices.

    Raises:
        Misuse: A number is below 1 or too large.
    """
    sizes_by_option = {
        "--prompt": (spec.prompt,),
        "--context": spec.contexts,
        "--batch": spec.batches,
        "--devices": spec.devices,
    }
    for where, sizes in sizes_by_option.items():
        if not sizes or min(sizes) < 1:
            raise Misuse("a number is below 1", where=where, hint="give whole numbers above 0")
    if max(spec.devices) > _MAX_DEVICES:
        raise Misuse(
            f"{max(spec.devices):,} are too many", where="--devices", hint=f"give at most {_MAX_DEVICES}"
        )


_MAX_DEVICES = 4096
"""Maximum number of devices of a layout."""


class _Answer:
    """Computes the answer to one question about one model.

    Args:
        passes: The passes of the model.
        spec: The serving question.
        types: Storage types of the weights, keys and values.
        machine: Machine for which times are computed, or None.
    """

    def __init__(
        self, passes: Passes, spec: ServingSpec, types: StoredTypes, machine: Machine | None
    ) -> None:
        self.passes = passes
        self.spec = spec
        self.types = types
        self.machine = machine
        self.holders = passes.holders
        self.all_weight_bytes = round(sum(holder.weight_bytes for holder in self.holders) * types.scale)
        self.longest = _find_longest_context(passes.own.model)
        self.notes: list[str] = []
        self.refusals: list[str] = []

    def build_fact(self) -> Serving:
        """Computes all figures, and adds the notes."""
        spec, passes = self.spec, self.passes
        # some code supports no position after the longest context
        longest_context = passes.find_counted_context(max(*spec.contexts, (self.longest or 0) - 1, 64))
        window_sizes = list_windows(passes.build_cache(PROMPTS[0])[0])
        decode_macs = fit_contexts(passes.count_macs, window_sizes, longest_context)
        prefill_macs, prefill = self._compute_prefill()
        cache = describe_cache(
            passes, spec.contexts[0], longest_context, self.types.kv_bits, self.all_weight_bytes
        )
        self._add_notes(decode_macs, cache.bytes)
        cache_bytes = {context: self._count_cache_bytes(cache.bytes, context) for context in spec.contexts}
        prompt_works, step_works = self._compute_works(prefill, decode_macs, cache.bytes, cache_bytes)
        step = passes.run_step(spec.contexts[0])
        return Serving(
            spec=spec,
            architecture=type(passes.own.model).__name__,
            params=sum(holder.params for holder in self.holders),
            active=sum(weights.count_active(holder) for holder in self.holders),
            embedding=sum(holder.params for holder in self.holders if holder.table),
            weight_bytes=self.all_weight_bytes,
            parts=weights.group_holders(self.holders),
            prefill=self._scale_figures(prefill),
            decode=self._scale_figures(passes.compute_figures(step, 1), self._stored_ratio[None]),
            prefill_macs=prefill_macs,
            decode_macs=decode_macs,
            cache=cache,
            layers=self._build_layers(),
            longest=self.longest,
            machine=self.machine,
            times=bounds.compute_times(
                prompt_works, step_works, self.machine, self.all_weight_bytes, spec.card
            ),
            longest_context=bounds.find_longest_contexts(
                cache.bytes, spec.batches, self.all_weight_bytes, spec.card
            ),
            largest_batch=bounds.find_largest_batches(cache_bytes, self.all_weight_bytes, spec.card),
            layouts=self._build_layouts(decode_macs, cache.bytes),
            notes=tuple(self.notes),
            uncut=tuple(self.refusals),
        )

    def _compute_prefill(self) -> tuple[ClosedForm, PassFigures]:
        """Returns the closed form of the MACs of a prompt, and the figures of the requested prompt."""
        passes, prompt = self.passes, self.spec.prompt
        # the sizes share no divisor, because code that splits a prompt into chunks runs a last, smaller chunk
        check_sizes = (5, 29, 43, *((prompt,) if passes.can_count(prompt) else ()))
        checks = tuple([size for size in dict.fromkeys(check_sizes) if size not in PROMPTS])

        def fit_figure(name: str) -> ClosedForm:
            return fit_prompt(lambda size: getattr(passes.count_prompt(size).figures, name), PROMPTS, checks)

        macs = fit_figure("macs")
        if passes.can_count(prompt):
            if not macs.pieces:
                self.notes.append(
                    "no closed form over the prompt matches the counts, as in code that splits a prompt into"
                    " chunks: the figures are for the requested prompt only"
                )
            return macs, passes.count_prompt(prompt).figures
        self.notes.append(
            "its code goes over a prompt token by token: prompts of up to 43 tokens are counted, and "
            f"{'longer ones follow from' if macs.pieces else 'the counts match no'} closed form"
        )
        weight_macs, moved_bytes = fit_figure("weight_macs"), fit_figure("activation_bytes")
        return macs, PassFigures(
            macs=macs.at(prompt),
            weight_macs=weight_macs.at(prompt),
            weight_bytes=round(weights.count_read_bytes(self.holders, prompt, encoder=passes.own.encoder)),
            cache_bytes=0,
            activation_bytes=moved_bytes.at(prompt),
            status=passes.count_prompt(PROMPTS[-1]).figures.status,
        )

    def _count_cache_bytes(self, form: ClosedForm, context: int) -> int:
        """Returns the bytes of the cache of one sequence, from the closed form or else from its tensors."""
        size = form.at(context)
        if size is not None:
            return size
        tensors = self.passes.build_cache(context)[1]
        return round(sum(t.tensor.numel() * get_element_bits(t, self.types.kv_bits) for t in tensors) / 8)

    def _compute_works(
        self, prefill: PassFigures, macs: ClosedForm, cache: ClosedForm, cache_bytes: Mapping[int, int]
    ) -> tuple[dict[int, PassWork], dict[tuple[int, int], PassWork]]:
        """Returns the work of the prompts by batch size, and of a step by context and batch size.

        Args:
            prefill: Figures of the prompt of one sequence.
            macs: Closed form of the multiply-accumulates of a step.
            cache: Closed form of the bytes of the cache.
            cache_bytes: Bytes of the cache of one sequence, by context.
        """
        spec = self.spec
        written = self._count_cache_bytes(cache, spec.prompt)
        prompt_works = {
            batch: PassWork(
                None if prefill.macs is None else prefill.macs * batch,
                weights.count_read_bytes(self.holders, batch * spec.prompt, encoder=self.passes.own.encoder)
                * self.types.scale,
                written * batch,
            )
            for batch in spec.batches
        }
        step_works = {
            (context, batch): PassWork(
                self._count_step_macs(macs, context) * batch,
                weights.count_read_bytes(self.holders, batch) * self.types.scale,
                cache_bytes[context] * batch,
            )
            for context in spec.contexts
            for batch in spec.batches
        }
        return prompt_works, step_works

    def _count_step_macs(self, form: ClosedForm, context: int) -> int:
        """Returns the multiply-accumulates of a step, from the closed form or else from its pass."""
        macs = form.at(context)
        return macs if macs is not None else self.passes.count_macs(context)

    @cached_property
    def _stored_ratio(self) -> dict[int | None, float]:
        """Ratio of stored cache bytes to cache bytes in the code's types, by layer (None: all layers)."""
        compute_bytes: dict[int | None, float] = {None: 0.0}
        stored_bytes: dict[int | None, float] = {None: 0.0}
        for tensor in self.passes.build_cache(self.spec.contexts[0])[1]:
            for bits, totals in ((None, compute_bytes), (self.types.kv_bits, stored_bytes)):
                size = tensor.tensor.numel() * get_element_bits(tensor, bits)
                for layer in (tensor.layer, None):
                    totals[layer] = totals.get(layer, 0.0) + size
        return {layer: stored_bytes[layer] / size if size else 1.0 for layer, size in compute_bytes.items()}

    def _scale_figures(self, figures: PassFigures, cached: float = 1.0) -> PassFigures:
        """Converts the bytes of a pass from the code's types to the stored types.

        Args:
            figures: The figures.
            cached: Ratio of stored cache bytes to cache bytes in the code's types.
        """
        return PassFigures(
            macs=figures.macs,
            weight_macs=figures.weight_macs,
            weight_bytes=round(figures.weight_bytes * self.types.scale),
            cache_bytes=round(figures.cache_bytes * cached),
            activation_bytes=figures.activation_bytes,
            status=figures.status,
        )

    def _build_layers(self) -> tuple[ServedLayer, ...]:
        """Returns a row for each layer of a step that multiplies or reads the cache.

        Each row also holds the multiply-accumulates of the prompt in that layer.
        """
        passes = self.passes
        step = passes.run_step(self.spec.contexts[0])
        prompt_macs = (
            passes.count_prompt_layers(self.spec.prompt) if passes.can_count(self.spec.prompt) else {}
        )
        stored_ratio = self._stored_ratio
        rows = []
        for layer in step.analysis.layers:
            if layer.group or not (layer.macs or layer.kv_cache_bytes):
                continue
            rows.append(
                ServedLayer(
                    path=layer.path,
                    kind=layer.kind,
                    prefill_macs=prompt_macs.get(layer.path),
                    decode_macs=layer.macs,
                    weight_bytes=round((layer.weight_bytes or 0) * self.types.scale),
                    cache_bytes=round(
                        (layer.kv_cache_bytes or 0)
                        * stored_ratio.get(find_layer_number(layer.path), stored_ratio[None])
                    ),
                )
            )
        return tuple(rows)

    def _build_layouts(self, macs: ClosedForm, cached: ClosedForm) -> tuple[DeviceLayout, ...]:
        """Computes the best layouts for each context, batch and number of devices, and adds notes.

        Args:
            macs: Closed form of the multiply-accumulates of a step.
            cached: Closed form of the bytes of the cache.
        """
        spec = self.spec
        if max(spec.devices) == 1:
            return ()
        cuts = LayerCuts(self.passes.own.model, self.holders)
        kept_layouts, refusals = [], dict[str, None]()
        attention = InterpolatedCounts(
            macs, spec.contexts, self.passes.count_attention_macs, self.passes.contexts
        )
        cache_bytes = InterpolatedCounts(cached, spec.contexts, self._sum_cache_bytes)
        prompt = PassOfLayers(self._sum_prompt_macs(), self._sum_cache_bytes(spec.prompt))
        counted_prompt = spec.prompt if self.passes.can_count(spec.prompt) else 0
        for context in spec.contexts:
            step = PassOfLayers(attention.get_figures(context), cache_bytes.get_figures(context))
            layers = build_blocks(cuts, step, prompt, self.types.scale)
            for batch in spec.batches:
                setup = LayoutContext(
                    cuts=cuts,
                    blocks=layers,
                    context=context,
                    batch=batch,
                    machine=self.machine,
                    card=spec.card,
                    links=spec.links,
                    element_bytes=self._get_element_bytes(),
                    prompt=counted_prompt,
                    encoder=self.passes.own.encoder,
                )
                for devices in spec.devices:
                    candidates, reasons = compute_layouts(setup, devices)
                    refusals.update(dict.fromkeys(reasons))
                    kept_layouts += sorted(candidates, key=_build_sort_key)[:_MAX_LAYOUTS]
        self.refusals = list(refusals)[:3]
        self.notes += [f"not cut further: {reason}" for reason in self.refusals]
        if (
            self.machine is not None
            and spec.links is None
            and any(layout.link_bytes for layout in kept_layouts)
        ):
            self.notes.append(
                "times of layouts that send data between devices need the rate of the links (--links)"
            )
        return tuple(kept_layouts)

    def _sum_prompt_macs(self) -> dict[int | None, float]:
        """Returns the multiply-accumulates of the prompt by layer, or {} if the prompt is not counted."""
        macs_by_layer = dict[int | None, float]()
        prompt = self.spec.prompt
        rows = self.passes.count_prompt_layers(prompt) if self.passes.can_count(prompt) else {}
        for path, macs in rows.items():
            number = find_layer_number(path)
            macs_by_layer[number] = macs_by_layer.get(number, 0.0) + (macs or 0)
        return macs_by_layer

    def _sum_cache_bytes(self, context: int) -> dict[int, float]:
        """Returns the stored bytes of the cache by layer."""
        bytes_by_layer: dict[int, float] = {}
        for tensor in self.passes.build_cache(context)[1]:
            size = tensor.tensor.numel() * get_element_bits(tensor, self.types.kv_bits) / 8
            bytes_by_layer[tensor.layer] = bytes_by_layer.get(tensor.layer, 0.0) + size
        return bytes_by_layer

    def _get_element_bytes(self) -> int:
        """Returns the bytes of an element of the hidden states."""
        parameter = next((p for p in self.passes.own.model.parameters() if p.is_floating_point()), None)
        return parameter.element_size() if parameter is not None else 4

    def _add_repeated_note(self) -> None:
        """Adds a note on weights that each step multiplies with all cached tokens, not only the new one."""
        context = self.spec.contexts[0]
        rows = [
            layer
            for layer in self.passes.run_step(context).analysis.layers
            if self.passes.multiplies_weights(layer)
        ]
        extra_macs = {
            layer.path: (layer.macs or 0) - self.passes.first_step_macs.get(layer.path, 0) for layer in rows
        }
        paths = [path for path, macs in extra_macs.items() if macs > 0]
        if context > PROMPTS[0] and paths:
            named = format_names(list(dict.fromkeys(path.rpartition(".")[2] for path in paths)))
            macs = sum(extra_macs[path] for path in paths) * context // (context - PROMPTS[0])
            self.notes.append(
                f"its code multiplies {named} with every token of the cache in each step:"
                f" {macs:,} MACs for a context of {context:,} tokens. Engines that fold these weights into"
                " the queries skip them"
            )

    def _add_notes(self, macs: ClosedForm, cache: ClosedForm) -> None:
        """Adds the notes on the model and on the closed forms of a step's figures."""
        longest = self.longest
        if longest is not None and max(*self.spec.contexts, self.spec.prompt) > longest:
            self.notes.append(
                f"its configuration was made for {longest:,} tokens; longer contexts are still computed"
            )
        reads = self.passes.own.describe_encoder_input()
        if reads:
            self.notes.append(f"its encoder reads {reads}, whatever the prompt")
        idle = (
            []
            if self.passes.own.encoder
            else [holder for holder in self.holders if holder.idle and holder.params]
        )
        if idle:
            named = format_names(list(dict.fromkeys(".".join(holder.path.split(".")[:2]) for holder in idle)))
            self.notes.append(
                f"a text prompt does not use {sum(holder.params for holder in idle):,} of the stored"
                f" parameters ({named}). A pass over their inputs is not counted here"
                " (explorer info with --input-shape of both inputs counts one)"
            )
        if any(holder.routed for holder in self.holders):
            self.notes.append(
                "each token is assumed to choose its experts evenly and independently of other tokens"
            )
        self.notes += weights.describe_all_experts(self.passes.own.model, self.holders)
        self._add_repeated_note()
        self.notes += [f"figures with a sign depend on values: {why}" for why in self.passes.reasons]
        if not macs.pieces or not cache.pieces:
            self.notes.append("no closed form over the context matches the counts")
        ratio = self.passes.two_sequence_ratio
        if ratio > 2:
            self.notes.append(
                f"a step over two sequences does {ratio:.3f} times the work of one (with its head over the"
                " last token only), more than two separate steps: a batch is counted as separate sequences,"
                " and no step over several is predicted"
            )
        elif ratio != 2:
            # rounded to 2.000 it would read as exactly twice
            less = "less than " if f"{ratio:.3f}" == "2.000" else ""
            self.notes.append(
                f"two sequences cost {less}{ratio:.3f} times as much as one; a batch is counted as a multiple"
                " of one sequence"
            )


def _build_sort_key(layout: DeviceLayout) -> tuple[bool, float, int]:
    """Returns the sort key of a layout: whether it fits, then the time per token, then the sent bytes."""
    return layout.fits is False, layout.token if layout.token is not None else float("inf"), layout.link_bytes


def _find_longest_context(model: nn.Module) -> int | None:
    """Returns the longest context, in tokens, that the model's configuration names, or None."""
    config = get_text_config(model)
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx"):
        limit = getattr(config, name, None)
        if isinstance(limit, int) and limit > 0:
            return limit
    return None
