"""Features: the one door from the rooms below to the capabilities above them.

A feature is a folder of `explorer/features`; its `__init__.py` has a `FEATURE`, which says by name what it
offers to the command line, the session, the screen and the report. Names alone are read here: a module of a
feature is imported when what it offers is asked for.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

_ROOM = "explorer.features"


class Feature:
    """What a feature offers: for each kind of place that asks, names and homes.

    A home is a name in a module of the feature's folder: 'tile_command.COMMAND'.

    Args:
        verbs: Of the command line: records of `cli.arguments.command.Command`.
        methods: Of `Session`: functions that take the session first.
        functions: Of `explorer.session`: functions of several models, or of none.
        changes: Records of `session.parts.change.Change`: what makes states of the history.
        records: Of each change the kind of `facts.change.ChangeRecord` that its states keep.
        fields: Of each change what is told of a state: functions that make fields of its record.
        commands: Tables of `tui.commands.key_table.CommandKey`: keys of the main screen.
        keys: Tables of `tui.text.keys.Key`: what screens of its own have in the help.
        layer_lines: Parts of the page of a layer: functions that take what
            `tui.tabs.layer.LayerParts` says.
        model_blocks: Blocks on the page of the model: functions of the screen's store.
        pictures: What matplotlib draws: functions that take axes, the model's totals and a fact.
        sections: Of the report on one page: records of `report.html.page.Section`.
        words: What the verb of another feature answers: functions that make blocks of a fact.
    """

    def __init__(
        self,
        *,
        verbs: Mapping[str, str] | None = None,
        methods: Mapping[str, str] | None = None,
        functions: Mapping[str, str] | None = None,
        changes: Mapping[str, str] | None = None,
        records: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
        commands: Mapping[str, str] | None = None,
        keys: Mapping[str, str] | None = None,
        layer_lines: Mapping[str, str] | None = None,
        model_blocks: Mapping[str, str] | None = None,
        pictures: Mapping[str, str] | None = None,
        sections: Mapping[str, str] | None = None,
        words: Mapping[str, str] | None = None,
    ) -> None:
        self.offers = {
            "verbs": verbs or {},
            "methods": methods or {},
            "functions": functions or {},
            "changes": changes or {},
            "records": records or {},
            "fields": fields or {},
            "commands": commands or {},
            "keys": keys or {},
            "layer_lines": layer_lines or {},
            "model_blocks": model_blocks or {},
            "pictures": pictures or {},
            "sections": sections or {},
            "words": words or {},
        }


_homes: dict[str, dict[str, str]] = {}


def offered(kind: str) -> Mapping[str, str]:
    """What all features offer of a kind, in their order: names, and the full name of what each stands for."""
    if not _homes:
        for room in import_module(_ROOM).FEATURES:
            feature: Feature = import_module(f"{_ROOM}.{room}").FEATURE
            for place, offers in feature.offers.items():
                homes = _homes.setdefault(place, {})
                homes.update({name: f"{_ROOM}.{room}.{home}" for name, home in offers.items()})
    return _homes.get(kind, {})


def load(kind: str, name: str) -> Any:
    """What a feature offers under a name; its module is imported now.

    Raises:
        KeyError: No feature offers it.
    """
    module, _, attribute = offered(kind)[name].rpartition(".")
    return getattr(import_module(module), attribute)


def load_all(kind: str) -> Iterator[Any]:
    """All that features offer of a kind, each imported when its turn comes."""
    return (load(kind, name) for name in offered(kind))
