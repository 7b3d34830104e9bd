"""Prints the table of torchsummary 1.5.1, with its numbers, indices and rounding, without the package.

torchsummary (github.com/sksq96/pytorch-summary) prints one row for each call of a module, except for the
model itself, Sequential and ModuleList. The batch in the table is the argument `batch_size` (-1 by default),
or -1 in lists of outputs. torchsummary counts only the parameters `weight` and `bias`, and takes 4 bytes for
each number. With several inputs, it multiplies the sizes of all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from torch import Tensor, nn

from explorer.base.errors import BadModel, ExplorerError
from explorer.base.units import printable
from explorer.engine.costs.torch.signature import bind
from explorer.engine.runtime.torch_fastpath import restore_modes
from explorer.host.optional_packages import format_error

if TYPE_CHECKING:
    from explorer.engine.formats.torch_module.loaded_module import LoadedModule

_RULE, _DOUBLE_RULE = "-" * 64, "=" * 64
_MEBI = 4.0 / 1024**2
"""Mebibytes of one number of 4 bytes."""


class _Call(Struct):
    """A call of a module.

    Attributes:
        name: Class of the module with the index of the call: 'Conv2d-1'.
        shapes: Shapes of the outputs, with torchsummary's batch.
        is_single_tensor: Whether the output is one tensor instead of a list.
        params: Number of elements of `weight` and `bias`.
        is_trainable: Whether `weight` is trained.
    """

    name: str
    shapes: list[list[int]]
    is_single_tensor: bool
    params: int
    is_trainable: bool


def summarize(
    loaded: LoadedModule,
    input_shapes: Mapping[str, tuple[str | None, tuple[int, ...]]] | None = None,
    dims: Mapping[str, int] | None = None,
    batch_size: int = -1,
) -> str:
    """Returns the table of a module as torchsummary prints it.

    Args:
        loaded: Model to run: its copy on the meta device, or the model with values if the copy cannot run.
        input_shapes: Input dtypes and shapes by name, as passed to the analysis.
        dims: Sizes of dimensions by name, as passed to the analysis.
        batch_size: torchsummary's argument: the batch of the table. The model runs on its own inputs.

    Raises:
        BadModel: The model cannot run.
    """
    bound_inputs = bind(loaded, input_shapes, dims)
    try:
        calls, shapes = _run(loaded, bound_inputs, "meta", batch_size)
    except ExplorerError:
        raise
    except Exception:
        # operators that need values do not run on the meta device
        try:
            calls, shapes = _run(loaded, bound_inputs, "cpu", batch_size)
        except Exception as error:
            raise BadModel(f"the model cannot run: {format_error(error)}", where=loaded.source) from error
    return "\n".join(map(printable, _print(calls, shapes, batch_size)))


def _run(
    loaded: LoadedModule, bound_inputs: Any, device: str, batch_size: int
) -> tuple[list[_Call], list[Sequence[int]]]:
    """Runs the model and returns the calls of its modules, and the shapes of its inputs without the batch."""
    model = loaded.meta() if device == "meta" else loaded.materialize()
    args, kwargs = bound_inputs.build_arguments(device=device)
    calls: list[_Call] = []

    def record(module: nn.Module, _: object, output: object) -> None:
        batch = batch_size if isinstance(output, Tensor) else -1
        shapes = [[batch, *tensor.shape[1:]] for tensor in _list_tensors(output)]
        parts = [getattr(module, name, None) for name in ("weight", "bias")]
        params = sum(part.numel() for part in parts if isinstance(part, Tensor))
        is_trainable = isinstance(parts[0], Tensor) and parts[0].requires_grad
        name = f"{type(module).__name__}-{len(calls) + 1}"
        calls.append(_Call(name, shapes, isinstance(output, Tensor), params, is_trainable))

    hooks = [
        module.register_forward_hook(record)
        for module in model.modules()
        if module is not model and not isinstance(module, (nn.Sequential, nn.ModuleList))
    ]
    try:
        with loaded.quiet(), restore_modes(model.modules()):
            model(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    return calls, [tensor.shape[1:] for tensor in _list_tensors([*args, *kwargs.values()])]


def _list_tensors(value: object) -> Iterable[Tensor]:
    """Yields the tensors of a nested value."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _list_tensors(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _list_tensors(part)


def _print(calls: Sequence[_Call], inputs: Sequence[Sequence[int]], batch_size: int) -> Iterable[str]:
    """Yields the lines of the table."""
    yield _RULE
    yield f"{'Layer (type)':>20}  {'Output Shape':>25} {'Param #':>15}"
    yield _DOUBLE_RULE
    for call in calls:
        shape = call.shapes[0] if call.is_single_tensor else call.shapes
        yield f"{call.name:>20}  {shape!s:>25} {call.params:>15,}"
    params = sum(call.params for call in calls)
    trained = sum(call.params for call in calls if call.is_trainable)
    # the outputs of a list are multiplied, as torchsummary does
    outputs = sum(math.prod(size for shape in call.shapes for size in shape) for call in calls)
    sizes = [
        abs(math.prod(size for shape in inputs for size in shape) * batch_size * _MEBI),
        abs(2 * outputs * _MEBI),
        params * _MEBI,
    ]
    yield _DOUBLE_RULE
    yield f"Total params: {params:,}"
    yield f"Trainable params: {trained:,}"
    yield f"Non-trainable params: {params - trained:,}"
    yield _RULE
    yield f"Input size (MB): {sizes[0]:.2f}"
    yield f"Forward/backward pass size (MB): {sizes[1]:.2f}"
    yield f"Params size (MB): {sizes[2]:.2f}"
    yield f"Estimated Total Size (MB): {sum(sizes):.2f}"
    yield _RULE
