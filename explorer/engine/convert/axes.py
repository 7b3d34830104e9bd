"""Dynamic axes: open dimensions of a converted model, their sizes during export, and further sizes to test.

torch.export always treats a size of 0 or 1 as a constant. An open dimension therefore has at least size 2
during export. Some exporters still write that size into the graph as a constant. Running the result at
another size detects this.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import Misuse, suggest_name
from explorer.base.units import shape_text
from explorer.engine.costs.torch.signature import find_outputs
from explorer.facts import TensorInfo

if TYPE_CHECKING:
    from explorer.engine.formats.torch_module.arguments import BoundInputs
    from explorer.engine.formats.torch_module.loaded_module import LoadedModule

MIN_OPEN_SIZE = 2
"""Smallest size that torch.export does not treat as a constant."""


class OpenAxes(Struct, frozen=True):
    """Open dimensions of a model's inputs.

    Attributes:
        inputs: For each input, its open axes and the names of their dimensions.
        sizes: Size of each dimension during export.
        export_inputs: Inputs at those sizes.
        other_inputs: Inputs at further sizes at which the model runs; empty if no dimension is open.
    """

    inputs: tuple[Mapping[int, str], ...]
    sizes: Mapping[str, int]
    export_inputs: BoundInputs
    other_inputs: tuple[BoundInputs, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether any dimension is open."""
        return bool(self.sizes)


def resolve(
    loaded: LoadedModule,
    bound_inputs: BoundInputs,
    dynamic: Mapping[str, Mapping[int, str]],
    names: Sequence[str],
) -> OpenAxes:
    """Selects the dimensions that stay open, their sizes during export, and the further sizes to test.

    `loaded.bound` becomes the inputs at the sizes for the export.

    Args:
        loaded: Source model.
        bound_inputs: Inputs of the model.
        dynamic: Requested dimensions: input name to axis to dimension name.
        names: Names of the inputs in the result. The user may use them in `dynamic`.

    Raises:
        Misuse: An input or axis does not exist, two axes with one dimension name differ in size, or the model
            takes its inputs in lists.
    """
    input_names = [info.name for info in bound_inputs.inputs]
    axes_by_input: dict[str, Mapping[int, str]] = {}
    for name, axes in dynamic.items():
        candidates = input_names if name in input_names else list(names)
        if name not in candidates:
            raise Misuse(
                f"no input is called '{name}'", where="--dynamic", hint=suggest_name(name, input_names)
            )
        axes_by_input[input_names[candidates.index(name)]] = axes
    inputs = tuple(
        {_normalize_axis(info, axis): name for axis, name in axes_by_input.get(info.name, {}).items()}
        for info in bound_inputs.inputs
    )
    example = bound_inputs.example
    is_packed = example is not None and len(input_names) != len(example.args) + len(example.kwargs)
    if axes_by_input and (bound_inputs.has_image_list or is_packed):
        raise Misuse("this model takes its inputs packed in lists", where="--dynamic", hint="leave it out")
    sizes = _list_sizes(bound_inputs.inputs, inputs)
    export_inputs = _resize_inputs(
        bound_inputs, inputs, {name: max(size, MIN_OPEN_SIZE) for name, size in sizes.items()}
    )
    export_sizes = _list_sizes(export_inputs.inputs, inputs)
    other_inputs: dict[tuple[int, ...], BoundInputs] = {}
    candidate_lists = (
        _list_sizes_to_try(export_sizes),
        _list_sizes_from(export_sizes, 3),
        _list_sizes_from(export_sizes, 17),
    )
    for candidate_sizes in candidate_lists if sizes else ():
        resized = (
            (tuple(sizes_to_test.values()), _resize_inputs(export_inputs, inputs, sizes_to_test))
            for sizes_to_test in candidate_sizes
        )
        first_runnable = next((pair for pair in resized if find_outputs(loaded, pair[1]) is not None), None)
        if first_runnable is not None and first_runnable[0] != tuple(export_sizes.values()):
            other_inputs.setdefault(*first_runnable)
    loaded.bound = export_inputs
    return OpenAxes(inputs, export_sizes, export_inputs, tuple(other_inputs.values()))


def build_dynamic_shapes(loaded: LoadedModule, axes: OpenAxes) -> Any:
    """Returns `dynamic_shapes` for torch.export, by argument name, or None if no dimension is open."""
    if not axes.is_open:
        return None
    from torch.export import Dim

    dims = {name: Dim(name) for name in axes.sizes}
    dims_by_input = [{axis: dims[name] for axis, name in open_axes.items()} for open_axes in axes.inputs]
    args, kwargs = axes.export_inputs.pack_arguments(dims_by_input)  # type: ignore[arg-type]
    return dict(inspect.signature(loaded.meta().forward).bind(*args, **kwargs).arguments)


def describe_inputs(axes: OpenAxes) -> tuple[TensorInfo, ...]:
    """Returns the facts of the inputs; names replace the sizes of open dimensions."""
    infos = []
    for info, axis_names in zip(axes.export_inputs.inputs, axes.inputs, strict=True):
        shape = tuple(axis_names.get(axis, size) for axis, size in enumerate(info.shape or ()))
        infos.append(replace(info, shape=shape))
    return tuple(infos)


def list_notes(axes: OpenAxes) -> tuple[str, ...]:
    """Returns notes about the open dimensions, for the report."""
    if not axes.is_open:
        return ()
    sizes = ", ".join(f"{name}={size}" for name, size in axes.sizes.items())
    if not axes.other_inputs:
        return (f"exported with {sizes}; no other size was found at which the module itself runs",)
    return (f"exported with {sizes}",)


def describe_outputs(loaded: LoadedModule, axes: OpenAxes) -> tuple[TensorInfo, ...]:
    """Returns the facts of the outputs, or () if unknown. Names replace sizes that are open."""
    infos = find_outputs(loaded, axes.export_inputs) or ()
    other_infos = find_outputs(loaded, axes.other_inputs[0]) if axes.other_inputs else None
    if other_infos is None or len(infos) != len(other_infos):
        return infos
    other_sizes = _list_sizes(axes.other_inputs[0].inputs, axes.inputs)
    named_infos = []
    for index, (info, other_info) in enumerate(zip(infos, other_infos, strict=True)):
        shape = list(info.shape or ())
        for axis, (old, new) in enumerate(zip(info.shape or (), other_info.shape or (), strict=False)):
            if old != new:
                matching_names = (n for n, size in axes.sizes.items() if (size, other_sizes[n]) == (old, new))
                shape[axis] = next(matching_names, f"output{index}_{axis}")
        named_infos.append(replace(info, shape=tuple(shape)))
    return tuple(named_infos)


def _normalize_axis(info: TensorInfo, axis: int) -> int:
    rank = len(info.shape or ())
    if not -rank <= axis < rank:
        hint = f"its shape is {shape_text(info.shape)}"
        raise Misuse(f"'{info.name}' has no axis {axis}", where="--dynamic", hint=hint)
    return axis % rank


def _list_sizes(infos: Sequence[TensorInfo], inputs: Sequence[Mapping[int, str]]) -> dict[str, int]:
    """Returns the size of each open dimension by name; refuses a name with two sizes."""
    sizes: dict[str, int] = {}
    for info, axes in zip(infos, inputs, strict=True):
        for axis, name in axes.items():
            size = (info.shape or ())[axis]
            assert isinstance(size, int)
            if sizes.setdefault(name, size) != size:
                hint = "give the two dimensions different names, or pass shapes that agree with --input-shape"
                raise Misuse(f"'{name}' would be {sizes[name]} and {size}", where="--dynamic", hint=hint)
    return sizes


def _resize_inputs(
    bound_inputs: BoundInputs, inputs: Sequence[Mapping[int, str]], sizes: Mapping[str, int]
) -> BoundInputs:
    infos = []
    for info, axes in zip(bound_inputs.inputs, inputs, strict=True):
        shape = [sizes[axes[axis]] if axis in axes else size for axis, size in enumerate(info.shape or ())]
        infos.append(replace(info, shape=tuple(shape)))
    return replace(bound_inputs, inputs=tuple(infos))


def _list_sizes_to_try(sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yields candidate sizes to test, likeliest first.

    In the first candidate, different dimensions grow by different amounts.
    """
    yield {name: size + 1 + index for index, (name, size) in enumerate(sizes.items())}
    yield {name: size + 1 for name, size in sizes.items()}
    for step in (8, 32):
        yield {name: size + step for name, size in sizes.items()}
    yield {name: size * 2 for name, size in sizes.items()}
    for changed_name in sizes:
        for step in (1, 8, 32):
            yield {name: size + step if name == changed_name else size for name, size in sizes.items()}


def _list_sizes_from(sizes: Mapping[str, int], minimum: int) -> Iterator[dict[str, int]]:
    """Yields sizes from `minimum` on: first all different, then all equal for models that require it."""
    yield {name: minimum + 2 * index for index, name in enumerate(sizes)}
    yield dict.fromkeys(sizes, minimum)
