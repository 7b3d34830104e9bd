"""Facts about serving a language model: parameters, passes, cache, times and layouts over devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from msgspec import Struct

from explorer.facts import Reach
from explorer.facts.roofline import Machine
from explorer.facts.serving.forms import ClosedForm
from explorer.facts.serving.spec import ServingSpec

_SIGNS: Mapping[Reach, str] = {"bound": "<= ", "assumed": "~ ", "unknown": ">= "}

ServingLimit = Literal["compute", "weights", "cache", "links", "unknown"]


class ServedPart(Struct, frozen=True):
    """Parameters of one kind of layer.

    Attributes:
        name: Of the modules that hold them, numbers as '*': 'model.layers.*.mlp.experts'.
        kind: Their class.
        count: How many there are.
        params: Of all; a weight that several share counts once.
        active: Of those, what a step works with for one token; a table that it looks a row up in counts
            whole, an encoder or a tower of pictures that a step leaves out not at all.
        weight_bytes: As they are stored.
        dtype: What they are stored in; several between commas.
    """

    name: str
    kind: str
    count: int
    params: int
    active: int
    weight_bytes: int
    dtype: str


class PassFigures(Struct, frozen=True):
    """What one pass does, of one sequence; None for what is not known.

    Attributes:
        macs: Multiply-accumulates, all.
        weight_macs: Those in products with stored weights; the others are attention's and states'.
        weight_bytes: Of weights, read once.
        cache_bytes: Of the cache that it finds.
        activation_bytes: Read and written by the code besides, a cache that it copies too.
        status: Of the multiply-accumulates, as of `Totals`: 'exact', or they depend on values.
    """

    macs: int | None
    weight_macs: int | None
    weight_bytes: int
    cache_bytes: int
    activation_bytes: int | None
    status: Reach = "exact"

    @property
    def sign(self) -> str:
        """What goes before the multiply-accumulates, as in `Totals.sign`."""
        return _SIGNS.get(self.status, "")


class ServedLayer(Struct, frozen=True):
    """A row of the layer tree (never a group) that multiplies or reads the cache, in both passes."""

    path: str
    kind: str
    prefill_macs: int | None
    decode_macs: int | None
    weight_bytes: int
    cache_bytes: int


class CacheGroup(Struct, frozen=True):
    """Layers whose cache is alike.

    Attributes:
        kind: The cache's class for them.
        layers: How many.
        shapes: Of its tensors for one sequence, by name, at the context; in the model's own order.
        growing: Elements of keys and values that a token adds; 0 for a state that does not grow.
        window: Tokens that it keeps at most; None for all.
        elements: At the context.
    """

    kind: str
    layers: int
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    growing: int
    window: int | None
    elements: int


class ServedCache(Struct, frozen=True):
    """What the model's own code caches of one sequence.

    Attributes:
        groups: In the order of the layers.
        token_bytes: That a token adds where all layers still grow.
        bytes: Of keys and values and of states, over the context.
        state_bytes: Of states that do not grow.
        passes_weights: The least context at which the cache of one sequence takes more than the weights;
            None where it never does.
    """

    groups: tuple[CacheGroup, ...]
    token_bytes: int
    bytes: ClosedForm
    state_bytes: int
    passes_weights: int | None


class ServingTime(Struct, frozen=True):
    """Least times of one batch at one context on one machine, by compute and bytes alone.

    Attributes:
        context, batch: Of the step.
        memory: Bytes of weights and cache.
        fits: Whether a device holds them; None where its memory is not known.
        first_token: Seconds to the first token: the prompts of the batch, at best.
        first_limit, token_limit: What bounds the two.
        token: Seconds a step.
        rate: Tokens a second, of the whole batch.
        first_token_predicted, token_predicted: Seconds that kernels measured on the machine take; None where
            it was not measured, or not in the type that the model works in.
    """

    context: int
    batch: int
    memory: int
    fits: bool | None
    first_token: float | None
    first_limit: ServingLimit
    token: float | None
    token_limit: ServingLimit
    rate: float | None
    first_token_predicted: float | None = None
    token_predicted: float | None = None


class DeviceShare(Struct, frozen=True):
    """What each of the devices of one stage has of a layout: those of a stage are alike.

    Attributes:
        devices: How many.
        first, last: Numbers of the layers that they hold.
        weight_bytes, cache_bytes: Of one of them.
        link_bytes: That it sends in a step.
        busy: Least seconds that it works at a step of the whole batch.
        limit: What bounds those.
    """

    devices: int
    first: int
    last: int
    weight_bytes: int
    cache_bytes: int
    link_bytes: int
    busy: float | None
    limit: ServingLimit


class DeviceLayout(Struct, frozen=True):
    """One way to lay a model over devices, at one context and batch.

    Attributes:
        devices: Their number, the product of the next three.
        tensor: Devices that share each layer: heads and feed-forward columns are cut.
        pipeline: Stages of layers one behind the other.
        expert: Devices that share the experts out, and the batch.
        weight_bytes, cache_bytes: Of the fullest device.
        fits: Whether its memory holds both; None where it is not known.
        link_bytes: That the device which sends most sends in a step.
        token: Least seconds a step.
        rate: Tokens a second of the whole batch; None where the links' rate is not known.
        limit: What bounds the step.
        first_token: Seconds until the prompts of the batch are read, at best; None where a prompt is not
            counted by layer, or the links' rate is not known.
        first_limit: What bounds that.
        shares: What each device has of it, by stage.
    """

    context: int
    batch: int
    devices: int
    tensor: int
    pipeline: int
    expert: int
    weight_bytes: int
    cache_bytes: int
    fits: bool | None
    link_bytes: int
    token: float | None
    rate: float | None
    limit: ServingLimit
    first_token: float | None = None
    first_limit: ServingLimit = "unknown"
    shares: tuple[DeviceShare, ...] = ()


class Serving(Struct, frozen=True):
    """What it costs to run a language model.

    Attributes:
        spec: What was asked.
        architecture: Class of the module.
        params: All, each once.
        active: What a step works with for one token, tables counted whole.
        embedding: Of tables in which rows are looked up.
        weight_bytes: As stored.
        parts: By the kind of layer.
        prefill: Of a pass over the prompt.
        decode: Of a step at the first context.
        prefill_macs: Over the prompt.
        decode_macs: Over the context.
        cache: What it keeps.
        layers: Rows of both passes.
        longest: The most tokens that its configuration says it was made for; None where it says none.
        machine: What the times are of; None without one.
        times: By context and batch.
        longest_context: The most tokens that the memory of a device holds, by batch; 0 where not one, None
            where nothing grows or the memory is not known.
        largest_batch: The most sequences at each context, likewise.
        layouts: Over several devices, those that fit and are fastest first.
        notes: What is worth knowing.
        uncut: Why the model is not cut further over its devices.
    """

    spec: ServingSpec
    architecture: str
    params: int
    active: int
    embedding: int
    weight_bytes: int
    parts: tuple[ServedPart, ...]
    prefill: PassFigures
    decode: PassFigures
    prefill_macs: ClosedForm
    decode_macs: ClosedForm
    cache: ServedCache
    layers: tuple[ServedLayer, ...]
    longest: int | None
    machine: Machine | None
    times: tuple[ServingTime, ...]
    longest_context: tuple[tuple[int, int | None], ...]
    largest_batch: tuple[tuple[int, int | None], ...]
    layouts: tuple[DeviceLayout, ...]
    notes: tuple[str, ...] = ()
    uncut: tuple[str, ...] = ()

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("uncut",)


def contexts_to_draw(fact: Serving, places: int) -> list[int]:
    """Contexts, evenly from one token to the longest that was asked for or that the model was made for."""
    most = max(*fact.spec.contexts, fact.longest or 0, places)
    return sorted({max(1, most * at // places) for at in range(places + 1)})


def devices_to_draw(fact: Serving) -> int:
    """Of how many devices tokens a second are drawn: the most asked for of which they are known."""
    return max((layout.devices for layout in fact.layouts if layout.rate is not None), default=1)


def rates_to_draw(fact: Serving, context: int) -> list[ServingTime | DeviceLayout]:
    """Tokens a second at a context, by batch: of one device, or of the best layout over `devices_to_draw`."""
    devices = devices_to_draw(fact)
    every = fact.times if devices == 1 else [layout for layout in fact.layouts if layout.devices == devices]
    rate_by_batch: dict[int, ServingTime | DeviceLayout] = {}
    for row in every:
        if row.context == context and row.rate is not None:
            rate_by_batch.setdefault(row.batch, row)
    return [rate_by_batch[batch] for batch in sorted(rate_by_batch)]
