"""torch's compiler is not imported for a model that runs on shapes, and is whole for who compiles."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.formats.transformers import folders

_LATER = """
import sys
from explorer.cli.main import main

assert main(["layers", "alexnet", "--no-cache"]) == 0
assert main(["layers", sys.argv[1], "--no-cache"]) == 0
assert {"torchvision", "transformers"} <= set(sys.modules)
assert "torch._dynamo.eval_frame" not in sys.modules

import torch
from explorer.engine.formats.torch_module.late_compiler import put_off_compiler

put_off_compiler()
from torchvision.ops import roi_align
from transformers import LlamaForCausalLM
from transformers.integrations import deepgemm
from transformers.masking_utils import TransformGetItemToIndex

@torch.compiler.disable
def kept(x):
    return torch.sin(x)

@torch.compiler.disable(recursive=False)
def also_kept(x):
    return torch.sin(x)

def whole(x):
    return also_kept(kept(torch.cos(x)))

x = torch.ones(3, device="meta")
(x / 2).add_(1)
assert kept(torch.ones(2)).shape == (2,)
assert "torch._dynamo.eval_frame" not in sys.modules

seen = []

def backend(graph, inputs):
    seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
    return graph.forward

given = torch.arange(3.0)
assert torch.equal(torch.compile(whole, backend=backend)(given), whole(given))
assert any("cos" in name for name in seen) and not any("sin" in name for name in seen), seen
assert "torch._dynamo.eval_frame" in sys.modules
import torch._dynamo
assert torch._dynamo is sys.modules["torch._dynamo"] and torch._dynamo.utils.counters is not None
assert torch._dynamo._trace_wrapped_higher_order_op.TransformGetItemToIndex is TransformGetItemToIndex
marked = [f for f in vars(deepgemm).values() if getattr(f, "_dynamo_marked_constant", False)]
assert marked
assert isinstance(roi_align.__globals__["is_compile_supported"]("cpu"), bool)
assert [n for n in torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)).graph.nodes]
"""


@pytest.mark.slow
def test_neither_a_model_on_shapes_nor_a_folder_needs_the_compiler_and_later_it_is_whole(
    tmp_path: Path,
) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 128}
    config = {**folders.LLAMA_3_8B, **sizes, "num_attention_heads": 4, "num_key_value_heads": 2}
    path = folders.folder(tmp_path / "tiny", config, folders.llama(2, 64, 96, 128, 32))
    words = [sys.executable, "-c", _LATER, str(path)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_who_takes_a_helper_of_it_gets_the_real_one() -> None:
    """As torchao does, which transformers imports wherever it is installed."""
    code = (
        "import sys\n"
        "from explorer.engine.formats.torch_module.late_compiler import put_off_compiler\n"
        "import torch\n"
        "put_off_compiler()\n"
        "from torch._dynamo.utils import warn_once\n"
        "import torch._dynamo\n"
        "assert warn_once is torch._dynamo.utils.warn_once\n"
        "assert 'torch._dynamo.eval_frame' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
