"""torch's symbolic sizes are not imported for a model on shapes, and are whole for who has symbols."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.formats.transformers import folders

_LATER = """
import sys
from concurrent.futures import ThreadPoolExecutor
import torch
from explorer.engine.formats.torch_module import late_compiler, late_symbols

late_compiler.put_off_compiler()
late_symbols.put_off_symbols()
from torch.fx.experimental.symbolic_shapes import guard_or_false
import torch.distributed.tensor
from torch.distributed.tensor import _decompositions
import sympy as algebra

x = torch.ones(2, 3, device="meta")
assert (1.0 / (x * 2 + x.T.reshape(2, 3)) ** 0.5).shape == (2, 3)
try:
    torch._check(False)
except RuntimeError:
    pass
else:
    raise AssertionError("a check that fails")
NAME = "torch.fx.experimental.symbolic_shapes"
assert "sympy.core" not in sys.modules and type(sys.modules[NAME]) is not type(sys)

early = {name: getattr(sys.modules[NAME], name) for name in late_symbols._AT_ONCE}
values = (True, False, 0, 1, -1, 1.0, (), (1, 2), (2, 1), (1, 2, 3), (True,), (1.0,))
answers = []
for name, function in early.items():
    one = [(value,) for value in values]
    for given in one + [(a, b) for a in values for b in values]:
        try:
            said = late_symbols._AT_ONCE[name](*given)
        except TypeError:
            continue
        if said is not NotImplemented:
            answers.append((name, given, said))
assert len(answers) > 40

loader = sys.modules[NAME].__spec__.loader
execute, asked = loader.exec_module, []

def while_it_loads(module):
    with ThreadPoolExecutor(1) as pool:
        asked.append(pool.submit(early["guard_or_false"], True).result())
    execute(module)

loader.exec_module = while_it_loads

exported = torch.export.export(
    torch.nn.Linear(2, 2), (torch.ones(3, 2),), dynamic_shapes=({0: torch.export.Dim.AUTO},)
)
assert asked == [True]
assert any("s" in str(node.meta["val"].shape[0]) for node in exported.graph.nodes if "val" in node.meta)
import torch.fx.experimental.symbolic_shapes as real
assert real is sys.modules[NAME] and type(real) is type(sys)
assert algebra is sys.modules["sympy"] and algebra.Symbol("n") * 2 == algebra.Mul(2, algebra.Symbol("n"))
assert guard_or_false is real.guard_or_false or guard_or_false(True) is True
assert torch.distributed.tensor._collective_utils.guard_or_false is real.guard_or_false
assert _decompositions.GuardOnDataDependentSymNode is real.GuardOnDataDependentSymNode
for name, given, said in answers:
    told = getattr(real, name)(*given)
    assert told == said and type(told) is type(said), (name, given, said, told)
assert all(getattr(real, name) is not function for name, function in early.items())
assert early["is_nested_int"](3) is False
print("fine")
"""


@pytest.mark.slow
def test_what_is_answered_at_once_is_what_torch_answers() -> None:
    done = subprocess.run([sys.executable, "-c", _LATER], capture_output=True, text=True)
    assert done.stdout.split() == ["fine"], done.stderr


_SHAPES = """
import sys
from explorer.cli.main import main

assert main(["layers", sys.argv[1], "--no-cache"]) == 0
late = [name for name in sys.argv[2:] if type(sys.modules.get(name)) is not type(sys)]
import torchvision
assert torchvision.models.resnet18 and torchvision.ops.nms and torchvision.datasets.FakeData
assert torchvision.models is sys.modules["torchvision.models"]
from torchvision.models.detection import fasterrcnn_resnet50_fpn
import transformers
from transformers.models.auto import configuration_auto
whole = sys.modules["transformers.models"]
assert whole.llama.modeling_llama.LlamaForCausalLM is transformers.LlamaForCausalLM
assert transformers.models.bert.BertConfig is transformers.BertConfig
from transformers.utils import import_utils
structure = import_utils.define_import_structure(whole.__file__)
assert import_utils._LazyModule("new", whole.__file__, structure)._class_to_module == whole._class_to_module
print(*late, file=sys.stderr)
"""


@pytest.mark.slow
def test_a_folder_needs_neither_symbols_nor_models_for_images(tmp_path: Path) -> None:
    """And who asks for them later has them."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 128}
    config = {**folders.LLAMA_3_8B, **sizes, "num_attention_heads": 4, "num_key_value_heads": 2}
    path = folders.folder(tmp_path / "tiny", config, folders.llama(2, 64, 96, 128, 32))
    parts = ["torch.fx.experimental.symbolic_shapes", "sympy", "torchvision.models", "torchvision.datasets"]
    words = [sys.executable, "-c", _SHAPES, str(path), *parts]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.split() == parts
