"""Small models, tiled for real, and hands that spoil them: what the tests of the proof share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from msgspec.structs import replace
from onnx import helper, numpy_helper

from explorer.engine.formats.onnx import reader, writer
from explorer.engine.graph.model import Function, Graph, Model, Node, build_tensor
from explorer.engine.proof.proof import verify
from explorer.engine.tiling.find_sites import find_sites
from explorer.engine.tiling.plan import make_plan
from explorer.engine.tiling.rules import make_packing
from explorer.engine.tiling.tile import tile
from explorer.facts import Plan, TensorInfo, TileSpec, Verification

FORMS = ("lab", "scan", "unrolled", "batched")
EDGES = ("ragged", "padded")


def weight(*shape: int, dtype: Any = np.float32, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)


def model(
    path: Path,
    nodes: list[Any],
    feeds: Mapping[str, Any],
    weights: Mapping[str, np.ndarray],
    *,
    outputs: tuple[str, ...] = ("y",),
    opset: int = 17,
    dtypes: Mapping[str, int] | None = None,
) -> Model:
    """A model written by onnx itself and read by ours; inputs take the type of the first weight."""
    dtype = next((w.dtype for w in weights.values()), np.dtype(np.float32))
    code = helper.np_dtype_to_tensor_dtype(dtype)
    kinds = dtypes or {}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, kinds.get(n, code), s) for n, s in feeds.items()],
        [helper.make_tensor_value_info(n, kinds.get(n, code), None) for n in outputs],
        [numpy_helper.from_array(w, n) for n, w in weights.items()],
    )
    domains = sorted({each.domain for each in nodes} - {""})
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.save(onnx.shape_inference.infer_shapes(made, strict_mode=True), path)
    return reader.read(str(path))


def linear(
    path: Path, M: int, K: int, N: int, *, bias: bool = True, dtype: Any = np.float32, **attributes: Any
) -> Model:
    """y = Gemm(x, w, b)."""
    trans_a, trans_b = attributes.get("transA", 0), attributes.get("transB", 0)
    weights = {"w": weight(*((N, K) if trans_b else (K, N)), dtype=dtype, seed=1)}
    if bias:
        weights["b"] = weight(N, dtype=dtype, seed=2)
    node = helper.make_node("Gemm", ["x", *weights], ["y"], name="fc", **attributes)
    return model(path, [node], {"x": (K, M) if trans_a else (M, K)}, weights)


def known_shapes(source: Model) -> dict[str, TensorInfo]:
    """Every value's shape, by onnx's own inference."""
    inferred = onnx.shape_inference.infer_shapes(onnx.load(source.path), strict_mode=True)
    stored = source.graph.initializers.items()
    shapes = {name: TensorInfo(name, tensor.dtype, tensor.shape) for name, tensor in stored}
    for value in (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output):
        kind = value.type.tensor_type
        dims = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param for d in kind.shape.dim)
        shapes[value.name] = TensorInfo(
            value.name, str(helper.tensor_dtype_to_np_dtype(kind.elem_type)), dims
        )
    return shapes


def tiled(
    source: Model, spec: TileSpec, *, spoil: Callable[[Model], Model] | None = None
) -> tuple[Model, Plan]:
    """The tiled model as read back from its file, perhaps spoiled before it was written."""
    sites, skipped = find_sites(source, known_shapes(source), spec.grouped, pack=make_packing(spec))
    plan, chosen = make_plan(sites, skipped, spec, opset=source.opset)
    made = tile(source, plan, chosen)
    path = source.path.replace(".onnx", f"_{spec.form}_{spec.edges}{'_spoiled' if spoil else ''}.onnx")
    writer.write(spoil(made) if spoil else made, path)
    return reader.read(path), plan


def prove(
    source: Model, spec: TileSpec, spoil: Callable[[Model], Model] | None = None, **options: Any
) -> Verification:
    """Tiles, spoils, and verifies with the plan."""
    after, plan = tiled(source, spec, spoil=spoil)
    return verify(source, after, plan=plan, **options)


# hands that spoil a model


def with_graph(made: Model, **changes: Any) -> Model:
    return replace(made, graph=replace(made.graph, **changes))


def with_nodes(made: Model, change: Callable[[Node], Node | None]) -> Model:
    """The model with every node of the main graph passed through `change`; None drops it."""
    return with_graph(made, nodes=tuple(n for old in made.graph.nodes if (n := change(old)) is not None))


def node_like(node: Node, **changes: Any) -> Node:
    fields = {
        "op": node.op,
        "inputs": node.inputs,
        "outputs": node.outputs,
        "name": node.name,
        "domain": node.domain,
        "attributes": node.attributes,
        "metadata": node.metadata,
    } | changes
    return Node(fields.pop("op"), fields.pop("inputs"), fields.pop("outputs"), **fields)


def with_array(made: Model, name: str, change: Callable[[np.ndarray], np.ndarray]) -> Model:
    """The model with other numbers in one initializer."""
    initializers = dict(made.graph.initializers)
    old = initializers[name].array()
    initializers[name] = build_tensor(name, np.ascontiguousarray(change(np.array(old))).astype(old.dtype))
    return with_graph(made, initializers=initializers)


def with_body(made: Model, prefix: str, change: Callable[[Function], Function]) -> Model:
    """The model with another body in every function whose name begins with `prefix`."""
    functions = {k: change(f) if f.name.startswith(prefix) else f for k, f in made.functions.items()}
    return replace(made, functions=functions)


def with_scan(made: Model, change: Callable[[Graph], Graph]) -> Model:
    """The model with another body in every Scan."""

    def changed(node: Node) -> Node:
        if node.op != "Scan":
            return node
        return node_like(node, attributes={**node.attributes, "body": change(node.attributes["body"])})

    return with_nodes(made, changed)
