"""Loads an nn.Module: a torchvision model, the result of `package.module:callable`, or an existing object.

A model is built on demand. `LoadedModule` keeps one module on the meta device and one with weights. The
analysis uses the meta device, where even a model with 70 billion parameters needs no memory for weights.
Exports and runs use real weights. Random weights have a seed, so the same command writes the same file.
Output of constructors and imports is discarded, because standard output is for results.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from msgspec import Struct
from torch import nn

from explorer.base.errors import BadModel, ExplorerError, Misuse, suggest_name, suggest_only_near
from explorer.engine.formats.files import build_unknown_name_error
from explorer.engine.formats.torch_module.arguments import BoundInputs, Example
from explorer.engine.formats.torch_module.meta_copy import (
    convert_subclasses,
    copy_sharing_values,
    copy_without_values,
    remove_values,
)
from explorer.engine.formats.torch_module.meta_init import UnfilledTensors, UninitializedOnMeta
from explorer.engine.formats.torch_module.tensor_subclass import describe_wrappers, is_wrapper
from explorer.host.optional_packages import format_error, require, search_here, silence


class CopyOf:
    """A `build` function that copies an existing module. The copies share its tensors.

    Attributes:
        module: Existing module, which is never changed.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self) -> nn.Module:
        """Creates a copy, which can be put in evaluation mode and run without changing the module."""
        return copy_sharing_values(self.module)


class LoadedModule(Struct):
    """A model that is built on demand.

    Attributes:
        source: Path or name, as the user typed it.
        build: Function that builds the module on the current device.
        weights_text: Origin of the weights, shown to users.
        weights_from: Origin of the weights: random numbers, a file of weights, or the model itself.
        seed: Seed of random weights.
        notes: Notes on how the model is built.
        trained: Whether `build` returns trained weights. Then the model is built once, with weights, and its
            version on the meta device is a copy.
        torchvision: Whether the model is from torchvision.
        example: Example inputs of the model, or None.
        binding: Function that binds inputs and dynamic dimensions of the file, or None for other models.
        bound: Result of the last call of `inputs.bind`, or None.
        values: Function that builds the model with the values of its files, or None if `build` does so.
        reads_values: Whether `forward` is known to read values, so that it cannot run on the meta device.
        builds_anew: Whether `build` returns a new module at each call, with no other references to it.
        train: Whether the analysis runs the modules in training mode, in place of evaluation mode.
    """

    source: str
    build: Callable[[], nn.Module]
    weights_text: str
    seed: int = 0
    notes: tuple[str, ...] = ()
    trained: bool = False
    torchvision: bool = False
    example: Any = None
    binding: Callable[[Mapping[str, tuple[str | None, Any]], Mapping[str, int]], BoundInputs] | None = None
    bound: BoundInputs | None = None
    values: Callable[[], nn.Module] | None = None
    reads_values: bool = False
    builds_anew: bool = False
    train: bool = False
    weights_from: Literal["random", "file", "model"] = "model"
    _meta: nn.Module | None = None
    _real: nn.Module | None = None
    _built: nn.Module | None = None
    _shapes: nn.Module | None = None
    """Result of `valued` that `build_for_inspection` built."""
    _unused: bool = False
    """Whether the next call of `valued` returns `_shapes`."""

    def build_for_inspection(self) -> nn.Module:
        """Returns the model with parameters on the meta device, for inspection and not for a run.

        If a run would need the values of small tensors (`reads_values`), the model is built with them. The
        next call of `valued` returns the same model, so that it is not built twice.
        """
        if self._meta is None and self._shapes is None and self.reads_values and self.builds_anew:
            try:
                self._shapes = self.valued()
                self._unused = True
            except ExplorerError:
                raise
            except Exception:
                return self.meta()
        return self._shapes if self._meta is None and self._shapes is not None else self.meta()

    def meta(self) -> nn.Module:
        """Returns the model on the meta device, in evaluation mode.

        A constructor that reads values cannot run on the meta device. For such a model, only uninitialized
        tensors, such as the weights of torch's layers, are on the meta device. If this fails too, the model
        is built on the CPU, and its tensors are replaced.
        """
        if self._meta is not None:
            return self._meta
        if self.trained or self._built is not None:
            self._meta = self._copy_without_values(self._build_original())
        else:
            last_error: Exception | None = None
            for device_context in (lambda: torch.device("meta"), UninitializedOnMeta):
                try:
                    with self.quiet(), torch.random.fork_rng(devices=[]), device_context(), UnfilledTensors():
                        torch.manual_seed(self.seed)
                        model = self.build()
                except ExplorerError:
                    raise
                except Exception as error:
                    last_error = error
                    continue
                tensors = (*model.parameters(), *model.buffers())
                is_plain = all(t.is_meta and not is_wrapper(t) for t in tensors)
                self._meta = model if is_plain else self._copy_without_values(model)
                break
            else:
                if self.values is not None and last_error is not None:
                    raise BadModel(format_error(last_error), where=self.source) from last_error
                self._meta = self._copy_without_values(self.build_as_constructed())
        self._meta.eval()
        return self._meta

    def original(self) -> nn.Module:
        """Returns the module with values if it exists, else the one on the meta device. Do not change it."""
        if isinstance(self.build, CopyOf):
            return self.build.module
        return self._built if self._built is not None else self.meta()

    def _build_original(self) -> nn.Module:
        """Builds the model with weights, for copies on the meta device. Nothing may change it."""
        return self.build.module if isinstance(self.build, CopyOf) else self.build_as_constructed()

    def _copy_without_values(self, model: nn.Module) -> nn.Module:
        """Copies a model to the meta device; adds a note on its tensor subclasses."""
        note = describe_wrappers((*model.parameters(), *model.buffers()))
        if note and note not in self.notes:
            self.notes = (*self.notes, note)
        return copy_without_values(model)

    def valued(self) -> nn.Module:
        """Like `meta`, but small tensors other than parameters keep their values, which `forward` may read.

        Raises:
            Exception: The model cannot be built this way.
        """
        if self.trained or self._built is not None:
            return copy_without_values(self._build_original(), keep_floats=True).eval()
        if self._unused and self._shapes is not None:
            self._unused = False
            return self._shapes
        with self.quiet(), torch.random.fork_rng(devices=[]), UninitializedOnMeta(), UnfilledTensors():
            torch.manual_seed(self.seed)
            model = self.build()
        # a module that may have other references must not be changed, so copy it
        return (
            remove_values(model) if self.builds_anew else copy_without_values(model, keep_floats=True)
        ).eval()

    def materialize(self) -> nn.Module:
        """Returns the model with weights on the CPU, in evaluation mode; equal seeds give equal weights.

        Tensor subclasses become plain tensors. For example, quantized weights are dequantized.

        Raises:
            BadModel: The constructor fails, or a tensor subclass cannot be converted.
        """
        if self._real is None:
            with self.quiet():
                real, failed_name = convert_subclasses(self.build_as_constructed())
            if failed_name:
                raise BadModel(
                    f"the tensor {failed_name} is of a class that cannot turn itself into a plain tensor",
                    where=self.source,
                    hint="give the class a method dequantize(), or use plain tensors; info needs no values",
                )
            self._real = real.eval()
        return self._real

    def build_as_constructed(self) -> nn.Module:
        """Returns the model with weights, as its constructor returns it, including tensor subclasses.

        Raises:
            BadModel: The constructor fails.
        """
        if self._built is None:
            try:
                with self.quiet(), torch.random.fork_rng(devices=[]):
                    torch.manual_seed(self.seed)
                    self._built = (self.values or self.build)()
            except ExplorerError:
                raise
            except Exception as error:
                raise BadModel(
                    f"building the model failed: {format_error(error)}", where=self.source
                ) from error
            self._built.eval()
        return self._built

    quiet = staticmethod(silence)
    """Context manager that discards output of the model's code, of torch and of exporters."""


def load(source: str, *, weights: str | None = None, seed: int = 0) -> LoadedModule:
    """Opens a model without building it.

    Args:
        source: Name of a torchvision model, `package.module:callable` or `path/file.py:callable`. The
            callable may also be an nn.Module. Packages in the current folder are found too.
        weights: Name of trained weights in torchvision ('DEFAULT', 'IMAGENET1K_V1'), or None for random
            weights.
        seed: Seed of random weights.

    Raises:
        MissingExtra: torchvision is not installed.
        Misuse: The model, module, callable or set of weights does not exist.
        BadModel: Importing the module fails.
    """
    if ":" in source:
        if weights is not None:
            message = "only models of torchvision have trained weights by name"
            raise Misuse(message, where="--weights", hint=f"let {source} load its own")
        return _load_callable(source, seed)
    return _load_torchvision(source, weights, seed)


# -- torchvision

_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "googlenet": ({"aux_logits": False, "init_weights": True}, "built without the auxiliary heads"),
    "quantized_googlenet": ({"aux_logits": False}, "built without the auxiliary heads"),
    "inception_v3": ({"init_weights": True}, ""),
}
"""Constructor arguments and a note, by model. Like torchvision's trained model, GoogLeNet is built without
the heads that only training uses."""


def _load_torchvision(name: str, weights: str | None, seed: int) -> LoadedModule:
    require("torchvision", name)
    from torchvision import models

    model_names = models.list_models()
    if name not in model_names:
        raise build_unknown_name_error(name, model_names)
    options, note = _OPTIONS.get(name, ({}, ""))
    builder = models.get_model_builder(name)
    pretrained = None if weights is None else _choose_weights(name, weights)
    if pretrained is None and "weights_backbone" in inspect.signature(builder).parameters:
        options = {**options, "weights_backbone": None}

    def build() -> nn.Module:
        if pretrained is None:
            module: nn.Module = builder(weights=None, **options)
            return module
        try:
            trained: nn.Module = builder(weights=pretrained, progress=False)
        except Exception as error:
            raise ExplorerError(
                f"the weights {weights} could not be fetched ({format_error(error)})",
                where=name,
                hint="check the network, or leave --weights out for random ones",
            ) from error
        return trained

    return LoadedModule(
        source=name,
        build=build,
        weights_text=f"random, seed {seed}" if pretrained is None else f"torchvision {weights}",
        weights_from="random" if pretrained is None else "model",
        seed=seed,
        notes=(note,) if note and pretrained is None else (),
        trained=pretrained is not None,
        torchvision=True,
    )


def _choose_weights(name: str, weights: str) -> Any:
    from torchvision import models

    weights_enum = models.get_model_weights(name)
    weight_names = list(weights_enum.__members__)
    if weights not in weight_names:
        raise Misuse(
            f"{name} has no weights called '{weights}'",
            where="--weights",
            hint=suggest_name(weights.upper(), weight_names) or f"torchvision has no weights for {name}",
        )
    return weights_enum[weights]


# -- package.module:callable


def _load_callable(source: str, seed: int) -> LoadedModule:
    path, _, attribute = source.rpartition(":")
    if not path or not attribute:
        raise Misuse(
            "the name is not complete", where=source, hint="give FILE.py:callable or package.module:callable"
        )
    with silence():
        module = _import_module(path, source)
    target: Any = module
    for name_part in attribute.split("."):
        if not hasattr(target, name_part):
            public = [n for n in dir(target) if not n.startswith("_") and callable(getattr(target, n, None))]
            hint = suggest_name(name_part, public) or "give FILE.py:callable or package.module:callable"
            if os.path.exists(f"{path}.py") and not _is_from_file(module, f"{path}.py"):
                hint = f"{module.__name__} is a module of this program; name the file: {path}.py:{attribute}"
            raise Misuse(f"{path} has no '{name_part}'", where=source, hint=hint)
        target = getattr(target, name_part)
    if not callable(target):
        raise Misuse(
            f"'{attribute}' is of type {type(target).__name__}, not a callable that returns an nn.Module",
            where=source,
        )
    # the real build function follows below, because it writes to `loaded`
    loaded = LoadedModule(source, lambda: nn.Identity(), f"random, seed {seed}", seed, weights_from="random")
    if isinstance(target, nn.Module):
        return wrap_module(target, source=source)

    def build() -> nn.Module:
        if missing := _list_required_arguments(target):
            call = f"{attribute}({', '.join(f'{name}=...' for name in missing)})"
            raise Misuse(
                f"'{attribute}' cannot be called without the argument{'s' * (len(missing) > 1)}"
                f" {', '.join(missing)}",
                where=source,
                hint=f"write a function without arguments: def model(): return {call}",
            )
        result = target()
        # a callable may return the module together with example inputs
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], nn.Module):
            result, loaded.example = result
        if not isinstance(result, nn.Module):
            message = f"'{attribute}' returned an object of type {type(result).__name__}, not an nn.Module"
            raise Misuse(message, where=source, hint="return the nn.Module, or it and an example input")
        return result

    loaded.build = build
    return loaded


def _list_required_arguments(target: Callable[..., Any]) -> list[str]:
    """Returns the names of the arguments without which `target` cannot be called."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):  # some callables in C have no signature
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]


def wrap_module(
    module: nn.Module,
    inputs: Any = None,
    *,
    source: str = "",
    keyword_inputs: Mapping[str, Any] | None = None,
) -> LoadedModule:
    """Returns the loaded model of an existing module.

    The module itself is never moved or changed. The analysis uses a copy without weights. Runs and exports
    use a copy that shares the weights.

    Args:
        module: Module with weights on any device.
        inputs: Example inputs: a tensor or array, a tuple or list of positional arguments, or a dictionary of
            keyword arguments. Arguments may contain tensors in nested tuples, lists and dictionaries. If
            None, `inputs.bind` finds the inputs.
        source: Name of the module in messages; by default the name of its class.
        keyword_inputs: Keyword arguments beside positional `inputs`, or None.
    """
    return LoadedModule(
        source=source or type(module).__name__,
        build=CopyOf(module),
        weights_text="as the module has them",
        trained=True,
        example=None
        if inputs is None and not keyword_inputs
        else Example.from_inputs(inputs, keyword_inputs),
    )


def _is_from_file(module: Any, path: str) -> bool:
    module_file = getattr(module, "__file__", None)
    return module_file is not None and os.path.realpath(module_file) == os.path.realpath(path)


def _import_module(path: str, source: str) -> Any:
    """Imports a Python module by dotted name or from a .py file; the current folder is searched last.

    Args:
        path: Dotted name, or path of a .py file.
        source: Source as the user typed it, for error messages.

    Raises:
        Misuse: The module or file does not exist.
        BadModel: The code of the module fails.
    """
    folder = os.getcwd()
    importlib.invalidate_caches()
    dont_write_bytecode = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # no files in the user's folder
    try:
        if path.endswith(".py"):
            name = _choose_module_name(os.path.basename(path)[:-3], path)
            search_here()
            spec = importlib.util.spec_from_file_location(name, path)
            if spec is None or spec.loader is None or not os.path.isfile(path):
                raise Misuse("there is no such file", where=path)
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
            return module
        search_here()
        return importlib.import_module(path)
    except ExplorerError:
        raise
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if path == missing or path.startswith(f"{missing}."):
            names = [n[:-3] for n in os.listdir(folder) if n.endswith(".py")]
            hint = suggest_only_near(path, names) or "the current folder is searched too"
            raise Misuse(
                f"there is no module '{missing}' here or installed", where=source, hint=hint
            ) from error
        raise BadModel(f"importing {path} failed: {format_error(error)}", where=source) from error
    except (Exception, SystemExit) as error:
        raise BadModel(f"importing {path} failed: {format_error(error)}", where=source) from error
    finally:
        sys.dont_write_bytecode = dont_write_bytecode


def _choose_module_name(name: str, path: str) -> str:
    """Chooses a module name for a user's file: the file name, with a suffix if another module has it."""
    if name in sys.modules:
        return name if _is_from_file(sys.modules[name], path) else f"{name}_of_the_user"
    is_taken = name.isidentifier() and importlib.util.find_spec(name) is not None
    return f"{name}_of_the_user" if is_taken else name
