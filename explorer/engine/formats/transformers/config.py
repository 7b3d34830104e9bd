"""Checks the config.json of a transformers model before a module is built from it.

A configuration is not trusted: one line may request a billion layers. Each layer is built in Python, so this
module limits their number. Large sizes of tensors are harmless, because the tensors have no values.
"""

from __future__ import annotations

from explorer.base.errors import BadModel
from explorer.base.units import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

MAX_LAYERS = 4_096
"""Maximum number of layers, blocks or stages: twenty times the number in the deepest known model."""

MAX_EXPERTS = 65_536
"""Maximum number of experts."""
MAX_MODULES = 500_000
"""Maximum number of modules of a model. Some architectures build several for each expert in each layer."""

_MAX_SIZE = 1 << 40
"""Maximum of other sizes; the elements of a tensor with two larger sizes could not be counted."""

_DEPTHS = ("layer", "block", "depth", "stage", "repeat", "levels", "hops")
"""Words in the names of settings that are numbers of modules."""

_WIDTHS = ("size", "dim", "vocab", "token", "_id", "length")
"""Words in the names of settings that are widths."""

_MAX_DEPTH = 8
"""Maximum depth of nested configurations."""


class BuildError(Exception):
    """Raised for a configuration from which no module can be built; the text gives the reason."""


def check_sizes(config: Mapping[str, Any], source: str) -> None:
    """Checks that no size, positive or negative, exceeds the sizes of real models.

    Args:
        config: Contents of config.json.
        source: Path or name, as the user typed it.

    Raises:
        BadModel: A size is too large.
    """
    for key, value in _list_numbers(config, "", 0):
        name = key.rpartition(".")[2]
        maximum = MAX_EXPERTS if "expert" in name else MAX_LAYERS if _is_depth(name) else _MAX_SIZE
        if not -_MAX_SIZE <= value <= maximum:
            config_name = "its metadata" if source.endswith(".gguf") else "config.json"
            problem = f"{config_name} says {printable(key)} {value:,}"
            raise BadModel(problem, where=source, hint=f"at most {maximum:,} are built")


def _is_depth(name: str) -> bool:
    """Whether a setting is a number of modules, by its name."""
    return any(word in name for word in _DEPTHS) and not any(word in name for word in _WIDTHS)


def _list_numbers(value: Any, key: str, depth: int) -> Iterator[tuple[str, int]]:
    """Yields the (path of the setting, value) of each integer in a configuration."""
    if isinstance(value, int) and not isinstance(value, bool):
        yield key, value
    elif depth < _MAX_DEPTH and isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else ((None, element) for element in value)
        for name, element in items:
            inner = key if name is None else f"{key}.{name}" if key else str(name)
            yield from _list_numbers(element, inner, depth + 1)


def find_code_file(config: Mapping[str, Any]) -> str:
    """Returns the name of the code file that the configuration names, or '' if it names none."""
    code_by_class = config.get("auto_map")
    if not isinstance(code_by_class, dict):
        return ""
    first = next((v for v in code_by_class.values() if isinstance(v, str) and "." in v), "")
    return printable(f"{first.rpartition('--')[2].partition('.')[0]}.py") if first else ""
