"""Facts about a serving sweep: a row for each layout of each model, type, context, batch and device count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Annotated, Any, ClassVar

from msgspec import Meta
from msgspec.structs import replace

from explorer.base.checked import Spec
from explorer.base.fact import Fact, TableFact
from explorer.facts.pareto_front import find_nondominated
from explorer.facts.serving.serving import ServingLimit
from explorer.facts.serving.spec import ServingSpec


class ServingSweepSpec(Spec, frozen=True):
    """Settings of a serving sweep.

    Attributes:
        base: Prompt, contexts, batches, devices, memory and links. Its number types are ignored.
        dtypes: Number types of the weights, as in `ServingSpec`, each combined with all other settings.
        kv_dtypes: Number types of the KV cache, as in `ServingSpec`, each combined with all other settings.
    """

    base: ServingSpec = ServingSpec()
    dtypes: Annotated[tuple[str, ...], Meta(min_length=1)] = ("",)
    kv_dtypes: Annotated[tuple[str, ...], Meta(min_length=1)] = ("",)

    def count_questions(self) -> int:
        """Counts the combinations that `list_questions` lists, without building them."""
        return math.prod(map(len, self._list_values()))

    def list_questions(self) -> list[ServingSpec]:
        """Lists the combinations, each with a single context, batch, device count and pair of types."""
        return [
            replace(
                self.base, dtype=dtype, kv_dtype=kv, contexts=(context,), batches=(batch,), devices=(devices,)
            )
            for dtype, kv, context, batch, devices in product(*self._list_values())
        ]

    def _list_values(self) -> list[list[Any]]:
        """Lists the values of each setting once: types, cache types, contexts, batches and device counts."""
        base = self.base
        settings = self.dtypes, self.kv_dtypes, base.contexts, base.batches, base.devices
        return [list(dict.fromkeys(values)) for values in settings]


class ServingRow(Fact, frozen=True, kw_only=True):
    """One layout of a model over devices, at one context and batch.

    Attributes:
        key: Digest of all inputs of the figures, and of the layout.
        model: Name of the model, as the user typed it.
        opening: Options with which the model was opened, as the user typed them.
        machine: Name of the machine, as the user typed it.
        fingerprint: Digest of the model's content.
        prompt, context, batch, devices, dtype, kv_dtype: Setting of `ServingSpec`, one value of each.
        card: Memory of a device, in bytes, as requested.
        links: Bytes per second of a link between devices, as requested.
        layouts: Number of rows with the same settings.
        tensor, pipeline, expert: Degree of parallelism, as in `DeviceLayout`.
        weight_bytes, cache_bytes, link_bytes, fits, first_token, token, rate: Figure of the same name, as in
            `DeviceLayout`.
        bound: Resource that bounds the decode step.
        pareto: Whether the row is on the Pareto front of its model, machine, prompt and context: no other row
            is at least as good in token time and in tokens per second and device, and better in one of them.
            Rows that are known not to fit do not compete.
        error: Reason why the row has no figures, or ''.
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


class ServingSweep(TableFact, frozen=True, kw_only=True):
    """The answer of `explorer serving --sweep`.

    Attributes:
        rows: Rows in the order of the models and combinations.
        made: Number of rows that were computed now.
        kept: Number of rows that the results file already had.
        output: Path of the results file, or '' for none.
        workers: Number of worker processes, or 0 if this process did the work.
    """

    ROWS: ClassVar[str] = "rows"

    rows: tuple[ServingRow, ...]
    made: int = 0
    kept: int = 0
    output: str = ""
    workers: int = 0
    seconds: float = 0.0

    @property
    def failed(self) -> dict[str, str]:
        """Reason by model name, for models that could not be opened."""
        return {row.model: row.error for row in self.rows if row.error and not row.fingerprint}


def mark_serving_front(rows: Sequence[ServingRow]) -> tuple[ServingRow, ...]:
    """Sets `pareto` of each row, see `ServingRow.pareto`."""
    rivals: dict[tuple[object, ...], list[int]] = {}
    for index, row in enumerate(rows):
        if row.token is not None and row.rate is not None and row.fits is not False:
            among = row.model, row.fingerprint, row.opening, row.machine, row.prompt, row.context
            rivals.setdefault(among, []).append(index)
    marked: set[int] = set()
    for group in rivals.values():
        points = [(rows[index].token, -(rows[index].rate or 0) / rows[index].devices, 0) for index in group]
        best = find_nondominated(points)
        marked.update(index for index, point in zip(group, points, strict=True) if point in best)
    return tuple([replace(row, pareto=index in marked) for index, row in enumerate(rows)])
