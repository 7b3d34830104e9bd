"""Runs all nodes of a site in one session, or column by column if there are too many nodes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from explorer.base.errors import Cancelled
from explorer.engine.graph.dtypes import get_element_type
from explorer.engine.graph.interpreter import Wiring, list_reads
from explorer.engine.graph.model import Function, Model, Node, Value
from explorer.engine.proof.meanings import Original
from explorer.engine.proof.sites.parts import create_part_session
from explorer.engine.runtime.onnxruntime import Array, RuntimeSession
from explorer.engine.runtime.parallel import ThreadShare
from explorer.facts import SitePlan

_MAX_PARALLEL_BYTES = 1 << 25
"""Bytes of a site's inputs up to which its draws run in parallel. Each run needs several times that
memory."""

_MAX_SINGLE_THREAD_MACS = 1 << 20
"""Number of multiplications up to which a product runs in one thread: another thread would start too late."""

_MAX_SESSION_NODES = 1024
"""Largest number of nodes in one session. Creation time is quadratic in the nodes that are ready at once."""


Sessions = dict[tuple[tuple[Value, ...], tuple[str, ...]], RuntimeSession]
"""Sessions of the parts of a site with open sizes, by inputs and outputs."""


class Runner:
    """Runs a site as one model, or each column of tiles as a model of its own if it has too many nodes.

    Args:
        after: Tiled model.
        site: Plan of the site.
        original: Product in the original model, which names the inputs.
        share: Threads for the sessions, with a stop signal.
        wiring: Index of the tiled graph's nodes by the values that they produce.
        sessions: Sessions of earlier runs at other sizes, or None. New sessions are added.
    """

    def __init__(
        self,
        after: Model,
        site: SitePlan,
        original: Original,
        share: ThreadShare,
        wiring: Wiring,
        sessions: Sessions | None,
    ) -> None:
        self.after = after
        self.sessions = sessions
        self.site = site
        self.share = share
        self.input_names = list(original.inputs)
        nodes, _ = wiring.find_needed_nodes([site.output], stop=self.input_names)
        function = after.functions.get(nodes[0].key) if len(nodes) == 1 else None
        if function is not None and len(function.nodes) > _MAX_SESSION_NODES:
            nodes = _inline_call(nodes[0], function)
        self.nodes = nodes

    def run(self, draws: Sequence[Sequence[Array]]) -> list[Array]:
        """Computes the site's output for each draw of its inputs."""
        values = [dict(zip(self.input_names, inputs, strict=True)) for inputs in draws]
        joins = [n for n in self.nodes if "Concat" in n.op and len(n.inputs) > 1]
        has_scan = any(n.op == "Scan" for n in self.nodes)  # a Scan already has one body for all columns
        if len(self.nodes) <= _MAX_SESSION_NODES or has_scan or not joins:
            self._run_stage(self.nodes, [self.site.output], values)
        else:
            self._run_columns(max(joins, key=lambda n: len(n.inputs)), values)
        return [draw_values[self.site.output] for draw_values in values]

    def run_nodes(self, nodes: Sequence[Node], feeds: Mapping[str, Array]) -> Array:
        """Computes the site's output with `nodes` instead of its own nodes."""
        inputs = tuple(Value(name, get_element_type(value), value.shape) for name, value in feeds.items())
        return self._create_session(nodes, inputs, [self.site.output]).run(feeds)[self.site.output]

    def _run_columns(self, join: Node, values: list[dict[str, Array]]) -> None:
        """Runs the nodes that several columns share, then each column, then the nodes that join the columns.

        Columns have equal nodes, so one session serves all columns and receives the weight tiles as inputs.
        """
        parts = list(dict.fromkeys(join.inputs))  # names of the columns' values
        wiring = Wiring(self.nodes)
        users: dict[int, set[int]] = {}
        for index, part in enumerate(parts):
            for node in wiring.find_needed_nodes([part], stop=self.input_names)[0]:
                users.setdefault(id(node), set()).add(index)
        tail, _ = wiring.find_needed_nodes([self.site.output], stop=[*self.input_names, *parts])
        tail_ids = {id(node) for node in tail}
        columns: list[list[Node]] = [[] for _ in parts]
        shared: list[Node] = []
        for node in self.nodes:
            column_indices = users.get(id(node), set())
            if len(column_indices) == 1 and id(node) not in tail_ids:
                columns[next(iter(column_indices))].append(node)
            elif column_indices:  # several columns need the node, or a column and the tail
                shared.append(node)
        dependent_ids = _find_dependent_nodes(shared, self.input_names)
        read_names = {name for nodes in (*columns, tail) for n in nodes for name in list_reads(n)}
        constant_nodes = [n for n in shared if id(n) not in dependent_ids]
        if constant_nodes:
            # slices of the weight do not depend on the activations, so they run once
            needed = read_names | {name for n in shared if id(n) in dependent_ids for name in list_reads(n)}
            constant_values: list[dict[str, Array]] = [{}]
            self._run_stage(
                constant_nodes, [o for n in constant_nodes for o in n.outputs if o in needed], constant_values
            )
            for draw_values in values:
                draw_values.update(constant_values[0])
        dependent_nodes = [n for n in shared if id(n) in dependent_ids]
        if dependent_nodes:
            self._run_stage(
                dependent_nodes, [o for n in dependent_nodes for o in n.outputs if o in read_names], values
            )
        sessions: dict[Any, RuntimeSession] = {}
        for part, nodes in zip(parts, columns, strict=True):
            if self.share.stopped():
                raise Cancelled
            if nodes:
                self._run_column(part, nodes, values, sessions)
        self._run_stage(tail, [self.site.output], values)

    def _run_column(
        self,
        part: str,
        nodes: Sequence[Node],
        values: list[dict[str, Array]],
        sessions: dict[Any, RuntimeSession],
    ) -> None:
        """Runs one column, in the session of an earlier column with equal nodes if there is one."""
        names: dict[str, str] = {}
        for node in nodes:
            for name in (*node.inputs, *node.outputs):
                if name:
                    names.setdefault(name, f"v{len(names)}")
        produced = {o for n in nodes for o in n.outputs}
        input_names = [name for name in names if name not in produced]
        initializers = self.after.graph.initializers
        # a stored weight may begin at any byte; the runtime needs aligned arrays
        weight_tiles = {
            name: np.require(initializers[name].array(), requirements=("C", "A"))
            for name in input_names
            if name in initializers
        }
        inputs = [
            {name: weight_tiles[name] if name in weight_tiles else draw_values[name] for name in input_names}
            for draw_values in values
        ]
        input_types = tuple((names[n], get_element_type(v), v.shape) for n, v in inputs[0].items())
        key = (tuple(_make_signature(n, names) for n in nodes), input_types)
        if key not in sessions:
            renamed_nodes = [
                n.replace_values(
                    [names.get(i, "") for i in n.inputs], [names.get(o, "") for o in n.outputs], ""
                )
                for n in nodes
            ]
            input_values = tuple(Value(*input_type) for input_type in input_types)
            sessions[key] = self._create_session(renamed_nodes, input_values, [names[part]])
        for draw_values, feeds in zip(values, inputs, strict=True):
            result = sessions[key].run({names[n]: v for n, v in feeds.items()})
            draw_values[part] = result[names[part]]

    def _run_stage(
        self, nodes: Sequence[Node], outputs: Sequence[str], values: list[dict[str, Array]]
    ) -> None:
        """Runs nodes for every draw and adds `outputs` to its values."""
        if self.share.stopped():
            raise Cancelled
        produced = {o for n in nodes for o in n.outputs}
        read = dict.fromkeys(name for n in nodes for name in list_reads(n))
        inputs = [name for name in read if name in values[0] and name not in produced]
        typed_inputs = tuple(Value(n, get_element_type(values[0][n]), values[0][n].shape) for n in inputs)
        if self.sessions is None:
            session = self._create_session(nodes, typed_inputs, outputs)
        else:
            typed_inputs = tuple(Value(v.name, v.dtype, (None,) * len(v.shape or ())) for v in typed_inputs)
            key = typed_inputs, tuple(outputs)
            if key not in self.sessions:
                self.sessions[key] = self._create_session(nodes, typed_inputs, outputs)
            session = self.sessions[key]
        feeds = [{name: draw_values[name] for name in inputs} for draw_values in values]
        is_small = (
            sum(value.nbytes for draw_values in feeds for value in draw_values.values())
            <= _MAX_PARALLEL_BYTES
        )
        width = min(self.share.threads, len(feeds)) if is_small else 1
        # a thread pool for sequential runs would only wait for Python's lock
        with ThreadPoolExecutor(width) if width > 1 else contextlib.nullcontext() as pool:
            results = (map if pool is None else pool.map)(session.run, feeds)
            for draw_values, outputs_of_draw in zip(values, results, strict=True):
                draw_values.update(outputs_of_draw)

    def _create_session(
        self, nodes: Sequence[Node], inputs: tuple[Value, ...], outputs: Sequence[str]
    ) -> RuntimeSession:
        label = f"matmul '{self.site.name}'"
        has_large_products = (
            self.site.form == "batched" or math.prod(self.site.tile) > _MAX_SINGLE_THREAD_MACS
        )
        threads = self.share.threads if has_large_products else 1
        return create_part_session(self.after, nodes, inputs, outputs, label, threads)


def _find_dependent_nodes(nodes: Sequence[Node], names: Sequence[str]) -> set[int]:
    """Returns the ids of the nodes that depend on `names`."""
    dependent_names = set(names)
    dependent_ids: set[int] = set()
    for node in nodes:
        if any(name in dependent_names for name in list_reads(node)):
            dependent_ids.add(id(node))
            dependent_names.update(node.outputs)
    return dependent_ids


def _make_signature(node: Node, names: Mapping[str, str]) -> tuple[Any, ...]:
    """Builds a key that equal nodes of different columns share. Tensors and graphs compare by identity."""
    attributes = tuple(
        (k, v if isinstance(v, (int, float, str, bytes, tuple)) else id(v))
        for k, v in node.attributes.items()
    )
    value_names = tuple(names.get(n, "") for n in (*node.inputs, "|", *node.outputs))
    return node.op, node.domain, node.overload, value_names, attributes


def _inline_call(call: Node, function: Function) -> list[Node]:
    """Replaces a function call by the function's body. Calls in the body stay calls."""
    names = dict(zip(function.inputs, call.inputs, strict=False))
    names.update(zip(function.outputs, call.outputs, strict=False))

    def read_outer(name: str) -> str:
        return names.get(name, f"{call.label}::{name}") if name else ""

    return [
        node.replace_values(
            [*map(read_outer, node.inputs)], [*map(read_outer, node.outputs)], f"{call.label}::{node.name}"
        )
        for node in function.nodes
    ]
