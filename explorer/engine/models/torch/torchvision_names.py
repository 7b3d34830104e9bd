"""Reads the names of torchvision's models from its source code: an import would take seconds and need torch.

torchvision decorates each function that builds a model with `register_model`. The model's name is the
function's name, or the name that is passed to the decorator. The enumeration of the model's trained weights
contains its number of parameters.
"""

from __future__ import annotations

import ast
import importlib.util
import os
from typing import TYPE_CHECKING

from explorer.engine.formats.files import build_unknown_name_error
from explorer.facts.models.listing import NamedModel
from explorer.host import input_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MAX_SOURCE_BYTES = 4 << 20
"""Maximum number of bytes that are read of one source file."""


def list_torchvision_models() -> tuple[NamedModel, ...] | None:
    """Returns the models that torchvision registers, sorted by name, or None if it is not installed."""
    files = _list_source_files()
    if files is None:
        return None
    params_by_name = {name: params for file in files for name, params in _list_models_in_file(file)}
    return tuple(NamedModel(name, params_by_name[name]) for name in sorted(params_by_name))


def check_name(name: str) -> None:
    """Refuses a name that torchvision does not register. Without torchvision, every name passes.

    Only files that contain the name are parsed: this is quick enough for each start.

    Raises:
        Misuse: torchvision has no such model.
    """
    files = _list_source_files()
    if files is not None and all(
        name != registered for file in files for registered, _ in _list_models_in_file(file, name)
    ):
        names = [model.name for model in list_torchvision_models() or ()]
        raise build_unknown_name_error(name, names)


def _list_source_files() -> list[str] | None:
    """Returns the source files of torchvision's models, or None if torchvision is not installed."""
    try:
        spec = importlib.util.find_spec("torchvision")
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        return None
    root = os.path.join(spec.submodule_search_locations[0], "models")
    return [
        os.path.join(folder, file)
        for folder, _, files in os.walk(root)
        for file in sorted(files)
        if file.endswith(".py")
    ]


def _list_models_in_file(path: str, text: str = "") -> Iterator[tuple[str, int | None]]:
    """Yields name and number of parameters (or None) of models that a source file with `text` registers."""
    try:
        with input_files.open_text(path, internal=True) as file:
            source = file.read(_MAX_SOURCE_BYTES)
        if text not in source:
            return
        tree = ast.parse(source)
    except (OSError, ValueError, SyntaxError):
        return
    counts_by_variable = {
        target.id: _read_parameter_count(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    counts = {
        node.name: _read_parameter_count(node, counts_by_variable)
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and (name := _read_registered_name(node)):
            weights = next(
                (argument.annotation for argument in node.args.kwonlyargs if argument.arg == "weights"), None
            )
            weight_classes = (
                [name_node.id for name_node in ast.walk(weights) if isinstance(name_node, ast.Name)]
                if weights
                else []
            )
            yield name, next((counts[kind] for kind in weight_classes if kind in counts), None)


def _read_registered_name(node: ast.FunctionDef) -> str:
    """Returns the name under which a function is registered, or '' if it is not."""
    for call in node.decorator_list:
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id == "register_model"
        ):
            name_nodes = [k.value for k in call.keywords if k.arg == "name"] or call.args[:1]
            text = (
                name_nodes[0].value if name_nodes and isinstance(name_nodes[0], ast.Constant) else node.name
            )
            return text if isinstance(text, str) else node.name
    return ""


def _read_parameter_count(weights: ast.AST, shared: Mapping[str, int | None] | None = None) -> int | None:
    """Returns the first `num_params` in the code, or that of the first variable in `shared`, or None."""
    for node in ast.walk(weights):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "num_params":
                    number = value.value if isinstance(value, ast.Constant) else None
                    return number if isinstance(number, int) else None
    names = (node.id for node in ast.walk(weights) if isinstance(node, ast.Name))
    return next((shared[name] for name in names if name in shared), None) if shared else None
