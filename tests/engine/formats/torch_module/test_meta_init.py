"""A model of any size is analyzed from nothing without the parts of torch that take longest to import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from explorer.engine.formats.torch_module.meta_init import UnfilledTensors  # noqa: E402
from tests.bench.analysis import LLAMA  # noqa: E402

ROOT = Path(__file__).parents[4]

SLOW = (
    "torch._dynamo.eval_frame",
    "torch._inductor",
    "torchvision",
    "onnx",
    "onnxruntime",
    "triton",
)
"""What an analysis on shapes must not import. torch imports sympy by itself, for a kernel of attention."""

CODE = """
import json, sys
from explorer import Session
with Session(sys.argv[1]) as session:
    totals = session.info().totals
print(json.dumps([totals.macs, totals.params, [name for name in sys.argv[2:] if name in sys.modules]]))
"""


@pytest.mark.slow
def test_a_model_of_70_billion_parameters_needs_torch_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "llama_shape.py"
    path.write_text(LLAMA)
    command = [sys.executable, "-c", CODE, f"{path}:llama70b", *SLOW]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [146_222_161_592_320, 68_976_648_192, []]


def test_what_has_no_values_is_not_filled_and_what_has_is() -> None:
    with torch.device("meta"), UnfilledTensors():
        bare = nn.Linear(4, 3)
        assert torch.empty(2, 3).normal_().shape == (2, 3)
    assert bare.weight.is_meta
    assert bare.weight.shape == (3, 4)
    with UnfilledTensors():
        assert torch.full((3,), 2.0).tolist() == [2.0] * 3
        assert torch.empty(3).fill_(5.0).tolist() == [5.0] * 3
        assert len(set(torch.empty(50).uniform_().tolist())) > 1


def test_a_constructor_that_fails_fails_the_same() -> None:
    with torch.device("meta"), UnfilledTensors(), pytest.raises(ValueError, match="fewer than 2 dimensions"):
        nn.init.kaiming_uniform_(torch.empty(3))
