"""Registry of features: finds what a feature offers by name, for modules that must not import features.

A feature is a package in `explorer/features`. Its `__init__.py` defines `FEATURE`, which lists by name what
the feature offers to the command line, the session, the screen and the report. Reading the lists imports no
other module. A module of a feature is imported when one of its offers is loaded.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any, TypedDict, Unpack

    Targets = Mapping[str, str]

    class Offers(TypedDict, total=False):
        """Kinds of offers. Each is a map from names to targets.

        A target is a dotted name relative to the package of the feature, such as 'tile_command.COMMAND'.

        Attributes:
            verbs: Verbs of the command line: records of type `cli.arguments.command.Command`.
            methods: Methods of `Session`: functions whose first argument is the session.
            functions: Functions of `explorer.session` that work on several models or on none.
            changes: Changes, which make states of the history: records of type `session.parts.change.Change`.
            records: Subclasses of `facts.change.ChangeRecord`: what a state keeps about each change.
            fields: Functions that build the fields of a state in `explorer history`, one for each change.
            main_keys: Keys of the main screen: tables of `tui.commands.command_key.CommandKey`.
            keys: Keys of the feature's own screens for the help: tables of `tui.text.keys.Key`.
            layer_lines: Parts of the page of a layer: functions that take a `tui.tabs.layer.LayerParts`.
            model_blocks: Blocks on the page of the model: functions that take the screen's store.
            pictures: Pictures that matplotlib draws: functions that take axes, the model's totals and a fact.
            sections: Sections of the HTML report: records of type `report.html.page.Section`.
            words: Texts for the answer of another feature's verb: functions that build blocks from a fact.
            blocks: Blocks of facts, by the type of the fact: functions that build blocks from a fact.
            displays: Functions that show a fact in Python or in a notebook, see `base.fact`: "html", "frame",
                "text", "document".
        """

        verbs: Targets
        methods: Targets
        functions: Targets
        changes: Targets
        records: Targets
        fields: Targets
        main_keys: Targets
        keys: Targets
        layer_lines: Targets
        model_blocks: Targets
        pictures: Targets
        sections: Targets
        words: Targets
        blocks: Targets
        displays: Targets


_PACKAGE = "explorer.features"


class Feature:
    """Offers of a feature.

    Args:
        **offers: Offers by kind; see `Offers`.
    """

    def __init__(self, **offers: Unpack[Offers]) -> None:
        self.offers: Mapping[str, Any] = offers


_targets: dict[str, dict[str, str]] = {}
"""Full name of the target (`package.module.attribute`) by kind of offer and name."""


def list_offers(kind: str) -> Mapping[str, str]:
    """Lists all offers of a kind in the order of the features, each name with its target's full name."""
    if not _targets:
        for folder in import_module(_PACKAGE).FEATURES:
            feature: Feature = import_module(f"{_PACKAGE}.{folder}").FEATURE
            for offered_kind, offers in feature.offers.items():
                targets = _targets.setdefault(offered_kind, {})
                targets.update({name: f"{_PACKAGE}.{folder}.{target}" for name, target in offers.items()})
    return _targets.get(kind, {})


def load(kind: str, name: str) -> Any:
    """Imports and returns the target of an offer.

    Raises:
        KeyError: No feature offers the name.
    """
    module, _, attribute = list_offers(kind)[name].rpartition(".")
    return getattr(import_module(module), attribute)


def load_all(kind: str) -> Iterator[Any]:
    """Imports and yields the targets of all offers of a kind, in the order of the features."""
    return (load(kind, name) for name in list_offers(kind))
