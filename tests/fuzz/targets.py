"""What is fuzzed: one target a reader, from the bytes of a file to everything that a user may ask of it.

A target may answer or raise an `ExplorerError`; anything else is a find. Modules are imported inside, so
that one target does not pay for another's, and so that atheris can instrument them first.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz import mutators

__all__ = ["TARGETS", "Target"]


@dataclass(frozen=True)
class Target:
    """One reader under test.

    Attributes:
        about: What of the program it runs.
        ending: Of the file that the reader is given.
        prepare: Imports what is under test, and returns what runs it on the file of a path.
        seeds: Files to begin with, made by the official writer of the format; small.
        mutate: Changes a file in a way that its format survives.
        needs: A package without which there is nothing to fuzz.
    """

    about: str
    ending: str
    prepare: Callable[[], Callable[[str], None]]
    seeds: Callable[[], Iterator[bytes]]
    mutate: mutators.Mutator = mutators.plain
    needs: str = ""


# ONNX


def _onnx() -> Callable[[str], None]:
    from explorer.engine.costs.memory.liveness import compute_memory
    from explorer.engine.costs.onnx.analyse import examine
    from explorer.engine.formats.onnx.reader import read
    from explorer.engine.formats.onnx.validate import validate
    from explorer.engine.formats.onnx.writer import encode, encode_skeleton

    def run(path: str) -> None:
        model = read(path)
        _touch(model)
        model = validate(model)
        encode(model)
        encode_skeleton(model)
        compute_memory(examine(model))

    return run


def _touch(model: Any) -> None:
    """Decodes every attribute and reads the values of every tensor."""
    from explorer.base.errors import BadModel
    from explorer.engine.graph.model import Graph, Tensor

    todo: list[Any] = [model.graph, *(n for f in model.functions.values() for n in f.nodes)]
    while todo:
        item = todo.pop()
        if isinstance(item, Graph):
            todo += item.nodes
            todo += item.initializers.values()
        elif isinstance(item, Tensor):
            try:
                item.array()
            except BadModel:
                pass
        elif isinstance(item, tuple):
            todo += item
        elif hasattr(item, "attributes"):
            todo += item.attributes.values()


def _onnx_seeds() -> Iterator[bytes]:
    import onnx
    from onnx import TensorProto, helper

    def info(name: str, *shape: Any, kind: int = TensorProto.FLOAT) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], **more: Any) -> bytes:
        tensors = more.pop("tensors", [])
        opsets = [helper.make_opsetid("", more.pop("opset", 21)), helper.make_opsetid("local", 1)]
        graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
        made = helper.make_model(graph, opset_imports=opsets, ir_version=10, **more)
        return bytes(made.SerializeToString())

    weight = helper.make_tensor("w", TensorProto.FLOAT, [2, 1, 3, 3], [0.5] * 18)
    ints = helper.make_tensor("s", TensorProto.INT64, [2], [1, -1])
    yield model(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2], name="a/conv"),
            helper.make_node("Relu", ["c"], ["r"], name="a/relu"),
            helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], name="a/pool"),
            helper.make_node("Reshape", ["p", "s"], ["y"], name="b/flat"),
        ],
        [info("x", "n", 1, 8, 8)],
        [info("y", None, None)],
        tensors=[weight, ints],
    )
    inner = helper.make_graph([helper.make_node("Add", ["x", "x"], ["o"])], "branch", [], [info("o", 2)], [])
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["cond_in"], ["cond_out"]),
            helper.make_node("Mul", ["v_in", "x"], ["v_out"]),
        ],
        "body",
        [
            info("i", kind=TensorProto.INT64),
            info("cond_in", kind=TensorProto.BOOL),
            info("v_in", 2),
        ],
        [info("cond_out", kind=TensorProto.BOOL), info("v_out", 2)],
    )
    function = helper.make_function(
        "local",
        "Scale",
        ["a"],
        ["b"],
        [
            helper.make_node("Constant", [], ["k"], value_float=2.0),
            helper.make_node("Mul", ["a", "k"], ["b"]),
        ],
        [helper.make_opsetid("", 21)],
    )
    yield model(
        [
            helper.make_node("If", ["c"], ["t"], then_branch=inner, else_branch=inner),
            helper.make_node("Loop", ["m", "c", "t"], ["l"], body=body),
            helper.make_node("Scale", ["l"], ["y"], domain="local"),
        ],
        [info("x", 2), info("c", kind=TensorProto.BOOL), info("m", kind=TensorProto.INT64)],
        [info("y", 2)],
        functions=[function],
    )
    scan = helper.make_graph(
        [helper.make_node("Add", ["s", "e"], ["s2"]), helper.make_node("Identity", ["s2"], ["z"])],
        "scan",
        [info("s", 3), info("e", 3)],
        [info("s2", 3), info("z", 3)],
    )
    yield model(
        [
            helper.make_node("Shape", ["x"], ["d"]),
            helper.make_node("Gather", ["d", "zero"], ["n"]),
            helper.make_node("ConstantOfShape", ["d"], ["blank"]),
            helper.make_node("Slice", ["x", "st", "en"], ["sl"]),
            helper.make_node("Concat", ["x", "blank"], ["two"], axis=0),
            helper.make_node("Einsum", ["two", "two"], ["e"], equation="ij,kj->ik"),
            helper.make_node("Scan", ["i0", "two"], ["sf", "y"], body=scan, num_scan_inputs=1),
            helper.make_node("Softmax", ["e"], ["sm"], axis=-1),
            helper.make_node("Pad", ["x", "pads"], ["pd"]),
            helper.make_node("Range", ["zero", "n", "one"], ["rg"]),
            helper.make_node("Tile", ["x", "reps"], ["tl"]),
            helper.make_node("Expand", ["x", "big"], ["ex"]),
            helper.make_node("Split", ["x"], ["s1", "s2"], axis=0, num_outputs=2),
            helper.make_node("TopK", ["x", "k1"], ["tv", "ti"]),
            helper.make_node("Resize", ["x", "", "scales"], ["rs"]),
        ],
        [info("x", 4, 3)],
        [info("y", None, 3)],
        tensors=[
            helper.make_tensor("zero", TensorProto.INT64, [], [0]),
            helper.make_tensor("one", TensorProto.INT64, [], [1]),
            helper.make_tensor("st", TensorProto.INT64, [1], [0]),
            helper.make_tensor("en", TensorProto.INT64, [1], [2]),
            helper.make_tensor("pads", TensorProto.INT64, [4], [1, 0, 1, 0]),
            helper.make_tensor("reps", TensorProto.INT64, [2], [2, 2]),
            helper.make_tensor("big", TensorProto.INT64, [3], [5, 1, 1]),
            helper.make_tensor("k1", TensorProto.INT64, [1], [2]),
            helper.make_tensor("scales", TensorProto.FLOAT, [2], [2.0, 2.0]),
            helper.make_tensor("i0", TensorProto.FLOAT, [3], [0.0] * 3),
            helper.make_tensor("q4", TensorProto.INT4, [3], [1, -1, 2]),
            helper.make_tensor("text", TensorProto.STRING, [1], [b"t"]),
        ],
    )
    yield model(
        [
            helper.make_node("LSTM", ["x", "w", "r"], ["y", "h"], hidden_size=2),
            helper.make_node("Attention", ["q", "q", "q"], ["att"], q_num_heads=2, kv_num_heads=2),
            helper.make_node("QuantizeLinear", ["q", "sc"], ["ql"]),
            helper.make_node("MatMulInteger", ["ql", "ql"], ["mm"]),
            helper.make_node("SequenceConstruct", ["x", "x"], ["sq"]),
            helper.make_node("Optional", ["x"], ["op"]),
            helper.make_node("LayerNormalization", ["q", "sc2"], ["ln"]),
            helper.make_node("Gemm", ["g", "g"], ["gm"], transB=1),
        ],
        [info("x", 3, 1, 2), info("q", 1, 4, 4), info("g", 4, 4)],
        [info("y", 3, 1, 1, 2)],
        opset=23,
        tensors=[
            helper.make_tensor("w", TensorProto.FLOAT, [1, 8, 2], [0.1] * 16),
            helper.make_tensor("r", TensorProto.FLOAT, [1, 8, 2], [0.1] * 16),
            helper.make_tensor("sc", TensorProto.FLOAT, [], [0.1]),
            helper.make_tensor("sc2", TensorProto.FLOAT, [4], [0.1] * 4),
        ],
    )
    sparse = onnx.ModelProto()
    sparse.ParseFromString(model([helper.make_node("Relu", ["x"], ["y"])], [info("x", 2)], [info("y", 2)]))
    sparse.graph.sparse_initializer.append(
        helper.make_sparse_tensor(
            helper.make_tensor("sp", TensorProto.FLOAT, [1], [3.0]),
            helper.make_tensor("i", TensorProto.INT64, [1], [1]),
            [2],
        )
    )
    external = sparse.graph.initializer.add(name="out", data_type=1, dims=[2], data_location=1)
    external.external_data.add(key="location", value="weights.bin")
    external.external_data.add(key="length", value="8")
    sparse.training_info.add()
    helper.set_model_props(sparse, {"key": "value"})
    yield bytes(sparse.SerializeToString())


# archives of torch's, pickles, code


def _shown(path: str) -> None:
    """The outline, as it is printed: whatever a name holds, a line of it is safe for a terminal."""
    from explorer.report.outline_words import compose_text, write_json
    from explorer.session import headers as glance

    for line in compose_text(glance.read_outline(path)):
        assert line.rstrip("\n").isprintable(), f"not printable: {line!r}"
    for part in write_json(glance.read_outline(path), {}):
        assert part.isascii(), f"not ASCII: {part!r}"


def _outline() -> Callable[[str], None]:
    return _shown


def _opened() -> Callable[[str], None]:
    """Outline, analysis, memory and the statistics of the weights: what a file of any format is asked."""
    from explorer.base.errors import Misuse
    from explorer.session import Session

    def run(path: str) -> None:
        _shown(path)
        with Session(path) as session:
            session.open()
            for ask in (session.weights, session.memory):
                with contextlib.suppress(Misuse):  # of a file of tensors no order of execution is known
                    ask()

    return run


def _values() -> Callable[[str], None]:
    """Single tensors of a file of any format: their statistics, a slice, and the file as it is mapped."""
    import torch  # noqa: F401 - see `_checkpoint`

    from explorer.base.errors import ExplorerError
    from explorer.session import Session

    def run(path: str) -> None:
        with Session(path, cache=False) as session:
            session.open()
            rows = session.weights(stat="bits").tensors[:8]
            for row in rows:
                for cut in ("", "0", "-1", "..., :2", "::3"):
                    with contextlib.suppress(ExplorerError):  # of another rank, or of no numbers
                        session.values(row.name, cut)
                with contextlib.suppress(ExplorerError):
                    session.heat_map(row.name)

    return run


def _converted() -> Callable[[str], None]:
    """A file of tensors, or a graph, into every kind that it can become; what is written is opened again."""
    import os

    import torch  # noqa: F401 - see `_checkpoint`

    from explorer.base.errors import ExplorerError
    from explorer.session import Session

    folder = _scratch()

    def run(path: str) -> None:
        with Session(path, cache=False) as session:
            session.open()
            for _, endings in session.conversions():
                output = os.path.join(folder, f"out{endings[0]}")
                with contextlib.suppress(ExplorerError):
                    session.convert(output, overwrite=True, verify=False)
                    with Session(output, cache=False) as written:
                        written.open()

    return run


def _any_seeds() -> Iterator[bytes]:
    """Files of every format whose numbers can be changed in place."""
    for seeds in (_safetensors_seeds, _gguf_seeds, _tflite_seeds, _sparse_seeds, _onnx_seeds, _state_seeds):
        yield from seeds()


def _state_seeds() -> Iterator[bytes]:
    import torch

    weight = torch.arange(12.0).reshape(3, 4)
    state = {"w": weight, "view": weight[1:, ::2], "t": weight.t(), "h": weight.half(), "b": weight > 3}
    for old in (False, True):
        buffer = io.BytesIO()
        torch.save(state, buffer, _use_new_zipfile_serialization=not old)
        yield buffer.getvalue()


def _sparse_seeds() -> Iterator[bytes]:
    import numpy as np

    from tests.engine.formats.tflite.tflite_writer import Op, Sub, T, build

    for dtype in ("float32", "int8"):
        weight = T((5, 12), dtype, np.ones(6, dtype), "w", sparse=True)
        tensors = [T((7, 12), dtype, name="x"), weight, T((7, 5), dtype, name="y")]
        yield build(Sub(tensors, [Op("FULLY_CONNECTED", [0, 1], [2])], [0], [2]))


def _checkpoint() -> Callable[[str], None]:
    import torch  # noqa: F401 - it takes a second, which no file shall be charged with

    return _opened()


def _small_net() -> Any:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.register_buffer("steps", torch.zeros(1, dtype=torch.int64))

        def forward(self, x: torch.Tensor, turns: int = 2) -> torch.Tensor:
            for _i in range(turns):
                x = torch.relu(self.fc(x))
                if x.size(0) > 1:
                    x = x[:1]
            return x.flatten(1)

    return Net().eval()


def _checkpoint_seeds() -> Iterator[bytes]:
    import torch

    state = _small_net().state_dict()
    for content in (state, {"model": state, "epoch": 3, "args": ["a", (1, 2.5, None)]}):
        buffer = io.BytesIO()
        torch.save(content, buffer)
        yield buffer.getvalue()
    buffer = io.BytesIO()
    torch.save(state, buffer, _use_new_zipfile_serialization=False)
    yield buffer.getvalue()
    yield from _script_seeds()


def _script_seeds() -> Iterator[bytes]:
    import warnings

    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for made in (
            torch.jit.script(_small_net()),
            torch.jit.trace(_small_net(), torch.ones(1, 2), check_trace=False),
            torch.jit.freeze(torch.jit.script(_small_net())),
        ):
            buffer = io.BytesIO()
            torch.jit.save(made, buffer)
            yield _without_debug(buffer.getvalue())


def _without_debug(content: bytes) -> bytes:
    """An archive without what nobody reads: a third of the bytes."""
    entries = mutators.unzip(content)
    assert entries is not None
    kept = [(n, c) for n, c in entries if not n.endswith((".debug_pkl", "version", "serialization_id"))]
    return mutators.zipped(kept)


def _torchscript() -> Callable[[str], None]:
    from explorer.engine.costs.torch import analyse
    from explorer.engine.formats.torch_replay import torchscript

    def run(path: str) -> None:
        analyse.examine(torchscript.load(path))

    return run


def _code() -> Callable[[str], None]:
    import torch

    from explorer.base.errors import ExplorerError
    from explorer.engine.formats.torch_replay.torchscript_interpreter import (
        Code,
        ScriptError,
        ScriptInterpreter,
    )

    # the first operator takes a second, in which torch imports what it may need
    torch.ops.aten.zeros([1], device="meta").add(1)
    torch.ops.aten.zeros([1]).expand([2]).sum()

    def run(path: str) -> None:
        try:
            text = Path(path).read_bytes().decode()
        except UnicodeDecodeError:
            return
        code = Code(lambda name: text if name == "code/__torch__.py" else None, path)
        made = code.find_class("__torch__.Net")
        machine = ScriptInterpreter(code, torch.device("meta"))
        x = torch.ones(2, 2, device="meta")
        functions = [*code.functions.values(), *(made.methods.values() if made else ())]
        for function in functions[:4]:
            machine.steps = 0
            try:
                machine.run(function, [x, x, 3][: len(function.args.args)], {})
            except (ScriptError, ExplorerError):
                pass
            except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RuntimeError):
                pass  # who runs code expects these: a module's forward may raise anything of the kind

    return run


def _code_seeds() -> Iterator[bytes]:
    yield b"""class Net(Module):
  __parameters__ = ["weight", ]
  __buffers__ = []
  training : bool
  __annotations__["0"] = __torch__.Other
  k : Final[int] = 3
  def forward(self, x: Tensor, n: int=2) -> Tensor:
    _0 = torch.relu(torch.mul(x, 2))
    y = torch.flatten(_0, 1, -1)
    seen = annotate(List[Tensor], [])
    for i in range(n):
      z = torch.add(y, i, alpha=1)
      _1 = torch.append(seen, z)
    a, b, = torch.chunk(y, 2, 1)
    return torch.cat(seen, 0)
def helper(x: Tensor, y: Tensor, n: int) -> Tuple[int, str]:
  i = 0
  text = "ab"
  going = torch.lt(i, n)
  while going:
    i = torch.add(i, 1)
    text = torch.add(text, torch.format("{} of {}", i, n))
    going = torch.lt(i, n)
  if torch.eq(torch.len(x.shape if False else [1, 2]), 2):
    m = {"a": [1, 2], "b": [i]}
  else:
    ops.prim.RaiseException("no")
  w = x[0:1:1] if bool(i) else unchecked_cast(Tensor, y)
  return (torch.size(x, 0), torch.mul(text, 2))
class Pair(NamedTuple):
  left : Tensor
  right : int
"""
    yield b"""def numbers(x: Tensor, y: Tensor, n: int) -> int:
  a = torch.pow(2, n)
  b = torch.floordiv(a, 3)
  c = torch.neg(torch.remainder(b, 5))
  d = torch.mul([0], n)
  e = torch.__contains__(d, c)
  f = torch.zeros([2, n], dtype=6, layout=None, device=torch.device("cpu"), pin_memory=False)
  g = torch.view(torch.expand(f, [2, n]), [-1])
  h = torch.list(torch.slice(d, 0, 9223372036854775807, 1))
  k = torch.__range_length(0, n, 1)
  l = torch.sorted(d)
  return int(torch.len(h))
"""


# exported programs


_PLACES = re.compile(rb"/(?:[\w.-]+/)+(?=[\w-]+\.py\b)")
"""Folders of files of Python's."""


def _program_seeds() -> Iterator[bytes]:
    import warnings

    import torch

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.fc(x)).flatten(1) * x.shape[0]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = torch.export.Dim("batch", min=2, max=64)
        for dynamic in (None, {"x": {0: batch}}):
            program = torch.export.export(Flat().eval(), (torch.ones(3, 2),), dynamic_shapes=dynamic)
            buffer = io.BytesIO()
            torch.export.save(program, buffer)
            entries = mutators.unzip(buffer.getvalue())
            assert entries is not None
            kept = [(n, c) for n, c in entries if not n.endswith(("version", "_id"))]
            # every node says which line of which file it comes from
            yield mutators.zipped([(n, _PLACES.sub(b"/src/", c)) for n, c in kept])


def _graph() -> Callable[[str], None]:
    from explorer.engine.formats.torch_files.zip_archive import ZipArchive
    from explorer.engine.formats.torch_replay.graph import read

    def run(path: str) -> None:
        read(ZipArchive(path))

    return run


def _program() -> Callable[[str], None]:
    from explorer.engine.costs.torch import analyse
    from explorer.engine.formats.torch_replay import exported_program

    def run(path: str) -> None:
        analyse.examine(exported_program.load(path))

    return run


# arrays


def _arrays() -> Callable[[str], None]:
    import onnx
    from onnx import TensorProto, helper

    from explorer.session import Session

    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["a", "b"]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ports[:1], ports[1:])
    model = f"{_scratch()}/m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), model)
    session = Session(model)
    session.activations()

    def run(path: str) -> None:
        session.activations(input=path)

    return run


def _array_seeds() -> Iterator[bytes]:
    import numpy as np

    for array in (
        np.zeros((2, 3), np.float32),
        np.arange(4),
        np.array(["a", "bc"]),
        np.zeros((0, 2)),
        np.array([[np.nan, np.inf]], np.float32),
    ):
        buffer = io.BytesIO()
        np.save(buffer, array)
        yield buffer.getvalue()
    for save in (np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        save(buffer, x=np.ones((2, 2)), y=np.arange(3))
        yield buffer.getvalue()
        buffer = io.BytesIO()
        save(buffer, x=np.ones((2, 2), np.float32))
        yield buffer.getvalue()


# files of tensors


def _safetensors_seeds() -> Iterator[bytes]:
    import numpy as np
    from safetensors.numpy import save

    yield save(
        {"layers.0.w": np.ones((2, 3), np.float32), "layers.0.b": np.zeros(3, np.float16), "n": np.array(3)},
        {"format": "pt"},
    )
    yield save({})
    yield save({"empty": np.zeros((0, 4), np.float32)})


def _gguf_seeds() -> Iterator[bytes]:
    import gguf
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/m.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_block_count(1)
        writer.add_name("net")
        writer.add_array("tokens", ["a", "bc"])
        writer.add_array("scores", [0.5, 1.5])
        writer.add_bool("flag", True)
        writer.add_tensor("token_embd.weight", np.ones((2, 32), np.float32))
        writer.add_tensor(
            "blk.0.attn_q.weight", np.zeros((1, 34), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0
        )
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        yield Path(path).read_bytes()


def _tflite_seeds() -> Iterator[bytes]:
    models = Path(__file__).parent.parent / "engine" / "formats" / "tflite" / "models"
    for path in sorted(models.glob("*.tflite"), key=lambda p: p.stat().st_size)[:8]:
        if path.stat().st_size < 16 << 10:
            yield path.read_bytes()


def _scratch() -> str:
    """A folder that goes with the process."""
    made = tempfile.mkdtemp(prefix="explorer-fuzz-")
    atexit.register(shutil.rmtree, made, True)
    return made


def _folder() -> Callable[[str], None]:
    """A Hugging Face folder: the index, the settings and the header of a shard; the others are sound."""
    import json

    whole = _opened()
    shards = list(_safetensors_seeds())
    folder = Path(_scratch())
    for at, content in enumerate(shards):
        (folder / f"model-{at + 1:05}-of-{len(shards):05}.safetensors").write_bytes(content)

    def run(path: str) -> None:
        content = Path(path).read_bytes()
        parts = None
        try:
            parts = json.loads(content)
        except (ValueError, RecursionError):
            pass
        index, config, shard = content, b"{}", shards[0]
        if isinstance(parts, list) and len(parts) in (2, 3):
            index, config, *headers = (json.dumps(part).encode() for part in parts)
            for header in headers:
                shard = len(header).to_bytes(8, "little") + header + bytes(38)
        (folder / f"model-00001-of-{len(shards):05}.safetensors").write_bytes(shard)
        (folder / "model.safetensors.index.json").write_bytes(index)
        (folder / "config.json").write_bytes(config)
        whole(str(folder))

    return run


def _folder_seeds() -> Iterator[bytes]:
    import json

    names = [f"model-{at + 1:05}-of-00003.safetensors" for at in range(3)]
    index = {
        "metadata": {"total_size": 38},
        "weight_map": {"layers.0.w": names[0], "layers.0.b": names[0], "n": names[0], "empty": names[2]},
    }
    config = {
        "architectures": ["Net"],
        "hidden_size": 3,
        "num_hidden_layers": 1,
        "torch_dtype": "float32",
        "tie_word_embeddings": False,
        "quantization_config": {"bits": 4, "quant_method": "x"},
    }
    yield json.dumps([index, config]).encode()
    header = {
        "__metadata__": {"format": "pt"},
        "layers.0.w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "layers.0.b": {"dtype": "F16", "shape": [3], "data_offsets": [24, 30]},
        "n": {"dtype": "I64", "shape": [], "data_offsets": [30, 38]},
    }
    yield json.dumps([index, config, header]).encode()


# a language model's configuration


def _serving() -> Callable[[str], None]:
    """`explorer serving` of a folder whose settings a stranger wrote; its weights are those of its index."""
    import torch  # noqa: F401 - see `_checkpoint`

    from explorer.facts.serving.spec import ServingSpec
    from explorer.session import Session

    folder = Path(_scratch())
    spec = ServingSpec(prompt=16, contexts=(32,), batches=(1, 2))

    def run(path: str) -> None:
        (folder / "config.json").write_bytes(Path(path).read_bytes())
        with Session(str(folder), cache=False) as session:
            session.serving(spec)

    return run


def _serving_seeds() -> Iterator[bytes]:
    import json

    small = {"hidden_size": 16, "num_hidden_layers": 1, "vocab_size": 32, "num_attention_heads": 2}
    for kind, name, more in (
        ("llama", "LlamaForCausalLM", {"intermediate_size": 32, "num_key_value_heads": 1}),
        ("qwen3_moe", "Qwen3MoeForCausalLM", {"intermediate_size": 32, "num_experts": 2, "head_dim": 8}),
        ("gpt2", "GPT2LMHeadModel", {"n_embd": 16, "n_layer": 1, "n_head": 2}),
    ):
        yield json.dumps({"architectures": [name], "model_type": kind, **small, **more}).encode()


# the web server


def _web() -> Callable[[str], None]:
    """Whatever a client sends to `explorer serve`: the connection ends, and the terminal hears nothing."""
    import asyncio
    import logging

    from explorer.web.gate import Gate
    from explorer.web.server import create_server

    heard: list[str] = []
    folder = _scratch()

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    logging.getLogger().addHandler(Ear())

    async def talk(data: bytes) -> None:
        from aiohttp import web

        server = create_server(".", folder, "127.0.0.1", 0)
        server.disable_logging()
        runner = web.AppRunner(await server._make_app(), access_log=None, lingering_time=0)
        await runner.setup()
        assert runner.server is not None
        gate = Gate(runner.server)
        port = await gate.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(data)
            writer.write_eof()
            with contextlib.suppress(ConnectionError):
                answer = await asyncio.wait_for(reader.read(), 5)
                assert b"Set-Cookie" not in answer
                assert b"Traceback" not in answer
        finally:
            writer.close()
            gate.close()
            await runner.cleanup()
            server._state_folder.remove()

    def run(path: str) -> None:
        asyncio.run(talk(Path(path).read_bytes()))
        assert not heard, heard.pop()

    return run


def _web_seeds() -> Iterator[bytes]:
    host = b"Host: 127.0.0.1\r\n"
    yield b"GET / HTTP/1.1\r\n" + host + b"Cookie: explorer-8000=x; a=b\r\nAccept: */*\r\n\r\n"
    yield b"GET /?token=x HTTP/1.1\r\n" + host + b"Origin: http://127.0.0.1\r\n\r\n"
    yield (
        b"GET /ws?width=80&height=24 HTTP/1.1\r\n" + host + b"Upgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    yield (
        b"GET /static/%2e%2e/x HTTP/1.1\r\n"
        + host
        + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    )
    yield b"POST /download/x HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello"


# the screen's own state


def _resume() -> Callable[[str], None]:
    import os

    from explorer.process import saved_sessions

    state = _scratch()
    environment = {"XDG_STATE_HOME": state}

    def run(path: str) -> None:
        folder = os.path.join(saved_sessions.find_home(environment), "20260101-000000-x")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        target = os.path.join(folder, "session.msgpack")
        shutil.copyfile(path, target)
        os.chmod(target, 0o600)
        try:
            kept, _ = saved_sessions.find(None, environment)
            kept.release()
        finally:
            saved_sessions.has_waiting_session("m.onnx", environment, "")

    return run


def _resume_seeds() -> Iterator[bytes]:
    import msgspec

    from explorer.facts import History, HistoryEntry
    from explorer.process import saved_sessions

    history = History((HistoryEntry("original", None, ""), HistoryEntry("tiled", "1.onnx", "tile")), 1)
    opening = saved_sessions.Opening(dims={"batch": 2}, input_shapes={"x": (None, (1, 2))})
    view = saved_sessions.ScreenState(query="conv", opened=(("a.b", True),), cursor="a.b.c")
    yield msgspec.msgpack.encode(saved_sessions.SavedSession("m.onnx", "/", opening, history, view, 1 << 30))
    yield msgspec.msgpack.encode(saved_sessions.SavedSession("m.onnx", "/", saved_sessions.Opening()))


TARGETS: dict[str, Target] = {
    "onnx": Target(
        "ONNX: the reader, the checks, the writer, and the whole analysis",
        ".onnx",
        _onnx,
        _onnx_seeds,
        mutators.protobuf,
        "onnx",
    ),
    "onnx-outline": Target(
        "ONNX: the look at the header alone",
        ".onnx",
        _outline,
        _onnx_seeds,
        mutators.protobuf,
        "onnx",
    ),
    "checkpoint": Target(
        "zip archives and old files of torch's with pickles in them, read as data",
        ".pt",
        _checkpoint,
        _checkpoint_seeds,
        mutators.archive,
        "torch",
    ),
    "torch-outline": Target(
        "TorchScript files and exported programs: the look without torch",
        ".pt",
        _outline,
        lambda: (s for seeds in (_script_seeds, _program_seeds) for s in seeds()),
        mutators.archive,
        "torch",
    ),
    "safetensors": Target(
        "safetensors: header, tree, statistics",
        ".safetensors",
        _opened,
        _safetensors_seeds,
        mutators.headed_json,
        "safetensors",
    ),
    "gguf": Target("GGUF: header, tree, statistics", ".gguf", _opened, _gguf_seeds, mutators.numbers, "gguf"),
    "tflite": Target(
        "TFLite: the reader and the whole analysis",
        ".tflite",
        _opened,
        _tflite_seeds,
        mutators.numbers,
        "tflite",
    ),
    "folder": Target(
        "Hugging Face folders: index and settings",
        ".json",
        _folder,
        _folder_seeds,
        mutators.json_text,
        "safetensors",
    ),
    "values": Target(
        "single tensors of a file: statistics, slices, maps",
        ".bin",
        _values,
        _any_seeds,
        mutators.numbers,
        "torch",
    ),
    "convert": Target(
        "a file into every kind that it can become",
        ".bin",
        _converted,
        _any_seeds,
        mutators.numbers,
        "torch",
    ),
    "serving": Target(
        "the figures of serving a folder whose settings a stranger wrote",
        ".json",
        _serving,
        _serving_seeds,
        mutators.json_text,
        "transformers",
    ),
    "web": Target(
        "what a client sends to the web server, before it has shown the token",
        ".http",
        _web,
        _web_seeds,
        mutators.plain,
        "textual_serve",
    ),
    "resume": Target("the state of a session on disk", ".msgpack", _resume, _resume_seeds),
    "code": Target(
        "TorchScript's code: the parser, and the machine that runs it on meta tensors",
        ".py",
        _code,
        _code_seeds,
        mutators.code,
        "torch",
    ),
    "torchscript": Target(
        "TorchScript files, to the whole analysis",
        ".pt",
        _torchscript,
        _script_seeds,
        mutators.archive,
        "torch",
    ),
    "graph": Target(
        "the JSON of an exported program",
        ".pt2",
        _graph,
        _program_seeds,
        mutators.archive,
        "torch",
    ),
    "program": Target(
        "exported programs, to the whole analysis",
        ".pt2",
        _program,
        _program_seeds,
        mutators.archive,
        "torch",
    ),
    "arrays": Target(
        ".npy and .npz files given as input, to the values of the layers",
        ".npz",
        _arrays,
        _array_seeds,
        mutators.archive,
        "onnxruntime",
    ),
}
