"""Dynamic axes: the dimensions that a converted model leaves open, their sizes during export, and other sizes
at which the result is tested.

torch.export treats a size of 0 or 1 as a constant in any case, so an open dimension has at least size 2
during export. If an exporter writes that size into the graph nevertheless, running the result at another size
reveals it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import Misuse, nearest
from explorer.base.units import shape_text
from explorer.engine.costs.torch.signature import outputs_of
from explorer.facts import TensorInfo

if TYPE_CHECKING:
    from explorer.engine.formats.torch_module.arguments import BoundInputs
    from explorer.engine.formats.torch_module.loaded_module import LoadedModule

LEAST = 2
"""The smallest size that torch.export does not treat as a constant."""


class Axes(Struct, frozen=True):
    """The open dimensions.

    Attributes:
        inputs: For each input, its open axes and the names of their dimensions.
        sizes: The size of each dimension during export.
        bound: The inputs at those sizes.
        others: The inputs at other sizes at which the model runs; empty if no dimension is open.
    """

    inputs: tuple[Mapping[int, str], ...]
    sizes: Mapping[str, int]
    bound: BoundInputs
    others: tuple[BoundInputs, ...] = ()

    @property
    def open(self) -> bool:
        """Whether any dimension is open."""
        return bool(self.sizes)


def settle(
    loaded: LoadedModule,
    bound_inputs: BoundInputs,
    dynamic: Mapping[str, Mapping[int, str]],
    names: Sequence[str],
) -> Axes:
    """Decides which dimensions stay open, their sizes during export, and the other sizes to test.

    Args:
        loaded: The model.
        bound_inputs: Its inputs.
        dynamic: The requested dimensions: input to axis to name of the dimension.
        names: The names of the inputs in the result, which the user may use as well.

    Raises:
        Misuse: There is no such input or axis, or one dimension has two sizes.
    """
    input_names = [info.name for info in bound_inputs.inputs]
    axes_by_input: dict[str, Mapping[int, str]] = {}
    for name, axes in dynamic.items():
        candidates = input_names if name in input_names else list(names)
        if name not in candidates:
            raise Misuse(f"no input is called '{name}'", where="--dynamic", hint=nearest(name, input_names))
        axes_by_input[input_names[candidates.index(name)]] = axes
    inputs = tuple(
        {_checked_axis(info, axis): name for axis, name in axes_by_input.get(info.name, {}).items()}
        for info in bound_inputs.inputs
    )
    example = bound_inputs.example
    packed = example is not None and len(input_names) != len(example.args) + len(example.kwargs)
    if axes_by_input and (bound_inputs.images or packed):
        raise Misuse("this model takes its inputs packed in lists", where="--dynamic", hint="leave it out")
    sizes = _sizes(bound_inputs.inputs, inputs)
    export_inputs = _resize(bound_inputs, inputs, {name: max(size, LEAST) for name, size in sizes.items()})
    export_sizes = _sizes(export_inputs.inputs, inputs)
    other_inputs: dict[tuple[int, ...], BoundInputs] = {}
    for candidate_sizes in (
        (_sizes_to_try(export_sizes), _lengths(export_sizes, 3), _lengths(export_sizes, 17)) if sizes else ()
    ):
        resized = ((tuple(sizes_to_test.values()), _resize(export_inputs, inputs, sizes_to_test)) for sizes_to_test in candidate_sizes)
        first_runnable = next((pair for pair in resized if outputs_of(loaded, pair[1]) is not None), None)
        if first_runnable is not None and first_runnable[0] != tuple(export_sizes.values()):
            other_inputs.setdefault(*first_runnable)
    loaded.bound = export_inputs
    return Axes(inputs, export_sizes, export_inputs, tuple(other_inputs.values()))


def specifications(loaded: LoadedModule, axes: Axes) -> Any:
    """`dynamic_shapes` for torch.export, by argument name; None if no dimension is open."""
    if not axes.open:
        return None
    from torch.export import Dim

    dims = {name: Dim(name) for name in axes.sizes}
    dims_by_input = [{axis: dims[name] for axis, name in open_axes.items()} for open_axes in axes.inputs]
    args, kwargs = axes.bound.call(dims_by_input)  # type: ignore[arg-type]
    return dict(inspect.signature(loaded.meta().forward).bind(*args, **kwargs).arguments)


def inputs(axes: Axes) -> tuple[TensorInfo, ...]:
    """The inputs, with names of open dimensions instead of sizes."""
    infos = []
    for info, axis_names in zip(axes.bound.inputs, axes.inputs, strict=True):
        shape = tuple(axis_names.get(axis, size) for axis, size in enumerate(info.shape or ()))
        infos.append(replace(info, shape=shape))
    return tuple(infos)


def notes(axes: Axes) -> tuple[str, ...]:
    """Notes about the open dimensions, for the report."""
    if not axes.open:
        return ()
    sizes = ", ".join(f"{name}={size}" for name, size in axes.sizes.items())
    if not axes.others:
        return (f"exported with {sizes}; no other size was found at which the module itself runs",)
    return (f"exported with {sizes}",)


def outputs(loaded: LoadedModule, axes: Axes) -> tuple[TensorInfo, ...]:
    """The outputs, with names for the sizes that depend on open dimensions; empty if unknown."""
    infos = outputs_of(loaded, axes.bound) or ()
    other_infos = outputs_of(loaded, axes.others[0]) if axes.others else None
    if other_infos is None or len(infos) != len(other_infos):
        return infos
    other_sizes = _sizes(axes.others[0].inputs, axes.inputs)
    named_infos = []
    for index, (a, b) in enumerate(zip(infos, other_infos, strict=True)):
        shape = list(a.shape or ())
        for axis, (old, new) in enumerate(zip(a.shape or (), b.shape or (), strict=False)):
            if old != new:
                alike = (n for n, size in axes.sizes.items() if (size, other_sizes[n]) == (old, new))
                shape[axis] = next(alike, f"output{index}_{axis}")
        named_infos.append(replace(a, shape=tuple(shape)))
    return tuple(named_infos)


def _checked_axis(info: TensorInfo, axis: int) -> int:
    rank = len(info.shape or ())
    if not -rank <= axis < rank:
        hint = f"its shape is {shape_text(info.shape)}"
        raise Misuse(f"'{info.name}' has no axis {axis}", where="--dynamic", hint=hint)
    return axis % rank


def _sizes(infos: Sequence[TensorInfo], inputs: Sequence[Mapping[int, str]]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for info, axes in zip(infos, inputs, strict=True):
        for axis, name in axes.items():
            size = (info.shape or ())[axis]
            assert isinstance(size, int)
            if sizes.setdefault(name, size) != size:
                hint = "give the two dimensions different names, or shapes that agree by --input-shape"
                raise Misuse(f"'{name}' would be {sizes[name]} and {size}", where="--dynamic", hint=hint)
    return sizes


def _resize(
    bound_inputs: BoundInputs, inputs: Sequence[Mapping[int, str]], sizes: Mapping[str, int]
) -> BoundInputs:
    infos = []
    for info, axes in zip(bound_inputs.inputs, inputs, strict=True):
        shape = [sizes[axes[axis]] if axis in axes else size for axis, size in enumerate(info.shape or ())]
        infos.append(replace(info, shape=tuple(shape)))
    return replace(bound_inputs, inputs=tuple(infos))


def _sizes_to_try(sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Sizes to test, likeliest first; dimensions of different size never become equal by chance."""
    yield {name: size + 1 + index for index, (name, size) in enumerate(sizes.items())}
    yield {name: size + 1 for name, size in sizes.items()}
    for step in (8, 32):
        yield {name: size + step for name, size in sizes.items()}
    yield {name: size * 2 for name, size in sizes.items()}
    for changed_name in sizes:
        for step in (1, 8, 32):
            yield {name: size + step if name == changed_name else size for name, size in sizes.items()}


def _lengths(sizes: Mapping[str, int], minimum: int) -> Iterator[dict[str, int]]:
    """Sizes from `minimum` on: all different, or all equal if two names had the same size."""
    yield {name: minimum + 2 * index for index, name in enumerate(sizes)}
    yield dict.fromkeys(sizes, minimum)
