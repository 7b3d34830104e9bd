"""Runs parts of a graph in separate sessions. Weights stay where they are stored.

A run that returns every activation of a large network needs gigabytes, and a full run for each portion of the
activations repeats work. So this module runs a small model for each portion. It starts from the values that
the previous portions computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from explorer.engine.graph.dtypes import get_element_type
from explorer.engine.graph.interpreter import Wiring, list_reads
from explorer.engine.graph.model import Function, Graph, Model, Node, Value, list_bodies
from explorer.engine.runtime.onnxruntime import Array, RuntimeSession, expose


def run_part(
    model: Model, outputs: Sequence[str], feeds: Mapping[str, Array], label: str, threads: int
) -> dict[str, Array]:
    """Runs the nodes that compute `outputs` from the values in `feeds`.

    Args:
        model: Model that contains the nodes.
        outputs: Names of the values to compute.
        feeds: Arrays of the values to start from, by name.
        label: Name of the part in error messages.
        threads: Number of threads for the operators.

    Returns:
        The computed arrays by name.

    Raises:
        BadModel: onnxruntime cannot load or run the part.
    """
    nodes, _ = Wiring.from_graph(model.graph).find_needed_nodes(outputs, stop=feeds)
    return run_nodes(model, nodes, feeds, outputs, label, threads)


def run_in_pieces(
    model: Model, feeds: Mapping[str, Array], portions: Sequence[Sequence[str]], label: str
) -> Iterator[dict[str, Array]]:
    """Computes values of a model, portion by portion.

    Args:
        model: Model to run.
        feeds: Arrays of the model inputs, by name.
        portions: Names of the values of each portion.
        label: Name of the model in error messages.

    Yields:
        The values of each portion, by name.

    Raises:
        BadModel: onnxruntime cannot load or run the model.
    """
    wiring = Wiring.from_graph(model.graph)
    if any(name not in feeds and wiring.find_producer(name) is None for names in portions for name in names):
        yield from _run_whole(model, feeds, portions, label)  # no node computes a stored value
        return
    pieces: list[list[int]] = []
    computed_nodes: set[int] = set()
    for names in portions:
        node_indices = [index for index in wiring.find_needed_indices(names) if index not in computed_nodes]
        computed_nodes.update(node_indices)
        pieces.append(node_indices)
    nodes = model.graph.nodes
    names_read_by_piece = [{name for index in piece for name in list_reads(nodes[index])} for piece in pieces]
    last_use = {
        n: index for index, names in enumerate(portions) for n in (*names_read_by_piece[index], *names)
    }
    values = dict(feeds)
    for index, (piece, names) in enumerate(zip(pieces, portions, strict=True)):
        outputs = [
            o for node in piece for o in nodes[node].outputs if last_use.get(o, -1) > index or o in names
        ]
        inputs = {name: values[name] for name in names_read_by_piece[index] if name in values}
        if outputs and not all(isinstance(value, np.ndarray) for value in inputs.values()):
            # the session of a part can take arrays only, no sequences or maps
            yield from _run_whole(model, feeds, portions[index:], label)
            return
        if outputs:
            values.update(run_nodes(model, [nodes[n] for n in piece], inputs, outputs, label))
        yield {name: values[name] for name in names}
        values = {name: value for name, value in values.items() if last_use.get(name, -1) > index}


def _run_whole(
    model: Model, feeds: Mapping[str, Array], portions: Sequence[Sequence[str]], label: str
) -> Iterator[dict[str, Array]]:
    """Computes each portion by a run of the full model."""
    for names in portions:
        outputs = [name for name in dict.fromkeys(names) if name not in feeds]
        values = (
            RuntimeSession(expose(model, outputs), label=label, optimize=False).run(feeds) if outputs else {}
        )
        yield {**{name: feeds[name] for name in names if name in feeds}, **values}


def run_nodes(
    model: Model,
    nodes: Sequence[Node],
    feeds: Mapping[str, Array],
    outputs: Sequence[str],
    label: str,
    threads: int | None = None,
) -> dict[str, Array]:
    """Runs some nodes of a model alone, with the arguments of `run_part`."""
    inputs = tuple(Value(n, get_element_type(v), v.shape) for n, v in feeds.items())
    return create_part_session(model, nodes, inputs, outputs, label, threads).run(dict(feeds))


def create_part_session(
    model: Model,
    nodes: Sequence[Node],
    inputs: tuple[Value, ...],
    outputs: Sequence[str],
    label: str,
    threads: int | None,
) -> RuntimeSession:
    """Creates a session of some nodes of a model, with the weights that they read."""
    read_names = {name for node in nodes for name in list_reads(node)} - {value.name for value in inputs}
    initializers = model.graph.initializers
    graph = Graph(
        name="part",
        nodes=tuple(nodes),
        inputs=inputs,
        outputs=tuple(Value(n, None, None) for n in outputs),
        initializers={n: initializers[n] for n in read_names if n in initializers},
    )
    part = replace(model, graph=graph, functions=find_called_functions(model, nodes), metadata={}, extra=())
    return RuntimeSession(part, label=label, optimize=False, threads=threads, sparing=True)


def find_called_functions(model: Model, nodes: Iterable[Node]) -> dict[tuple[str, str, str], Function]:
    """Finds the functions that nodes call directly or through other functions.

    A session checks every function that it receives, so it gets no other functions.
    """
    called_keys: set[tuple[str, str, str]] = set()
    pending = list(nodes) if model.functions else []
    while pending:
        node = pending.pop()
        pending += (n for _, body in list_bodies(node) for n in body.nodes)
        if node.key in model.functions and node.key not in called_keys:
            called_keys.add(node.key)
            pending += model.functions[node.key].nodes
    # the order of the model's functions stays
    return {key: function for key, function in model.functions.items() if key in called_keys}
