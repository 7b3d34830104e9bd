"""Thirty faults planted in fifteen real models: does `blame` name the node that was touched?

The models are architectures of torchvision and transformers with random weights, exported to ONNX. A fault
is a node that was inserted, removed, replaced, or renamed and changed; one that changes no output is drawn
again. What each one is follows from a seed alone.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from msgspec import Struct
from onnx import helper, numpy_helper

from explorer import blame_files

FAULTS_OF_EACH = 2
_TRIES = 20
_APART = 1e-3
"""By how much of its size an output changes where a fault counts."""

_PLANTED = "planted"
_RENAMED = "under_another_name"


class Fault(Struct, frozen=True):
    """What was planted, and what came of it.

    Attributes:
        model, kind, node: Where, and what.
        answer: The layer that is blamed, and how it is said to differ; '' where none is.
        named: Whether that is the node itself.
        behind: Whether it is another one that is marked as standing behind the fault.
    """

    model: str
    kind: str
    node: str
    answer: str
    named: bool
    behind: bool


def _vision(name: str, size: int, **more: Any) -> tuple[Any, tuple[Any, ...]]:
    import torch
    import torchvision

    return getattr(torchvision.models, name)(weights=None, **more), (torch.randn(1, 3, size, size),)


def _text(kind: str, **sizes: Any) -> tuple[Any, tuple[Any, ...]]:
    import torch
    import transformers

    config = getattr(transformers, f"{kind}Config")(vocab_size=100, **sizes)
    model = transformers.AutoModel.from_config(config, attn_implementation="eager")

    class States(torch.nn.Module):
        """The last hidden states alone."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any) -> Any:
            return self.model(input_ids=ids, return_dict=False)[0]

    return States(), (torch.randint(1, 99, (1, 12)),)


_BERT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}

MODELS: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "densenet121": partial(_vision, "densenet121", 64),
    "efficientnet_b0": partial(_vision, "efficientnet_b0", 64),
    "googlenet": partial(_vision, "googlenet", 64, init_weights=False, aux_logits=False),
    "mnasnet0_5": partial(_vision, "mnasnet0_5", 64),
    "mobilenet_v2": partial(_vision, "mobilenet_v2", 64),
    "mobilenet_v3_small": partial(_vision, "mobilenet_v3_small", 64),
    "mobilenet_v3_large": partial(_vision, "mobilenet_v3_large", 64),
    "regnet_y_400mf": partial(_vision, "regnet_y_400mf", 64),
    "resnet18": partial(_vision, "resnet18", 64),
    "shufflenet_v2_x0_5": partial(_vision, "shufflenet_v2_x0_5", 64),
    "squeezenet1_1": partial(_vision, "squeezenet1_1", 64),
    "Albert": partial(_text, "Albert", embedding_size=16, **_BERT),
    "Bert": partial(_text, "Bert", **_BERT),
    "DistilBert": partial(_text, "DistilBert", dim=32, n_layers=2, n_heads=4, hidden_dim=48),
    "Electra": partial(_text, "Electra", embedding_size=32, **_BERT),
}


def written(name: str, seed: int, folder: Path) -> Path:
    """A model with random weights of a seed, as torch exports it."""
    import torch

    path = folder / f"{name}-{seed}.onnx"
    torch.manual_seed(seed)
    module, inputs = MODELS[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module.eval(), inputs, str(path), dynamo=False, opset_version=17)
    return path


def hunt(seed: int, folder: Path) -> Iterator[Fault]:
    """Plants faults in every model, and asks for each which node it is in."""
    for at, name in enumerate(MODELS):
        source = written(name, seed + at, folder)
        rng = random.Random(f"{seed}/{name}")
        kinds = [*KINDS]
        for more in range(FAULTS_OF_EACH):
            first = at * FAULTS_OF_EACH + more + seed
            order = [kinds[(first + step) % len(kinds)] for step in range(len(kinds))]
            yield _planted(name, order, source, folder / "fault.onnx", rng)
        source.unlink()


def _planted(name: str, kinds: list[str], source: Path, target: Path, rng: random.Random) -> Fault:
    """A fault of the first kind; of the next one where no node of that kind changes anything."""
    expected = _outputs(source)
    for kind in [each for each in kinds for _ in range(_TRIES)]:
        model = onnx.load(source)
        del model.graph.value_info[:]
        node = KINDS[kind](model.graph, rng)
        if not node:
            continue
        onnx.save(model, target)
        try:
            apart = _differ(expected, _outputs(target))
        except Exception:  # the runtime refuses it
            continue
        if apart:
            return _blamed(name, kind, node, source, target)
    raise LookupError(f"{name}: no fault changes anything")


def _blamed(name: str, kind: str, node: str, source: Path, target: Path) -> Fault:
    fact = blame_files(str(source), str(target))
    if fact.first is None:
        return Fault(name, kind, node, fact.verdict, named=False, behind=False)
    first = fact.probes[fact.first]
    named = first.layer == node and (kind != "renamed and changed" or first.layer_after == _RENAMED)
    return Fault(
        name, kind, node, f"{first.layer}, {first.change}", named, first.change == "behind the fault"
    )


def _outputs(path: Path) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(5)
    feeds = {
        each.name: rng.integers(1, 99, each.shape)
        if "int" in each.type
        else rng.standard_normal(each.shape).astype(np.float32)
        for each in session.get_inputs()
    }
    return [np.asarray(value) for value in session.run(None, feeds)]


def _differ(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    if [value.shape for value in one] != [value.shape for value in other]:
        return False  # that is another model
    return any(np.abs(a - b).max() > _APART * np.abs(a).max() for a, b in zip(one, other, strict=True))


# kinds of faults: each changes a graph and gives the name of the node, '' where it found none

_REMOVABLE = ("Relu", "Clip", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Erf", "Softmax", "Sqrt")
_INSTEAD = {
    "Add": "Sub",
    "Clip": "Sigmoid",
    "Erf": "Tanh",
    "GlobalAveragePool": "GlobalMaxPool",
    "HardSigmoid": "Sigmoid",
    "HardSwish": "Relu",
    "Mul": "Add",
    "Relu": "Elu",
    "Sigmoid": "Tanh",
    "Softmax": "LogSoftmax",
    "Tanh": "Sigmoid",
}


def _readers(graph: Any, value: str) -> list[tuple[Any, int]]:
    return [(each, at) for each in graph.node for at, name in enumerate(each.input) if name == value]


def _chosen(graph: Any, rng: random.Random, *ops: str) -> Any:
    nodes = [each for each in graph.node if each.op_type in ops and each.name]
    return rng.choice(nodes) if nodes else None


def _inserted(graph: Any, rng: random.Random) -> str:
    """A Softplus behind a layer, for all who read it."""
    node = _chosen(graph, rng, "Conv", "Gemm", "MatMul", "Add", "Relu", "Mul", "Concat")
    ends = {value.name for value in graph.output}
    if node is None or node.output[0] in ends:
        return ""
    for each, at in _readers(graph, node.output[0]):
        each.input[at] = _PLANTED
    place = [*graph.node].index(node) + 1
    graph.node.insert(place, helper.make_node("Softplus", [node.output[0]], [_PLANTED], name=_PLANTED))
    return _PLANTED


def _removed(graph: Any, rng: random.Random) -> str:
    node = _chosen(graph, rng, *_REMOVABLE)
    if node is None or node.output[0] in {value.name for value in graph.output}:
        return ""
    for each, at in _readers(graph, node.output[0]):
        each.input[at] = node.input[0]
    name = str(node.name)
    graph.node.remove(node)
    return name


def _replaced(graph: Any, rng: random.Random) -> str:
    node = _chosen(graph, rng, *_INSTEAD)
    if node is None:
        return ""
    node.op_type = _INSTEAD[node.op_type]
    del node.attribute[:]
    del node.input[2 if node.op_type in ("Sub", "Add") else 1 :]
    return str(node.name)


def _renamed(graph: Any, rng: random.Random) -> str:
    """A layer with other weights, which stands under another name, and its value, too."""
    node = _chosen(graph, rng, "Conv", "Gemm", "MatMul")
    stored = {tensor.name: tensor for tensor in graph.initializer}
    if node is None or node.input[1] not in stored or node.output[0] in {v.name for v in graph.output}:
        return ""
    tensor = stored[node.input[1]]
    new = numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(1.4), "other_weight")
    graph.initializer.append(new)
    for each, at in _readers(graph, node.output[0]):
        each.input[at] = "other_value"
    name = str(node.name)
    node.input[1], node.output[0], node.name = "other_weight", "other_value", _RENAMED
    return name


KINDS: dict[str, Callable[[Any, random.Random], str]] = {
    "inserted": _inserted,
    "removed": _removed,
    "replaced": _replaced,
    "renamed and changed": _renamed,
}
