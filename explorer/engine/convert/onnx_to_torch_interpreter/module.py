"""ONNX model as an nn.Module: the weights are parameters, and `forward` runs the graph."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from explorer.base.errors import BadModel, Misuse, suggest_name
from explorer.base.units import printable
from explorer.engine.compat.torch import children_of
from explorer.engine.convert.onnx_to_torch_interpreter.call import convert_to_tensor, get_torch_dtype
from explorer.engine.convert.onnx_to_torch_interpreter.domain import TorchDomain, can_run
from explorer.engine.graph.interpreter import Interpreter
from explorer.engine.graph.model import FileSpan, Model, Node, Tensor, list_bodies
from explorer.host import input_files

_MAX_HOST_ELEMENTS = 1024
"""Most elements of an int64 list that is treated as sizes, axes or indices instead of data."""

_MAX_BUFFER_ELEMENTS = 64
"""Most elements of a float constant (not an initializer) that is stored as a buffer, not as a parameter."""


class OnnxModule(nn.Module):
    """Runs an ONNX model in torch.

    Float weights are parameters under their names in the file. Batch-norm statistics and tensors of other
    types are buffers, except short int64 lists and boolean scalars, which stay numpy arrays. Each dot in a
    name becomes a submodule, so that the state_dict of a file exported from an nn.Module has the keys of that
    module's state_dict.

    Args:
        model: ONNX model; it must not change afterwards.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._check_operators(model)
        self._model = model
        self._inputs = tuple(v.name for v in model.graph.required_inputs)
        self._outputs = tuple(v.name for v in model.graph.outputs)
        self._tensor_places: dict[int, tuple[nn.Module, str]] = {}
        self._sizes: dict[int, Any] = {}
        self._checked_nodes: set[int] = set()
        self._opset = dict(model.opsets)
        maps: dict[int, mmap.mmap] = {}
        initializer_ids = {id(t) for t in model.graph.initializers.values()}
        statistics = {
            n for node in _list_all_nodes(model) if node.op == "BatchNormalization" for n in node.inputs[3:5]
        }
        for index, tensor in enumerate(_list_all_constants(model)):
            if id(tensor) in self._tensor_places or id(tensor) in self._sizes:
                continue
            # values that the host needs: inputs of size computations, and conditions of branches and loops
            is_condition = tensor.dtype == "bool" and tensor.elements == 1
            is_host_value = is_condition or (
                tensor.dtype == "int64" and tensor.elements <= _MAX_HOST_ELEMENTS
            )
            if is_host_value and len(tensor.shape) <= 1:
                self._sizes[id(tensor)] = tensor.array().reshape(tensor.shape).copy()
                continue
            value = _load_tensor(tensor, maps)
            weight_name = tensor.name if id(tensor) in initializer_ids else ""
            self._tensor_places[id(tensor)] = self._register(
                weight_name or f"constant_{index}",
                value,
                bool(weight_name),
                is_trained=tensor.name not in statistics,
            )

    def forward(self, *inputs: torch.Tensor, **named_inputs: torch.Tensor) -> Any:
        """Runs the model; returns its output, or a tuple of several outputs in the model's order.

        Args:
            *inputs: Inputs in the model's order.
            **named_inputs: Inputs by name.

        Raises:
            Misuse: An input is missing, or a name is not an input of the model.
            BadModel: An operator cannot be run.
        """
        feeds = self._bind_inputs(inputs, named_inputs)
        device = next((t.device for t in feeds.values() if isinstance(t, torch.Tensor)), torch.device("cpu"))
        domain = TorchDomain(self._get_constant, self._opset, device, self._checked_nodes)
        interpreter = Interpreter(domain, self._model.functions)
        graph = self._model.graph
        scope = interpreter.create_scope(graph.initializers, feeds)
        interpreter.run(graph.nodes, scope, keep=self._outputs)
        results = tuple(convert_to_tensor(scope[name], device) for name in self._outputs)
        return results[0] if len(results) == 1 else results

    def extra_repr(self) -> str:
        """Returns the inputs, the outputs and the size of the graph."""
        graph = self._model.graph
        names = f"{', '.join(self._inputs)} -> {', '.join(self._outputs)}"
        return printable(f"{names}; {len(graph.nodes):,} nodes, {len(self._model.functions):,} functions")

    def _bind_inputs(self, inputs: Sequence[Any], named_inputs: Mapping[str, Any]) -> dict[str, Any]:
        if len(inputs) > len(self._inputs):
            raise Misuse(f"{len(inputs)} inputs where the model takes {len(self._inputs)}", where="forward")
        feeds = dict(zip(self._inputs, inputs, strict=False))
        for name, value in named_inputs.items():
            if name not in self._inputs or name in feeds:
                valid_names = [printable(valid_name) for valid_name in self._inputs]
                raise Misuse(f"no input '{printable(name)}' is open", hint=suggest_name(name, valid_names))
            feeds[name] = value
        missing = [name for name in self._inputs if name not in feeds]
        if missing:
            raise Misuse(f"input '{printable(missing[0])}' is missing", where="forward")
        return feeds

    def _get_constant(self, tensor: Tensor) -> Any:
        sizes = self._sizes.get(id(tensor))
        if sizes is not None:
            return sizes
        owner, name = self._tensor_places[id(tensor)]
        return getattr(owner, name)

    def _register(
        self, name: str, value: torch.Tensor, is_persistent: bool, *, is_trained: bool
    ) -> tuple[nn.Module, str]:
        """Registers a tensor as a parameter or a buffer; returns its module and its name in the module.

        A float tensor becomes a parameter if it is trained, and is either an initializer or too large for a
        buffer (`_MAX_BUFFER_ELEMENTS`).

        Args:
            name: Name in the file, or 'constant_N'.
            value: Values.
            is_persistent: Whether the tensor is an initializer, and so belongs to the state_dict.
            is_trained: Whether training changes the tensor by gradients. False for batch-norm statistics.
        """
        owner, last = self._find_owner(name)
        if (
            is_trained
            and value.is_floating_point()
            and (is_persistent or value.numel() > _MAX_BUFFER_ELEMENTS)
        ):
            owner.register_parameter(last, nn.Parameter(value))
        else:
            owner.register_buffer(last, value, persistent=is_persistent)
        return owner, last

    def _find_owner(self, name: str) -> tuple[nn.Module, str]:
        """Finds or creates the submodule for a tensor of this name; returns it and the tensor's name in it.

        If a part of the name is taken, the tensor belongs to this module, under a name that starts with
        'weight_'.
        """
        *path, last = name.split(".")
        owner: nn.Module = self
        if all((*path, last)):
            for part in path:
                submodule = children_of(owner).get(part)
                if submodule is None and not hasattr(owner, part):
                    submodule = nn.Module()
                    owner.add_module(part, submodule)
                if submodule is None:
                    break
                owner = submodule
            else:
                if not hasattr(owner, last):
                    return owner, last
        flat = "weight_" + "".join(c if c.isalnum() else "_" for c in name)
        while hasattr(self, flat):
            flat += "_"
        return self, flat

    def _check_operators(self, model: Model) -> None:
        """Raises an error for unsupported operators before any weight is loaded."""
        if 0 < model.opset < 9 and any(n.op == "Scan" and not n.domain for n in _list_all_nodes(model)):
            raise BadModel(f"torch cannot run the Scan of opset {model.opset} here", where=model.path)
        missing: dict[str, int] = {}
        for node in _list_all_nodes(model):
            if node.key not in model.functions and not can_run(node.domain, node.op):
                name = f"{node.domain}.{node.op}" if node.domain else node.op
                missing[printable(name)] = missing.get(printable(name), 0) + 1
        if missing:
            counts_text = ", ".join(f"{name} ({count:,})" for name, count in list(missing.items())[:6])
            plural = "s have" if len(missing) > 1 else " has"
            raise BadModel(f"operator{plural} no counterpart in torch here: {counts_text}", where=model.path)


def load_onnx(model: Model) -> OnnxModule:
    """Loads an ONNX model as an nn.Module in evaluation mode.

    Raises:
        BadModel: The model has an operator or a type that torch does not support.
    """
    return OnnxModule(model).eval()


def _list_all_nodes(model: Model) -> Iterator[Node]:
    """Yields all nodes of the model, of its functions, and of inner graphs."""

    def walk(nodes: Sequence[Node]) -> Iterator[Node]:
        for node in nodes:
            yield node
            for _, graph in list_bodies(node):
                yield from walk(graph.nodes)

    yield from walk(model.graph.nodes)
    for function in model.functions.values():
        yield from walk(function.nodes)


def _list_all_constants(model: Model) -> Iterator[Tensor]:
    """Yields all tensors that the model stores."""
    yield from model.graph.initializers.values()
    for node in _list_all_nodes(model):
        if node.op == "Constant" and not node.domain:
            yield from (v for v in node.attributes.values() if isinstance(v, Tensor) and v.dtype != "string")
        for _, graph in list_bodies(node):
            yield from graph.initializers.values()


def _load_tensor(tensor: Tensor, maps: dict[int, mmap.mmap]) -> torch.Tensor:
    """Loads a tensor's values, mapped from the file if possible; a page is copied at the first write.

    Tensors that are unaligned or packed are copied.

    Raises:
        BadModel: torch has no such type, or the tensor has more or fewer bytes than its shape needs.
    """
    torch_dtype = get_torch_dtype(tensor.dtype)
    payload = tensor.payload
    if payload is None or tensor.dtype in ("int4", "uint4", "int2", "uint2"):
        return torch.from_numpy(np.array(tensor.array())).to(torch_dtype)
    if tensor.elements == 0:
        return torch.empty(tensor.shape, dtype=torch_dtype)
    if payload.size != tensor.nbytes:
        raise BadModel(f"tensor '{printable(tensor.name)}' comes with {payload.size:,} bytes")
    if isinstance(payload, FileSpan) and payload.offset % torch_dtype.itemsize == 0:
        key = id(payload.source)
        if key not in maps:
            maps[key] = input_files.map_file(payload.source.path, private=True)
        flat = torch.frombuffer(maps[key], dtype=torch_dtype, count=tensor.elements, offset=payload.offset)
        return flat.reshape(tensor.shape)
    return torch.frombuffer(bytearray(payload.view()), dtype=torch_dtype).reshape(tensor.shape)
