"""Columns whose figures the engine computes, once the table shows or sorts by them.

The tree model has only a few figures of every row. Others, such as the minimum time on a machine or the tile
utilization, are requested from the engine after the first paint. Outdated figures stay visible, dimmed, until
the new figures arrive.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from explorer.base.errors import Cancelled, ExplorerError
from explorer.settings.columns import LayerColumn
from explorer.tui.state.hardware import find_machine
from explorer.tui.tree.rows import MEASURED, list_columns

if TYPE_CHECKING:
    from explorer.tui.state.store import ScreenStore
    from explorer.tui.tree.widget import LayerTree

# inputs that a column may need, and the keys that provide them
_OF_MACHINE = "a machine: m chooses one"
_OF_TILE = "a tile: t chooses one"
_OF_PROFILE = "a profile: % makes one"
_OF_ROOF = "a profile with a machine: m chooses one, % profiles"
_MISSING_INPUTS = {"seconds": _OF_MACHINE, "utilization": _OF_TILE, "efficiency": _OF_ROOF}
"""Missing input by the `needs` of a column. The other columns that need an input need a profile."""
_TILED = object()
"""Placeholder for the tile of a model that is already tiled."""
_ARGUMENT_NAMES = {"seconds": "machine", "utilization": "spec"}
"""Keyword argument of the engine's `column` method that passes the input, by the `needs` of the column."""


class RequestedColumns:
    """Requests the figures of the columns in use, and requests them again when their inputs change.

    Args:
        store: Store with the machine, the tile and the profile.
        tree: Layer tree that shows the columns.
    """

    def __init__(self, store: ScreenStore, tree: LayerTree) -> None:
        self._store, self._tree = store, tree
        self._used_inputs: dict[str, object] = {}
        self._refused: set[tuple[str, object]] = set()

    def list_missing(self) -> list[str]:
        """Return the names of the columns in use whose figures are missing or outdated."""
        model = self._tree.model
        columns = list_columns(model)
        names = {name for name in model.columns if name in columns and columns[name].needs}
        if not model.metric.array and (model.by_cost or columns[model.metric.id].needs):
            names.add(model.metric.id)
        computed_names = (
            name for name in sorted(names) if columns[name].needs or not columns[name].aggregate
        )
        return [name for name in computed_names if self._is_lacking(name)]

    def _get_column(self, name: str) -> LayerColumn:
        return list_columns(self._tree.model)[name]

    def _is_lacking(self, name: str) -> bool:
        """Whether the figures of a column are missing or outdated, and can be requested with success."""
        current_input = self._find_input(name)
        is_fresh = name in self._tree.model.requested_figures and self._used_inputs.get(name) == current_input
        return current_input is not None and not is_fresh and (name, current_input) not in self._refused

    def describe_missing_input(self, name: str) -> str:
        """Return a message with the input that the user must still choose for a column, or ''."""
        if self._find_input(name) is not None:
            return ""
        return f"'{name}' needs {_MISSING_INPUTS.get(self._get_column(name).needs, _OF_PROFILE)}"

    def _find_input(self, name: str) -> object:
        """Return the input that the figures of a column depend on, or None until the user has chosen it.

        For a column without such an input, it is the name in `needs`, or ''.
        """
        needs = self._get_column(name).needs
        if needs == "seconds":
            return find_machine(self._store)
        if needs in MEASURED:
            profile = self._store.profile
            if profile is None or (needs == "efficiency" and profile.machine is None):
                return None
            return profile.wall, profile.machine
        if needs != "utilization":
            return needs
        analysis = self._store.analysis
        is_tiled = analysis is not None and analysis.info.tiled is not None
        return _TILED if is_tiled else self._store.tile_spec

    async def ask(self) -> None:
        """Request the figures of all columns that lack them, one column at a time."""
        tree, store = self._tree, self._store
        while names := self.list_missing():
            model, name = tree.model, names[0]
            argument = self._find_input(name)
            tree.stale |= {name}
            tree.refresh()
            needs = self._get_column(name).needs
            arguments: dict[str, Any] = (
                {_ARGUMENT_NAMES[needs]: argument}
                if needs in _ARGUMENT_NAMES and argument is not _TILED
                else {}
            )
            try:
                if needs == "providers":
                    model.providers = (await store.jobs.ask("placement")).providers
                    model.requested_figures[name] = _rank_words(model.providers, model.count)
                else:
                    model.requested_figures[name] = await store.jobs.ask("column", name, **arguments)
                if needs in MEASURED and store.profile is not None:
                    model.set_share_head(f"of {store.profile.share_base}")
                self._used_inputs[name] = argument
                model.forget_sums()
            except Cancelled:
                return
            except ExplorerError as error:
                self._refused.add((name, argument))
                store.say(str(error))
            finally:
                tree.stale -= {name}
            if tree.model is model:
                tree.rearrange(lambda changed: changed.rebuild(), stays_first=True)
                store.notify("layer")  # another layer may be in the first row now
                if needs in MEASURED:
                    store.notify("focus")  # from now on these columns have room and titles


def _rank_words(words: Mapping[int, str], count: int) -> Sequence[float]:
    """Convert words to numbers for sorting: the first in alphabetical order is the largest.

    Layers without a word get NaN, and so does the whole model, whose figure comes last.
    """
    places = {word: -index for index, word in enumerate(sorted(set(words.values())))}
    return [*(places[words[index]] if words.get(index) else math.nan for index in range(count)), math.nan]
