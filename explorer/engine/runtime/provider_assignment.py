"""Provider assignment: the execution provider that onnxruntime gives each node of a graph, and fused nodes.

A session records it on request (`session.record_ep_graph_assignment_info`, onnxruntime 1.24), in the state
after the basic optimizations, which do not depend on the provider. Later fusions show in the optimized graph
that onnxruntime writes. Layouts stay unchanged, because they change at the last level only. Nodes get unique
names of ours first, so that they cannot be confused.
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
from explorer.engine.formats.onnx.writer import skeleton
from explorer.engine.graph.model import Function, Model, Node, subgraphs
from explorer.engine.runtime.onnxruntime import MOST_OPTIMISED, one_line, weights_folder

HOST = "CPUExecutionProvider"
"""The provider in whose memory model inputs and outputs lie."""
_SUFFIX = "ExecutionProvider"
_RECORD = "session.record_ep_graph_assignment_info"
_Level = onnxruntime.GraphOptimizationLevel


class Assignment(Struct, frozen=True):
    """The way onnxruntime runs the nodes of a graph.

    Attributes:
        providers: Provider by the name that `assignment` gave the node.
        compiled: Groups of node names that a provider runs as one.
        nodes: Nodes of the optimized graph; None if unknown.
        optimised: Whether the graph was optimized.
        unusable: Requested providers that cannot be used here.
    """

    providers: Mapping[str, str]
    compiled: tuple[tuple[str, ...], ...]
    nodes: Sequence[Node] | None
    optimised: bool
    unusable: tuple[str, ...]


def chosen_providers(names: Sequence[str]) -> tuple[str, ...]:
    """Providers by name ('cuda' or 'CUDAExecutionProvider'); without names, all that onnxruntime has here.

    Raises:
        Misuse: It has no such provider.
    """
    there = onnxruntime.get_available_providers()
    short = {name.removesuffix(_SUFFIX).casefold(): name for name in there}
    providers = []
    for name in names or there:
        provider = short.get(name.strip().removesuffix(_SUFFIX).casefold())
        if provider is None:
            has = ", ".join(short)
            raise Misuse(
                f"onnxruntime has no provider '{name}' here", where="--provider", hint=f"it has {has}"
            )
        providers.append(provider)
    return tuple(dict.fromkeys([*providers, HOST]))


def runtime() -> tuple[str, tuple[str, ...]]:
    """What asks, and the providers that it has here."""
    return f"onnxruntime {onnxruntime.__version__}", tuple(onnxruntime.get_available_providers())


def node_name(at: int) -> str:
    """The temporary name of a node of the main graph."""
    return f"node{at}"


def body_node_name(around: str, body: int, at: int) -> str:
    """The temporary name of a node in a body, from its outer node, the body's number and its index there."""
    return f"{around}.{body}.{at}"


def assignment(model: Model, providers: Sequence[str], *, scratch: str) -> Assignment:
    """Loads a graph in onnxruntime and reads which provider runs each node.

    Args:
        model: The model. Its nodes get the names of `node_name` and `body_node_name`; nodes of functions
            get names, too.
        providers: Providers in order of preference.
        scratch: A folder for the optimized graph while it is read.

    Raises:
        BadModel: onnxruntime cannot load it.
        MissingExtra: The installed onnxruntime does not report it.
    """
    if not hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"):
        raise MissingExtra(
            f"onnxruntime {onnxruntime.__version__} does not tell which provider runs what",
            hint="pip install 'onnxruntime>=1.24'",
        )
    if not model.graph.nodes:  # onnxruntime loads no graph without a value
        return Assignment({}, (), (), True, ())
    nodes = tuple([_with_names(node, node_name(at)) for at, node in enumerate(model.graph.nodes)])
    graph = replace(model.graph, nodes=nodes)
    named = replace(model, graph=graph, functions=_named_functions(model))
    folder = weights_folder(model)
    model_bytes = skeleton(named, folder=folder)
    level = _Level.ORT_ENABLE_EXTENDED
    if len(model.graph.nodes) > MOST_OPTIMISED:
        level = _Level.ORT_DISABLE_ALL
    with tempfile.TemporaryDirectory(dir=scratch) as place:
        target = os.path.join(place, "optimised.onnx")
        try:
            session = _session(model_bytes, folder, providers, level, target)
            optimised: Sequence[Node] | None = reader.read(target).graph.nodes
        except BadModel:  # a graph with nodes compiled by a provider cannot be written
            session = _session(model_bytes, folder, providers, level)
            optimised = _basic_nodes(model_bytes, folder, target)
    parts = session.get_provider_graph_assignment_info()
    of_nodes = [(part.ep_name, [node.name for node in part.get_nodes()]) for part in parts]
    there = session.get_providers()
    return Assignment(
        {name: provider for provider, names in of_nodes for name in names},
        tuple([tuple(names) for _, names in of_nodes if len(names) > 1]),
        optimised,
        level != _Level.ORT_DISABLE_ALL,
        tuple([provider for provider in providers if provider not in there]),
    )


def _basic_nodes(model_bytes: bytes, folder: str, target: str) -> Sequence[Node] | None:
    """The nodes after the optimizations common to all providers; None if unknown."""
    try:
        _session(model_bytes, folder, [HOST], _Level.ORT_ENABLE_BASIC, target)
        return reader.read(target).graph.nodes
    except BadModel:
        return None


def _session(model_bytes: bytes, folder: str, providers: Sequence[str], level: Any, target: str = "") -> Any:
    """Loads a model, and writes its optimized graph to `target` if that is given.

    Raises:
        BadModel: onnxruntime refuses it.
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
        options.add_session_config_entry(f"{weights}file_name", "optimised.data")
        options.add_session_config_entry(f"{weights}min_size_in_bytes", "1024")
    try:
        return onnxruntime.InferenceSession(model_bytes, options, providers=[*providers], enable_fallback=0)
    except Exception as error:  # onnxruntime's own classes share no base below Exception
        raise BadModel(f"onnxruntime cannot load the model: {one_line(error)}") from None


def _named_functions(model: Model) -> Mapping[tuple[str, str, str], Function]:
    """Functions with names for their nodes, which identify the nodes after inlining."""
    return {
        key: replace(
            function,
            nodes=tuple(
                [_with_names(node, f"function{place}.{at}") for at, node in enumerate(function.nodes)]
            ),
            record=None,
        )
        for place, (key, function) in enumerate(model.functions.items())
    }


def _with_names(node: Node, name: str) -> Node:
    """A node and the nodes of its bodies with unique names."""
    bodies = {}
    for place, (attribute, body) in enumerate(subgraphs(node)):
        if "[" not in attribute:  # lists of graphs in custom operators stay unchanged
            inside = [
                _with_names(body_node, body_node_name(name, place, at))
                for at, body_node in enumerate(body.nodes)
            ]
            bodies[attribute] = replace(body, nodes=tuple(inside))
    if bodies:
        node = node.with_attributes({**node.attributes, **bodies})
    return node.with_values(node.inputs, node.outputs, name)
