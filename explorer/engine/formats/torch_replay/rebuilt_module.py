"""Twins: nn.Modules rebuilt from a TorchScript file or an exported program.

A twin has the layer tree, the parameters and the class names of the original module, and a `forward` that
replays the file. Therefore all code for nn.Modules also works with a twin: counting, hooks, reading weights,
ONNX export. The original's code is neither imported nor run. If the class of the original is in torch.nn, its
twin is an instance of a subclass: the twin of a Linear is a Linear.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from explorer.base.errors import BadModel, ExplorerError
from explorer.base.units import printable
from explorer.engine.compat.torch import apply_of_module, children_of, parameters_of
from explorer.engine.formats.torch_files.zip_archive import ZipArchive
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.formats.torch_module.modules import make_plain


class ReplayModule(nn.Module):
    """Base class of twins. Its `forward` calls the function `run(self, args, kwargs)`.

    Attributes:
        run: Function that computes the result. All copies of the module share it.
        file_values: Other data of the module in the file, by name. It is separate from the attributes, so
            that names cannot clash with those of nn.Module.
    """

    run: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
    file_values: dict[str, Any]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Replays the module's part of the file."""
        return self.run(self, args, kwargs)

    def extra_repr(self) -> str:
        """Returns '', because the method of the layer class needs constructor arguments that a twin lacks."""
        return ""

    # recurrent layers override these methods, and use a list of weights that a twin lacks
    _apply = apply_of_module
    __setattr__ = nn.Module.__setattr__
    __setstate__ = nn.Module.__setstate__


_UNFIT = (nn.ParameterList, nn.ParameterDict)
"""Classes that store parameters in a special way.

Their twins have only the class name, not the base class.
"""

_CLASSES: dict[tuple[str, tuple[str, ...]], type[ReplayModule]] = {}
"""Classes of twins created so far, by the qualified name and the arguments that `create_twin` gets."""


def create_twin(qualname: str, arguments: tuple[str, ...], run: Callable[..., Any]) -> ReplayModule:
    """Creates a twin without parameters and children.

    Args:
        qualname: Qualified class name of the original: 'torch.nn.modules.conv.Conv2d'.
        arguments: Names of the arguments of `forward`; '=' follows the name of an optional argument.
        run: Function that computes the result (see `ReplayModule`).
    """
    key = qualname, arguments
    kind = _CLASSES.get(key)
    if kind is None:
        kind = _CLASSES[key] = _create_class(qualname, arguments)
    twin = kind.__new__(kind)
    nn.Module.__init__(twin)
    object.__setattr__(twin, "run", run)
    object.__setattr__(twin, "file_values", {})
    return twin


def _create_class(qualname: str, arguments: tuple[str, ...]) -> type[ReplayModule]:
    module, _, name = qualname.rpartition(".")
    base = getattr(nn, name, None) if module.startswith("torch.nn.modules.") else None
    is_layer_class = isinstance(base, type) and issubclass(base, nn.Module) and base.__module__ == module

    def forward(self: ReplayModule, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, args, kwargs)

    forward.__signature__ = _build_signature(arguments)  # type: ignore[attr-defined]
    members: dict[str, Any] = {"__module__": module or "__main__", "__qualname__": name, "forward": forward}
    bases: tuple[type, ...] = (ReplayModule,)
    if is_layer_class and base is not None and not issubclass(base, _UNFIT):
        bases = (ReplayModule, base)
    return type(name or "Module", bases, members)


def _build_signature(arguments: tuple[str, ...]) -> inspect.Signature:
    """Returns the signature of `forward`; a name that Python does not allow is replaced by a number."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter("self", kind)]
    optional = False
    for text in arguments:
        name = text.removesuffix("=")
        optional = optional or text.endswith("=")
        default = None if optional else inspect.Parameter.empty
        if not name.isidentifier() or name == "self":
            name = f"argument_{len(parameters)}"
        parameters.append(inspect.Parameter(name, kind, default=default))
    return inspect.Signature(parameters)


def create_loaded_module(
    archive: ZipArchive,
    build: Callable[[bool], ReplayModule],
    notes: Callable[[ReplayModule], tuple[str, ...]],
    **more: Any,
) -> LoadedModule:
    """Creates the `LoadedModule` of a file.

    The twins are built on the meta device now, and with weights when they are needed.

    Args:
        archive: Archive of the file.
        build: Function that builds the twin of the model; its argument says whether to use the meta device.
        notes: Function that returns the notes on the twin.
        more: Other attributes of the `LoadedModule`.

    Raises:
        BadModel: The layers do not fit together, or the weights are big-endian.
    """
    if archive.is_big_endian:
        raise BadModel("its weights are stored big-endian", where=archive.path)

    def build_or_refuse(meta: bool) -> ReplayModule:
        try:
            return build(meta)
        except ExplorerError:
            raise
        except (RecursionError, KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            message = f"its layers cannot be rebuilt ({type(error).__name__}: {printable(str(error))[:200]})"
            raise BadModel(message, where=archive.path) from error

    twin = build_or_refuse(True)
    loaded = LoadedModule(
        source=archive.path,
        build=lambda: build_or_refuse(False),
        weights_text="as the file has them",
        trained=True,
        notes=notes(twin),
        **more,
    )
    loaded._meta = twin.eval()
    return loaded


def add_tensor(
    module: nn.Module, name: str, tensor: torch.Tensor, *, parameter: bool, trained: bool = False
) -> None:
    """Registers a tensor of the file in a module, as a parameter or a buffer.

    A tensor that is already a parameter is registered unchanged, so that tied weights are one object.

    Raises:
        BadModel: A module cannot have an attribute of this name.
    """
    try:
        if parameter:
            can_be_trained = tensor.is_floating_point() or tensor.is_complex()
            as_parameter = (
                tensor
                if isinstance(tensor, nn.Parameter)
                else nn.Parameter(tensor, trained and can_be_trained)
            )
            module.register_parameter(name, as_parameter)
        else:
            module.register_buffer(name, tensor)
    except (KeyError, TypeError) as error:
        raise BadModel(
            f"a tensor cannot be called '{printable(name)}'", where=type(module).__name__
        ) from error


def set_attributes(module: nn.Module, settings: Mapping[str, Any]) -> None:
    """Sets constructor arguments of a layer as attributes: `settings`, and those that follow from its weight.

    A name that the module already uses is skipped, and so is a value that cannot be written as a fact.
    """
    all_settings = {**_infer_arguments_from_weights(module), **settings}
    for name, value in all_settings.items():
        is_taken = hasattr(nn.Module, name) or name in parameters_of(module) or name in children_of(module)
        if not is_taken and (isinstance(value, tuple) or make_plain(value) == value):
            object.__setattr__(module, name, value)


def _infer_arguments_from_weights(module: nn.Module) -> dict[str, Any]:
    """Returns the constructor arguments that follow from the shape of a layer's weight."""
    weight = parameters_of(module).get("weight")
    shape = tuple(weight.shape) if weight is not None else ()
    kind = type(module).__name__
    if kind == "Linear" and len(shape) == 2:
        return {"in_features": shape[1], "out_features": shape[0]}
    if kind == "Embedding" and len(shape) == 2:
        return {"num_embeddings": shape[0], "embedding_dim": shape[1]}
    if kind.startswith("BatchNorm") and len(shape) == 1:
        return {"num_features": shape[0]}
    if kind == "LayerNorm" and shape:
        return {"normalized_shape": shape}
    if kind.startswith("Conv") and len(shape) > 2:
        return {"kernel_size": shape[2:]}
    return {}
