"""config.json of a transformers model, judged before anything is built from it.

A configuration is anybody's: one line of it may ask for a billion layers. Each layer is built in Python, so
how many there are is bounded here; sizes of tensors cost nothing where tensors have no values.
"""

from __future__ import annotations

from explorer.base.errors import BadModel
from explorer.base.units import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

MOST_LAYERS = 4_096
"""Layers, blocks, stages of one list of them: twenty times those of the deepest model."""

MOST_EXPERTS = 65_536
MOST_MODULES = 500_000
"""Modules in modules that are built: some architectures make several of each expert in each layer."""

_LARGEST = 1 << 40
"""What a size may be: a tensor of two such sizes could not be counted."""

_DEPTHS = ("layer", "block", "depth", "stage", "repeat", "levels", "hops")
"""In the names of settings that say how many of something are built one after the other."""

_WIDTHS = ("size", "dim", "vocab", "token", "_id", "length")
"""In the names of those that say how wide something is."""

_PARTS = 8
"""How deep configurations lie in configurations."""


class BuildError(Exception):
    """Why no module is built of a configuration, for a person."""


def check(config: Mapping[str, Any], source: str) -> None:
    """Refuses sizes that no model has.

    Args:
        config: What config.json says.
        source: What the user named.

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
    """Every whole number of a configuration, with the path of its setting."""
    if isinstance(value, int) and not isinstance(value, bool):
        yield key, value
    elif depth < _PARTS and isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else ((None, element) for element in value)
        for name, element in items:
            inner = key if name is None else f"{key}.{name}" if key else str(name)
            yield from _numbers(element, inner, depth + 1)


def own_code(config: Mapping[str, Any]) -> str:
    """The file of the folder's own code that a configuration names for its architecture; '' if none."""
    named = config.get("auto_map")
    if not isinstance(named, dict):
        return ""
    first = next((v for v in named.values() if isinstance(v, str) and "." in v), "")
    return printable(f"{first.rpartition('--')[2].partition('.')[0]}.py") if first else ""
