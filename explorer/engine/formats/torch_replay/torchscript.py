"""TorchScript file: rebuilds an nn.Module from a file of torch.jit.save, traced or scripted.

torch.jit.load runs code of the file: it calls `__setstate__` of classes while it loads, and TorchScript has
operators that read and write files. This module reads the weights as data (`storages`), and the code as text
(`torchscript_interpreter`). The result is a tree of twins (`rebuilt_module`), which is analyzed, run and
exported like any nn.Module. The interpreter runs the code only when the model runs, and it allows only
operators without access to files.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from explorer.base.errors import BadModel
from explorer.base.units import printable
from explorer.engine.compat.torch import parameters_of
from explorer.engine.formats.torch_files.pickle_machine import ReducedObject
from explorer.engine.formats.torch_files.tensors import Device, TensorSpec, read_strictly
from explorer.engine.formats.torch_files.torchscript import clean_class_name
from explorer.engine.formats.torch_files.zip_archive import ZipArchive
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.formats.torch_replay.rebuilt_module import (
    ReplayModule,
    add_tensor,
    create_loaded_module,
    create_twin,
    set_attributes,
)
from explorer.engine.formats.torch_replay.storages import Storages
from explorer.engine.formats.torch_replay.torchscript_interpreter import (
    Code,
    ScriptClass,
    ScriptInterpreter,
    ScriptObject,
)


def load(path: str, *, trust: bool = False) -> LoadedModule:
    """Opens a TorchScript file; its weights stay in the file, and its code does not run.

    Args:
        path: Path of the file.
        trust: Whether loops in the code may run for minutes.

    Raises:
        BadModel: The file is broken, is not a TorchScript file, or names code that such a file does not need.
    """
    archive = ZipArchive(path)
    root = read_strictly(archive.read("data.pkl"), path)
    constants = read_strictly(archive.read("constants.pkl"), path) if "constants.pkl" in archive else ()
    if not isinstance(constants, (list, tuple)):
        raise BadModel("the constants of its code are not a list", where=path, hint="save the model again")
    code = Code(lambda name: archive.decode_text(name) if name in archive else None, path, trust)
    root_class = code.find_class(root.qualname) if isinstance(root, ReducedObject) else None
    if not isinstance(root, ReducedObject) or root_class is None or root_class.base != "Module":
        raise BadModel("it holds no TorchScript module", where=path)
    if "forward" not in root_class.methods:
        method_names = ", ".join(map(printable, root_class.methods)) or "none"
        raise BadModel(f"its module has no forward (its methods: {method_names})", where=path)
    traced = "traced_inputs.pkl" in archive
    return create_loaded_module(
        archive,
        lambda meta: _Builder(archive, code, list(constants), meta).build_model(root),
        partial(_list_notes, traced),
        example=_read_traced_inputs(archive, root_class) if traced else None,
    )


def _list_notes(traced: bool, twin: ReplayModule) -> tuple[str, ...]:
    constants = twin.file_values["constants"]
    notes = ["TorchScript, traced" if traced else "TorchScript, scripted"]
    if constants and twin.file_values["frozen"]:
        notes.append(f"frozen: {len(constants):,} constants of its code are counted as parameters")
    return tuple(notes)


def _read_traced_inputs(archive: ZipArchive, root_class: ScriptClass) -> dict[str, torch.Tensor] | None:
    """Returns the inputs at tracing, by argument name of `forward`, as tensors on the meta device.

    Returns None if the file does not list them as tensors.

    Raises:
        BadModel: The shape of an input is impossible.
    """
    traced = read_strictly(archive.read("traced_inputs.pkl"), archive.path)
    specs = traced.get("forward") if isinstance(traced, dict) else None
    if not isinstance(specs, (list, tuple)):
        return None
    names = [a.arg for a in root_class.methods["forward"].args.args[1:]]
    example = {}
    for name, spec in zip(names, specs, strict=False):
        torch_dtype = getattr(torch, spec.dtype, None) if isinstance(spec, TensorSpec) else None
        if not isinstance(spec, TensorSpec) or not isinstance(torch_dtype, torch.dtype):
            return None
        try:
            example[name] = torch.empty(spec.shape, dtype=torch_dtype, device="meta")
        except (RuntimeError, TypeError) as error:
            raise BadModel("it was traced with an input that is not a tensor", where=archive.path) from error
    return example


class _Builder:
    """Builds the twins of the modules in one file.

    Args:
        archive: Archive of the file.
        code: Code of the file.
        constants: Constants of the code.
        meta: Whether to build the twins on the meta device, without weights.

    Attributes:
        storages: Weights of the modules.
        constant_storages: Tensors among the constants.
        value_storages: Constants that are always built with values (see `_needs_values`).
        twins: Twins and script objects built so far, by id of their description.
        tied: Parameters built so far, by identity of the tensor.
        interpreter: Interpreter of the code.
    """

    def __init__(self, archive: ZipArchive, code: Code, constants: list[Any], meta: bool) -> None:
        self.code = code
        self.path = archive.path
        self.storages = Storages(archive, lambda key: f"data/{key}", meta)
        self.constant_storages = Storages(archive, lambda key: f"constants/{key}", meta)
        self.value_storages = Storages(archive, lambda key: f"constants/{key}", False)
        self.twins: dict[int, Any] = {}
        self.tied: dict[Any, torch.Tensor] = {}
        self.interpreter = ScriptInterpreter(code, torch.device("meta" if meta else "cpu"))
        self.constants = constants

    def build_model(self, root: ReducedObject) -> ReplayModule:
        """Builds the twin of the model and the constants of its code, and returns the twin."""
        module = self.build_module(root)
        tensors = [c for c in self.constants if isinstance(c, TensorSpec)]
        # a frozen model stores its weights as constants of its code
        is_frozen = not any(True for _ in module.parameters())
        for index, value in enumerate(self.constants):
            if not isinstance(value, TensorSpec):
                self.interpreter.constants[f"c{index}"] = self.convert_value(value)
                continue
            tensor = (self.value_storages if _needs_values(value) else self.constant_storages).build_tensor(
                value
            )
            name = f"CONSTANTS_c{index}"
            add_tensor(module, name, tensor, parameter=is_frozen and tensor.is_floating_point())
            self.interpreter.constants[f"c{index}"] = getattr(module, name)
        module.file_values["constants"] = tensors
        module.file_values["frozen"] = is_frozen
        return module

    def build_module(self, record: ReducedObject) -> ReplayModule:
        """Builds the twin of a module, or returns the existing one."""
        rebuilt = self.twins.get(id(record))
        if rebuilt is not None:
            return rebuilt  # type: ignore[no-any-return]
        kind = self.code.find_class(record.qualname)
        if kind is None or kind.base != "Module":
            raise BadModel(f"its code lacks {printable(record.qualname)}", where=self.path)
        twin = create_twin(clean_class_name(record.qualname), _list_arguments(kind), self.interpreter.enter)
        self.twins[id(record)] = twin
        twin.file_values.update(kind=kind, values={})
        # the state of a module with packed weights (quantization) is not a dictionary; calling it fails
        state = record.state if isinstance(record.state, Mapping) else {}
        twin.file_values["packed"] = state is not record.state
        # a list of tensors, such as the weights of a recurrent layer, may name parameters of this module
        for name, value in sorted(state.items(), key=lambda item: _rank_attribute(item[1])):
            self.set_attribute(twin, kind, str(name), value)
        for name in sorted(kind.parameters - set(parameters_of(twin))):
            if name in state and state[name] is None:
                twin.register_parameter(name, None)
        set_attributes(
            twin, {**_read_arguments_from_code(kind), **twin.file_values["values"], **kind.constants}
        )
        return twin

    def set_attribute(self, twin: ReplayModule, kind: ScriptClass, name: str, value: Any) -> None:
        """Sets an attribute of a twin: a submodule, a tensor, or another value."""
        if isinstance(value, ReducedObject):
            value_class = self.code.find_class(value.qualname)
            if value_class is not None and value_class.base == "Module":
                try:
                    twin.add_module(name, self.build_module(value))
                except (KeyError, TypeError) as error:
                    raise BadModel(f"no layer can be called '{printable(name)}'", where=self.path) from error
                return
        if isinstance(value, TensorSpec):
            tensor = self.tied.get(value.identity)
            tensor = self.storages.build_tensor(value) if tensor is None else tensor
            add_tensor(twin, name, tensor, parameter=name in kind.parameters, trained=value.requires_grad)
            if name in parameters_of(twin):
                self.tied[value.identity] = getattr(twin, name)
        elif name == "training":
            twin.training = bool(value)
        else:
            twin.file_values["values"][name] = self.convert_value(value)

    def convert_value(self, value: Any) -> Any:
        """Converts a value of the file, and builds the tensors and objects in it; a device becomes None."""
        if isinstance(value, TensorSpec):
            tied_tensor = self.tied.get(value.identity)
            return self.storages.build_tensor(value) if tied_tensor is None else tied_tensor
        if isinstance(value, ReducedObject):
            twin = self.twins.get(id(value))
            if twin is None:
                value_class = self.code.find_class(value.qualname)
                if value_class is not None and value_class.base == "Module":
                    return self.build_module(value)
                twin = self.twins[id(value)] = ScriptObject(value.qualname)
                state = value.state if isinstance(value.state, Mapping) else {"state": value.state}
                twin.values.update({str(k): self.convert_value(v) for k, v in state.items()})
            return twin
        if isinstance(value, Device):
            return None
        if isinstance(value, (list, tuple)):
            return type(value)(self.convert_value(v) for v in value)
        if isinstance(value, dict):
            return {k: self.convert_value(v) for k, v in value.items()}
        return value


def _rank_attribute(value: Any) -> int:
    """Returns 0 for a tensor, 1 for a module or another object, and 2 for other values."""
    return 0 if isinstance(value, TensorSpec) else 1 if isinstance(value, ReducedObject) else 2


def _needs_values(spec: TensorSpec) -> bool:
    """Whether code may compute sizes from a constant, so that its value is needed on the meta device too."""
    return not spec.shape or (spec.extent <= 16 and not spec.dtype.startswith(("float", "bfloat", "complex")))


def _list_arguments(kind: ScriptClass) -> tuple[str, ...]:
    """Returns the names of the arguments of `forward`, with '=' after the names of optional arguments."""
    entry = kind.methods.get("forward") or kind.methods.get("forward__0")
    if entry is None:
        return ()
    names = [a.arg for a in entry.args.args[1:]]
    optional = len(entry.args.defaults)
    return tuple(f"{n}=" if i >= len(names) - optional else n for i, n in enumerate(names))


_ARGUMENTS: Mapping[str, Mapping[str, int]] = {
    "torch._convolution": {"stride": 3, "padding": 4, "dilation": 5, "groups": 8},
    "torch.conv1d": {"stride": 3, "padding": 4, "dilation": 5, "groups": 6},
    "torch.conv2d": {"stride": 3, "padding": 4, "dilation": 5, "groups": 6},
    "torch.conv3d": {"stride": 3, "padding": 4, "dilation": 5, "groups": 6},
    "torch.max_pool2d": {"kernel_size": 1, "stride": 2, "padding": 3, "dilation": 4, "ceil_mode": 5},
    "torch.avg_pool2d": {"kernel_size": 1, "stride": 2, "padding": 3, "ceil_mode": 4},
    "torch.adaptive_avg_pool2d": {"output_size": 1},
    "torch.batch_norm": {"momentum": 6, "eps": 7},
    "torch.layer_norm": {"normalized_shape": 1, "eps": 4},
    "torch.dropout": {"p": 1},
    "torch.flatten": {"start_dim": 1, "end_dim": 2},
    "torch.lstm": {"num_layers": 4, "bidirectional": 7, "batch_first": 8},
    "torch.gru": {"num_layers": 4, "bidirectional": 7, "batch_first": 8},
}
"""Position of each operator argument that is also a constructor argument of the layer, by operator."""


def _read_arguments_from_code(kind: ScriptClass) -> dict[str, Any]:
    """Reads the constructor arguments of a layer from the literals in the first known call in `forward`.

    The result is empty for a class outside torch.nn.
    """
    entry = kind.methods.get("forward")
    if entry is None or not clean_class_name(kind.qualname).startswith("torch.nn."):
        return {}
    for node in ast.walk(entry):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        positions = _ARGUMENTS.get(ast.unparse(node.func))
        if positions is None:
            continue
        settings = {}
        for name, index in positions.items():
            try:
                value = ast.literal_eval(node.args[index])
            except (ValueError, IndexError, TypeError, SyntaxError):
                continue
            settings[name] = tuple(value) if isinstance(value, list) else value
        return settings
    return {}
