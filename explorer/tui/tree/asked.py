"""Asked columns: figures of all rows that the engine is asked for, once a column needs them.

The tree knows a few figures of every row. What it is sorted by beyond those, the least time on a machine and
how full tiles are come from the engine, off the way of the first paint. The last ones stay, dimmed, while
others are on their way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explorer.base.errors import Cancelled, ExplorerError
from explorer.settings.columns import COLUMNS

if TYPE_CHECKING:
    from explorer.tui.state.store import ScreenStore
    from explorer.tui.tree.widget import LayerTree

_OF_MACHINE = "a machine: m chooses one"
_OF_TILE = "a tile: t chooses one"


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
        shown = {name for name in model.columns if name in COLUMNS and COLUMNS[name].needs}
        if not model.metric.of and (model.by_cost or COLUMNS[model.metric.id].needs):
            shown.add(model.metric.id)
        return [name for name in sorted(shown) if self._is_lacking(name)]

    def _is_lacking(self, name: str) -> bool:
        given = self._needs(name)
        fresh = name in self._tree.model.asked and self._given.get(name) == given
        return given is not None and not fresh and (name, given) not in self._refused

    def complaint(self, name: str) -> str:
        """What a column needs that is not known; '' if all is there."""
        if self._needs(name) is not None:
            return ""
        return f"'{name}' needs {_OF_MACHINE if COLUMNS[name].needs == 'seconds' else _OF_TILE}"

    def _needs(self, name: str) -> object:
        """What the figures of a column follow from; None while that is not chosen."""
        needs = COLUMNS[name].needs
        if needs == "seconds":
            return self._store.known_machine()
        return self._store.tile_spec if needs else ""

    async def ask(self) -> None:
        """Ask for what is lacking, one column after the other."""
        tree, store = self._tree, self._store
        while names := self.lacking():
            model, name = tree.model, names[0]
            given = self._needs(name)
            tree.stale |= {name}
            tree.refresh()
            needs = COLUMNS[name].needs
            more: dict[str, Any] = {"machine" if needs == "seconds" else "spec": given} if needs else {}
            try:
                model.asked[name] = await store.jobs.ask("column", name, **more)
                self._given[name] = given
            except Cancelled:
                return
            except ExplorerError as error:
                self._refused.add((name, given))
                store.say(str(error))
            finally:
                tree.stale -= {name}
            if tree.model is model:
                tree.rearrange(lambda changed: changed.rebuild())
