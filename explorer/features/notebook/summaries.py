"""Summaries of models for Python programs and notebooks, with the arguments of torchinfo's `summary`."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from explorer.base.checked import Count, Natural
from explorer.base.errors import Misuse, UnknownShape
from explorer.facts import NOTHING_KNOWN, Analysis, Layer
from explorer.facts.summary import Counts, RowSetting, Summary
from explorer.session.parts.models import InputShapes
from explorer.session.session import Session
from explorer.settings.columns import find_columns

if TYPE_CHECKING:
    import torch
    from torch import nn

_TORCHINFO_COLUMNS = {
    "input_size": "input",
    "output_size": "output",
    "num_params": "params",
    "params_percent": "params_share",
    "kernel_size": "kernel",
    "mult_adds": "macs",
}
"""Names of columns by their names in torchinfo. `trainable` is the same in both."""

_COLUMNS = ("output", "params", "macs", "share")
"""Default columns."""
_PARAMETER_COLUMNS = ("params", "weights")
"""Default columns if only the parameters are known."""
_SIZES_HINT = "pass input_size=(1, 3, 224, 224), or a list with one shape for each input"


def summary(
    model: nn.Module | str | os.PathLike[str],
    input_size: Sequence[int] | Sequence[Sequence[int]] | None = None,
    input_data: object = None,
    batch_dim: Natural | None = None,
    cache_forward_pass: bool | None = None,
    col_names: Sequence[str] | None = None,
    col_width: Count | None = None,
    depth: Count = 3,
    device: torch.device | str | None = None,
    dtypes: Sequence[torch.dtype] | None = None,
    mode: Literal["eval", "train"] = "eval",
    row_settings: Sequence[RowSetting] | None = None,
    verbose: Literal[0, 1, 2] | None = None,
    **kwargs: object,
) -> Summary:
    """Summarize a model as a table of its layers, with the arguments of torchinfo's `summary`.

    The model runs on shapes: it is neither moved nor changed, and its weights need no memory.

    Args:
        model: nn.Module, path of a model file, or name of a torchvision model.
        input_size: Shape of the input with its batch, or a list of shapes, one for each input.
        input_data: Inputs in place of `input_size`: a tensor or array, a list of them, or a dict of keyword
            inputs. With neither, the inputs are guessed from the model. If that fails, the table has only
            parameters.
        batch_dim: Position at which a batch of 1 is added to each `input_size`. None adds none.
        cache_forward_pass: Without effect; torchinfo needs it to avoid a second run.
        col_names: Columns: torchinfo's names, or names of `explorer layers --columns`. None for the output,
            parameters, MACs and their share.
        col_width: Minimum number of characters of each column of the text but the first. None makes columns
            as wide as their content; torchinfo's default is 25.
        depth: Number of levels of modules in the text, and open at first in a notebook.
        device: Device that the inputs would have. It only has to exist by name, and only for an nn.Module.
        dtypes: Element types of `input_size`, one for each input. None for the types that the model needs.
        mode: Mode of the modules. 'train' counts the forward pass with dropout, batch statistics and
            auxiliary outputs; `Session.training` counts a whole training step.
        row_settings: Parts of the row names, as in torchinfo's '├─Linear (fc): 1-2'. Each name has the type.
            'var_names' adds the name in the parent, '(fc)'. 'depth' adds the level and the row's number in
            the level, '1-2'. 'ascii_only' draws the table in ASCII. 'hide_recursive_layers' has no effect,
            because a module that is called again has one row with the number of calls. Functions such as
            `add` are rows, too. None for a column of names and a column of types.
        verbose: 0 prints nothing, 1 prints the table, 2 also prints the tensors of each layer. None prints
            the table in a script, and nothing in an interactive session, which shows the result itself.
        **kwargs: Keyword arguments of the model's `forward`.

    Raises:
        Misuse: An argument does not fit the model, or a column does not exist.
        BadModel: The model cannot run on these inputs; the message names the layer.
    """
    names = [_TORCHINFO_COLUMNS.get(name, name) for name in col_names or ()]
    column_names = [column.name for column in find_columns(names, where="summary(col_names)")]
    # the cache has only analyses of evaluation mode
    has_cache = mode == "eval"
    with _open(model, input_size, input_data, batch_dim, device, dtypes, kwargs, cache=has_cache) as session:
        if mode == "train":
            _set_training_mode(session)
        analysis, has_only_parameters = _analyze(session)
    columns = tuple(column_names) or (_PARAMETER_COLUMNS if has_only_parameters else _COLUMNS)
    fact = Summary(
        analysis.info,
        analysis.layers,
        ("kind", *columns),
        depth,
        verbose == 2,
        tuple(row_settings or ()),
        col_width or 0,
    )
    if verbose or (verbose is None and not hasattr(sys, "ps1")):
        sys.stdout.write(f"{fact}\n")
    return fact


def count(
    model: nn.Module | str | os.PathLike[str],
    input_size: Sequence[int] | Sequence[Sequence[int]] | None = None,
    input_data: object = None,
    *,
    dtypes: Sequence[torch.dtype] | None = None,
    dims: Mapping[str, int] | None = None,
    **kwargs: object,
) -> Counts:
    """Count the MACs, parameters and bytes of a model.

    Args:
        model: nn.Module, path of a model file, or name of a torchvision model.
        input_size: Shape of the input with its batch, or a list of shapes, as in `summary`.
        input_data: Inputs in place of `input_size`, as in `summary`.
        dtypes: Element types of `input_size`. None for the types that the model needs.
        dims: Sizes of open dimensions: {'batch': 8}.
        **kwargs: Keyword arguments of the model's `forward`.

    Raises:
        Misuse: An argument does not fit the model.
        BadModel: The file is not a model, or the model cannot run on these inputs.
    """
    with _open(model, input_size, input_data, None, None, dtypes, kwargs, dims) as session:
        totals = session.info().totals
    return Counts(
        macs=totals.macs,
        params=totals.params,
        flops=totals.flops,
        weight_bytes=totals.weight_bytes,
        activation_bytes_peak=totals.activation_bytes_peak,
        coverage=totals.coverage,
        status=totals.status,
    )


def _open(
    model: nn.Module | str | os.PathLike[str],
    input_size: Sequence[int] | Sequence[Sequence[int]] | None,
    input_data: object,
    batch_dim: int | None,
    device: torch.device | str | None,
    dtypes: Sequence[torch.dtype] | None,
    kwargs: Mapping[str, object],
    dims: Mapping[str, int] | None = None,
    *,
    cache: bool = True,
) -> Session:
    """Open a session with the inputs of the model.

    Raises:
        Misuse: The arguments contradict each other, or a file has arguments that only an nn.Module accepts.
    """
    if input_size is not None and input_data is not None:
        raise Misuse(
            "the inputs have both sizes and data", where="input_size, input_data", hint="leave one out"
        )
    sizes = None if input_size is None else _read_sizes(input_size, batch_dim)
    if isinstance(model, (str, os.PathLike)):
        if input_data is not None or kwargs:
            raise Misuse(
                "only an nn.Module object takes input data",
                where="input_data" if input_data is not None else next(iter(kwargs)),
                hint="pass input_size=(1, 3, 224, 224)",
            )
        shapes = None if sizes is None else _build_unnamed_shape(sizes, dtypes)
        return Session(model, input_shapes=shapes, dims=dims, cache=cache)
    if device is not None:
        _check_device(device)
    if (
        sizes is not None
        and not dtypes
        and not kwargs
        and (by_name := _name_shapes_by_argument(model, sizes))
    ):
        return Session(model, input_shapes=by_name, dims=dims)
    inputs = input_data if sizes is None else _build_inputs(sizes, dtypes)
    return Session(model, inputs=inputs, kwargs=kwargs or None, dims=dims)


def _read_sizes(
    input_size: Sequence[int] | Sequence[Sequence[int]], batch_dim: int | None
) -> list[tuple[int, ...]]:
    """Read one shape or a list of shapes, and add the batch.

    Raises:
        Misuse: A size is not a whole number of at least 0, or a shape is too short for `batch_dim`.
    """
    parts: list[Any] = list(input_size)
    is_nested = bool(parts) and all(isinstance(part, (list, tuple)) for part in parts)
    shapes = [tuple(part) for part in parts] if is_nested else [tuple(parts)]
    for shape in shapes:
        for size in shape:
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise Misuse(
                    f"'{size}' is not a size",
                    where="input_size",
                    hint="write a shape such as (1, 3, 224, 224), or a list of shapes",
                )
    if batch_dim is None:
        return shapes
    for shape in shapes:
        if batch_dim > len(shape):
            raise Misuse(
                f"{shape} has no position {batch_dim} for a batch", where="batch_dim", hint="write 0"
            )
    return [(*shape[:batch_dim], 1, *shape[batch_dim:]) for shape in shapes]


def _build_unnamed_shape(
    sizes: Sequence[tuple[int, ...]], dtypes: Sequence[torch.dtype] | None
) -> InputShapes:
    """Return the shape of a model's only input under the name '', which stands for that input.

    Raises:
        Misuse: There are several shapes.
    """
    if len(sizes) != 1:
        raise Misuse(
            f"{len(sizes):,} shapes have no names",
            where="input_size",
            hint="name the inputs: Session(model, input_shapes={'x': (None, (1, 3, 32, 32))})",
        )
    return {"": (str(dtypes[0]).removeprefix("torch.") if dtypes else None, sizes[0])}


def _name_shapes_by_argument(model: nn.Module, sizes: Sequence[tuple[int, ...]]) -> InputShapes:
    """Return the shapes by the names of the arguments of `forward`.

    The shapes have no element types, so the session chooses the types that the model needs, such as integers
    for an embedding. Returns {} if `forward` has too few arguments or does not exist.
    """
    forward = getattr(model, "forward", None)
    if forward is None:  # not a module; the session reports the error
        return {}
    parameters = inspect.signature(forward).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return (
        {name: (None, size) for name, size in zip(names, sizes, strict=False)}
        if len(names) >= len(sizes)
        else {}
    )


def _check_device(device: torch.device | str) -> None:
    """Refuse a device whose name torch does not know.

    Raises:
        Misuse: torch does not know the name.
    """
    import torch  # imported on demand: takes a second, and a model file needs no torch

    try:
        torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise Misuse(
            f"torch knows no device '{device}'", where="device", hint="write 'cpu' or 'cuda:0'"
        ) from error


def _build_inputs(
    sizes: Sequence[tuple[int, ...]], dtypes: Sequence[torch.dtype] | None
) -> tuple[torch.Tensor, ...]:
    """Return meta tensors, which have no values, of the shapes and types; float32 without types.

    Raises:
        Misuse: An element type is not one of torch, or their number is not the number of shapes.
    """
    import torch  # imported on demand: takes a second, and a model file needs no torch

    element_types = list(dtypes) if dtypes else [torch.float32] * len(sizes)
    if len(element_types) != len(sizes):
        raise Misuse(
            f"there are {len(element_types):,} types for {len(sizes):,} inputs",
            where="dtypes",
            hint="write a type for each shape: dtypes=[torch.float32]",
        )
    for dtype in element_types:
        if not isinstance(dtype, torch.dtype):
            raise Misuse(f"{dtype!r} is not a type of torch", where="dtypes", hint="write torch.float32")
    return tuple(
        torch.empty(size, dtype=dtype, device="meta")
        for size, dtype in zip(sizes, element_types, strict=True)
    )


def _set_training_mode(session: Session) -> None:
    """Make the analysis run the modules in training mode.

    Raises:
        Misuse: The model is not an nn.Module.
    """
    if not session.parts.models.from_torch:
        raise Misuse(
            "only an nn.Module has a training mode", where="summary(mode)", hint="leave it out for a file"
        )
    opened: Any = session.parts.models.open_state()
    opened.loaded.train = True


def _analyze(session: Session) -> tuple[Analysis, bool]:
    """Analyze the model. If its inputs are unknown, list its parameters alone.

    Returns:
        The analysis, and whether only the parameters are known.
    """
    try:
        return session.analysis(), False
    except UnknownShape as error:
        opened: Any = session.parts.models.open_state()
        info = session.stored()
        # the hint of the error is for the command line
        notes = (*info.model.notes, f"{error.what}; {_SIZES_HINT}")
        info = replace(info, model=replace(info.model, notes=notes))
        return Analysis(info, _list_parameter_rows(opened.loaded.meta())), True


def _list_parameter_rows(module: nn.Module) -> tuple[Layer, ...]:
    """Return a row for each module; it counts each parameter in the module once, with inner modules."""
    rows: list[Layer] = []

    def add(path: str, name: str, part: nn.Module, parent: int | None, depth: int) -> None:
        parameters = list(part.parameters())
        row = Layer(
            id=len(rows),
            parent=parent,
            path=path,
            name=name,
            kind=type(part).__name__,
            depth=depth,
            group=any(True for _ in part.children()),
            params=sum(parameter.numel() for parameter in parameters),
            weight_bytes=sum(parameter.numel() * parameter.element_size() for parameter in parameters),
            trainable_params=sum(p.numel() for p in parameters if p.requires_grad),
            **NOTHING_KNOWN,
        )
        rows.append(row)
        for child_name, child in part.named_children():
            add(f"{path}.{child_name}", child_name, child, row.id, depth + 1)

    children = list(module.named_children())
    for child_name, child in children:
        add(child_name, child_name, child, None, 0)
    if not children:
        add("", type(module).__name__, module, None, 0)
    return tuple(rows)
