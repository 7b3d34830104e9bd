"""Asked columns: figures of all rows that the engine is asked for, once a column needs them.

The tree knows a few figures of every row. What it is sorted by beyond those, the least time on a machine and
how full tiles are come from the engine, off the way of the first paint. The last ones stay, dimmed, while
others are on their way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from explorer.base.errors import Cancelled, ExplorerError
from explorer.settings.columns import LayerColumn
from explorer.tui.state.hardware import known_machine
from explorer.tui.tree.rows import MEASURED, columns_of

if TYPE_CHECKING:
    from explorer.tui.state.store import ScreenStore
    from explorer.tui.tree.widget import LayerTree

_OF_MACHINE = "a machine: m chooses one"
_OF_TILE = "a tile: t chooses one"
_OF_PROFILE = "a profile: % makes one"
_OF_ROOF = "a profile with a machine: m chooses one, % profiles"
_LACKS = {"seconds": _OF_MACHINE, "utilization": _OF_TILE, "efficiency": _OF_ROOF}
_TILED = object()
"""In place of a tile: the model is tiled already."""
_GIVEN = {"seconds": "machine", "utilization": "spec"}
"""What the engine is told for a column, by what has to lie beside the rows."""


class AskedColumns:
    """Keeps the figures of a tree's columns as its user wants them.

    Args:
        store: Whose machine and tile.
        tree: Whose columns.
    """

    def __init__(self, store: ScreenStore, tree: LayerTree) -> None:
        self._store, self._tree = store, tree
        self._given: dict[str, object] = {}
        self._refused: set[tuple[str, object]] = set()

    def lacking(self) -> list[str]:
        """Columns of the table that are to be asked for."""
        model = self._tree.model
        columns = columns_of(model)
        names = {name for name in model.columns if name in columns and columns[name].needs}
        if not model.metric.of and (model.by_cost or columns[model.metric.id].needs):
            names.add(model.metric.id)
        figures = (name for name in sorted(names) if columns[name].needs or not columns[name].over)
        return [name for name in figures if self._is_lacking(name)]

    def _column(self, name: str) -> LayerColumn:
        return columns_of(self._tree.model)[name]

    def _is_lacking(self, name: str) -> bool:
        given = self._needs(name)
        fresh = name in self._tree.model.asked and self._given.get(name) == given
        return given is not None and not fresh and (name, given) not in self._refused

    def complaint(self, name: str) -> str:
        """What a column needs that is not known; '' if all is there."""
        if self._needs(name) is not None:
            return ""
        return f"'{name}' needs {_LACKS.get(self._column(name).needs, _OF_PROFILE)}"

    def _needs(self, name: str) -> object:
        """What the figures of a column follow from; None while that is not chosen."""
        needs = self._column(name).needs
        if needs == "seconds":
            return known_machine(self._store)
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
        """Ask for what is lacking, one column after the other."""
        tree, store = self._tree, self._store
        while names := self.lacking():
            model, name = tree.model, names[0]
            argument = self._needs(name)
            tree.stale |= {name}
            tree.refresh()
            needs = self._column(name).needs
            more: dict[str, Any] = (
                {_GIVEN[needs]: argument} if needs in _GIVEN and argument is not _TILED else {}
            )
            try:
                if needs == "providers":
                    model.providers = (await store.jobs.ask("placement")).providers
                    model.asked[name] = _ranks(model.providers, model.count)
                else:
                    model.asked[name] = await store.jobs.ask("column", name, **more)
                self._given[name] = argument
                model.forget_sums()
            except Cancelled:
                return
            except ExplorerError as error:
                self._refused.add((name, argument))
                store.say(str(error))
            finally:
                tree.stale -= {name}
            if tree.model is model:
                tree.rearrange(lambda changed: changed.rebuild(), sorting=True)
                if needs in MEASURED:
                    store.notify("focus")  # they have room from now on, and heads


def _ranks(words: Mapping[int, str], count: int) -> Sequence[float]:
    """Words as numbers to sort by: the first of the alphabet is the largest; behind the rows the model's."""
    places = {word: -at for at, word in enumerate(sorted(set(words.values())))}
    return [*(places[words[at]] if words.get(at) else math.nan for at in range(count)), math.nan]
