"""Computes the fingerprint of a model: a digest of its content, independent of its path and name."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from explorer.base.errors import BadModel
from explorer.base.version import __version__
from explorer.engine.graph.model import Graph, Model, Node, Tensor, list_bodies
from explorer.engine.progress import Cancel, stop_if
from explorer.facts import TileSpec, to_json
from explorer.facts.cost import Hardware
from explorer.host import input_files

_BLOCK_BYTES = 1 << 20
"""Bytes of a file that are read at a time."""


def list_files(model: Model) -> tuple[str, ...]:
    """Returns the absolute paths of a model's files: the file of the graph, then the sorted weight files."""
    path = os.path.abspath(model.path)
    function_bodies = (function.nodes for function in model.functions.values())
    tensors = (
        *_list_tensors(model.graph),
        *(tensor for nodes in function_bodies for tensor in _list_node_tensors(nodes)),
    )
    weight_files = {
        os.path.join(os.path.dirname(path), tensor.external) for tensor in tensors if tensor.external
    }
    return path, *sorted(weight_files - {path})


def _list_tensors(graph: Graph) -> Iterator[Tensor]:
    """Yields the stored tensors of a graph and of its bodies."""
    yield from graph.initializers.values()
    yield from _list_node_tensors(graph.nodes)


def _list_node_tensors(nodes: Iterable[Node]) -> Iterator[Tensor]:
    """Yields the tensors of Constant nodes, and the stored tensors of the bodies of nodes."""
    for node in nodes:
        if node.op == "Constant":
            yield from (value for value in node.attributes.values() if isinstance(value, Tensor))
        for _, graph in list_bodies(node):
            yield from _list_tensors(graph)


def compute_fingerprint(files: Sequence[str], cancel: Cancel = None) -> str:
    """Returns a digest of a model's files: the graph, then the files of its weights by name.

    The digest is SHA-256, which processors compute at one gigabyte per second.

    Raises:
        BadModel: A file cannot be read.
        Cancelled: `cancel` returned True.
    """
    digest = hashlib.sha256()
    for index, path in enumerate(files):
        try:
            with input_files.open_binary(path) as file:
                size = os.fstat(file.fileno()).st_size
                digest.update(f"{os.path.basename(path) if index else ''}\0{size}\0".encode())
                while block := file.read(_BLOCK_BYTES):
                    digest.update(block)
                    stop_if(cancel)
        except OSError as error:
            raise BadModel(f"cannot be read ({error.strerror or error})", where=path) from None
    return digest.hexdigest()


def compute_key(model: str, opening: Mapping[str, Any], spec: TileSpec, hardware: Hardware) -> str:
    """Returns the key of a row: a digest of all inputs of its figures.

    Args:
        model: Fingerprint of the model.
        opening: Options that the model is opened with: sizes, shapes, rules.
        spec: The tiling. The origins of its settings do not change the key.
        hardware: The machine. Its name and the source of its figures do not change the key.
    """
    machine = {name: value for name, value in to_json(hardware).items() if name not in ("name", "origin")}
    # figures do not depend on these settings, and a sweep of tilings has no mapping
    ignored_settings = ("origins", "config", "accumulator", "mapping", "level")
    tiling = {name: value for name, value in to_json(spec).items() if name not in ignored_settings}
    for rule in tiling["rules"]:
        rule.pop("origin", None)
    return compute_digest({"model": model, "opening": opening, "tiling": tiling, "machine": machine})


def compute_digest(facts: Mapping[str, Any]) -> str:
    """Returns a digest of the facts that figures depend on, and of the program's version."""
    text = json.dumps({"version": __version__, **facts}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
