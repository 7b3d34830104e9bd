"""Exported program (.pt2): reads operators with shapes, the modules that contain them, and source lines.

The archive stores the program as JSON. This module reads only what an outline or a layer tree needs, and it
does not import torch. `torch_replay` reads the complete program and rebuilds it.
"""

from __future__ import annotations

import json
import re

from explorer.base.errors import BadModel
from explorer.base.outline import Outline, OutlineRow
from explorer.base.record import field, record
from explorer.base.units import bytes_text, printable
from explorer.engine.formats.byte_ranges import TensorView
from explorer.engine.formats.module_index import ModulePart, OperatorRow, list_outline_rows
from explorer.engine.formats.tensor_index import (
    StoredTensor,
    TensorIndex,
    count_stored,
    drop_duplicates,
    mark_overlaps,
)
from explorer.engine.formats.torch_files.tensors import BYTES, is_row_major
from explorer.engine.formats.torch_files.zip_archive import ZipArchive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from typing import Any, TypeVar

    Result = TypeVar("Result")

    Shape = tuple[int | str | None, ...]
    Tensor = tuple[str, str | None, Shape | None]

DTYPES = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    9: "complex32",
    10: "complex64",
    11: "complex128",
    12: "bool",
    13: "bfloat16",
    28: "uint16",
    29: "float8_e4m3fn",
    30: "float8_e5m2",
    31: "float8_e4m3fnuz",
    32: "float8_e5m2fnuz",
    33: "float8_e8m0fnu",
    34: "uint32",
    35: "uint64",
}
"""Element types by number in the file (ScalarType in torch/_export/serde/schema.py)."""

SYMBOL = re.compile(r"Symbol\('([^']+)'[^()]*\)")

_INTEGER = re.compile(r"Integer\((-?\d{1,20})\)")
"""Integer in an expression of sizes, as sympy writes it."""

EMPTY = "_empty_nn_module_stack_from_metadata_hook"
"""Key that torch writes into the module stack of a node outside all modules."""

RANK = 64
"""Maximum number of dimensions of a torch tensor."""

_FRAME = re.compile(r'File "([^"\n]{1,4096}+)", line (\d{1,9})')
"""Path and line of a frame in a stack trace."""
_SELF = re.compile(r"^L(__self__|\['self'\])\.?")
"""Beginning of the path of a module, which stands for the model."""
_LIBRARY = ("/torch/", "\\torch\\")
"""Parts of the paths of torch's own files."""


def extract_symbol(text: str) -> str:
    """Extracts the name of a symbol: "Symbol('s77', positive=True)" -> 's77'."""
    match = SYMBOL.fullmatch(text)
    return match.group(1) if match else text


def find_batch_symbol(firsts: Collection[str | None], names: Collection[str]) -> str | None:
    """Finds the symbol of the batch size: the common first dimension of all inputs.

    Args:
        firsts: First dimension of each input; None for a number.
        names: Names of the program's dynamic dimensions.

    Returns:
        The symbol, or None if the inputs have no common dynamic first dimension or a symbol is named 'batch'.
    """
    common = next(iter(firsts)) if len(set(firsts)) == 1 else None
    return common if common in names and "batch" not in names else None


@record
class ModuleCall:
    """One call of a module.

    Args:
        key: Text that identifies the call.
        path: Path of the module; '' is the model itself.
        kind: Class of the module with its package.
    """

    key: str
    path: str
    kind: str


def parse_module_stack(text: str) -> tuple[ModuleCall, ...]:
    """Parses `nn_module_stack` of a node: the module calls that contain the node, outermost first."""
    module_calls = []
    for entry in text.split(";"):
        key, _, path_and_kind = entry.partition(",")
        path, _, kind = path_and_kind.partition(",")
        if key == EMPTY:
            continue
        path = _SELF.sub("", path).partition("@")[0]
        module_calls.append(ModuleCall(key, path, kind))
    return tuple(module_calls)


@record
class ProgramCall:
    """An operator of the program.

    Args:
        operator: Operator with its inputs and outputs.
        stack: Module calls that contain the operator, outermost first.
    """

    operator: OperatorRow
    stack: tuple[ModuleCall, ...]


@record
class ProgramDescription:
    """Description of an exported program.

    Attributes:
        contents: Stored tensors, facts and notes.
        nodes: Operators in execution order.
        inputs: (name, type, shape) of each input tensor.
        outputs: (name, type, shape) of each output tensor.
        parameters: Names of the stored tensors that are parameters.
        stored_names: Name in the state_dict of each stored tensor, by its name in the graph.
        strides: Strides of each tensor that is not contiguous, in elements, by name.
        notes: Note on each tensor, by name.
        kinds: Class of each module with its package, by path.
    """

    contents: TensorIndex = field(init=False)
    nodes: list[ProgramCall] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    parameters: set[str] = field(default_factory=set)
    stored_names: dict[str, str] = field(default_factory=dict)
    strides: dict[str, tuple[int, ...]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)

    def group_modules(self) -> Iterator[ModulePart]:
        """Groups consecutive operators by module, in execution order.

        A module is listed with its tensors when it first runs. Tensors of modules that never run come last.
        """
        tensors_by_module: dict[str, list[StoredTensor]] = {}
        for tensor in self.contents.tensors:
            tensors_by_module.setdefault(tensor.name.rpartition(".")[0], []).append(tensor)
        visited: set[str] = set()
        current: ModulePart | None = None
        root = ModulePart("", "model", qualname=self.kinds.get("", ""))
        root.kind = self.kinds.get("", "").rpartition(".")[2] or "program"
        yield self._add_tensors(root, tensors_by_module)
        for call in self.nodes:
            path = call.stack[-1].path if call.stack else ""
            if current is None or current.path != path:
                if current is not None:
                    yield current
                for outer in call.stack:
                    if outer.path and outer.path not in visited and outer.path != path:
                        visited.add(outer.path)
                        part = ModulePart(outer.path, outer.kind.rpartition(".")[2], qualname=outer.kind)
                        yield self._add_tensors(part, tensors_by_module)
                current = ModulePart(path, qualname=call.stack[-1].kind if call.stack else "")
                if path and path not in visited:
                    visited.add(path)
                    current.kind = current.qualname.rpartition(".")[2]
                    self._add_tensors(current, tensors_by_module)
            current.operators.append(call.operator)
        if current is not None:
            yield current
        unused = ModulePart("")
        unused.parameters = [tensor for tensors in tensors_by_module.values() for tensor in tensors]
        if unused.parameters:
            yield unused

    def _add_tensors(self, part: ModulePart, tensors_by_module: dict[str, list[StoredTensor]]) -> ModulePart:
        """Moves the tensors of a module from the dictionary to `part`, and returns `part`."""
        for tensor in tensors_by_module.pop(part.path, []):
            (part.parameters if tensor.name in self.parameters else part.buffers).append(tensor)
        return part


def read_description(
    path: str, why: str, *, exported: bool = False, find_offsets: bool = True
) -> ProgramDescription:
    """Reads the description of an exported program.

    Args:
        path: Path of the file.
        why: Why the MACs are unknown without torch; messages and the answer contain this text.
        exported: Whether a dynamic size is its number at export; otherwise it is a name.
        find_offsets: Whether to find the file offset of each tensor, which reads the header of each entry.

    Raises:
        BadModel: The file contains no program, or the program cannot be read.
    """
    archive = ZipArchive(path)

    def make(document: dict[str, Any]) -> ProgramDescription:
        if exported:
            _use_exported_sizes(document["graph_module"]["graph"]["tensor_values"])
        else:
            _name_batch(document)
        return _read_document(archive, document, why, find_offsets)

    return read_graph(archive, make, "export it again with a newer torch")


def read_graph(archive: ZipArchive, make: Callable[[dict[str, Any]], Result], hint: str) -> Result:
    """Reads the graph in an archive, and calls `make` with the parsed JSON.

    Args:
        archive: Archive of the exported program.
        make: Function that converts the parsed JSON.
        hint: Next step for the user, if `make` fails.

    Returns:
        The result of `make`.

    Raises:
        BadModel: The archive has no graph, or `make` cannot convert it.
    """
    models = sorted(n for n in archive.names() if n.startswith("models/") and n.endswith(".json"))
    if not models:
        raise _build_no_program_error(archive)
    name = "models/model.json" if "models/model.json" in models else models[0]
    try:
        return make(json.loads(archive.decode_text(name)))
    except RecursionError as error:
        raise BadModel("its graph is nested deeper than any model's", where=archive.path) from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, StopIteration) as error:
        message = f"its graph cannot be read ({type(error).__name__}: {printable(str(error))[:200]})"
        raise BadModel(message, where=archive.path, hint=hint) from error


def _build_no_program_error(archive: ZipArchive) -> BadModel:
    """Returns the error for an archive without a graph of torch.export."""
    if any(n.startswith("data/aotinductor") for n in archive.names()):
        return BadModel(
            "this is a compiled package (AOTInductor): it holds machine code and no graph",
            where=archive.path,
            hint="save the exported program with torch.export.save",
        )
    if "serialized_exported_program.json" in archive:
        return BadModel(
            "a torch before 2.8 wrote this .pt2 file",
            where=archive.path,
            hint="load it with that torch and save it again with a newer one",
        )
    return BadModel("the archive holds no exported program", where=archive.path)


def _read_document(
    archive: ZipArchive, document: dict[str, Any], why: str, find_offsets: bool
) -> ProgramDescription:
    """Describes the program in the parsed JSON `document`; see `read_description` for the arguments."""
    module = document["graph_module"]
    graph, signature = module["graph"], module["signature"]
    program = ProgramDescription()
    tensor_values: dict[str, Any] = graph["tensor_values"]
    trained = _record_signature(program, signature, tensor_values)
    for node in graph["nodes"]:
        program.nodes.append(_build_program_call(node, tensor_values))
    for call in program.nodes:
        program.kinds.update((module_call.path, module_call.kind) for module_call in call.stack)
    tensors = _read_tensors(archive, program, trained, find_offsets)
    size = sum(tensor.nbytes for tensor in drop_duplicates(tensors))
    version = str(document.get("torch_version", ""))[:64]
    ranges = document.get("range_constraints") or {}
    program.contents = TensorIndex(
        "torch.export",
        archive.path,
        tensors,
        (archive.path,),
        archive.size,
        facts=(
            ("operators", f"{len(program.nodes):,}"),
            ("modules", f"{len({path for path in program.kinds if path}):,}"),
            ("tensors", f"{len(tensors):,}, {bytes_text(size)}"),
            *(
                [("opsets", _format_opsets(document["opset_version"]))]
                if document.get("opset_version")
                else []
            ),
            *(
                (f"dimension {extract_symbol(str(symbol))}", _format_range(span))
                for symbol, span in list(ranges.items())[:16]
            ),
        ),
        producer=f"torch {version.partition('+')[0]}" if version else "",
        kinds={p: kind.rpartition(".")[2] for p, kind in program.kinds.items()},
        why=why,
    )
    return program


def _format_range(span: Mapping[str, Any]) -> str:
    """Formats the range of a dynamic dimension."""
    lower, upper = span.get("min_val"), span.get("max_val")
    if upper is None:
        return "any" if lower is None else f"{lower} or more"
    return f"up to {upper}" if lower is None else f"{lower} to {upper}"


def _use_exported_sizes(tensor_values: Mapping[str, Any]) -> None:
    """Replaces dynamic sizes in the document with their values at export."""
    for meta in tensor_values.values():
        for index, size in enumerate(meta["sizes"]):
            hint = (size.get("as_expr") or {}).get("hint") if isinstance(size, dict) else None
            if isinstance(hint, dict) and type(hint.get("as_int")) is int:
                meta["sizes"][index] = {"as_int": hint["as_int"]}


def _name_batch(document: dict[str, Any]) -> None:
    """Renames the symbol of the batch size to 'batch' in the document; all formats use this name."""
    graph, signature = document["graph_module"]["graph"], document["graph_module"]["signature"]
    tensor_values, ranges = graph["tensor_values"], document.get("range_constraints") or {}
    program = ProgramDescription()
    _record_signature(program, signature, tensor_values)
    shapes = [shape for _, _, shape in program.inputs if shape]
    names = {extract_symbol(str(symbol)): symbol for symbol in ranges}
    symbol = find_batch_symbol([first if isinstance(first, str) else None for first, *_ in shapes], names)
    if symbol is None:
        return
    for meta in tensor_values.values():
        for size in meta["sizes"]:
            expression = size.get("as_expr") if isinstance(size, dict) else None
            if expression:
                text = str(expression["expr_str"])
                expression["expr_str"] = text.replace(f"Symbol('{symbol}'", "Symbol('batch'")
    document["range_constraints"] = {"batch" if k == names[symbol] else k: v for k, v in ranges.items()}


def _format_opsets(versions: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {number}" for name, number in list(versions.items())[:8])


def _record_signature(
    program: ProgramDescription, signature: Mapping[str, Any], tensor_values: Mapping[str, Any]
) -> dict[str, bool]:
    """Records the inputs, outputs and stored tensors of the program.

    Returns:
        Whether each stored tensor is trained, by its name in the state_dict.
    """
    trained: dict[str, bool] = {}
    for spec in signature["input_specs"]:
        ((kind, value),) = spec.items()
        if kind in ("parameter", "buffer", "tensor_constant"):
            value_name, stored_name = str(value["arg"]["name"]), str(value[f"{kind}_name"])
            program.stored_names[value_name] = stored_name
            if kind == "parameter":
                program.parameters.add(stored_name)
            trained[stored_name] = kind == "parameter" and bool(
                tensor_values.get(value_name, {}).get("requires_grad")
            )
        elif kind == "user_input":
            program.inputs += _list_tensors(value["arg"], tensor_values)
    for spec in signature["output_specs"]:
        if "user_output" in spec:
            program.outputs += _list_tensors(spec["user_output"]["arg"], tensor_values)
    return trained


def _build_program_call(node: Mapping[str, Any], tensor_values: Mapping[str, Any]) -> ProgramCall:
    """Describes a node of the graph: its operator, tensors, other arguments and module calls."""
    inputs: list[Tensor] = []
    uses: list[str] = []
    settings: dict[str, Any] = {}
    for argument in node["inputs"]:
        values = list(_list_tensors(argument["arg"], tensor_values))
        uses += [name for name, _, _ in values]
        if values or "as_none" in argument["arg"]:
            # an omitted tensor is listed too, so that the positions of the others do not change
            inputs += [(str(argument["name"]), dtype, shape) for _, dtype, shape in values] or [
                (str(argument["name"]), None, None)
            ]
        else:
            settings[str(argument["name"])] = _read_argument_value(argument["arg"])
    outputs = [value for result in node["outputs"] for value in _list_tensors(result, tensor_values)]
    metadata = node.get("metadata") or {}
    kind = str(node["target"]).removeprefix("torch.ops.").removesuffix(".default")
    name = str(node.get("name") or "") or (outputs[0][0] if outputs else "")
    line = _find_source_line(str(metadata.get("stack_trace") or ""))
    operator = OperatorRow(kind, name, inputs, outputs, settings, line, uses=uses)
    return ProgramCall(operator, parse_module_stack(str(metadata.get("nn_module_stack") or "")))


def _list_tensors(arg: Any, tensor_values: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yields the (name, type, shape) of each tensor in an argument or result."""
    for kind, value in arg.items() if isinstance(arg, dict) else ():
        if kind == "as_tensor" and isinstance(value, dict):
            yield _describe_tensor(str(value["name"]), tensor_values)
        elif kind in ("as_tensors", "as_optional_tensors") and isinstance(value, list):
            for element in value:
                if "name" in element:
                    yield _describe_tensor(str(element["name"]), tensor_values)
                else:
                    yield from _list_tensors(element, tensor_values)


def _describe_tensor(name: str, tensor_values: Mapping[str, Any]) -> Tensor:
    meta = tensor_values.get(name)
    if meta is None:
        return name, None, None
    return name, DTYPES.get(meta["dtype"]), _parse_shape(meta["sizes"])


def _parse_shape(sizes: Any) -> Shape:
    if len(sizes) > RANK:
        raise ValueError(f"a tensor has more than {RANK} dimensions")
    shape: list[int | str | None] = []
    for size in sizes:
        number = size.get("as_int")
        if type(number) is int:
            if not 0 <= number < 1 << 62:
                raise ValueError("the size of a tensor is impossible")
            shape.append(number)
        else:
            shape.append(_simplify_expression(str((size.get("as_expr") or {}).get("expr_str", "?")))[:80])
    return tuple(shape)


def _simplify_expression(text: str) -> str:
    """Shortens an expression of sizes: "Mul(Integer(2), Symbol('s77', positive=True))" -> 'Mul(2, s77)'."""
    return _INTEGER.sub(r"\1", SYMBOL.sub(r"\1", text))


def _read_argument_value(arg: Any) -> Any:
    """Returns the value of an argument without tensors: a number, a text, or a list."""
    for kind, value in arg.items() if isinstance(arg, dict) else ():
        if isinstance(value, list):
            return [_read_argument_value(v) if isinstance(v, dict) else v for v in value[:64]]
        if kind == "as_scalar_type":
            return DTYPES.get(value, value)
        if isinstance(value, dict):
            return _read_argument_value(value) if len(value) == 1 else str(value)[:80]
        return value
    return None


def _find_source_line(trace: str) -> str:
    """Returns the 'file:line' of a node in the user's code: the innermost stack frame outside torch."""
    frames = _FRAME.findall(trace)
    for path, line in reversed(frames):
        if not any(library in path for library in _LIBRARY):
            return f"{path.replace(chr(92), '/').rpartition('/')[2]}:{line}"
    return f"{frames[-1][0].rpartition('/')[2]}:{frames[-1][1]}" if frames else ""


def _read_tensors(
    archive: ZipArchive, program: ProgramDescription, trained: Mapping[str, bool], find_offsets: bool
) -> list[StoredTensor]:
    """Reads the description of each stored tensor; records notes, strides and parameters in `program`."""
    first: dict[Any, str] = {}
    views: dict[str, TensorView] = {}
    tensors: list[StoredTensor] = []
    for stored_name, path, entry in list_stored_entries(archive):
        tensor = _build_stored_tensor(archive, stored_name, path, entry, trained, find_offsets)
        if tensor.identity is not None:
            first_name = first.setdefault(tensor.identity, tensor.name)
            if first_name != tensor.name:
                program.notes[tensor.name] = f"tied to {first_name}"
        strides = tuple(_read_size(s) for s in (entry.get("tensor_meta") or {}).get("strides") or ())
        if not is_row_major(tensor.shape, strides):
            program.strides[tensor.name] = strides
            program.notes.setdefault(tensor.name, f"strides {strides}")
        if entry.get("is_param"):
            program.parameters.add(tensor.name)
        width, meta = BYTES.get(tensor.dtype, 0), entry.get("tensor_meta")
        if tensor.identity is not None and meta and width:
            start, size = _read_size(meta["storage_offset"]) * width, tensor.elements * width
            views[tensor.name] = TensorView(path, start, width, tensor.shape, strides, size)
        tensors.append(tensor)
    mark_overlaps(tensors, views)
    return tensors


def list_stored_entries(archive: ZipArchive) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yields the (name in the state_dict, name of the archive entry, description) of each stored tensor."""
    for folder, kind in (("data/weights/", "weights"), ("data/constants/", "constants")):
        lists = [n for n in archive.names() if n.startswith(folder) and n.endswith(f"_{kind}_config.json")]
        for name in lists[:1]:
            for stored_name, entry in json.loads(archive.decode_text(name))["config"].items():
                yield str(stored_name), f"{folder}{entry['path_name']}", entry


def _read_size(description: Mapping[str, Any]) -> int:
    number = description["as_int"]
    if type(number) is not int or not 0 <= number < 1 << 62:
        raise ValueError("the size of a tensor is impossible")
    return number


def _build_stored_tensor(
    archive: ZipArchive,
    stored_name: str,
    entry: str,
    description: Mapping[str, Any],
    trained: Mapping[str, bool],
    find_offsets: bool,
) -> StoredTensor:
    """Describes a stored tensor; with `find_offsets`, also by the position of its first byte in the file."""
    meta = description.get("tensor_meta")
    if description.get("use_pickle") or not meta:
        return StoredTensor(
            stored_name, "?", (), 0, archive.path, 0, unread="it is stored as a pickle, which was not run"
        )
    dtype = DTYPES[meta["dtype"]]
    shape, strides = (tuple(_read_size(s) for s in meta[key]) for key in ("sizes", "strides"))
    first_element = _read_size(meta["storage_offset"])
    width = BYTES[dtype]
    storage_bytes = archive.size_of(entry)
    elements, last = 1, first_element + 1
    for size, stride in zip(shape, strides, strict=True):
        elements *= size
        last += (size - 1) * stride
    if elements and last * width > storage_bytes:
        raise BadModel("a tensor is larger than its storage", where=archive.path)
    unread = "its elements overlap" if elements * width > storage_bytes else ""
    if archive.entries[entry].method:
        unread = "it is compressed in the file"
    offset = archive.start_of(entry) + first_element * width if find_offsets and not unread else 0
    identity = (entry, first_element, elements) if elements else None
    nbytes = min(elements * width, storage_bytes)
    return StoredTensor(
        stored_name,
        dtype,
        shape,
        nbytes,
        archive.path,
        offset,
        identity,
        trained.get(stored_name, False),
        unread,
    )


# -- the outline


def outline(source: str) -> Outline:
    """Returns the outline of a program: inputs, modules with their tensors, outputs."""
    program = read_description(source, "", find_offsets=False)
    contents = program.contents
    facts = [*([("written by", contents.producer)] if contents.producer else []), *contents.facts]
    params = count_stored(tensor for part in program.group_modules() for tensor in part.parameters)[0]
    return Outline(contents.format, source, contents.file_bytes, facts, _list_rows(program), params)


def _list_rows(program: ProgramDescription) -> Iterator[OutlineRow]:
    for name, dtype, shape in program.inputs:
        yield OutlineRow(name, "input", dtype or "", shape)
    yield from list_outline_rows(program.group_modules(), program.notes)
    for name, dtype, shape in program.outputs:
        yield OutlineRow(name, "output", dtype or "", shape)
