"""Values of a group of modules are its output, and those of a Constant what is stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from explorer import Session

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402


class Block(nn.Module):
    """Something behind its last module, so that its output is no module's."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * 3 + 1


@pytest.mark.parametrize("path", ["0", "0.inner", "1", "1.inner"])
def test_a_group_of_modules_is_told_by_what_it_puts_out(path: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    module = nn.Sequential(Block(), Block()).eval()
    given = torch.randn(2, 4)
    np.savez(tmp_path / "in.npz", input=given.numpy())
    expected: list[torch.Tensor] = []
    module.get_submodule(path).register_forward_hook(lambda m, i, out: expected.append(out))
    with torch.no_grad():
        module(given)
    with Session(module, inputs=given) as session:
        session.values(path, input=str(tmp_path / "in.npz"), output=str(tmp_path / "out.npy"))
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected[0].numpy(), rtol=1e-6)


def test_a_constant_is_told_by_the_name_of_its_layer(tmp_path: Path) -> None:
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["": 17]> g (float[3] x) => (float[3] y)
        { k = Constant<value = float[3] {5, 6, 7}>() y = Mul(x, k) }"""
    )
    model.graph.node[0].name = "table"
    onnx.save(model, str(tmp_path / "m.onnx"))
    with Session(str(tmp_path / "m.onnx")) as session:
        session.values("table", output=str(tmp_path / "out.npy"))
    assert np.load(tmp_path / "out.npy").tolist() == [5, 6, 7]
