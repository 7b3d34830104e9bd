"""What goes into an nn.Module: names, types and shapes of its inputs, and tensors of them.

An nn.Module does not say what it takes. In this order: what the user gave; what came with the model
(`example_input_array`, or inputs that the callable returned beside it); torchvision's own input size; what
its configuration implies, or its `dummy_inputs`; what the first layer implies, tried out on the meta device.
What was assumed is said.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import Misuse, UnknownShape, nearest
from explorer.engine.formats.torch_module.configured_inputs import candidates, likely_shape
from explorer.facts import TensorInfo

if TYPE_CHECKING:
    import torch
    from torch import nn

    from explorer.engine.formats.torch_module.loaded import LoadedModule

__all__ = ["Bound", "Example", "bind", "moved"]

Size = tuple[int, ...]


class Bound(Struct, frozen=True):
    """The inputs of one use of a model.

    Attributes:
        inputs: In the order in which the model takes them.
        dims: {'batch': n} where the first dimension is a batch of our choosing.
        notes: What was guessed.
        positional: How many of the inputs go by position; the others go by name.
        images: The model takes a list of images (detection): there is one input for each.
        example: The user's own arguments, whose tensors the inputs stand for.
    """

    inputs: tuple[TensorInfo, ...]
    dims: Mapping[str, int]
    notes: tuple[str, ...] = ()
    positional: int = 0
    images: bool = False
    example: Example | None = None

    def arguments(self, *, device: str, seed: int = 0) -> tuple[list[Any], dict[str, Any]]:
        """Tensors to call the model with: without values on 'meta', seeded random ones on 'cpu'.

        Of the user's own tensors those on 'cpu' are given as they are, if they still have the shape that was
        asked for; on 'meta' short lists of integers (lengths, positions) keep their values.
        """
        import torch

        made: list[torch.Tensor] = []
        chance = torch.Generator().manual_seed(seed)
        own = self.example.tensors() if self.example is not None else [None] * len(self.inputs)
        for info, given in zip(self.inputs, own, strict=True):
            if given is not None and _same(given, info) and (device == "cpu" or _steers(given)):
                made.append(given.detach().to("cpu"))
                continue
            kind = getattr(torch, info.dtype or "float32")
            shape = [int(d) for d in info.shape or () if isinstance(d, int)]
            if device == "meta":
                made.append(torch.empty(shape, dtype=kind, device="meta"))
            elif kind.is_floating_point or kind.is_complex:
                made.append(torch.rand(shape, generator=chance, dtype=torch.float32).to(kind))
            else:
                made.append(torch.randint(0, 2, shape, generator=chance).to(kind))
        return self.call(made)

    def call(self, tensors: Sequence[torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments that carry `tensors`, one per input, into the model."""
        if self.example is not None:
            return self.example.filled(tensors)
        if self.images:
            return [list(tensors)], {}
        rest = zip(self.inputs[self.positional :], tensors[self.positional :], strict=True)
        return list(tensors[: self.positional]), {info.name: tensor for info, tensor in rest}


class Example(Struct, frozen=True):
    """Arguments that a user calls a model with: tensors, in whatever they are packed, and anything else."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @staticmethod
    def of(inputs: Any) -> Example:
        """The arguments in `inputs`: a tensor or array, positional ones in a tuple or list, or keyword ones
        in a dict. Arrays become tensors.
        """
        inputs = _replaced(inputs, _as_tensor)
        if isinstance(inputs, Mapping):
            return Example((), {str(name): value for name, value in inputs.items()})
        return Example(tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,), {})

    def tensors(self) -> list[Any]:
        """Every tensor, in the order of the arguments."""
        from explorer.engine.costs.torch.records import tensors

        return [tensor for _, tensor in tensors([self.args, dict(self.kwargs)])]

    def named(self, names: Sequence[str]) -> dict[str, TensorInfo]:
        """Every tensor by the name of its argument in `names`, and its place in that."""
        from explorer.engine.costs.torch.records import described

        items = [(names[i] if i < len(names) else f"input{i}", v) for i, v in enumerate(self.args)]
        infos = [info for name, value in (*items, *self.kwargs.items()) for info in described(value, name)]
        return {info.name: replace(info, origin="declared") for info in infos}

    def filled(self, tensors: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments with `tensors` in the places of the user's."""
        rest = iter(tensors)
        args, kwargs = _replaced((self.args, dict(self.kwargs)), lambda _: next(rest))
        return list(args), kwargs


def _replaced(value: Any, by: Callable[[Any], Any]) -> Any:
    """`value` with every tensor or array in nested tuples, lists, dicts and dataclasses replaced."""
    import numpy as np
    import torch

    if isinstance(value, (torch.Tensor, np.ndarray)):
        return by(value)
    if isinstance(value, Mapping):
        made = {key: _replaced(part, by) for key, part in value.items()}
        return made if type(value) is dict else type(value)(made)  # type: ignore[call-arg]
    if isinstance(value, (tuple, list)):
        parts = [_replaced(part, by) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(
            value,
            **{f.name: _replaced(getattr(value, f.name), by) for f in dataclasses.fields(value) if f.init},
        )
    return value


def moved(arguments: Any, device: torch.device | None) -> Any:
    """Arguments with their tensors on another device; None and the CPU leave them where they are made."""
    return (
        arguments if device is None or device.type == "cpu" else _replaced(arguments, lambda t: t.to(device))
    )


def _as_tensor(value: Any) -> Any:
    import torch

    return value if isinstance(value, torch.Tensor) else torch.from_numpy(value.copy())


def _same(tensor: Any, info: TensorInfo) -> bool:
    from explorer.engine.costs.torch.records import dtype_name

    return tuple(tensor.shape) == info.shape and dtype_name(tensor.dtype) == info.dtype and not tensor.is_meta


def _steers(tensor: Any) -> bool:
    """Whether a tensor says how long or how many, rather than being worked on."""
    return (
        tensor.dim() < 2
        and tensor.numel() <= 4096
        and not (tensor.is_floating_point() or tensor.is_complex())
    )


def bind(
    loaded: LoadedModule,
    input_shapes: Mapping[str, tuple[str | None, Any]],
    dims: Mapping[str, int],
) -> Bound:
    """Settles the inputs of a model.

    Args:
        loaded: The model; it is built on the meta device.
        input_shapes: dtype (None: the model's own, else float32) and shape by input name.
        dims: Only 'batch', the first dimension of every input.

    Raises:
        Misuse: An input or dimension does not exist.
        UnknownShape: A shape is neither given nor to be guessed.
    """
    for name in dims:
        if name != "batch":
            raise Misuse(f"no dimension is called '{name}'", where="--dim", hint=nearest(name, ["batch"]))
        # an input's shape may be empty (a cache before the first step), but what has a name is there
        if dims[name] < 1:
            raise Misuse(f"a dimension cannot be {dims[name]}", where=f"--dim {name}")
    model = loaded.meta()
    required, optional, variadic = _parameters(model)
    known = [*required, *optional]
    if isinstance(loaded.example, Example):
        return _exactly(loaded, loaded.example, known, input_shapes, dims)
    for name in input_shapes:
        if name not in known and not variadic:
            raise Misuse(f"no input is called '{name}'", where="--input-shape", hint=nearest(name, known))
    found = _own(loaded, model, required)
    usual = _floating(model)
    own_shapes = not input_shapes
    untyped = [n for n, (dtype, _) in input_shapes.items() if dtype is None and n not in found]
    for name, (dtype, shape) in input_shapes.items():
        kind = _dtype(name, dtype, {**dict(_examples(_dummy(model), required)), **found}, usual)
        found[name] = TensorInfo(name, kind, _shape(name, shape), "declared")
    notes: tuple[str, ...] = ()
    if not found:
        found, notes = _configured(loaded, model, known, required)
    missing = [n for n in required if n not in found]
    if missing:
        alone = len(missing) == 1 and not found
        guessed, said = _guess(loaded, model, missing[0]) if alone else (None, "")
        if guessed is None:
            raise _unknown_shape(loaded, model, missing[0], required, said)
        found[missing[0]] = guessed
        notes = (said,)
    if variadic and not found:
        raise _unknown_shape(loaded, model, "x", ["x"])
    order = [n for n in known if n in found] + [n for n in found if n not in known]
    inputs = tuple(found[name] for name in order)
    if "batch" in dims:
        inputs = tuple(replace(i, shape=(dims["batch"], *(i.shape or ())[1:])) for i in inputs if i.shape)
    prefix = 0
    while prefix < len(order) and (order[prefix] not in known or order[prefix] == known[prefix]):
        prefix += 1
    batch = inputs[0].shape[0] if inputs and inputs[0].shape and (own_shapes or "batch" in dims) else None
    images = _takes_images(loaded, model)
    indices = _indices(loaded, model, Bound(inputs, {}, positional=prefix, images=images), untyped)
    inputs = tuple(replace(i, dtype="int64") if i.name in indices else i for i in inputs)
    notes += tuple(f"input {name}: taken as int64, an embedding looks it up" for name in indices)
    bound = Bound(
        _one_each(inputs[0]) if images else inputs,
        {"batch": batch} if isinstance(batch, int) else {},
        notes,
        prefix,
        images,
    )
    loaded.bound = bound
    return bound


def _exactly(
    loaded: LoadedModule,
    example: Example,
    names: Sequence[str],
    input_shapes: Mapping[str, tuple[str | None, Any]],
    dims: Mapping[str, int],
) -> Bound:
    """The user's own arguments, with the shapes that were asked for."""
    found = example.named(names)
    for name, (dtype, shape) in input_shapes.items():
        if name not in found:
            raise Misuse(f"no input is called '{name}'", where="--input-shape", hint=nearest(name, found))
        found[name] = TensorInfo(name, _dtype(name, dtype, found, "float32"), _shape(name, shape), "declared")
    if "batch" in dims:
        for name, info in found.items():
            if info.shape:
                found[name] = replace(info, shape=(dims["batch"], *info.shape[1:]))
    assumed = {"batch": dims["batch"]} if "batch" in dims else {}
    loaded.bound = Bound(tuple(found.values()), assumed, (), example=example)
    return loaded.bound


def _unknown_shape(
    loaded: LoadedModule, model: nn.Module, name: str, required: Sequence[str], tried: str = ""
) -> UnknownShape:
    implied = _likely(_first(model))[1] if len(required) == 1 else []
    shape = likely_shape(model, name) or next(iter(implied), (1, 3, 224, 224))
    others = f" (its inputs: {', '.join(required)})" if len(required) > 1 else ""
    return UnknownShape(
        f"the shape of the input '{name}' is not known{others}{f', {tried}' if tried else ''}",
        where=loaded.source,
        hint=f"give it, for instance --input-shape {name}:{','.join(map(str, shape))}",
    )


def _parameters(model: nn.Module) -> tuple[list[str], list[str], bool]:
    """Names of the inputs that a model must have, of those that it may have, and whether it takes any
    number of them.
    """
    required: list[str] = []
    optional: list[str] = []
    variadic = False
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except ValueError:
        # a compiled forward has a schema of its own
        schema = getattr(model.forward, "schema", None)
        for argument in () if schema is None else schema.arguments[1:]:
            (optional if argument.has_default_value() else required).append(argument.name)
        return required, optional, schema is None
    for p in parameters:
        if p.kind is p.VAR_POSITIONAL:
            variadic = True
        elif p.kind is not p.VAR_KEYWORD:
            (required if p.default is p.empty else optional).append(p.name)
    return required, optional, variadic


def _dtype(name: str, dtype: str | None, found: Mapping[str, TensorInfo], usual: str) -> str:
    import torch

    if dtype is None:
        return (found[name].dtype if name in found else None) or usual
    if not isinstance(getattr(torch, dtype, None), torch.dtype):
        kinds = ["float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool"]
        raise Misuse(
            f"torch has no type '{dtype}'", where=f"--input-shape {name}", hint=nearest(dtype, kinds)
        )
    return dtype


def _floating(model: nn.Module) -> str:
    """The type of a model's weights, which its inputs have to have too; float32 if it has none."""
    from explorer.engine.costs.torch.records import dtype_name

    return next((dtype_name(p.dtype) for p in model.parameters() if p.is_floating_point()), "float32")


def _shape(name: str, shape: Sequence[Any]) -> Size:
    if any(not isinstance(d, int) or d < 0 for d in shape):
        raise Misuse("every dimension must be a whole number of 0 or more", where=f"--input-shape {name}")
    return tuple(shape)


# -- what a model says of itself


def _own(loaded: LoadedModule, model: nn.Module, required: Sequence[str]) -> dict[str, TensorInfo]:
    """The inputs that are known without the user, by name."""
    if loaded.torchvision:
        shapes = _torchvision_shapes(loaded, model, len(required))
        names = required or ["x"]
        return {n: TensorInfo(n, "float32", s, "declared") for n, s in zip(names, shapes, strict=False)}
    for example in (loaded.example, getattr(model, "example_input_array", None)):
        named = dict(_examples(example, required))
        if named:
            return named
    return {}


def _configured(
    loaded: LoadedModule, model: nn.Module, known: Sequence[str], required: Sequence[str]
) -> tuple[dict[str, TensorInfo], tuple[str, ...]]:
    """The inputs that a model's configuration implies, or that it has for trying it out, and what to say.

    Of several sets the first with which the model runs; if it runs with none, the first.
    """
    dummy = {n: i for n, i in _examples(_dummy(model), required) if n in known}
    plain = {
        n: (i.dtype or "", tuple(d for d in i.shape or () if isinstance(d, int))) for n, i in dummy.items()
    }
    usual = _floating(model)
    sets = list(candidates(model, known, required, plain)) or ([plain] if plain else [])
    missing = [s for s in sets if not set(required) <= s.keys()]
    sets = [s for s in sets if s not in missing]
    if not sets:
        return {}, ()
    chosen = sets[0]
    if len(sets) > 1:
        chosen = next((s for s in sets if _runs(loaded, model, s, usual)), sets[0])
    found = {
        name: dummy[name]
        if name in dummy and chosen[name] == plain[name]
        else TensorInfo(name, kind or usual, shape, "inferred")
        for name, (kind, shape) in chosen.items()
    }
    made = [f"{i.name} {'x'.join(map(str, i.shape or ()))}" for i in found.values() if i.origin == "inferred"]
    return found, (f"guessed from the model's configuration: {', '.join(made)}",) if made else ()


def _runs(loaded: LoadedModule, model: nn.Module, sizes: Mapping[str, tuple[str, Size]], usual: str) -> bool:
    import torch

    given = {
        name: torch.empty(shape, dtype=getattr(torch, kind or usual), device="meta")
        for name, (kind, shape) in sizes.items()
    }
    with loaded.quiet():
        return _failure(model, **given) is None


def _dummy(model: nn.Module) -> Any:
    try:
        return getattr(model, "dummy_inputs", None)
    except Exception:
        return None


def _examples(example: Any, names: Sequence[str]) -> Iterator[tuple[str, TensorInfo]]:
    import torch

    from explorer.engine.costs.torch.records import dtype_name

    if isinstance(example, Mapping):
        items = list(example.items())
    elif isinstance(example, (tuple, list)):
        items = [(names[i] if i < len(names) else f"input{i}", value) for i, value in enumerate(example)]
    else:
        items = [(names[0] if names else "x", example)]
    for name, value in items:
        if isinstance(value, torch.Tensor):
            yield str(name), TensorInfo(str(name), dtype_name(value.dtype), tuple(value.shape), "declared")


# -- torchvision's own sizes

_FRAMES = 16
"""Frames of a video: what torchvision trained its video models with."""
_FLOW = (520, 960)
"""Height and width of an optical flow pair, as torchvision's reference evaluates them."""


def _torchvision_shapes(loaded: LoadedModule, model: nn.Module, inputs: int) -> list[Size]:
    """One shape per input of a torchvision model."""
    kind = type(model).__module__
    if ".optical_flow" in kind:
        return [(1, 3, *_FLOW)] * 2
    if ".detection" in kind:
        return [(1, 3, *_detection_size(model))]
    height, width = _image_size(loaded.source, model)
    if ".video" in kind:
        return [(1, 3, _FRAMES, height, width)]
    return [(1, 3, height, width)] * max(inputs, 1)


def _detection_size(model: Any) -> tuple[int, int]:
    transform = getattr(model, "transform", None)
    fixed = getattr(transform, "fixed_size", None)
    if fixed:
        return int(fixed[1]), int(fixed[0])
    side = int(getattr(transform, "min_size", (800,))[-1])
    return side, side


def _image_size(name: str, model: Any) -> tuple[int, int]:
    """Height and width of what torchvision feeds a model: its own attribute, else the crop of its first
    trained weights.
    """
    from torchvision import models

    own = getattr(model, "image_size", None)
    if isinstance(own, int):
        return own, own
    for weights in models.get_model_weights(name):
        options = getattr(weights.transforms, "keywords", {})
        size = options.get("crop_size") or options.get("resize_size")
        if size:
            sides = list(size) if isinstance(size, (list, tuple)) else [size]
            return int(sides[0]), int(sides[-1])
    return 224, 224


def _one_each(images: TensorInfo) -> tuple[TensorInfo, ...]:
    """A batch of images as that many inputs of rank 3, as detection models take them."""
    *batch, channels, height, width = images.shape or ()
    count = int(batch[0]) if batch and isinstance(batch[0], int) else 1
    one = replace(images, shape=(channels, height, width))
    return tuple(replace(one, name=f"{images.name}.{i}") for i in range(count)) if count > 1 else (one,)


def _takes_images(loaded: LoadedModule, model: nn.Module) -> bool:
    return loaded.torchvision and ".detection" in type(model).__module__


# -- what the first layer implies

_SIDES = (224, 32, 28, 64, 128, 299, 256, 96, 48, 16, 8)
_LENGTHS = (128, 64, 32, 16, 256, 512, 8)
_FEW = 4
"""Inputs of unknown type up to which every set of them is tried as integers."""


def _likely(first: nn.Module | None) -> tuple[str, list[tuple[int, ...]]]:
    """`_candidates` of a layer that a file describes: what it says of itself may be anything."""
    try:
        dtype, shapes = _candidates(first)
        # more elements than memory has bytes, and less than none, are no shape
        return dtype, [s for s in shapes if all(n >= 0 for n in s) and math.prod(s) < 1 << 56]
    except (ValueError, TypeError, AttributeError, ArithmeticError):
        return "float32", []


def _candidates(layer: Any) -> tuple[str, list[Size]]:
    """Input type and shapes that could go into a layer, likeliest first; no shapes if it says nothing."""
    from torch import nn

    # the last name of the row is the attribute that holds the channels or features
    table: list[tuple[Any, str, str, list[Size]]] = [
        (nn.Linear, "float32", "in_features", [(1,), (1, 16)]),
        (nn.BatchNorm1d, "float32", "num_features", [(1,)]),
        (nn.Conv1d, "float32", "in_channels", [(1, n) for n in _LENGTHS]),
        ((nn.Conv2d, nn.BatchNorm2d), "float32", "in_channels", [(1, n, n) for n in _SIDES]),
        (nn.Conv3d, "float32", "in_channels", [(1, _FRAMES, n, n) for n in (112, 224, 64, 32)]),
        (nn.RNNBase, "float32", "input_size", [(1, 16)]),
        (nn.LayerNorm, "float32", "normalized_shape", [(1,), (1, 16)]),
    ]
    if isinstance(layer, nn.Embedding):
        return "int64", [(1, n) for n in _LENGTHS]
    for kinds, dtype, attribute, sizes in table:
        if isinstance(layer, kinds):
            width = getattr(layer, attribute, None) or getattr(layer, "num_features", None)
            features = tuple(width) if isinstance(width, (tuple, list)) else (int(width or 1),)
            last = isinstance(layer, (nn.Linear, nn.RNNBase, nn.LayerNorm))
            if isinstance(layer, nn.RNNBase) and not layer.batch_first:
                return dtype, [(16, 1, *features)]
            return dtype, [(*s, *features) if last else (s[0], *features, *s[1:]) for s in sizes]
    return "", []


class _Enough(Exception):
    """Every embedding was reached: the types of the inputs are settled."""


def _indices(loaded: LoadedModule, model: nn.Module, bound: Bound, untyped: Sequence[str]) -> tuple[str, ...]:
    """Which of the inputs whose type nobody gave are rows of embeddings: those that have to be integers for
    the model to get to its last embedding. Tried on shapes, and no further than there.
    """
    import torch
    from torch import nn

    from explorer.engine.formats.torch_module.meta_copy import without_values

    if not untyped or not any(isinstance(m, (nn.Embedding, nn.EmbeddingBag)) for m in model.modules()):
        return ()
    twin = without_values(model)
    waiting: set[nn.Module] = set()

    def reached(module: nn.Module, *_: Any) -> None:
        waiting.discard(module)
        if not waiting:
            raise _Enough

    tables = [m for m in twin.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
    for table in tables:
        table.register_forward_hook(reached)
    sizes = range(len(untyped) + 1) if len(untyped) <= _FEW else (0, 1, len(untyped))
    for chosen in (names for size in sizes for names in itertools.combinations(untyped, size)):
        waiting.update(tables)
        given = [replace(i, dtype="int64") if i.name in chosen else i for i in bound.inputs]
        args, kwargs = replace(bound, inputs=tuple(given)).arguments(device="meta")
        try:
            with loaded.quiet(), torch.no_grad():
                twin(*args, **kwargs)
        except _Enough:
            return chosen
        except Exception:
            continue
        return chosen
    return ()


def _first(model: nn.Module) -> nn.Module | None:
    """The first layer that says what goes into it."""
    return next((m for m in model.modules() if next(m.children(), None) is None and _likely(m)[1]), None)


def _guess(loaded: LoadedModule, model: nn.Module, name: str) -> tuple[TensorInfo | None, str]:
    """The first shape that the first layer allows and with which the model runs, and a note of it.

    Returns:
        None and what came of the likeliest shape, when the model runs with none.
    """
    import torch

    first = _first(model)
    dtype, shapes = _likely(first)
    dtype = _floating(model) if dtype == "float32" else dtype
    tried = ""
    for shape in shapes:
        tensor = torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
        text = "x".join(map(str, shape))
        with loaded.quiet():
            failed = _failure(model, tensor)
        if failed is not None:
            at, reason = failed
            where = f" in {at}" if at else ""
            tried = tried or f"and with {text}, likely from its first layer, it fails{where}: {reason[:200]}"
            continue
        note = f"input {name}: {text} guessed from the first layer ({type(first).__name__})"
        return TensorInfo(name, dtype, shape, "inferred"), note
    return None, tried


def _failure(model: nn.Module, *args: torch.Tensor, **kwargs: torch.Tensor) -> tuple[str, str] | None:
    """Where and why a model does not run on tensors without values; None if it does."""
    import torch
    from torch import nn

    from explorer.engine.costs.torch.analyse import shapes_failure
    from explorer.engine.costs.torch.records import is_lazy
    from explorer.engine.formats.torch_module.meta_copy import without_values

    lazy = any(is_lazy(held) for held in (*model.parameters(), *model.buffers()))
    # a recurrent layer runs in one piece where it is watched, and step by step where it is not
    if not any(isinstance(module, nn.RNNBase) for module in model.modules()):
        try:
            # a layer that waits for its first input would keep the size of a shape that failed
            with torch.no_grad():
                (without_values(model) if lazy else model)(*args, **kwargs)
            return None
        except Exception:
            # what is data-dependent answers with its bound only where every operator is watched
            pass
    return shapes_failure(without_values(model) if lazy else model, *args, **kwargs)
