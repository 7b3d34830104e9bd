"""config.json of a transformers model: checked before a module is built from it.

A configuration is not trusted: one line may ask for a billion layers. Each layer is built in Python, so their
number is limited here. Sizes of tensors cost nothing, because the tensors have no values.
"""

from __future__ import annotations

from explorer.base.errors import BadModel
from explorer.base.units import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

MOST_LAYERS = 4_096
"""Most layers, blocks or stages in a list: twenty times those of the deepest model."""

MOST_EXPERTS = 65_536
MOST_MODULES = 500_000
"""Most modules of a model: some architectures build several modules for each expert in each layer."""

_LARGEST = 1 << 40
"""Largest size: a tensor with two larger sizes could not be counted."""

_DEPTHS = ("layer", "block", "depth", "stage", "repeat", "levels", "hops")
"""Words in the names of settings for numbers of modules."""

_WIDTHS = ("size", "dim", "vocab", "token", "_id", "length")
"""Words in the names of settings for widths."""

_PARTS = 8
"""Most levels of nested configurations."""


class BuildError(Exception):
    """The error for a configuration from which no module is built; its text gives the reason."""


def check(config: Mapping[str, Any], source: str) -> None:
    """Refuses sizes beyond those of any model.

    Args:
        config: Contents of config.json.
        source: The source that the user named.

    Raises:
        BadModel: One is too large to be built.
    """
    for key, value in _numbers(config, "", 0):
        name = key.rpartition(".")[2]
        most = MOST_EXPERTS if "expert" in name else MOST_LAYERS if _is_depth(name) else _LARGEST
        if not -_LARGEST <= value <= most:
            who = "its metadata" if source.endswith(".gguf") else "config.json"
            problem = f"{who} says {printable(key)} {value:,}"
            raise BadModel(problem, where=source, hint=f"at most {most:,} are built")


def _is_depth(name: str) -> bool:
    return any(word in name for word in _DEPTHS) and not any(word in name for word in _WIDTHS)


def _numbers(value: Any, key: str, depth: int) -> Iterator[tuple[str, int]]:
    """Every integer of a configuration, with the path of its setting."""
    if isinstance(value, int) and not isinstance(value, bool):
        yield key, value
    elif depth < _PARTS and isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else ((None, element) for element in value)
        for name, element in items:
            inner = key if name is None else f"{key}.{name}" if key else str(name)
            yield from _numbers(element, inner, depth + 1)


def own_code(config: Mapping[str, Any]) -> str:
    """The file of code in the folder that a configuration names for its architecture; '' if none."""
    named = config.get("auto_map")
    if not isinstance(named, dict):
        return ""
    first = next((v for v in named.values() if isinstance(v, str) and "." in v), "")
    return printable(f"{first.rpartition('--')[2].partition('.')[0]}.py") if first else ""
