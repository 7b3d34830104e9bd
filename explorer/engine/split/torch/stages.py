"""Builds the stages of an nn.Module as nn.Modules.

`torch.distributed.pipelining` cuts the traced program where Explorer's search placed the cuts. Each stage
that uses a shared weight gets its own copy.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from msgspec import Struct
from torch import nn
from torch.fx.graph import CodeGen
from torch.fx.node import Node

from explorer.base.errors import BadModel, Misuse
from explorer.engine.compat.torch import get_stage_boundary, leaves
from explorer.engine.formats.torch_module.meta_copy import copy_module
from explorer.host.optional_packages import format_error
from explorer.host.output_files import check_disk_space

SCRIPT = "run.py"  # in a folder of stages: the script that runs and trains them


class StageModule(Struct, frozen=True):
    """A stage.

    Attributes:
        module: The stage. It takes its tensors as positional arguments and returns a tensor or a tuple.
        reads, makes: Names of the stage's inputs and outputs.
        parameters: Names of the parameters in the original module, by their names in the stage.
    """

    module: nn.Module
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    parameters: Mapping[str, str]


class CallPattern(Struct, frozen=True):
    """The arguments of the call for which a module was cut.

    Attributes:
        signature: Signature of the module's `forward`, without annotations.
        arguments: Value of each argument by its name, in the order of `ModuleStages.inputs`. The class
            `torch.Tensor` stands for a tensor.
    """

    signature: inspect.Signature
    arguments: Mapping[str, Any]

    def list_tensors(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """Lists the tensors of another call, in the order of `ModuleStages.inputs`.

        Raises:
            Misuse: An argument that is not a tensor has another value than in the call of the cut.
            TypeError: `forward` has no such argument, or an argument is missing.
        """
        values = _bind(self.signature, args, kwargs)
        tensors: list[torch.Tensor] = []
        for name in dict.fromkeys([*self.arguments, *values]):
            default = _get_default(self.signature, name)
            expected = self.arguments.get(name, default)
            if not _match(values.get(name, default), expected, tensors):
                message = "the module was cut for another value or structure of this argument"
                raise Misuse(message, where=name, hint="split the module with these arguments")
        return tensors


def _bind(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call by name."""
    values: dict[str, Any] = {}
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        is_keywords = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
        values.update(value if is_keywords else {name: value})
    return values


def _get_default(signature: inspect.Signature, name: str) -> Any:
    parameter = signature.parameters.get(name)
    return None if parameter is None or parameter.default is parameter.empty else parameter.default


def _match(value: Any, expected: Any, tensors: list[torch.Tensor]) -> bool:
    """Whether a value has the structure and constants of the expected one. Collects its tensors."""
    if isinstance(value, torch.Tensor) or expected is torch.Tensor:
        tensors.append(value)
        return isinstance(value, torch.Tensor) and expected is torch.Tensor
    if isinstance(expected, dict):
        is_same = isinstance(value, dict) and value.keys() == expected.keys()
        return is_same and all(_match(value[key], part, tensors) for key, part in expected.items())
    if isinstance(expected, (tuple, list)):
        is_same = isinstance(value, (tuple, list)) and len(value) == len(expected)
        return is_same and all(
            _match(element, part, tensors) for element, part in zip(value, expected, strict=True)
        )
    return bool(value == expected)


def _describe_call(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], tensor_count: int
) -> CallPattern | None:
    """Describes a call, or returns None if objects of other types than tuple, list and dict contain tensors.

    The call has `tensor_count` tensors in total.
    """
    signature = inspect.signature(module.forward)
    parameters = [part.replace(annotation=part.empty) for part in signature.parameters.values()]
    signature = inspect.Signature(parameters)
    positional = signature.bind_partial(*args).arguments
    arguments = {name: _mark_tensors(value) for name, value in {**positional, **kwargs}.items()}
    is_complete = sum(leaf is torch.Tensor for leaf in leaves(arguments)) == tensor_count
    return CallPattern(signature, arguments) if is_complete else None


def _mark_tensors(value: Any) -> Any:
    """Returns a value with the class `torch.Tensor` in place of each tensor."""
    if isinstance(value, torch.Tensor):
        return torch.Tensor
    if isinstance(value, dict):
        return {key: _mark_tensors(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(_mark_tensors(part) for part in value)
    return value


class ModuleStages(Struct, frozen=True):
    """The stages of a module.

    Attributes:
        stages: The stages, in execution order.
        inputs, outputs: Names of the original module's inputs that are tensors, and of its outputs.
        call: The arguments of the call for which the module was cut, or None if they are unknown.
    """

    stages: tuple[StageModule, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    call: CallPattern | None = None


class StagePipeline(nn.Module):
    """Stages of a module, run one after another, each on its device.

    A call takes the arguments of the module, moves each value to the device of its next reader, and returns
    the module's outputs: a tensor, or a tuple of tensors. An argument that is not a tensor must have the
    value that it had when the module was cut.

    Args:
        parts: The stages. The pipeline copies their weights, so that a move changes no other module.
        devices: Device of each stage.

    Attributes:
        stages: The stages in execution order. Each takes tensors and returns a tensor or a tuple.
    """

    stages: nn.ModuleList

    def __init__(self, parts: ModuleStages, devices: Sequence[torch.device]) -> None:
        super().__init__()
        self._inputs, self._outputs, self._call = parts.inputs, parts.outputs, parts.call
        self._links = [(part.reads, part.makes) for part in parts.stages]
        self._devices = tuple(devices)
        pairs = zip(parts.stages, devices, strict=True)
        self.stages = nn.ModuleList([copy_module(part.module).to(device) for part, device in pairs])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs all stages."""
        if self._call is None:
            tensors = [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        else:
            tensors = self._call.list_tensors(args, kwargs)
        values = dict(zip(self._inputs, tensors, strict=True))
        for (reads, makes), stage, device in zip(self._links, self.stages, self._devices, strict=True):
            results = stage(*[values[name].to(device) for name in reads])
            results = results if isinstance(results, (tuple, list)) else (results,)
            values.update(zip(makes, results, strict=True))
        outputs = tuple(values[name] for name in self._outputs)
        return outputs[0] if len(outputs) == 1 else outputs


def cut_module(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], starts: Collection[str], where: str
) -> ModuleStages:
    """Cuts a module into stages.

    Args:
        module: The module in evaluation mode, with its weights.
        args: Positional arguments of one micro-batch.
        kwargs: Keyword arguments of the micro-batch.
        starts: Names of the calls in the exported program that begin a stage, without the first stage.
        where: Name of the module, for messages.

    Raises:
        BadModel: torch cannot cut the module.
    """
    from torch.distributed.pipelining import pipeline  # here, because the import takes a second

    def insert_boundaries(traced: Any) -> Any:
        for node in list(traced.graph.nodes):
            if node.op == "call_function" and node.name in starts:
                with traced.graph.inserting_before(node):
                    traced.graph.call_function(get_stage_boundary(), (), {})
        traced.recompile()
        return traced

    try:
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            pipe = pipeline(module, tuple(args), dict(kwargs), split_policy=insert_boundaries)
    except Exception as error:
        raise BadModel(f"torch cannot cut it ({format_error(error)})", where=where) from error
    if pipe.num_stages != len(starts) + 1:
        raise BadModel(f"torch made {pipe.num_stages:,} stages, not {len(starts) + 1:,}", where=where)
    are_tensors = [isinstance(leaf, torch.Tensor) for leaf in leaves((tuple(args), dict(kwargs)))]
    return _name_values(
        pipe.split_gm, module, are_tensors, _describe_call(module, args, kwargs, sum(are_tensors))
    )


def _name_values(
    split: Any, whole: nn.Module, are_tensors: Sequence[bool], call: CallPattern | None
) -> ModuleStages:
    """Builds the stages, and names the values between them as their first reader does."""
    names: dict[Any, str] = {}
    calls = []
    inputs, outputs = [], []
    for node in split.graph.nodes:
        if node.op == "placeholder":
            names[node] = node.name
            inputs.append(node.name)
        elif node.op == "call_module":
            stage = split.get_submodule(node.target)
            placeholders = [inner for inner in stage.graph.nodes if inner.op == "placeholder"]
            for argument, placeholder in zip(node.args, placeholders, strict=True):
                names.setdefault(argument, placeholder.name)
            calls.append((node, stage))
        elif node.op == "output":
            output_nodes = [leaf for leaf in leaves(node.args) if isinstance(leaf, Node)]
            for index, output_node in enumerate(output_nodes):
                outputs.append(
                    names.setdefault(output_node, "output" if len(output_nodes) == 1 else f"output.{index}")
                )
    inputs = [name for name, is_tensor in zip(inputs, are_tensors, strict=True) if is_tensor]
    canonical: dict[int, str] = {}
    aliases = {}
    for name, tensor in whole.named_parameters(remove_duplicate=False):
        aliases[name] = canonical.setdefault(id(tensor), name)
    stages = []
    for node, stage in calls:
        # else the first stage would take its inputs in the argument structure of the original module
        stage.graph.set_codegen(CodeGen())
        stage.recompile()
        _drop_unread_tensors(stage)
        parameters = {name: aliases.get(name, name) for name, _ in stage.named_parameters()}
        reads = tuple([names[argument] for argument in node.args])
        stages.append(StageModule(stage, reads, _list_output_names(node, stage, names), parameters))
    return ModuleStages(tuple(stages), tuple(inputs), tuple(outputs), call)


def _drop_unread_tensors(stage: Any) -> None:
    """Removes the tensors that a stage stores but does not read, such as second names of a weight."""
    read = {
        f"{path}.{node.target}" if path else node.target
        for path, part in stage.named_modules()
        for node in (part.graph.nodes if hasattr(part, "graph") else ())
        if node.op == "get_attr"
    }
    for name in [name for name, _ in (*stage.named_parameters(), *stage.named_buffers()) if name not in read]:
        owner, _, attribute = name.rpartition(".")
        delattr(stage.get_submodule(owner), attribute)


def _list_output_names(node: Any, stage: Any, names: Mapping[Any, str]) -> tuple[str, ...]:
    """Returns the names of a stage's outputs: those in `names`, or 'node.index' for an unread output.

    `node` is the call of the stage in the split graph.
    """
    (result,) = next(iter(inner for inner in stage.graph.nodes if inner.op == "output")).args
    if not isinstance(result, (tuple, list)):
        return (names[node],)
    outputs = [f"{node.name}.{index}" for index in range(len(result))]
    for user in node.users:
        if user in names:
            outputs[user.args[1]] = names[user]
    return tuple(outputs)


def save(stage: StageModule, values: Sequence[torch.Tensor], path: str, where: str) -> None:
    """Writes a stage as a .pt2 file, without example inputs, because torch would pickle them.

    Args:
        stage: The stage.
        values: Example values of the stage's inputs, for torch.export.
        path: Path of the file.
        where: Name of the module, for messages.

    Raises:
        BadModel: torch cannot export the stage.
        OSError: The disk has too little free space.
    """
    try:
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            program = torch.export.export(stage.module, tuple(values))
        program.example_inputs = None
        tensors = (*program.state_dict.values(), *program.constants.values())
        check_disk_space(path, sum(getattr(tensor, "nbytes", 0) for tensor in tensors))
        torch.export.save(program, path)
    except OSError:
        raise
    except Exception as error:
        raise BadModel(f"torch.export cannot write a stage ({format_error(error)})", where=where) from error


def run_stages(
    parts: ModuleStages, modules: Sequence[nn.Module], inputs: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Runs the stages one after another; returns the inputs and all outputs of stages by name."""
    values = dict(inputs)
    for stage, module in zip(parts.stages, modules, strict=True):
        results = module(*[values[name] for name in stage.reads])
        values.update(
            zip(stage.makes, results if isinstance(results, (tuple, list)) else (results,), strict=True)
        )
    return values
