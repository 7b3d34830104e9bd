"""Exported program (.pt2): operators with shapes, the modules that they ran in, source lines.

The archive has these as JSON. This module reads them with the standard library only, as far as an outline and
a layer tree without torch need. `torch_replay` reads more, to rebuild the program.
"""

from __future__ import annotations

import json
import re

from explorer.base.errors import BadModel
from explorer.base.outline import Outline, OutlineRow
from explorer.base.record import field, record
from explorer.base.units import bytes_text, printable
from explorer.engine.formats.byte_ranges import TensorView
from explorer.engine.formats.module_index import ModulePart, OperatorRow, outline_rows
from explorer.engine.formats.tensor_index import (
    StoredTensor,
    TensorIndex,
    distinct,
    distinct_elements,
    share_pieces,
)
from explorer.engine.formats.torch_files.tensors import BYTES, in_order
from explorer.engine.formats.torch_files.zip_archive import ZipArchive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from typing import Any, TypeVar

    Made = TypeVar("Made")

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
"""Types by their number in the file (torch/_export/serde/schema.py, ScalarType)."""

SYMBOL = re.compile(r"Symbol\('([^']+)'[^()]*\)")

_INTEGER = re.compile(r"Integer\((-?\d{1,20})\)")

EMPTY = "_empty_nn_module_stack_from_metadata_hook"
"""Module stack of a node that ran in no module."""

RANK = 64
"""Most dimensions of a torch tensor."""

_FRAME = re.compile(r'File "([^"\n]{1,4096}+)", line (\d{1,9})')
_SELF = re.compile(r"^L(__self__|\['self'\])\.?")
_LIBRARY = ("/torch/", "\\torch\\")


def symbol_of(text: str) -> str:
    """The name of a symbol: "Symbol('s77', positive=True)" -> 's77'."""
    match = SYMBOL.fullmatch(text)
    return match.group(1) if match else text


def batch_of(firsts: Collection[str | None], names: Collection[str]) -> str | None:
    """The symbol for the dimension 'batch': the common first dimension of all inputs.

    Args:
        firsts: First dimensions of the inputs; None for a number.
        names: Symbols that the program leaves open.
    """
    common = next(iter(firsts)) if len(set(firsts)) == 1 else None
    return common if common in names and "batch" not in names else None


def module_stack(text: str) -> tuple[tuple[str, str, str], ...]:
    """Key, path and class of the modules that contain a node, outermost first, without the model itself."""
    modules = []
    for entry in text.split(";"):
        key, _, rest = entry.partition(",")
        path, _, kind = rest.partition(",")
        if key == EMPTY:
            continue
        path = _SELF.sub("", path).partition("@")[0]
        modules.append((key, path, kind))
    return tuple(modules)


@record
class ProgramCall:
    """An operator, and the module calls that contain it, outermost first: key, path, class."""

    operator: OperatorRow
    stack: tuple[tuple[str, str, str], ...]


@record
class ProgramDescription:
    """A described exported program.

    Attributes:
        contents: Its tensors, facts and notes.
        nodes: Operators in execution order.
        inputs: Name, type and shape of its inputs; `outputs` likewise.
        parameters: Names of the stored tensors that are parameters.
        values: Name in the state_dict by name in the graph, for every stored tensor.
        strides: Strides of the tensors that are not contiguous, in elements.
        notes: Notes on tensors, by name.
        kinds: Class of every module with its package, by path.
    """

    contents: TensorIndex = field(init=False)
    nodes: list[ProgramCall] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    parameters: set[str] = field(default_factory=set)
    values: dict[str, str] = field(default_factory=dict)
    strides: dict[str, tuple[int, ...]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)

    def parts(self) -> Iterator[ModulePart]:
        """Modules at their first run, with their tensors, and every operator where it runs."""
        owned: dict[str, list[StoredTensor]] = {}
        for tensor in self.contents.tensors:
            owned.setdefault(tensor.name.rpartition(".")[0], []).append(tensor)
        visited: set[str] = set()
        current: ModulePart | None = None
        root = ModulePart("", "model", qualname=self.kinds.get("", ""))
        root.kind = self.kinds.get("", "").rpartition(".")[2] or "program"
        yield self._with_tensors(root, owned)
        for ran in self.nodes:
            path = ran.stack[-1][1] if ran.stack else ""
            if current is None or current.path != path:
                if current is not None:
                    yield current
                for _, outer, kind in ran.stack:
                    if outer and outer not in visited and outer != path:
                        visited.add(outer)
                        yield self._with_tensors(
                            ModulePart(outer, kind.rpartition(".")[2], qualname=kind), owned
                        )
                current = ModulePart(path, qualname=ran.stack[-1][2] if ran.stack else "")
                if path and path not in visited:
                    visited.add(path)
                    current.kind = current.qualname.rpartition(".")[2]
                    self._with_tensors(current, owned)
            current.operators.append(ran.operator)
        if current is not None:
            yield current
        rest = ModulePart("")
        rest.parameters = [tensor for tensors in owned.values() for tensor in tensors]
        if rest.parameters:
            yield rest

    def _with_tensors(self, part: ModulePart, owned: dict[str, list[StoredTensor]]) -> ModulePart:
        for tensor in owned.pop(part.path, []):
            (part.parameters if tensor.name in self.parameters else part.buffers).append(tensor)
        return part


def described(path: str, why: str, *, exported: bool = False, places: bool = True) -> ProgramDescription:
    """Reads an exported program as a description.

    Args:
        path: The file.
        why: Reason for unknown MACs without torch.
        exported: Gives open sizes their values at export instead of names.
        places: Whether to find the place of every tensor, which reads each header.

    Raises:
        BadModel: There is no program in it, or it cannot be read.
    """
    archive = ZipArchive(path)

    def make(document: dict[str, Any]) -> ProgramDescription:
        if exported:
            _use_exported_sizes(document["graph_module"]["graph"]["tensor_values"])
        else:
            _name_batch(document)
        return _described(archive, document, why, places)

    return read_graph(archive, make, "export it again with a newer torch")


def read_graph(archive: ZipArchive, make: Callable[[dict[str, Any]], Made], hint: str) -> Made:
    """The result of `make` for the graph in an archive.

    Raises:
        BadModel: There is none, or it is not in torch's form; `hint` is the next step.
    """
    models = sorted(n for n in archive.names() if n.startswith("models/") and n.endswith(".json"))
    if not models:
        raise _not_a_program(archive)
    name = "models/model.json" if "models/model.json" in models else models[0]
    try:
        return make(json.loads(archive.text(name)))
    except RecursionError as error:
        raise BadModel("its graph is nested deeper than any model's", where=archive.path) from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, StopIteration) as error:
        raise BadModel(
            f"its graph cannot be read ({type(error).__name__}: {printable(str(error))[:200]})",
            where=archive.path,
            hint=hint,
        ) from error


def _not_a_program(archive: ZipArchive) -> BadModel:
    """The error for an archive that looks like an exported program and holds none."""
    if any(n.startswith("data/aotinductor") for n in archive.names()):
        return BadModel(
            "this is a compiled package (AOTInductor): it holds machine code and no graph",
            where=archive.path,
            hint="save the exported program with torch.export.save",
        )
    if "serialized_exported_program.json" in archive:
        return BadModel(
            "this .pt2 is of a torch before 2.8",
            where=archive.path,
            hint="load it with that torch and save it again with a newer one",
        )
    return BadModel("the archive holds no exported program", where=archive.path)


def _described(archive: ZipArchive, document: dict[str, Any], why: str, places: bool) -> ProgramDescription:
    module = document["graph_module"]
    graph, signature = module["graph"], module["signature"]
    program = ProgramDescription()
    tensor_values: dict[str, Any] = graph["tensor_values"]
    trained = _signature(program, signature, tensor_values)
    for node in graph["nodes"]:
        program.nodes.append(_program_call(node, tensor_values))
    for ran in program.nodes:
        program.kinds.update((path, kind) for _, path, kind in ran.stack)
    tensors = _tensors(archive, program, trained, places)
    size = sum(tensor.nbytes for tensor in distinct(tensors))
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
            *([("opsets", _opsets(document["opset_version"]))] if document.get("opset_version") else []),
            *(
                (f"dimension {symbol_of(str(symbol))}", _span(span))
                for symbol, span in list(ranges.items())[:16]
            ),
        ),
        producer=f"torch {version.partition('+')[0]}" if version else "",
        kinds={p: kind.rpartition(".")[2] for p, kind in program.kinds.items()},
        why=why,
    )
    return program


def _span(span: Mapping[str, Any]) -> str:
    """The range of a dimension as text."""
    low, high = span.get("min_val"), span.get("max_val")
    if high is None:
        return "any" if low is None else f"{low} or more"
    return f"up to {high}" if low is None else f"{low} to {high}"


def _use_exported_sizes(tensor_values: Mapping[str, Any]) -> None:
    """Replaces open sizes with those at export."""
    for meta in tensor_values.values():
        for at, size in enumerate(meta["sizes"]):
            hint = (size.get("as_expr") or {}).get("hint") if isinstance(size, dict) else None
            if isinstance(hint, dict) and type(hint.get("as_int")) is int:
                meta["sizes"][at] = {"as_int": hint["as_int"]}


def _name_batch(document: dict[str, Any]) -> None:
    """Renames the symbol of the batch to 'batch', as everywhere else."""
    graph, signature = document["graph_module"]["graph"], document["graph_module"]["signature"]
    tensor_values, ranges = graph["tensor_values"], document.get("range_constraints") or {}
    program = ProgramDescription()
    _signature(program, signature, tensor_values)
    shapes = [shape for _, _, shape in program.inputs if shape]
    names = {symbol_of(str(symbol)): symbol for symbol in ranges}
    symbol = batch_of([first if isinstance(first, str) else None for first, *_ in shapes], names)
    if symbol is None:
        return
    for meta in tensor_values.values():
        for size in meta["sizes"]:
            expression = size.get("as_expr") if isinstance(size, dict) else None
            if expression:
                text = str(expression["expr_str"])
                expression["expr_str"] = text.replace(f"Symbol('{symbol}'", "Symbol('batch'")
    document["range_constraints"] = {"batch" if k == names[symbol] else k: v for k, v in ranges.items()}


def _opsets(versions: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {number}" for name, number in list(versions.items())[:8])


def _signature(
    program: ProgramDescription, signature: Mapping[str, Any], tensor_values: Mapping[str, Any]
) -> dict[str, bool]:
    """Records inputs, outputs and stored tensors.

    Returns:
        Whether a stored tensor is trained, by its name in the state_dict.
    """
    trained: dict[str, bool] = {}
    for spec in signature["input_specs"]:
        ((kind, value),) = spec.items()
        if kind in ("parameter", "buffer", "tensor_constant"):
            value_name, fqn = str(value["arg"]["name"]), str(value[f"{kind}_name"])
            program.values[value_name] = fqn
            if kind == "parameter":
                program.parameters.add(fqn)
            trained[fqn] = kind == "parameter" and bool(
                tensor_values.get(value_name, {}).get("requires_grad")
            )
        elif kind == "user_input":
            program.inputs += _values(value["arg"], tensor_values)
    for spec in signature["output_specs"]:
        if "user_output" in spec:
            program.outputs += _values(spec["user_output"]["arg"], tensor_values)
    return trained


def _program_call(node: Mapping[str, Any], tensor_values: Mapping[str, Any]) -> ProgramCall:
    inputs: list[Tensor] = []
    uses: list[str] = []
    settings: dict[str, Any] = {}
    for argument in node["inputs"]:
        values = list(_values(argument["arg"], tensor_values))
        uses += [name for name, _, _ in values]
        if values or "as_none" in argument["arg"]:
            # an omitted tensor keeps its place
            inputs += [(str(argument["name"]), dtype, shape) for _, dtype, shape in values] or [
                (str(argument["name"]), None, None)
            ]
        else:
            settings[str(argument["name"])] = _argument_value(argument["arg"])
    outputs = [value for out in node["outputs"] for value in _values(out, tensor_values)]
    metadata = node.get("metadata") or {}
    kind = str(node["target"]).removeprefix("torch.ops.").removesuffix(".default")
    name = str(node.get("name") or "") or (outputs[0][0] if outputs else "")
    line = _source_line(str(metadata.get("stack_trace") or ""))
    operator = OperatorRow(kind, name, inputs, outputs, settings, line, uses=uses)
    return ProgramCall(operator, module_stack(str(metadata.get("nn_module_stack") or "")))


def _values(arg: Any, tensor_values: Mapping[str, Any]) -> Iterator[Tensor]:
    """The tensors in an argument or result."""
    for kind, value in arg.items() if isinstance(arg, dict) else ():
        if kind == "as_tensor" and isinstance(value, dict):
            yield _tensor(str(value["name"]), tensor_values)
        elif kind in ("as_tensors", "as_optional_tensors") and isinstance(value, list):
            for element in value:
                if "name" in element:
                    yield _tensor(str(element["name"]), tensor_values)
                else:
                    yield from _values(element, tensor_values)


def _tensor(name: str, tensor_values: Mapping[str, Any]) -> Tensor:
    meta = tensor_values.get(name)
    if meta is None:
        return name, None, None
    return name, DTYPES.get(meta["dtype"]), _shape(meta["sizes"])


def _shape(sizes: Any) -> Shape:
    if len(sizes) > RANK:
        raise ValueError("a tensor has more dimensions than any")
    shape: list[int | str | None] = []
    for size in sizes:
        number = size.get("as_int")
        if type(number) is int:
            if not 0 <= number < 1 << 62:
                raise ValueError("a size that no tensor has")
            shape.append(number)
        else:
            shape.append(_readable_expression(str((size.get("as_expr") or {}).get("expr_str", "?")))[:80])
    return tuple(shape)


def _readable_expression(text: str) -> str:
    """An expression of sizes: "Mul(Integer(2), Symbol('s77', positive=True))" -> 'Mul(2, s77)'."""
    return _INTEGER.sub(r"\1", SYMBOL.sub(r"\1", text))


def _argument_value(arg: Any) -> Any:
    """The value of an argument without tensors: a number, text, or a list of them."""
    for kind, value in arg.items() if isinstance(arg, dict) else ():
        if isinstance(value, list):
            return [_argument_value(v) if isinstance(v, dict) else v for v in value[:64]]
        if kind == "as_scalar_type":
            return DTYPES.get(value, value)
        if isinstance(value, dict):
            return _argument_value(value) if len(value) == 1 else str(value)[:80]
        return value
    return None


def _source_line(trace: str) -> str:
    """The place of a node in the user's code: the innermost frame outside torch."""
    frames = _FRAME.findall(trace)
    for path, line in reversed(frames):
        if not any(library in path for library in _LIBRARY):
            return f"{path.replace(chr(92), '/').rpartition('/')[2]}:{line}"
    return f"{frames[-1][0].rpartition('/')[2]}:{frames[-1][1]}" if frames else ""


def _tensors(
    archive: ZipArchive, program: ProgramDescription, trained: Mapping[str, bool], places: bool
) -> list[StoredTensor]:
    """Every stored tensor, from the two lists in the archive."""
    first: dict[Any, str] = {}
    views: dict[str, TensorView] = {}
    tensors: list[StoredTensor] = []
    for fqn, path, entry in stored_entries(archive):
        tensor = _stored_tensor(archive, fqn, path, entry, trained, places)
        if tensor.identity is not None:
            first_name = first.setdefault(tensor.identity, tensor.name)
            if first_name != tensor.name:
                program.notes[tensor.name] = f"tied to {first_name}"
        strides = tuple(_number(s) for s in (entry.get("tensor_meta") or {}).get("strides") or ())
        if not in_order(tensor.shape, strides):
            program.strides[tensor.name] = strides
            program.notes.setdefault(tensor.name, f"strides {strides}")
        if entry.get("is_param"):
            program.parameters.add(tensor.name)
        width, meta = BYTES.get(tensor.dtype, 0), entry.get("tensor_meta")
        if tensor.identity is not None and meta and width:
            start, size = _number(meta["storage_offset"]) * width, tensor.elements * width
            views[tensor.name] = TensorView(path, start, width, tensor.shape, strides, size)
        tensors.append(tensor)
    share_pieces(tensors, views)
    return tensors


def stored_entries(archive: ZipArchive) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name in the state_dict, entry in the archive and description of every stored tensor."""
    for folder, kind in (("data/weights/", "weights"), ("data/constants/", "constants")):
        lists = [n for n in archive.names() if n.startswith(folder) and n.endswith(f"_{kind}_config.json")]
        for name in lists[:1]:
            for fqn, entry in json.loads(archive.text(name))["config"].items():
                yield str(fqn), f"{folder}{entry['path_name']}", entry


def _number(described: Mapping[str, Any]) -> int:
    number = described["as_int"]
    if type(number) is not int or not 0 <= number < 1 << 62:
        raise ValueError("a size that no tensor has")
    return number


def _stored_tensor(
    archive: ZipArchive,
    fqn: str,
    entry: str,
    described: Mapping[str, Any],
    trained: Mapping[str, bool],
    places: bool,
) -> StoredTensor:
    meta = described.get("tensor_meta")
    if described.get("use_pickle") or not meta:
        return StoredTensor(
            fqn, "?", (), 0, archive.path, 0, unread="it is stored as a pickle, which was not run"
        )
    dtype = DTYPES[meta["dtype"]]
    shape, strides = (tuple(_number(s) for s in meta[key]) for key in ("sizes", "strides"))
    begin, width, storage_bytes = _number(meta["storage_offset"]), BYTES[dtype], archive.size_of(entry)
    elements, last = 1, begin + 1
    for size, stride in zip(shape, strides, strict=True):
        elements *= size
        last += (size - 1) * stride
    if elements and last * width > storage_bytes:
        raise BadModel("a tensor is larger than its storage", where=archive.path)
    unread = "its elements lie over each other" if elements * width > storage_bytes else ""
    if archive.entries[entry].method:
        unread = "the file holds it packed"
    offset = archive.start_of(entry) + begin * width if places and not unread else 0
    identity = (entry, begin, elements) if elements else None
    nbytes = min(elements * width, storage_bytes)
    return StoredTensor(
        fqn, dtype, shape, nbytes, archive.path, offset, identity, trained.get(fqn, False), unread
    )


# -- the outline


def outline(source: str) -> Outline:
    """The outline of a program: inputs, modules with their tensors, outputs."""
    program = described(source, "", places=False)
    contents = program.contents
    facts = [*([("written by", contents.producer)] if contents.producer else []), *contents.facts]
    params = distinct_elements([tensor for part in program.parts() for tensor in part.parameters])
    return Outline(contents.format, source, contents.file_bytes, facts, _rows(program), params)


def _rows(program: ProgramDescription) -> Iterator[OutlineRow]:
    for name, dtype, shape in program.inputs:
        yield OutlineRow(name, "input", dtype or "", shape)
    yield from outline_rows(program.parts(), program.notes)
    for name, dtype, shape in program.outputs:
        yield OutlineRow(name, "output", dtype or "", shape)
