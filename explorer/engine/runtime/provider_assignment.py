"""Provider assignment: the execution provider that onnxruntime gives each node of a graph, and fused nodes.

A session records the assignment on request (`session.record_ep_graph_assignment_info`, onnxruntime 1.24). It
does so after the basic optimizations, which do not depend on the provider. Later fusions are read from the
optimized graph that onnxruntime writes. Memory layouts are unchanged in that graph, because only the last
optimization level changes them. All nodes get unique names first, so that each name identifies one node.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import onnxruntime
from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import BadModel, MissingExtra, Misuse
from explorer.engine.formats.onnx import reader
from explorer.engine.formats.onnx.writer import encode_skeleton
from explorer.engine.graph.model import Function, Model, Node, list_bodies
from explorer.engine.runtime.onnxruntime import MAX_OPTIMIZED, find_weights_folder, shorten_error

HOST = "CPUExecutionProvider"
"""Provider whose memory holds the model's inputs and outputs."""
_SUFFIX = "ExecutionProvider"
"""End of every provider's name."""
_RECORD = "session.record_ep_graph_assignment_info"
"""Session option that records which provider runs which node."""
_Level = onnxruntime.GraphOptimizationLevel


class Assignment(Struct, frozen=True):
    """The way in which onnxruntime runs the nodes of a graph.

    Attributes:
        providers: Provider of each node, by the name that `read_assignment` gave the node.
        compiled: Groups of node names that a provider runs as one compiled graph.
        nodes: Nodes of the optimized graph, or None if unknown.
        is_optimized: Whether the graph was optimized.
        unusable: Requested providers that cannot be used on this machine.
    """

    providers: Mapping[str, str]
    compiled: tuple[tuple[str, ...], ...]
    nodes: Sequence[Node] | None
    is_optimized: bool
    unusable: tuple[str, ...]


def resolve_providers(names: Sequence[str]) -> tuple[str, ...]:
    """Resolves provider names, such as 'cuda' or 'CUDAExecutionProvider'.

    Without names, returns all available providers. The CPU provider is always included.

    Raises:
        Misuse: onnxruntime does not have one of the providers.
    """
    available = onnxruntime.get_available_providers()
    provider_by_short_name = {name.removesuffix(_SUFFIX).casefold(): name for name in available}
    providers = []
    for name in names or available:
        provider = provider_by_short_name.get(name.strip().removesuffix(_SUFFIX).casefold())
        if provider is None:
            available_text = ", ".join(provider_by_short_name)
            message = f"onnxruntime has no provider '{name}' here"
            raise Misuse(message, where="--provider", hint=f"it has {available_text}")
        providers.append(provider)
    return tuple(dict.fromkeys([*providers, HOST]))


def describe_runtime() -> tuple[str, tuple[str, ...]]:
    """Returns the name and version of onnxruntime, and the providers that are available on this machine."""
    return f"onnxruntime {onnxruntime.__version__}", tuple(onnxruntime.get_available_providers())


def build_node_name(index: int) -> str:
    """Returns the temporary name of a node of the main graph."""
    return f"node{index}"


def build_body_node_name(outer_name: str, body_index: int, node_index: int) -> str:
    """Returns the temporary name of a node in a body.

    The name consists of the name of the outer node, the index of the body, and the index of the node in it.
    """
    return f"{outer_name}.{body_index}.{node_index}"


def read_assignment(model: Model, providers: Sequence[str], *, scratch: str) -> Assignment:
    """Loads a graph in onnxruntime and reads which provider runs each node.

    Args:
        model: The model. Its nodes get the names of `build_node_name` and `build_body_node_name`. Nodes of
            functions get names, too.
        providers: Providers in order of preference.
        scratch: Folder for the optimized graph while it is read.

    Raises:
        BadModel: onnxruntime cannot load the model.
        MissingExtra: The installed onnxruntime does not report its assignment.
    """
    if not hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"):
        message = f"onnxruntime {onnxruntime.__version__} does not report which provider runs which node"
        raise MissingExtra(message, hint="pip install 'onnxruntime>=1.24'")
    if not model.graph.nodes:  # onnxruntime cannot load a graph without nodes
        return Assignment(providers={}, compiled=(), nodes=(), is_optimized=True, unusable=())
    nodes = tuple([_name_nodes(node, build_node_name(index)) for index, node in enumerate(model.graph.nodes)])
    graph = replace(model.graph, nodes=nodes)
    named_model = replace(model, graph=graph, functions=_name_functions(model))
    folder = find_weights_folder(model)
    model_bytes = encode_skeleton(named_model, folder=folder)
    level = _Level.ORT_ENABLE_EXTENDED
    if len(model.graph.nodes) > MAX_OPTIMIZED:
        level = _Level.ORT_DISABLE_ALL
    with tempfile.TemporaryDirectory(dir=scratch) as folder_path:
        target = os.path.join(folder_path, "optimized.onnx")
        try:
            session = _load_session(model_bytes, folder, providers, level, target)
            optimized_nodes: Sequence[Node] | None = reader.read(target).graph.nodes
        except BadModel:  # onnxruntime cannot write a graph with compiled nodes
            session = _load_session(model_bytes, folder, providers, level)
            optimized_nodes = _read_basic_nodes(model_bytes, folder, target)
    parts = session.get_provider_graph_assignment_info()
    names_by_part = [(part.ep_name, [node.name for node in part.get_nodes()]) for part in parts]
    session_providers = session.get_providers()
    return Assignment(
        providers={name: provider for provider, names in names_by_part for name in names},
        compiled=tuple([tuple(names) for _, names in names_by_part if len(names) > 1]),
        nodes=optimized_nodes,
        is_optimized=level != _Level.ORT_DISABLE_ALL,
        unusable=tuple([provider for provider in providers if provider not in session_providers]),
    )


def _read_basic_nodes(model_bytes: bytes, folder: str, target: str) -> Sequence[Node] | None:
    """Returns the nodes after the optimizations common to all providers, or None if unknown."""
    try:
        _load_session(model_bytes, folder, [HOST], _Level.ORT_ENABLE_BASIC, target)
        return reader.read(target).graph.nodes
    except BadModel:
        return None


def _load_session(
    model_bytes: bytes, folder: str, providers: Sequence[str], level: Any, target: str = ""
) -> Any:
    """Loads a model, and writes its optimized graph to `target` if that is not empty.

    Raises:
        BadModel: onnxruntime refuses the model.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = level
    options.add_session_config_entry(_RECORD, "1")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    options.add_session_config_entry("session.disable_prepacking", "1")
    if target:
        options.optimized_model_filepath = target
        weights = "session.optimized_model_external_initializers_"
        options.add_session_config_entry(f"{weights}file_name", "optimized.data")
        options.add_session_config_entry(f"{weights}min_size_in_bytes", "1024")
    try:
        return onnxruntime.InferenceSession(model_bytes, options, providers=[*providers], enable_fallback=0)
    except Exception as error:  # onnxruntime's own classes share no base below Exception
        raise BadModel(f"onnxruntime cannot load the model: {shorten_error(error)}") from None


def _name_functions(model: Model) -> Mapping[tuple[str, str, str], Function]:
    """Returns the functions with unique node names, which identify the nodes after inlining."""
    return {
        key: replace(
            function,
            nodes=tuple(
                [
                    _name_nodes(node, f"function{function_index}.{node_index}")
                    for node_index, node in enumerate(function.nodes)
                ]
            ),
            record=None,
        )
        for function_index, (key, function) in enumerate(model.functions.items())
    }


def _name_nodes(node: Node, name: str) -> Node:
    """Returns a node with unique names for itself and the nodes of its bodies."""
    bodies = {}
    for body_index, (attribute, body) in enumerate(list_bodies(node)):
        if "[" not in attribute:  # lists of graphs in custom operators stay unchanged
            inner_nodes = [
                _name_nodes(body_node, build_body_node_name(name, body_index, node_index))
                for node_index, body_node in enumerate(body.nodes)
            ]
            bodies[attribute] = replace(body, nodes=tuple(inner_nodes))
    if bodies:
        node = node.replace_attributes({**node.attributes, **bodies})
    return node.replace_values(node.inputs, node.outputs, name)
