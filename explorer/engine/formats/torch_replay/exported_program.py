"""Exported program (.pt2): rebuilds an nn.Module from a file of torch.export.save.

torch.export.load can run any code in a file: it unpickles weights and sample inputs, evaluates expressions of
dynamic sizes, and calls any torch function that a node names. This module reads the archive as data instead.
The graph and the offsets of the weights are JSON, and the weights are raw bytes. It unpickles nothing, and
calls only operators of the libraries in `operators`.

Each node of the graph names its module, so the tree of modules can be rebuilt. Each module is replaced by a
twin (see `rebuilt_module`). Consecutive nodes of one module become one call of its twin, so hooks, counters
and exporters see the same calls as in the original model. Dynamic sizes have their values at export until the
user binds them.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from explorer.base.errors import BadModel, Misuse, suggest_name
from explorer.base.units import printable, shape_text
from explorer.engine.compat.torch import parameters_of
from explorer.engine.formats.torch_files.exported_program import (
    DTYPES,
    SYMBOL,
    extract_symbol,
    find_batch_symbol,
    list_stored_entries,
)
from explorer.engine.formats.torch_files.tensors import StorageRef, TensorSpec
from explorer.engine.formats.torch_files.zip_archive import ZipArchive
from explorer.engine.formats.torch_module.arguments import BoundInputs
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.formats.torch_replay.graph import MAX_ELEMENTS, Program, read
from explorer.engine.formats.torch_replay.graph_replay import GraphReplay
from explorer.engine.formats.torch_replay.rebuilt_module import (
    ReplayModule,
    add_tensor,
    create_loaded_module,
    create_twin,
    set_attributes,
)
from explorer.engine.formats.torch_replay.storages import Storages
from explorer.facts import TensorInfo

# -- dynamic sizes


def _evaluate(text: str, values: Mapping[str, int]) -> int:
    """Evaluates an expression of sizes, which combines symbols and integers with arithmetic operators.

    Raises:
        ValueError: The text is not such an expression.
    """
    return _evaluate_node(ast.parse(SYMBOL.sub(r"\1", text), mode="eval").body, values)


# operators and functions in the expressions of sizes; a power outside 0 to 64, which no size has, gives 0
_ARITHMETIC: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {
    "Integer": int,
    "Add": lambda *terms: sum(terms),
    "Mul": lambda *factors: math.prod(factors),
    "Pow": lambda base, power: base**power if 0 <= power <= 64 else 0,
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
    "Max": max,
    "Min": min,
}


def _evaluate_node(node: ast.expr, values: Mapping[str, int]) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        return values[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate_node(node.operand, values)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        return _ARITHMETIC[type(node.op)](
            _evaluate_node(node.left, values), _evaluate_node(node.right, values)
        )
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        return _FUNCTIONS[node.func.id](*(_evaluate_node(a, values) for a in node.args))
    raise ValueError("not an expression of sizes")


def _find_open_dims(program: Program) -> dict[str, tuple[str, int]]:
    """Returns the dimensions that a user can bind: (symbol, value at export) by name.

    If all inputs have a common dynamic first dimension, it has the name 'batch'.
    """
    open_dims: dict[str, tuple[str, int]] = {}
    first_symbols = set()
    for program_input in program.inputs:
        for axis, size in enumerate(program_input.sizes):
            symbol = None if isinstance(size, int) else extract_symbol(size[0])
            if not axis:
                first_symbols.add(symbol)
            if symbol is not None and not isinstance(size, int) and symbol.isidentifier():
                open_dims.setdefault(symbol, (symbol, size[1]))
    common = find_batch_symbol(first_symbols, open_dims)
    if common is not None:
        open_dims = {"batch": open_dims[common], **{n: s for n, s in open_dims.items() if n != common}}
    return open_dims


def _bind(
    program: Program, input_shapes: Mapping[str, tuple[str | None, Any]], dims: Mapping[str, int]
) -> BoundInputs:
    """Binds dynamic dimensions to the user's sizes; the others keep their sizes at export.

    Args:
        program: Exported program.
        input_shapes: (element type or None, shape) by input name, as the user gave them.
        dims: Size of each dimension that the user bound, by name.

    Raises:
        Misuse: A size or element type is fixed in the program, a size is outside its range, or an input or
            dimension does not exist.
    """
    open_dims = _find_open_dims(program)
    values = dict(open_dims.values())
    for name, size in dims.items():
        symbol = open_dims[name][0] if name in open_dims else name if name in values else None
        if symbol is None:
            hint = suggest_name(name, open_dims) or "all sizes of this program are fixed"
            raise Misuse(f"no dimension is called '{name}'", where="--dim", hint=hint)
        values[symbol] = size
    input_by_name = {program_input.name: program_input for program_input in program.inputs}
    for name, (dtype, shape) in input_shapes.items():
        declared = input_by_name.get(name)
        if declared is None:
            raise Misuse(
                f"no input is called '{name}'", where="--input-shape", hint=suggest_name(name, input_by_name)
            )
        sizes = tuple(shape)
        fixed = [s for s in declared.sizes if isinstance(s, int)]
        is_match = len(sizes) == len(declared.sizes) and all(
            a == b for a, b in zip(declared.sizes, sizes, strict=True) if isinstance(a, int)
        )
        if not is_match or dtype not in (None, declared.dtype):
            text = shape_text([s if isinstance(s, int) else extract_symbol(s[0]) for s in declared.sizes])
            raise Misuse(
                f"the program was exported for {declared.dtype} {text}",
                where=f"--input-shape {name}",
                hint="export it again for other sizes" if fixed else "",
            )
        for open_size, bound_size in zip(declared.sizes, sizes, strict=True):
            if not isinstance(open_size, int) and extract_symbol(open_size[0]) in values:
                values[extract_symbol(open_size[0])] = bound_size
    for symbol, size in values.items():
        lower, upper = program.ranges.get(symbol, (None, None))
        if (lower is not None and size < lower) or (upper is not None and size > upper):
            dimension = next(
                (name for name, (dim_symbol, _) in open_dims.items() if dim_symbol == symbol), symbol
            )
            raise Misuse(
                f"the program takes sizes from {lower} to {upper}, not {size}", where=f"--dim {dimension}"
            )
    inputs = tuple(
        TensorInfo(
            program_input.name,
            program_input.dtype,
            tuple(_evaluate_size(size, values) for size in program_input.sizes),
            "declared",
        )
        for program_input in program.inputs
    )
    if any(math.prod(i.shape or ()) >= MAX_ELEMENTS for i in inputs):  # type: ignore[arg-type]
        raise Misuse("its inputs would have impossible sizes", where="--dim")
    notes = tuple(
        _describe_dim(name, symbol, values[symbol], program, values[symbol] == exported_size)
        for name, (symbol, exported_size) in open_dims.items()
    )
    bound_dims = {name: values[symbol] for name, (symbol, _) in open_dims.items()}
    return BoundInputs(inputs, bound_dims, notes, len(inputs))


def _evaluate_size(size: int | tuple[str, int], values: Mapping[str, int]) -> int:
    """Returns a size for the values of the symbols, or its value at export if it cannot be evaluated."""
    if isinstance(size, int):
        return size
    try:
        evaluated = _evaluate(size[0], values)
        return evaluated if 0 <= evaluated < MAX_ELEMENTS else size[1]
    except (ValueError, KeyError, SyntaxError, ZeroDivisionError, TypeError):
        return size[1]


def _describe_dim(name: str, symbol: str, size: int, program: Program, is_exported_size: bool) -> str:
    """Returns the note on a dynamic dimension; `is_exported_size` says whether its size is that at export."""
    lower, upper = program.ranges.get(symbol, (None, None))
    range_text = f" ({lower} to {upper})" if lower is not None and upper is not None else ""
    source = " as it was exported" if is_exported_size else ""
    return f"dimension {name}: {size:,}{source}{range_text}, open in the program; --dim {name}=N binds it"


# -- the module


def load(path: str) -> LoadedModule:
    """Opens an exported program; its weights stay in the file.

    Raises:
        BadModel: The file is broken, or is not an exported program.
    """
    archive = ZipArchive(path)
    program = read(archive)
    try:
        weights = {fqn: (entry, description) for fqn, entry, description in list_stored_entries(archive)}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadModel("its list of weights is broken", where=path) from error
    version = printable(program.version.partition("+")[0])
    return create_loaded_module(
        archive,
        partial(_build, archive, program, weights),
        lambda _: (f"exported program, written by torch {version}",),
        binding=partial(_bind, program),
    )


def _build(
    archive: ZipArchive, program: Program, weights: Mapping[str, tuple[str, dict[str, Any]]], meta: bool
) -> ReplayModule:
    """Returns the twin of the model, with all inner twins; `meta` says whether to omit values of weights."""
    storages = Storages(archive, lambda key: key, meta)
    replay = GraphReplay(program, torch.device("meta" if meta else "cpu"))
    twins: dict[str, ReplayModule] = {}

    def find_twin(path: str) -> ReplayModule:
        twin = twins.get(path)
        if twin is None:
            class_name = program.kinds.get(path) or "Module"
            arguments = tuple(g.name for g in program.inputs) if not path else ()
            twin = twins[path] = create_twin(class_name, arguments, replay.run)
            if path:
                parent, _, name = path.rpartition(".")
                find_twin(parent).add_module(name, twin)
        return twin

    root = find_twin("")
    for path in program.kinds:
        find_twin(path)
    tied: dict[Any, torch.Tensor | None] = {}
    for fqn, (entry, description) in weights.items():
        owner, _, name = fqn.rpartition(".")
        spec = _describe_tensor(archive, fqn, entry, description)
        trained = bool((description.get("tensor_meta") or {}).get("requires_grad"))
        is_parameter = bool(description.get("is_param"))
        tensor = tied.get(spec.identity)
        tensor = storages.build_tensor(spec) if tensor is None else tensor
        add_tensor(find_twin(owner), name, tensor, parameter=is_parameter, trained=trained)
        if is_parameter:
            tied[spec.identity] = parameters_of(find_twin(owner))[name]
    for _, _, fqn in program.stored:
        if fqn not in weights:
            raise BadModel(f"the archive lacks the weight '{printable(fqn)}'", where=archive.path)
    for twin in twins.values():
        set_attributes(twin, {})
    return root


def _describe_tensor(archive: ZipArchive, fqn: str, entry: str, description: Mapping[str, Any]) -> TensorSpec:
    """Describes a stored tensor.

    Args:
        archive: Archive of the program.
        fqn: Name in the state_dict.
        entry: Name of the archive entry with the data.
        description: Description of the tensor in the archive.

    Raises:
        BadModel: The tensor is stored as a pickle.
    """
    meta = description.get("tensor_meta")
    if description.get("use_pickle") or not meta:
        message = f"'{printable(fqn)}' is stored as a pickle, which runs code and was not run"
        raise BadModel(message, where=archive.path, hint="export the model with plain tensors")
    dtype = DTYPES[meta["dtype"]]
    width = getattr(torch, dtype).itemsize
    return TensorSpec(
        StorageRef(entry, dtype, archive.size_of(entry) // width),
        dtype,
        int(meta["storage_offset"]["as_int"]),
        tuple(int(s["as_int"]) for s in meta["sizes"]),
        tuple(int(s["as_int"]) for s in meta["strides"]),
    )
