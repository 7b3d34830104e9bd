"""Serving sweep: a row for every layout of every model, type, context, batch and number of devices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from explorer.base.checked import Spec
from explorer.facts.pareto_front import nondominated
from explorer.facts.serving.serving import ServingLimit
from explorer.facts.serving.spec import ServingSpec


class ServingSweepSpec(Spec, frozen=True):
    """What is combined.

    Attributes:
        base: Prompt, contexts, batches, devices, memory and links; its types are not looked at.
        dtypes, kv_dtypes: As those of `ServingSpec`; each stands by itself.
    """

    base: ServingSpec = ServingSpec()
    dtypes: Annotated[tuple[str, ...], Meta(min_length=1)] = ("",)
    kv_dtypes: Annotated[tuple[str, ...], Meta(min_length=1)] = ("",)

    def questions(self) -> list[ServingSpec]:
        """A question for each combination: of one context, batch, number of devices and type of each kind."""
        base = self.base
        each = self.dtypes, self.kv_dtypes, base.contexts, base.batches, base.devices
        return [
            replace(base, dtype=dtype, kv_dtype=kv, contexts=(context,), batches=(batch,), devices=(devices,))
            for dtype, kv, context, batch, devices in product(*map(dict.fromkeys, each))
        ]


class ServingRow(Struct, frozen=True, kw_only=True):
    """One layout of a model over devices, at one context and batch.

    Attributes:
        key: Digest of everything that the figures depend on, and which of the layouts it is.
        model, opening, machine: As the user named them; `fingerprint` is the digest of the model.
        prompt, context, batch, devices, dtype, kv_dtype, card, links: As asked.
        layouts: How many rows the same question has.
        tensor, pipeline, expert: The layout.
        weight_bytes, cache_bytes, link_bytes, fits, first_token, token, rate, bound: As of a `DeviceLayout`.
        pareto: On the front of its model, machine, prompt and context: none that fits is as fast a token,
            writes as many tokens a second on a device, and is better in one of the two.
        error: Why it has no figures; '' where it has.
    """

    key: str
    model: str
    fingerprint: str = ""
    opening: str = ""
    machine: str = ""
    prompt: int
    context: int
    batch: int
    devices: int
    dtype: str = ""
    kv_dtype: str = ""
    card: int | None = None
    links: float | None = None
    layouts: int = 1
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    weight_bytes: int | None = None
    cache_bytes: int | None = None
    link_bytes: int | None = None
    fits: bool | None = None
    first_token: float | None = None
    token: float | None = None
    rate: float | None = None
    bound: ServingLimit = "unknown"
    pareto: bool = False
    error: str = ""


class ServingSweep(Struct, frozen=True, kw_only=True):
    """The answer of `explorer serving --sweep`.

    Attributes:
        rows: In the order of models and combinations.
        made, kept: Rows that were counted now, and that the file of results had already.
        output: That file; '' for none.
        workers: Processes that worked at it; 0 where it was done in this one.
    """

    rows: tuple[ServingRow, ...]
    made: int = 0
    kept: int = 0
    output: str = ""
    workers: int = 0
    seconds: float = 0.0

    @property
    def failed(self) -> dict[str, str]:
        """Models that could not be opened, and why."""
        return {row.model: row.error for row in self.rows if row.error and not row.fingerprint}


def with_serving_front(rows: Sequence[ServingRow]) -> tuple[ServingRow, ...]:
    """The rows, each marked if it is on the front of its rivals."""
    rivals: dict[tuple[object, ...], list[int]] = {}
    for at, row in enumerate(rows):
        if row.token is not None and row.rate is not None and row.fits is not False:
            among = row.model, row.fingerprint, row.opening, row.machine, row.prompt, row.context
            rivals.setdefault(among, []).append(at)
    marked: set[int] = set()
    for group in rivals.values():
        points = [(rows[at].token, -(rows[at].rate or 0) / rows[at].devices, 0) for at in group]
        best = nondominated(points)
        marked.update(at for at, point in zip(group, points, strict=True) if point in best)
    return tuple([replace(row, pareto=at in marked) for at, row in enumerate(rows)])
