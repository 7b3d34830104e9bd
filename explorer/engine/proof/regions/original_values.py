"""Values of the original model in runs of the full model, from which the regions get their inputs."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from explorer.engine.graph.dtypes import get_element_type
from explorer.engine.proof.regions.correspondence import ChangedRegion, Correspondence
from explorer.engine.proof.regions.synthetic_values import Feeds
from explorer.engine.runtime.onnxruntime import RuntimeSession, expose
from explorer.engine.runtime.random_inputs import RandomInput, draw

_MAX_PREFETCHED_BYTES = 1 << 24
"""Largest size, in bytes, of the values that one run computes for later regions. One run for each region
would take time quadratic in the number of regions."""


class OriginalValues:
    """Runs the original, and keeps the values that later regions need. Several threads may use it.

    Args:
        correspondence: Matched values of the two models.
        random_inputs: Random inputs of the model, once for each set of sizes.
        seed: Seed of the first draw of these inputs.

    Attributes:
        types: Element type of each computed value, by name.
    """

    def __init__(
        self, correspondence: Correspondence, random_inputs: Sequence[tuple[RandomInput, ...]], seed: int
    ) -> None:
        self.correspondence, self.random_inputs, self.seed = correspondence, random_inputs, seed
        self.types: dict[str, str] = {}
        self._producer = correspondence.wirings[0].producer
        self._session: RuntimeSession | None = None
        self._exposed: set[str] = set()
        self._requested: dict[str, None] = {}
        self._computed: dict[tuple[int, int], Feeds] = {}
        self._latest: dict[tuple[int, int], Feeds] = {}
        self._lock = threading.RLock()

    def expose(self, regions: Sequence[ChangedRegion]) -> None:
        """Loads the original with the inputs of these regions as additional outputs."""
        names = dict.fromkeys(name for r in regions for name in r.reads if name in self._producer)
        with self._lock:
            if names.keys() - self._exposed:
                self._exposed |= names.keys()
                self._requested, self._computed, self._latest = names, {}, {}
                model = expose(self.correspondence.before, sorted(self._exposed))
                self._session = RuntimeSession(model, label="the original", optimize=False)

    def compute(self, names: Sequence[str], inputs: tuple[RandomInput, ...], seed: int) -> Feeds:
        """Computes the values that these names have in the original.

        Args:
            names: Names of values of the original, and of its inputs.
            inputs: Inputs of the model for one set of sizes.
            seed: Seed of the random numbers of the inputs.

        Raises:
            BadModel: The original does not run at these sizes.
        """
        run_key = id(inputs), seed
        with self._lock:
            feeds = self._computed.get(run_key, {})
            if missing := [name for name in names if name not in feeds]:
                drawn = draw(inputs, seed)
                # a region that another thread tests needs the values of the run before
                feeds = {
                    **drawn,
                    **self._latest.get(run_key, {}),
                    **{n: feeds[n] for n in names if n in feeds},
                }
                if unknown := [name for name in missing if name not in feeds]:
                    assert self._session is not None
                    self._latest[run_key] = self._session.run(
                        drawn, [*unknown, *self._list_upcoming_values(unknown)]
                    )
                    feeds |= self._latest[run_key]
                self._computed[run_key] = feeds
                self.types.update((name, get_element_type(value)) for name, value in feeds.items())
            return {name: feeds[name] for name in names}

    def _list_upcoming_values(self, requested: Sequence[str]) -> Iterator[str]:
        """Yields names of values that the next regions need, up to `_MAX_PREFETCHED_BYTES`."""
        budget, is_past_request = _MAX_PREFETCHED_BYTES, False
        for name in self._requested:
            is_past_request = is_past_request or name == requested[0]
            if not is_past_request or name in requested:
                continue
            budget -= self.correspondence.estimate_bytes(name)
            if budget < 0:
                return
            yield name

    def compute_first(self, region: ChangedRegion) -> Feeds:
        """Computes the inputs of a region for the first set of sizes and the first seed."""
        return self.compute(region.reads, self.random_inputs[0], self.seed)
