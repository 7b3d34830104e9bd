"""Layers that share a weight before folding share it after folding, unless their numbers differ."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser

from explorer import Session

NORM = "BatchNormalization"
BODIES = {
    "two calls of a tower": (
        f"a = Conv(x,w,c) b = {NORM}(a,s,t,m,v) d = Conv(y,w,c) e = {NORM}(d,s,t,m,v) z = Add(b,e)",
        1,
    ),
    "two calls without a bias": (
        f"a = Conv(x,w) b = {NORM}(a,s,t,m,v) d = Conv(y,w) e = {NORM}(d,s,t,m,v) z = Add(b,e)",
        1,
    ),
    "one weight, two normalizations": (
        f"a = Conv(x,w,c) b = {NORM}(a,s,t,m,v) d = Conv(y,w,c) e = {NORM}(d,s2,t,m,v) z = Add(b,e)",
        2,
    ),
    "equal normalizations in a row, of two calls": (
        f"a = Conv(x,w,c) a2 = {NORM}(a,s,t,m,v) b = {NORM}(a2,s,t,m,v)"
        f" d = Conv(y,w,c) e = {NORM}(d,s,t,m,v) z = Add(b,e)",
        2,
    ),
    "equal normalizations in a row": (
        f"a = Conv(x,w,c) b = {NORM}(a,s,t,m,v) e = {NORM}(b,s,t,m,v) f = Conv(y,k) z = Add(e,f)",
        1,
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_folding_keeps_shared_weights_shared(name: str, tmp_path: Path) -> None:
    body, count = BODIES[name]
    inputs = "float[1,3,6,6] x, float[1,3,6,6] y"
    proto = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g ({inputs}) => (float[1,4,4,4] z) {{ {body} }}'
    )
    random = np.random.default_rng(0)
    shapes = {"w": (4, 3, 3, 3), "k": (4, 3, 3, 3), **dict.fromkeys(("c", "s", "s2", "t", "m", "v"), (4,))}
    for tensor, shape in shapes.items():
        if any(tensor in node.input for node in proto.graph.node):
            values = (random.random(shape) + 0.5).astype(np.float32)
            proto.graph.initializer.append(numpy_helper.from_array(values, tensor))
    source, target = tmp_path / "m.onnx", tmp_path / "folded.onnx"
    onnx.save(proto, source)
    with Session(str(source)) as session:
        session.fold(output=str(target))  # writes nothing that is not proved
    folded = onnx.load(target)
    assert not [node for node in folded.graph.node if node.op_type == NORM]
    weights = [t for t in folded.graph.initializer if len(t.dims) == 4 and t.name != "k"]
    assert len(weights) == count
    feeds = {key: random.random((1, 3, 6, 6)).astype(np.float32) for key in "xy"}
    before, after = (onnxruntime.InferenceSession(path).run(None, feeds)[0] for path in (source, target))
    np.testing.assert_allclose(before, after, rtol=1e-4)
