"""nn.Module by name: a torchvision model, or what `package.module:callable` returns.

A model is built at most twice, on demand: on the meta device for the analysis, where a 70 B model costs
nothing, and with real weights for an export or a run. Random weights are seeded, so the same command makes
the same file. Output of a constructor or an import is discarded: standard output is for results.
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

from explorer.base.errors import BadModel, ExplorerError, Misuse, nearest, nearest_alone
from explorer.engine.formats.torch_module.arguments import BoundInputs, Example
from explorer.engine.formats.torch_module.meta_copy import (
    emptied,
    sharing_values,
    with_plain_tensors,
    without_values,
)
from explorer.engine.formats.torch_module.meta_init import UnfilledTensors, UninitialisedOnMeta
from explorer.engine.formats.torch_module.tensor_subclass import is_wrapper, wrappers_note
from explorer.host.optional_packages import error_line, require, search_here, silence


class CopyOf:
    """Makes copies of a module that exists already; they hold its tensors.

    Attributes:
        module: Never changed: not moved, and its training flags stay.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self) -> nn.Module:
        """A copy, to be put in evaluation mode and run."""
        return sharing_values(self.module)


class LoadedModule(Struct):
    """A model that is built on demand.

    Attributes:
        source: The source that the user named.
        build: Builds the module on the current device.
        weights_text: Origin of the weights, for a person.
        weights_from: Origin of the weights for code: random numbers, a file of weights, or the model itself.
        seed: Seed of the random weights.
        notes: Notes on how the model is built.
        trained: Whether the weights have values that `build` alone does not give (then the model is built
            once, and its twin on the meta device is made from it).
        torchvision: Whether it is a torchvision model.
        example: Inputs that came with the model.
        binding: Binds inputs to shapes and dimensions, if the file has open sizes.
        bound: The inputs that were bound last.
        values: Builds the model with the values of its files, if `build` makes it without; no other values
            are then used.
        asks: Whether its forward is known to read values, so that no run on shapes is tried first.
        new: Whether `build` makes a new module at each call, which nothing else holds.
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
    asks: bool = False
    new: bool = False
    weights_from: Literal["random", "file", "model"] = "model"
    _meta: nn.Module | None = None
    _real: nn.Module | None = None
    _built: nn.Module | None = None
    _shapes: nn.Module | None = None
    _unused: bool = False

    def shapes(self) -> nn.Module:
        """The model on the meta device, for reading and not for running: parameters without values.

        If a later run needs the values of small tensors, the model is built with them, and the next `valued`
        returns it, so that it is not built twice.
        """
        if self._meta is None and self._shapes is None and self.asks and self.new:
            try:
                self._shapes = self.valued()
                self._unused = True
            except ExplorerError:
                raise
            except Exception:
                return self.meta()
        return self._shapes if self._meta is None and self._shapes is not None else self.meta()

    def meta(self) -> nn.Module:
        """The model on the meta device, in evaluation mode: shapes without weights.

        A constructor that reads values cannot run there. Then only uninitialized tensors, such as the weights
        of torch's own layers, go to the meta device. If that fails, too, the model is built on the CPU and
        its tensors are replaced.
        """
        if self._meta is not None:
            return self._meta
        if self.trained or self._built is not None:
            self._meta = self._without_values(self._with_tensors())
        else:
            failed: Exception | None = None
            for way in (lambda: torch.device("meta"), UninitialisedOnMeta):
                try:
                    with self.quiet(), torch.random.fork_rng(devices=[]), way(), UnfilledTensors():
                        torch.manual_seed(self.seed)
                        model = self.build()
                except ExplorerError:
                    raise
                except Exception as error:
                    failed = error
                    continue
                tensors = (*model.parameters(), *model.buffers())
                plain = all(t.is_meta and not is_wrapper(t) for t in tensors)
                self._meta = model if plain else self._without_values(model)
                break
            else:
                if self.values is not None and failed is not None:
                    raise BadModel(error_line(failed), where=self.source) from failed
                self._meta = self._without_values(self.as_built())
        self._meta.eval()
        return self._meta

    def _with_tensors(self) -> nn.Module:
        """The model that the twin on the meta device is a copy of, which is not changed."""
        return self.build.module if isinstance(self.build, CopyOf) else self.as_built()

    def _without_values(self, model: nn.Module) -> nn.Module:
        """A copy on the meta device; adds a note on tensor subclasses in `model`."""
        note = wrappers_note((*model.parameters(), *model.buffers()))
        if note and note not in self.notes:
            self.notes = (*self.notes, note)
        return without_values(model)

    def valued(self) -> nn.Module:
        """Like `meta`, but small tensors that are no parameters keep their values, which a model may read.

        Raises:
            Exception: It cannot be built this way.
        """
        if self.trained or self._built is not None:
            return without_values(self._with_tensors(), numbers=True).eval()
        if self._unused and self._shapes is not None:
            self._unused = False
            return self._shapes
        with self.quiet(), torch.random.fork_rng(devices=[]), UninitialisedOnMeta(), UnfilledTensors():
            torch.manual_seed(self.seed)
            model = self.build()
        # a callable may return a module that is in use elsewhere; a module from a configuration is new
        return (emptied(model) if self.new else without_values(model, numbers=True)).eval()

    def materialise(self) -> nn.Module:
        """The model with its weights on the CPU, in evaluation mode; equal seeds give equal weights.

        Tensor subclasses become plain tensors: quantized weights are dequantized.

        Raises:
            BadModel: The constructor fails, or a tensor subclass cannot give its numbers.
        """
        if self._real is None:
            with self.quiet():
                real, failed = with_plain_tensors(self.as_built())
            if failed:
                raise BadModel(
                    f"the tensor {failed} is of a class that cannot turn itself into a plain tensor",
                    where=self.source,
                    hint="give the class a method dequantize(), or use plain tensors; info needs no values",
                )
            self._real = real.eval()
        return self._real

    def as_built(self) -> nn.Module:
        """The model as its constructor makes it, with its tensor subclasses.

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
                    f"building the model failed: {error_line(error)}", where=self.source
                ) from error
            self._built.eval()
        return self._built

    quiet = staticmethod(silence)
    """Discards the output of the model's code, torch and exporters."""


def load(source: str, *, weights: str | None = None, seed: int = 0) -> LoadedModule:
    """Opens a model without building it.

    Args:
        source: A torchvision model's name, or `package.module:callable`, the callable (or nn.Module)
            found in the module; the current folder is searched too. `path/file.py:callable` works as well.
        weights: torchvision's name of trained weights ('DEFAULT', 'IMAGENET1K_V1'); None for random ones.
        seed: Of random weights.

    Raises:
        MissingExtra: torchvision is not installed.
        Misuse: There is no such model, module, callable or set of weights.
        BadModel: The module or the callable fails.
    """
    if ":" in source:
        if weights is not None:
            raise Misuse(
                "trained weights by name are torchvision's only",
                where="--weights",
                hint=f"let {source} load its own",
            )
        return _from_callable(source, seed)
    return _from_torchvision(source, weights, seed)


# -- torchvision

_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "googlenet": ({"aux_logits": False, "init_weights": True}, "built without the auxiliary heads"),
    "quantized_googlenet": ({"aux_logits": False}, "built without the auxiliary heads"),
    "inception_v3": ({"init_weights": True}, ""),
}
"""Arguments of a constructor, and a note: GoogLeNet as in use, without the heads for training
(torchvision's trained model has none, either)."""


def _from_torchvision(name: str, weights: str | None, seed: int) -> LoadedModule:
    require("torchvision", name)
    from torchvision import models

    model_names = models.list_models()
    if name not in model_names:
        raise Misuse(
            "no file and no torchvision model has this name",
            where=name,
            hint=nearest_alone(name.lower(), model_names)
            or "explorer list prints the models here and torchvision's names, explorer --help the verbs",
        )
    options, note = _OPTIONS.get(name, ({}, ""))
    builder = models.get_model_builder(name)
    pretrained = None if weights is None else _weights(name, weights)
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
                f"the weights {weights} could not be fetched ({error_line(error)})",
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


def _weights(name: str, weights: str) -> Any:
    from torchvision import models

    kinds = models.get_model_weights(name)
    weight_names = list(kinds.__members__)
    if weights not in weight_names:
        raise Misuse(
            f"{name} has no weights called '{weights}'",
            where="--weights",
            hint=nearest(weights.upper(), weight_names) or f"torchvision has none for {name}",
        )
    return kinds[weights]


# -- package.module:callable


def _from_callable(source: str, seed: int) -> LoadedModule:
    path, _, attribute = source.rpartition(":")
    if not path or not attribute:
        raise Misuse("the name is not complete", where=source, hint="give package.module:callable")
    with silence():
        module = _imported(path, source)
    target: Any = module
    for piece in attribute.split("."):
        if not hasattr(target, piece):
            public = [n for n in dir(target) if not n.startswith("_") and callable(getattr(target, n, None))]
            hint = nearest(piece, public) or "give package.module:callable"
            if os.path.exists(f"{path}.py") and not _is_file(module, f"{path}.py"):
                hint = f"that is {module.__name__} of the program's own; name the file: {path}.py:{attribute}"
            raise Misuse(f"{path} has no '{piece}'", where=source, hint=hint)
        target = getattr(target, piece)
    if not callable(target):
        raise Misuse(
            f"'{attribute}' is a {type(target).__name__}, not a callable that returns an nn.Module",
            where=source,
        )
    loaded = LoadedModule(source, lambda: nn.Identity(), f"random, seed {seed}", seed, weights_from="random")
    if isinstance(target, nn.Module):
        return of(target, source=source)

    def build() -> nn.Module:
        result = target()
        # a callable may return example inputs beside the module
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], nn.Module):
            result, loaded.example = result
        if not isinstance(result, nn.Module):
            kind = type(result).__name__
            raise Misuse(f"'{attribute}' returned a {kind}, not an nn.Module", where=source)
        return result

    loaded.build = build
    return loaded


def of(module: nn.Module, inputs: Any = None, *, source: str = "") -> LoadedModule:
    """Wraps an existing module with its weights.

    The object is never moved or changed, and its training flags stay. A twin without weights is analyzed, and
    a twin with the same weights is run and exported.

    Args:
        module: The module, with its weights on any device.
        inputs: Arguments of a call: a tensor or array, a tuple or list of positional arguments, or a dict of
            keyword arguments; each may hold tensors in nested tuples, lists and dicts. None: see `inputs`.
        source: Its name in messages; by default the name of its class.
    """
    return LoadedModule(
        source=source or type(module).__name__,
        build=CopyOf(module),
        weights_text="as the module has them",
        trained=True,
        example=None if inputs is None else Example.of(inputs),
    )


def _is_file(module: Any, path: str) -> bool:
    module_file = getattr(module, "__file__", None)
    return module_file is not None and os.path.realpath(module_file) == os.path.realpath(path)


def _imported(path: str, source: str) -> Any:
    """The module at a dotted name (the current folder last) or in a .py file.

    Raises:
        Misuse: There is none.
        BadModel: Its code fails.
    """
    folder = os.getcwd()
    importlib.invalidate_caches()
    keeps_none, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # no files in the user's folder
    try:
        if path.endswith(".py"):
            name = _own_name(os.path.basename(path)[:-3], path)
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
            hint = nearest_alone(path, names) or "the current folder is searched too"
            raise Misuse(
                f"there is no module '{missing}' here or installed", where=source, hint=hint
            ) from error
        raise BadModel(f"importing {path} failed: {error_line(error)}", where=source) from error
    except (Exception, SystemExit) as error:
        raise BadModel(f"importing {path} failed: {error_line(error)}", where=source) from error
    finally:
        sys.dont_write_bytecode = keeps_none


def _own_name(name: str, path: str) -> str:
    """A name for the module in a user's file: the file's name, unless another module has it."""
    if name in sys.modules:
        return name if _is_file(sys.modules[name], path) else f"{name}_of_the_user"
    is_taken = name.isidentifier() and importlib.util.find_spec(name) is not None
    return f"{name}_of_the_user" if is_taken else name
