"""Inputs of an nn.Module: finds the names, types and shapes of the inputs of `forward`.

An nn.Module does not declare its inputs. They are taken from these sources, in this order:

1. The user's options.
2. Example inputs of the model: its attribute `example_input_array`, or inputs that the callable returns with
   the model.
3. The input size of a torchvision model.
4. The model's configuration, or its `dummy_inputs`.
5. The first layer: shapes that fit it are tried on the meta device.

A note records each assumption.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn

from explorer.base.errors import Misuse, UnknownShape, suggest_name
from explorer.base.units import sizes_text
from explorer.engine.compat.torchvision import get_model_part
from explorer.engine.formats.torch_module.arguments import BoundInputs, Example
from explorer.engine.formats.torch_module.configured_inputs import guess_shape, list_candidates
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.formats.torch_module.meta_copy import copy_without_values
from explorer.engine.formats.torch_module.modules import format_dtype, is_lazy
from explorer.facts import TensorInfo

Size = tuple[int, ...]

FindFailure = Callable[..., tuple[str, str] | None]
"""Function that runs a module on tensors without values. It returns the layer and the reason of a failure, or
None if the module runs."""


def bind(
    loaded: LoadedModule,
    input_shapes: Mapping[str, tuple[str | None, Any]],
    dims: Mapping[str, int],
    *,
    try_run: FindFailure,
) -> BoundInputs:
    """Finds the inputs of a model, and stores them in `loaded.bound`.

    Args:
        loaded: Model, which is built on the meta device.
        input_shapes: (element type or None, shape) by input name. With None, the input has the type that the
            model declares, or the type of its weights.
        dims: Size of each dimension that the user bound, by name. The only name is 'batch', the first
            dimension of every input, unless the file has its own dynamic dimensions.
        try_run: Function that runs a module on shapes operator by operator, used if a plain call fails.

    Raises:
        Misuse: An input, dimension or element type does not exist, or a size is impossible.
        UnknownShape: A shape is missing and cannot be guessed.
    """
    if loaded.binding is not None:
        loaded.bound = loaded.binding(input_shapes, dims)
        return loaded.bound
    _check_dims(dims)
    model = loaded.build_for_inspection()
    required, optional, variadic = _list_parameters(model)
    if "" in input_shapes:
        if len(required) != 1:
            raise Misuse(
                f"the shape has no name, and the model has {len(required)} inputs",
                where="--input-shape",
                hint=f"write the name before the shape: {required[0]}:1,3,224,224" if required else "",
            )
        input_shapes = {name or required[0]: shape for name, shape in input_shapes.items()}
    parameter_names = [*required, *optional]
    if isinstance(loaded.example, Example):
        loaded.bound = _bind_example(loaded.example, parameter_names, input_shapes, dims)
        return loaded.bound
    for name in input_shapes:
        if name not in parameter_names and not variadic:
            message = f"no input is called '{name}'"
            raise Misuse(message, where="--input-shape", hint=suggest_name(name, parameter_names))
    infos, untyped = _apply_input_shapes(
        input_shapes, _find_known_inputs(loaded, model, required), model, required
    )
    if untyped or not infos or not infos.keys() >= set(required):
        model = loaded.meta()  # the model may be run to find its inputs
    find_failure = partial(_find_failure, try_run)
    infos, notes = _complete_inputs(loaded, model, infos, (required, optional, variadic), find_failure)
    order = [n for n in parameter_names if n in infos] + [n for n in infos if n not in parameter_names]
    inputs = tuple(infos[name] for name in order)
    if "batch" in dims:
        inputs = tuple(replace(i, shape=(dims["batch"], *(i.shape or ())[1:])) for i in inputs if i.shape)
    positional_count = _count_positional(order, parameter_names)
    has_assumed_batch = not input_shapes or "batch" in dims
    batch = inputs[0].shape[0] if inputs and inputs[0].shape and has_assumed_batch else None
    takes_images = loaded.torchvision and get_model_part(model) == "detection"
    indices = _find_index_inputs(
        loaded,
        model,
        BoundInputs(inputs, {}, positional_count=positional_count, has_image_list=takes_images),
        untyped,
    )
    inputs = tuple(replace(i, dtype="int64") if i.name in indices else i for i in inputs)
    notes += tuple(
        f"input {name}: counted as int64, because an embedding reads it as indices" for name in indices
    )
    loaded.bound = BoundInputs(
        _split_images(inputs[0]) if takes_images else inputs,
        {"batch": batch} if isinstance(batch, int) else {},
        notes,
        positional_count,
        takes_images,
    )
    return loaded.bound


def _apply_input_shapes(
    input_shapes: Mapping[str, tuple[str | None, Any]],
    known_inputs: Mapping[str, TensorInfo],
    model: nn.Module,
    required: Sequence[str],
) -> tuple[dict[str, TensorInfo], list[str]]:
    """Gives the inputs the shapes and element types that the user named.

    Returns:
        The inputs by name, and the names of those whose element type neither the user nor `known_inputs` has.
    """
    infos = dict(known_inputs)
    untyped = [name for name, (dtype, _) in input_shapes.items() if dtype is None and name not in infos]
    default_dtype = _find_floating_type(model)
    for name, (dtype, shape) in input_shapes.items():
        declared = {**dict(_list_example_tensors(_find_dummy_inputs(model), required)), **infos}
        chosen_dtype = _choose_dtype(name, dtype, declared, default_dtype)
        infos[name] = TensorInfo(name, chosen_dtype, _parse_shape(name, shape), "declared")
    return infos, untyped


def _check_dims(dims: Mapping[str, int]) -> None:
    """Raises an error for a dimension other than 'batch', or a size below 1."""
    for name in dims:
        if name != "batch":
            raise Misuse(
                f"no dimension is called '{name}'", where="--dim", hint=suggest_name(name, ["batch"])
            )
        # other sizes of an input may be 0, as in a cache before the first step
        if dims[name] < 1:
            raise Misuse(f"a dimension cannot be {dims[name]}", where=f"--dim {name}")


def _count_positional(order: Sequence[str], names: Sequence[str]) -> int:
    """Returns the number of inputs that can be passed by position: those before the first omitted one."""
    count = 0
    while count < len(order) and (order[count] not in names or order[count] == names[count]):
        count += 1
    return count


def _complete_inputs(
    loaded: LoadedModule,
    model: nn.Module,
    infos: dict[str, TensorInfo],
    parameters: tuple[list[str], list[str], bool],
    find_failure: FindFailure,
) -> tuple[dict[str, TensorInfo], tuple[str, ...]]:
    """Adds the missing inputs, from the configuration or the first layer.

    Args:
        loaded: Model as loaded.
        model: Module on the meta device.
        infos: Inputs that are known, by name.
        parameters: Result of `_list_parameters`.
        find_failure: Function that tries the module on tensors without values.

    Returns:
        The inputs by name, and notes on guesses.

    Raises:
        UnknownShape: An input cannot be guessed.
    """
    required, optional, variadic = parameters
    notes: tuple[str, ...] = ()
    if not infos:
        infos, notes = _find_configured_inputs(loaded, model, [*required, *optional], required, find_failure)
    missing = [n for n in required if n not in infos]
    if missing:
        is_only_input = len(missing) == 1 and not infos
        guessed, note = (
            _guess_only_input(loaded, model, missing[0], find_failure) if is_only_input else (None, "")
        )
        if guessed is None:
            raise _build_unknown_shape_error(loaded, model, missing[0], required, note)
        infos[missing[0]] = guessed
        notes = (note,)
    if variadic and not infos:
        raise _build_unknown_shape_error(loaded, model, "x", ["x"])
    return infos, notes


def _bind_example(
    example: Example,
    names: Sequence[str],
    input_shapes: Mapping[str, tuple[str | None, Any]],
    dims: Mapping[str, int],
) -> BoundInputs:
    """Binds the inputs of an example that the user passed, with shapes changed by options."""
    infos = example.describe_tensors(names)
    for name, (dtype, shape) in input_shapes.items():
        if name not in infos:
            raise Misuse(
                f"no input is called '{name}'", where="--input-shape", hint=suggest_name(name, infos)
            )
        infos[name] = TensorInfo(
            name, _choose_dtype(name, dtype, infos, "float32"), _parse_shape(name, shape), "declared"
        )
    if "batch" in dims:
        for name, info in infos.items():
            if info.shape:
                infos[name] = replace(info, shape=(dims["batch"], *info.shape[1:]))
    assumed = {"batch": dims["batch"]} if "batch" in dims else {}
    return BoundInputs(tuple(infos.values()), assumed, (), example=example)


def _write_pattern(shapes: Sequence[Size]) -> str:
    """Writes possible input shapes of a layer as one text, with N for the sizes that differ.

    (1, 3, 8, 8) and (1, 3, 16, 16) give '1,3,N,N'. (1, 7) and (1, 16, 7) give '1,N,7'.
    """
    longest = max(shapes, key=len)
    alike = [shape for shape in shapes if len(shape) == len(longest)]
    if len(alike) < len(shapes):
        # the layer takes any number of axes between the first and its features
        return ",".join(map(str, (longest[0], *"N" * (len(longest) - 2), longest[-1])))
    return ",".join(str(sizes[0]) if len(set(sizes)) == 1 else "N" for sizes in zip(*alike, strict=True))


def _build_unknown_shape_error(
    loaded: LoadedModule, model: nn.Module, name: str, required: Sequence[str], attempt: str = ""
) -> UnknownShape:
    """Returns the error for an input without a shape; its hint contains a likely shape.

    Args:
        loaded: Model as loaded.
        model: Module on the meta device.
        name: Name of the input.
        required: Names of all required inputs.
        attempt: Description of a failed attempt, or ''.
    """
    implied = _list_possible_candidates(_find_first_layer(model))[1]
    shape = guess_shape(model, name) or next(iter(implied), (1, 3, 224, 224))
    proposed = f"give it, for instance --input-shape {name}:{','.join(map(str, shape))}"
    if attempt and implied:
        # no listed size runs, so that none can be proposed
        proposed = f"give it: --input-shape {name}:{_write_pattern(implied)}"
    others = f" (its inputs: {', '.join(required)})" if len(required) > 1 else ""
    return UnknownShape(
        f"the shape of the input '{name}' is not known{others}{f', {attempt}' if attempt else ''}",
        where=loaded.source,
        hint=proposed,
    )


def _list_parameters(model: nn.Module) -> tuple[list[str], list[str], bool]:
    """Returns the arguments of a module's `forward`.

    Returns:
        The names of required inputs, the names of optional inputs, and whether `forward` has `*args`.
    """
    required: list[str] = []
    optional: list[str] = []
    variadic = False
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except ValueError:
        # a compiled `forward` has no Python signature, but its own schema
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


def _choose_dtype(name: str, dtype: str | None, infos: Mapping[str, TensorInfo], default_dtype: str) -> str:
    """Chooses the element type of an input: `dtype` if given, else the declared one, else `default_dtype`."""
    if dtype is None:
        return (infos[name].dtype if name in infos else None) or default_dtype
    if not isinstance(getattr(torch, dtype, None), torch.dtype):
        type_names = ["float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool"]
        message = f"torch has no type '{dtype}'"
        raise Misuse(message, where=f"--input-shape {name}", hint=suggest_name(dtype, type_names))
    return dtype


def _find_floating_type(model: nn.Module) -> str:
    """Finds the floating-point type of a model's weights (float32 without any), which inputs need, too."""
    return next((format_dtype(p.dtype) for p in model.parameters() if p.is_floating_point()), "float32")


def _parse_shape(name: str, shape: Sequence[Any]) -> Size:
    if any(not isinstance(d, int) or d < 0 for d in shape):
        raise Misuse("every dimension must be a whole number of 0 or more", where=f"--input-shape {name}")
    return tuple(shape)


# -- inputs that the model declares


def _find_known_inputs(
    loaded: LoadedModule, model: nn.Module, required: Sequence[str]
) -> dict[str, TensorInfo]:
    """Returns the inputs by name, from torchvision or from example inputs; empty if there are none."""
    if loaded.torchvision:
        shapes = _list_torchvision_shapes(loaded, model, len(required))
        names = required or ["x"]
        return {n: TensorInfo(n, "float32", s, "declared") for n, s in zip(names, shapes, strict=False)}
    for example in (loaded.example, getattr(model, "example_input_array", None)):
        infos = dict(_list_example_tensors(example, required))
        if infos:
            return infos
    return {}


def _find_configured_inputs(
    loaded: LoadedModule,
    model: nn.Module,
    parameter_names: Sequence[str],
    required: Sequence[str],
    find_failure: FindFailure,
) -> tuple[dict[str, TensorInfo], tuple[str, ...]]:
    """Finds the inputs in a model's configuration or its dummy inputs.

    If the configuration allows several sets of inputs, the result is the first one with which the model runs.
    If it runs with no set, the result is the first set.

    Returns:
        The inputs by name, and a note on guesses.
    """
    dummy = {
        n: i for n, i in _list_example_tensors(_find_dummy_inputs(model), required) if n in parameter_names
    }
    plain = {
        n: (i.dtype or "", tuple(d for d in i.shape or () if isinstance(d, int))) for n, i in dummy.items()
    }
    default_dtype = _find_floating_type(model)
    sets = list(list_candidates(model, parameter_names, required, plain)) or ([plain] if plain else [])
    sets = [s for s in sets if set(required) <= s.keys()]
    if not sets:
        return {}, ()
    sizes = sets[0]
    if len(sets) > 1:
        sizes = next((s for s in sets if _runs_with(loaded, model, s, default_dtype, find_failure)), sets[0])
    infos = {
        name: dummy[name]
        if name in dummy and sizes[name] == plain[name]
        else TensorInfo(name, dtype or default_dtype, shape, "inferred")
        for name, (dtype, shape) in sizes.items()
    }
    guesses = [
        f"{i.name} {'x'.join(map(str, i.shape or ()))}" for i in infos.values() if i.origin == "inferred"
    ]
    return infos, (f"inputs guessed from the model's configuration: {', '.join(guesses)}",) if guesses else ()


def _runs_with(
    loaded: LoadedModule,
    model: nn.Module,
    sizes: Mapping[str, tuple[str, Size]],
    default_dtype: str,
    find_failure: FindFailure,
) -> bool:
    """Whether the model runs on inputs of these types and shapes."""
    tensors = {
        name: torch.empty(shape, dtype=getattr(torch, dtype or default_dtype), device="meta")
        for name, (dtype, shape) in sizes.items()
    }
    with loaded.quiet():
        return find_failure(model, **tensors) is None


def _find_dummy_inputs(model: nn.Module) -> Any:
    try:
        return getattr(model, "dummy_inputs", None)
    except Exception:
        return None


def _list_example_tensors(example: Any, names: Sequence[str]) -> Iterator[tuple[str, TensorInfo]]:
    """Yields the (name, description) of each tensor in an example input: a tensor, sequence or dictionary."""
    if isinstance(example, Mapping):
        items = list(example.items())
    elif isinstance(example, (tuple, list)):
        items = [(names[i] if i < len(names) else f"input{i}", value) for i, value in enumerate(example)]
    else:
        items = [(names[0] if names else "x", example)]
    for name, value in items:
        if isinstance(value, torch.Tensor):
            yield str(name), TensorInfo(str(name), format_dtype(value.dtype), tuple(value.shape), "declared")


# -- sizes of torchvision

_FRAMES = 16
"""Number of frames of a video, as in the training of torchvision's video models."""
_FLOW = (520, 960)
"""Height and width of an image pair for optical flow, as in torchvision's reference evaluation."""


def _list_torchvision_shapes(loaded: LoadedModule, model: nn.Module, input_count: int) -> list[Size]:
    """Returns the shape of each input of a torchvision model with `input_count` required inputs."""
    task = get_model_part(model)
    if task == "optical_flow":
        return [(1, 3, *_FLOW)] * 2
    if task == "detection":
        return [(1, 3, *_find_detection_size(model))]
    height, width = _find_image_size(loaded.source, model)
    if task == "video":
        return [(1, 3, _FRAMES, height, width)]
    return [(1, 3, height, width)] * max(input_count, 1)


def _find_detection_size(model: Any) -> tuple[int, int]:
    """Returns height and width of the images of a detection model."""
    transform = getattr(model, "transform", None)
    fixed = getattr(transform, "fixed_size", None)
    if fixed:
        return int(fixed[1]), int(fixed[0])
    side = int(getattr(transform, "min_size", (800,))[-1])
    return side, side


def _find_image_size(name: str, model: Any) -> tuple[int, int]:
    """Returns height and width of a torchvision model's input.

    It is the model's attribute `image_size`, else the crop size (or resize size) of the first trained weights
    that state one, else 224.
    """
    from torchvision import models

    image_size = getattr(model, "image_size", None)
    if isinstance(image_size, int):
        return image_size, image_size
    for weights in models.get_model_weights(name):
        options = getattr(weights.transforms, "keywords", {})
        size = options.get("crop_size") or options.get("resize_size")
        if size:
            sides = list(size) if isinstance(size, (list, tuple)) else [size]
            return int(sides[0]), int(sides[-1])
    return 224, 224


def _split_images(images: TensorInfo) -> tuple[TensorInfo, ...]:
    """Splits a batch of images into inputs of rank 3, as detection models expect."""
    *batch, channels, height, width = images.shape or ()
    count = int(batch[0]) if batch and isinstance(batch[0], int) else 1
    image = replace(images, shape=(channels, height, width))
    return tuple(replace(image, name=f"{images.name}.{i}") for i in range(count)) if count > 1 else (image,)


# -- inputs from the first layer

# sizes of images and lengths of sequences that are tried, in this order
_SIDES = (224, 32, 28, 64, 128, 299, 256, 96, 48, 16, 8)
_LENGTHS = (128, 64, 32, 16, 256, 512, 8, 1024, 4096, 16_000)
_MAX_SUBSET_INPUTS = 4
"""Maximum number of inputs without a type for which every subset is tried as integers."""


def _list_possible_candidates(first: nn.Module | None) -> tuple[str, list[tuple[int, ...]]]:
    """Returns the candidates of `_list_candidates` that are possible; none if the layer is invalid.

    The attributes of a layer can be from a file.
    """
    try:
        dtype, shapes = _list_candidates(first)
        # a shape with negative sizes, or more elements than memory has bytes, is impossible
        return dtype, [s for s in shapes if all(n >= 0 for n in s) and math.prod(s) < 1 << 56]
    except (ValueError, TypeError, AttributeError, ArithmeticError):
        return "float32", []


def _list_candidates(layer: Any) -> tuple[str, list[Size]]:
    """Returns element type and possible input shapes of a layer, most likely first; empty if unknown."""
    # columns: layer types, attribute with the channels or features (else num_features), other sizes
    table: list[tuple[Any, str, list[Size]]] = [
        (nn.Linear, "in_features", [(1,), (1, 16)]),
        (nn.BatchNorm1d, "num_features", [(1,)]),
        (nn.Conv1d, "in_channels", [(1, n) for n in _LENGTHS]),
        ((nn.Conv2d, nn.BatchNorm2d), "in_channels", [(1, n, n) for n in _SIDES]),
        (nn.Conv3d, "in_channels", [(1, _FRAMES, n, n) for n in (112, 224, 64, 32)]),
        (nn.RNNBase, "input_size", [(1, 16)]),
        (nn.LayerNorm, "normalized_shape", [(1,), (1, 16)]),
    ]
    if isinstance(layer, nn.Embedding):
        return "int64", [(1, n) for n in _LENGTHS]
    for kinds, attribute, sizes in table:
        if isinstance(layer, kinds):
            width = getattr(layer, attribute, None) or getattr(layer, "num_features", None)
            features = tuple(width) if isinstance(width, (tuple, list)) else (int(width or 1),)
            is_last_axis = isinstance(layer, (nn.Linear, nn.RNNBase, nn.LayerNorm))
            if isinstance(layer, nn.RNNBase) and not layer.batch_first:
                return "float32", [(16, 1, *features)]
            return "float32", [(*s, *features) if is_last_axis else (s[0], *features, *s[1:]) for s in sizes]
    return "", []


class _AllEmbeddingsReached(Exception):
    """Raised to end a trial run after every embedding has run."""


def _find_index_inputs(
    loaded: LoadedModule, model: nn.Module, bound_inputs: BoundInputs, untyped: Sequence[str]
) -> tuple[str, ...]:
    """Finds the inputs that are indices of embeddings, among those without a type.

    Subsets of these inputs are tried as integers, on tensors without values. The result is the first subset
    with which the model runs, at least until every embedding has run; empty if there is none.
    """
    if not untyped or not any(isinstance(m, (nn.Embedding, nn.EmbeddingBag)) for m in model.modules()):
        return ()
    meta_model = copy_without_values(model)
    pending: set[nn.Module] = set()

    def record_reached(module: nn.Module, *_: Any) -> None:
        pending.discard(module)
        if not pending:
            raise _AllEmbeddingsReached

    def check_rows(module: nn.Module, args: Any, kwargs: Any) -> None:
        rows = args[0] if args else kwargs.get("input")
        if isinstance(rows, torch.Tensor) and rows.is_floating_point():
            raise TypeError("the indices of an embedding are integers")

    tables = [m for m in meta_model.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
    for table in tables:
        # without values, torch 2.9 accepts any element type as indices
        table.register_forward_pre_hook(check_rows, with_kwargs=True)
        table.register_forward_hook(record_reached)
    sizes = range(len(untyped) + 1) if len(untyped) <= _MAX_SUBSET_INPUTS else (0, 1, len(untyped))
    for integer_names in (names for size in sizes for names in itertools.combinations(untyped, size)):
        pending.update(tables)
        inputs = [replace(i, dtype="int64") if i.name in integer_names else i for i in bound_inputs.inputs]
        args, kwargs = replace(bound_inputs, inputs=tuple(inputs)).build_arguments(device="meta")
        try:
            with loaded.quiet(), torch.no_grad():
                meta_model(*args, **kwargs)
        except _AllEmbeddingsReached:
            return integer_names
        except Exception:
            continue
        return integer_names
    return ()


def _find_first_layer(model: nn.Module) -> nn.Module | None:
    """Returns the first layer whose attributes determine its input shape, or None."""
    return next(
        (m for m in model.modules() if next(m.children(), None) is None and _list_possible_candidates(m)[1]),
        None,
    )


def _guess_only_input(
    loaded: LoadedModule, model: nn.Module, name: str, find_failure: FindFailure
) -> tuple[TensorInfo | None, str]:
    """Guesses the only input of a model from its first layer.

    Returns:
        The input with the first shape with which the model runs, and a note. If the model runs with no shape,
        None and a description of the failure with the most likely shape.
    """
    first = _find_first_layer(model)
    dtype, shapes = _list_possible_candidates(first)
    dtype = _find_floating_type(model) if dtype == "float32" else dtype
    first_failure = ""
    for shape in shapes:
        tensor = torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
        text = sizes_text(shape)
        with loaded.quiet():
            failure = find_failure(model, tensor)
        if failure is not None:
            layer, reason = failure
            where = f" in {layer}" if layer else ""
            first_failure = (
                first_failure
                or f"and with {text}, likely from its first layer, it fails{where}: {reason[:200]}"
            )
            continue
        layer_type = type(first).__name__
        note = f"input {name}: {text} guessed from the first layer ({layer_type}); --input-shape sets it"
        return TensorInfo(name, dtype, shape, "inferred"), note
    return None, first_failure


def _find_failure(
    try_run: FindFailure, model: nn.Module, *args: torch.Tensor, **kwargs: torch.Tensor
) -> tuple[str, str] | None:
    """Runs a model on tensors without values.

    Returns:
        The layer and the reason of a failure, or None if the model runs.
    """
    lazy = any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers()))
    # a recurrent layer is one operator under a dispatch mode, and many operators without one
    if not any(isinstance(module, nn.RNNBase) for module in model.modules()):
        try:
            # copy a model with lazy layers, because they would keep the sizes of a failed shape
            with torch.no_grad():
                (copy_without_values(model) if lazy else model)(*args, **kwargs)
            return None
        except Exception:
            # data-dependent operators return their bound only under a dispatch mode
            pass
    return try_run(copy_without_values(model) if lazy else model, *args, **kwargs)
