"""Opening an exported program: what torch.export.save wrote (.pt2), rebuilt as an nn.Module.

torch.export.load unpickles weights and sample inputs without restriction, evaluates the expressions of
dynamic sizes, and calls whatever function of torch a node names: a file can run anything. What matters
in the archive is JSON (the graph, where every weight lies) and raw bytes. Both are read here as data;
only operators of the libraries in `torch_builtins` are called, and nothing is unpickled.

Every node of the graph says under which module it ran. From that the tree of modules comes back: a run
of nodes under one module is one call of its twin, so that hooks, counters and exporters see the calls of
the original. Sizes that the program leaves open stand at what it was exported with until they are bound.
"""

from __future__ import annotations

import ast
import json
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from explorer.engine.formats import torch_builtins
from explorer.engine.formats.torch_archive import Archive, StorageRef, Storages, TensorSpec
from explorer.engine.formats.torch_inputs import Bound
from explorer.engine.formats.torch_module import LoadedModule
from explorer.engine.formats.torch_twin import Twin, add_tensor, attributes, twin_of
from explorer.errors import BadModel, ExplorerError, Misuse, nearest
from explorer.facts import TensorInfo
from explorer.units import printable, shape_text

__all__ = ["LoadedProgram", "load"]

_DTYPES = {
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

LARGEST = 1 << 56
"""Elements that no tensor has; more would not fit into the number of its bytes."""

_FORMATS = {
    1: torch.contiguous_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
    4: torch.preserve_format,
}

_EMPTY = "_empty_nn_module_stack_from_metadata_hook"


# -- the program as the file describes it


@dataclass(slots=True)
class _Node:
    """An operator: arguments still as JSON, names of its results, and what is not needed behind it."""

    target: str
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    stack: tuple[tuple[str, str, str], ...]
    spent: list[str] = field(default_factory=list)

    def made(self) -> Iterator[str]:
        for out in self.outputs:
            yield from _names(out)


@dataclass(slots=True)
class _Segment:
    """Nodes that ran in one call of a module, and calls of modules inside it.

    Attributes:
        path: Of the module; '' is the model.
        key: Of the call: a module that runs twice has two.
        items: In execution order.
        given: Names of the values that come in from outside; `result` those that are used outside.
    """

    path: str
    key: str
    items: list[_Node | _Segment] = field(default_factory=list)
    given: list[str] = field(default_factory=list)
    result: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Input:
    """An input of the program: sizes are numbers, or expressions with the value at export."""

    name: str
    dtype: str
    sizes: tuple[int | tuple[str, int], ...]


@dataclass(slots=True)
class _Program:
    path: str
    root: _Segment
    kinds: dict[str, str]
    inputs: list[_Input]
    stored: list[tuple[str, str, str]]
    results: list[dict[str, Any]]
    layout: Any
    ranges: dict[str, tuple[int | None, int | None]]
    version: str


def _names(arg: Any) -> Iterator[str]:
    """Names of the values in an argument or result."""
    for kind, value in arg.items() if isinstance(arg, dict) else ():
        if kind == "as_tensor" and isinstance(value, dict):
            yield str(value["name"])
        elif kind in ("as_tensors", "as_optional_tensors", "as_sym_ints", "as_sym_bools", "as_sym_floats"):
            for item in value:
                if "name" in item:
                    yield str(item["name"])
                elif "as_name" in item:
                    yield str(item["as_name"])
                else:
                    yield from _names(item)
        elif kind.startswith("as_sym_") and isinstance(value, dict) and "as_name" in value:
            yield str(value["as_name"])


def _stack(text: str) -> tuple[tuple[str, str, str], ...]:
    """Key, path and class of the modules around a node, outermost first, without the model itself."""
    found = []
    for entry in text.split(";"):
        key, _, rest = entry.partition(",")
        path, _, kind = rest.partition(",")
        if key == _EMPTY:
            continue
        path = re.sub(r"^L(__self__|\['self'\])\.?", "", path).partition("@")[0]
        found.append((key, path, kind))
    return tuple(found)


def _segments(nodes: Sequence[_Node], results: Sequence[str]) -> tuple[_Segment, dict[str, str]]:
    """The nodes under the calls of modules that they belong to, and the class of each module."""
    root = _Segment("", "")
    kinds: dict[str, str] = {}
    open_calls = [root]
    for node in nodes:
        stack = node.stack
        kinds.update((path, kind) for _, path, kind in stack)
        inner = [(key, path) for key, path, _ in stack if path]
        if not stack:
            # a node of nobody's (a size that is asked for) stays where the last one was
            inner = [(s.key, s.path) for s in open_calls[1:]]
        depth = 1
        while depth < len(open_calls) and depth <= len(inner):
            if open_calls[depth].key != inner[depth - 1][0]:
                break
            depth += 1
        del open_calls[depth:]
        for key, path in inner[depth - 1 :]:
            segment = _Segment(path, key)
            open_calls[-1].items.append(segment)
            open_calls.append(segment)
        open_calls[-1].items.append(node)
    _wire(root, set(results))
    _spend(nodes, set(results))
    return root, kinds


def _wire(root: _Segment, kept: set[str]) -> None:
    """Settles what goes into every call and what comes out of it."""
    uses: dict[str, int] = {}

    def count(segment: _Segment) -> tuple[dict[str, int], list[str]]:
        used: dict[str, int] = {}
        made: list[str] = []
        for item in segment.items:
            if isinstance(item, _Segment):
                inner_used, inner_made = count(item)
                made += inner_made
                for name, times in inner_used.items():
                    used[name] = used.get(name, 0) + times
            else:
                for given in item.inputs:
                    for name in _names(given["arg"]):
                        used[name] = used.get(name, 0) + 1
                made += item.made()
        segment.given = [n for n in used if n not in set(made)]
        inside[id(segment)] = used, made
        return used, made

    inside: dict[int, tuple[dict[str, int], list[str]]] = {}
    uses, _ = count(root)

    def settle(segment: _Segment) -> None:
        used, made = inside[id(segment)]
        segment.result = [n for n in made if n in kept or uses.get(n, 0) > used.get(n, 0)]
        for item in segment.items:
            if isinstance(item, _Segment):
                settle(item)

    settle(root)


def _spend(nodes: Sequence[_Node], kept: set[str]) -> None:
    """Notes at every node which values are used there for the last time."""
    seen = set(kept)
    for node in reversed(nodes):
        used = {n for given in node.inputs for n in _names(given["arg"])} | set(node.made())
        node.spent = [n for n in used if n not in seen]
        seen |= used


def _read(archive: Archive) -> _Program:
    models = [n for n in archive.names() if n.startswith("models/") and n.endswith(".json")]
    if not models:
        raise _not_a_program(archive)
    name = "models/model.json" if "models/model.json" in models else sorted(models)[0]
    try:
        described = json.loads(archive.text(name))
        return _program(archive.path, described)
    except ExplorerError:
        raise
    except RecursionError as error:
        raise BadModel("its graph is nested deeper than any model's", where=archive.path) from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, StopIteration) as error:
        raise BadModel(
            f"its graph cannot be read ({type(error).__name__}: {printable(str(error))[:200]})",
            where=archive.path,
            hint="export it again with the torch that is installed here",
        ) from error


def _not_a_program(archive: Archive) -> BadModel:
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


def _program(path: str, described: dict[str, Any]) -> _Program:
    module = described["graph_module"]
    graph, signature = module["graph"], module["signature"]
    stored, user = [], []
    for spec in signature["input_specs"]:
        ((kind, value),) = spec.items()
        if kind in ("parameter", "buffer", "tensor_constant"):
            stored.append((kind, str(value["arg"]["name"]), str(value[f"{kind}_name"])))
        elif kind == "user_input":
            user.append(value["arg"])
        else:
            raise BadModel(f"it takes a '{printable(kind)}', which is not supported", where=path)
    inputs = [_input(graph, str(a["as_tensor"]["name"])) for a in user if "as_tensor" in a]
    results = [s["user_output"]["arg"] for s in signature["output_specs"] if "user_output" in s]
    nodes = [
        _Node(
            str(n["target"]),
            list(n["inputs"]),
            list(n["outputs"]),
            _stack(str((n.get("metadata") or {}).get("nn_module_stack", ""))),
        )
        for n in graph["nodes"]
    ]
    root, kinds = _segments(nodes, [n for r in results for n in _names(r)])
    calls = module.get("module_call_graph") or []
    outer = next((c["signature"] for c in calls if c["fqn"] == "" and c["signature"]), None)
    ranges = {
        _symbol(str(s)): (r.get("min_val"), r.get("max_val"))
        for s, r in (described.get("range_constraints") or {}).items()
    }
    return _Program(
        path,
        root,
        kinds,
        inputs,
        stored,
        results,
        json.loads(outer["out_spec"])[1] if outer else None,
        ranges,
        str(described.get("torch_version", "")),
    )


def _input(graph: dict[str, Any], name: str) -> _Input:
    meta = graph["tensor_values"][name]
    sizes: list[int | tuple[str, int]] = []
    for size in meta["sizes"]:
        if "as_int" in size:
            sizes.append(int(size["as_int"]))
        else:
            known = size["as_expr"]
            sizes.append((str(known["expr_str"]), int((known.get("hint") or {}).get("as_int", 1))))
    known = [s if isinstance(s, int) else s[1] for s in sizes]
    if any(s < 0 for s in known) or math.prod(known) >= LARGEST:
        raise ValueError(f"the input {name} has sizes that no tensor has")
    return _Input(name, _DTYPES[meta["dtype"]], tuple(sizes))


# -- sizes that are left open


_SYMBOL = re.compile(r"Symbol\('([^']+)'[^()]*\)")


def _symbol(text: str) -> str:
    """The name of a symbol: "Symbol('s77', positive=True)" -> 's77'."""
    found = _SYMBOL.fullmatch(text)
    return found.group(1) if found else text


def _symbols(text: str) -> list[str]:
    found = _SYMBOL.findall(text)
    return found or re.findall(r"\b[a-z]\w*\b", text)


def _evaluate(text: str, values: Mapping[str, int]) -> int:
    """The value of an expression of sizes: sums, products and powers of symbols and integers.

    Raises:
        ValueError: It is anything else.
    """
    return _number(ast.parse(_SYMBOL.sub(r"\1", text), mode="eval").body, values)


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


def _number(node: ast.expr, values: Mapping[str, int]) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        return values[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand, values)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        return _ARITHMETIC[type(node.op)](_number(node.left, values), _number(node.right, values))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        return _FUNCTIONS[node.func.id](*(_number(a, values) for a in node.args))
    raise ValueError("not an expression of sizes")


@dataclass(slots=True)
class LoadedProgram(LoadedModule):
    """An exported program: as a module that is loaded, but it knows its inputs and which sizes are open."""

    program: _Program | None = None

    def bind(
        self,
        input_shapes: Mapping[str, tuple[str | None, Any]] | None = None,
        dims: Mapping[str, int] | None = None,
    ) -> Bound:
        """The inputs to use: the user's sizes for the dimensions that are open, else those at export.

        Raises:
            Misuse: A size is fixed in the program, or outside its range, or there is no such dimension.
        """
        assert self.program is not None
        self.bound = _bind(self.program, input_shapes or {}, dims or {})
        return self.bound


def _open_dims(program: _Program) -> dict[str, tuple[str, int]]:
    """Names that a user may bind: symbol and its value at export. 'batch' is the first dimension that
    all inputs have in common.
    """
    found: dict[str, tuple[str, int]] = {}
    firsts = set()
    for given in program.inputs:
        for at, size in enumerate(given.sizes):
            symbol = None if isinstance(size, int) else _symbol(size[0])
            if not at:
                firsts.add(symbol)
            if symbol is not None and not isinstance(size, int) and symbol.isidentifier():
                found.setdefault(symbol, (symbol, size[1]))
    common = next(iter(firsts)) if len(firsts) == 1 else None
    if common is not None and common in found and "batch" not in found:
        found = {"batch": found[common], **{n: s for n, s in found.items() if n != common}}
    return found


def _bind(
    program: _Program, input_shapes: Mapping[str, tuple[str | None, Any]], dims: Mapping[str, int]
) -> Bound:
    known = _open_dims(program)
    values = dict(known.values())
    for name, size in dims.items():
        symbol = known[name][0] if name in known else name if name in values else None
        if symbol is None:
            hint = nearest(name, known) or "all sizes of this program are fixed"
            raise Misuse(f"no dimension is called '{name}'", where="--dim", hint=hint)
        values[symbol] = size
    named = {given.name: given for given in program.inputs}
    for name, (dtype, shape) in input_shapes.items():
        found = named.get(name)
        if found is None:
            raise Misuse(f"no input is called '{name}'", where="--input-shape", hint=nearest(name, named))
        sizes = tuple(shape)
        fixed = [s for s in found.sizes if isinstance(s, int)]
        fits = len(sizes) == len(found.sizes) and all(
            a == b for a, b in zip(found.sizes, sizes, strict=True) if isinstance(a, int)
        )
        if not fits or dtype not in (None, found.dtype):
            text = shape_text([s if isinstance(s, int) else _symbol(s[0]) for s in found.sizes])
            raise Misuse(
                f"the program was exported for {found.dtype} {text}",
                where=f"--input-shape {name}",
                hint="export it again for other sizes" if fixed else "",
            )
        for open_size, chosen in zip(found.sizes, sizes, strict=True):
            if not isinstance(open_size, int) and _symbol(open_size[0]) in values:
                values[_symbol(open_size[0])] = chosen
    for symbol, size in values.items():
        low, high = program.ranges.get(symbol, (None, None))
        if (low is not None and size < low) or (high is not None and size > high):
            raise Misuse(
                f"the program takes {low} to {high} there, not {size}",
                where=f"--dim {_spoken(symbol, known)}",
            )
    inputs = tuple(
        TensorInfo(g.name, g.dtype, tuple(_size(s, values) for s in g.sizes), "declared")
        for g in program.inputs
    )
    notes = tuple(_note(name, symbol, values[symbol], program) for name, (symbol, _) in known.items())
    bound_dims = {name: values[symbol] for name, (symbol, _) in known.items()}
    return Bound(inputs, bound_dims, notes, len(inputs))


def _spoken(symbol: str, known: Mapping[str, tuple[str, int]]) -> str:
    return next((name for name, (s, _) in known.items() if s == symbol), symbol)


def _size(size: int | tuple[str, int], values: Mapping[str, int]) -> int:
    if isinstance(size, int):
        return size
    try:
        return _evaluate(size[0], values)
    except (ValueError, KeyError, SyntaxError, ZeroDivisionError, TypeError):
        return size[1]


def _note(name: str, symbol: str, size: int, program: _Program) -> str:
    low, high = program.ranges.get(symbol, (None, None))
    span = f" ({low} to {high})" if low is not None and high is not None else ""
    return f"dimension {name}: {size:,}{span}, open in the program; --dim {name}=N binds it"


# -- the twin


def load(path: str) -> LoadedProgram:
    """Opens an exported program; its weights stay where they are.

    Raises:
        BadModel: It is broken, or holds what an exported program does not.
    """
    archive = Archive(path)
    program = _read(archive)
    weights = {
        **_config(archive, "data/weights/", "weights"),
        **_config(archive, "data/constants/", "constants"),
    }
    if (archive.read("byteorder") if "byteorder" in archive else b"little").strip() == b"big":
        raise BadModel("its weights are stored big-endian", where=path)

    def build(meta: bool) -> Twin:
        return _guarded(archive, program, weights, meta)

    loaded = LoadedProgram(
        source=path,
        build=lambda: build(False),
        weights_text="as the file has them",
        trained=True,
        notes=(f"exported program, written by torch {printable(program.version.partition('+')[0])}",),
        program=program,
    )
    loaded._meta = build(True).eval()
    return loaded


def _config(archive: Archive, folder: str, what: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Entry and description of every stored tensor, by its name in the state_dict."""
    names = [n for n in archive.names() if n.startswith(folder) and n.endswith(f"_{what}_config.json")]
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for name in names[:1]:
        try:
            for fqn, entry in json.loads(archive.text(name))["config"].items():
                found[str(fqn)] = f"{folder}{entry['path_name']}", entry
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadModel(f"its list of {what} is broken", where=archive.path) from error
    return found


def _guarded(
    archive: Archive, program: _Program, weights: Mapping[str, tuple[str, dict[str, Any]]], meta: bool
) -> Twin:
    try:
        return _build(archive, program, weights, meta)
    except ExplorerError:
        raise
    except (RecursionError, KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise BadModel(
            f"its layers cannot be put together ({type(error).__name__}: {printable(str(error))[:200]})",
            where=archive.path,
        ) from error


def _build(
    archive: Archive, program: _Program, weights: Mapping[str, tuple[str, dict[str, Any]]], meta: bool
) -> Twin:
    storages = Storages(archive, lambda key: key, meta)
    player = _Player(program, torch.device("meta" if meta else "cpu"))
    twins: dict[str, Twin] = {}

    def twin_at(path: str) -> Twin:
        known = twins.get(path)
        if known is None:
            kind = program.kinds.get(path) or "Module"
            arguments = tuple(g.name for g in program.inputs) if not path else ()
            known = twins[path] = twin_of(kind, arguments, player.run)
            if path:
                parent, _, name = path.rpartition(".")
                twin_at(parent).add_module(name, known)
        return known

    root = twin_at("")
    for path in program.kinds:
        twin_at(path)
    tied: dict[TensorSpec, torch.Tensor | None] = {}
    for fqn, (entry, described) in weights.items():
        owner, _, name = fqn.rpartition(".")
        spec = _spec(archive, fqn, entry, described)
        trained = bool((described.get("tensor_meta") or {}).get("requires_grad"))
        parameter = bool(described.get("is_param"))
        tensor = tied.get(spec)
        tensor = storages.tensor(spec) if tensor is None else tensor
        add_tensor(twin_at(owner), name, tensor, parameter=parameter, trained=trained)
        if parameter:
            tied[spec] = twin_at(owner)._parameters[name]
    for _, _, fqn in program.stored:
        if fqn not in weights:
            raise BadModel(f"the archive lacks the weight '{printable(fqn)}'", where=archive.path)
    for twin in twins.values():
        attributes(twin, {})
    return root


def _spec(archive: Archive, fqn: str, entry: str, described: Mapping[str, Any]) -> TensorSpec:
    meta = described.get("tensor_meta")
    if described.get("use_pickle") or not meta:
        raise BadModel(
            f"'{printable(fqn)}' is stored as a pickle, which runs code and was not run",
            where=archive.path,
            hint="export the model with plain tensors",
        )
    dtype = _DTYPES[meta["dtype"]]
    width = getattr(torch, dtype).itemsize
    return TensorSpec(
        StorageRef(entry, dtype, archive.size_of(entry) // width),
        dtype,
        int(meta["storage_offset"]["as_int"]),
        tuple(int(s["as_int"]) for s in meta["sizes"]),
        tuple(int(s["as_int"]) for s in meta["strides"]),
    )


# -- running it


class _Player:
    """Replays the graph of a program through the twins of its modules."""

    def __init__(self, program: _Program, device: torch.device) -> None:
        self.program = program
        self.device = device
        self.next: tuple[_Segment, dict[str, Any], Twin, set[int]] | None = None

    def __deepcopy__(self, memo: Any) -> _Player:
        return self

    def run(self, twin: Twin, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The forward of a twin: of the model, or of the call of a module that is due."""
        due, self.next = self.next, None
        if due is None:
            return self.model(twin, args, kwargs)
        segment, values, root, weights = due
        self.items(segment, values, root, weights)
        made = [values[n] for n in segment.result]
        return made[0] if len(made) == 1 else tuple(made)

    def model(self, root: Twin, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        values: dict[str, Any] = {}
        for _, name, fqn in self.program.stored:
            owner, _, attribute = fqn.rpartition(".")
            values[name] = getattr(root.get_submodule(owner), attribute)
        names = [given.name for given in self.program.inputs]
        values.update(zip(names, args, strict=False))
        values.update(kwargs)
        weights = {id(values[name]) for _, name, _ in self.program.stored}
        self.items(self.program.root, values, root, weights)
        leaves = [self.argument(r, values) for r in self.program.results]
        return _unflattened(self.program.layout, leaves)

    def items(self, segment: _Segment, values: dict[str, Any], root: Twin, weights: set[int]) -> None:
        for item in segment.items:
            if isinstance(item, _Node):
                self.node(item, values)
                continue
            given = [values[n] for n in item.given if isinstance(values.get(n), torch.Tensor)]
            self.next = item, values, root, weights
            root.get_submodule(item.path)(*(t for t in given if id(t) not in weights))

    def node(self, node: _Node, values: dict[str, Any]) -> None:
        args, kwargs = [], {}
        for given in node.inputs:
            value = self.argument(given["arg"], values)
            if given.get("kind") == 2 and given["name"]:
                kwargs[given["name"]] = value
            else:
                args.append(value)
        made = self.call(node.target, args, kwargs, values)
        outputs = node.outputs
        if len(outputs) == 1 and "as_tensors" in outputs[0]:
            outputs = [{"as_tensor": t} for t in outputs[0]["as_tensors"]]
        elif len(outputs) == 1 and not isinstance(made, (tuple, list)):
            made = (made,)
        for out, value in zip(outputs, made if isinstance(made, (tuple, list)) else (made,), strict=False):
            for name in _names(out):
                values[name] = value
        for name in node.spent:
            values.pop(name, None)

    def argument(self, arg: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
        ((kind, value),) = arg.items()
        if kind == "as_none":
            return None
        if kind == "as_tensor":
            return values[value["name"]]
        if kind == "as_tensors":
            return [values[item["name"]] for item in value]
        if kind == "as_optional_tensors":
            return [self.argument(item, values) for item in value]
        if kind in ("as_sym_int", "as_sym_bool", "as_sym_float"):
            return values[value["as_name"]] if "as_name" in value else next(iter(value.values()))
        if kind in ("as_sym_ints", "as_sym_bools", "as_sym_floats"):
            return [values[i["as_name"]] if "as_name" in i else next(iter(i.values())) for i in value]
        if kind == "as_scalar_type":
            return getattr(torch, _DTYPES[value])
        if kind == "as_memory_format":
            return _FORMATS.get(value)
        if kind == "as_layout":
            return torch.strided if value == 7 else None
        if kind == "as_device":
            return self.device
        if kind == "as_complex":
            return complex(value["real"], value["imag"])
        if kind in ("as_int", "as_ints", "as_bool", "as_bools", "as_string", "as_strings"):
            return value
        if kind in ("as_float", "as_floats"):
            return _float(value)
        if kind == "as_graph":
            return value["graph"]
        raise torch_builtins.Unknown(f"an argument of the kind {kind} is not supported")

    def call(self, target: str, args: list[Any], kwargs: dict[str, Any], values: dict[str, Any]) -> Any:
        found = _TARGET.fullmatch(target)
        if found is None:
            function = _PLAIN.get(target)
            if function is None:
                raise torch_builtins.Unknown(f"the function {target} is not one that a program needs")
            return function(*args, **kwargs)
        library, name = found.group(1), found.group(2)
        if library == "higher_order":
            return self.region(name, args)
        if library == "aten" and name in _CHECKS:
            return None
        if library == "aten" and name in _SIZES:
            return _SIZES[name](*args, **kwargs)
        return torch_builtins.tensors(library, name, args, kwargs, self.device)

    def region(self, name: str, args: list[Any]) -> Any:
        """A part of the graph that is a graph of its own: under a switch that changes no count (gradients,
        autocast), or one of two branches.
        """
        if name == "cond" and len(args) == 4:
            # without values the first branch is taken, and whoever watches says so
            return self.graph(args[1] if bool(args[0]) else args[2], args[3])
        at = next((i for i, a in enumerate(args) if isinstance(a, dict)), None)
        if name not in ("wrap_with_set_grad_enabled", "wrap_with_autocast") or at is None:
            raise torch_builtins.Unknown(f"the operator higher_order::{name} is not supported")
        return self.graph(args[at], args[at + 1 :])

    def graph(self, graph: Mapping[str, Any], given: Sequence[Any]) -> Any:
        """The results of a graph inside the graph, in a tuple."""
        inner: dict[str, Any] = {}
        for described, value in zip(graph["inputs"], given, strict=True):
            for given_name in _names(described):
                inner[given_name] = value
        for n in graph["nodes"]:
            self.node(_Node(str(n["target"]), list(n["inputs"]), list(n["outputs"]), ()), inner)
        return tuple(self.argument(out, inner) for out in graph["outputs"])


_TARGET = re.compile(r"torch\.ops\.(\w+)\.(\w+)(?:\.\w+)?")

_CHECKS = frozenset(
    {
        "_assert_tensor_metadata",
        "_assert_scalar",
        "_assert_async",
        "sym_constrain_range",
        "sym_constrain_range_for_size",
    }
)
"""Operators that check what was assumed at export, and compute nothing."""

_SIZES: dict[str, Callable[..., Any]] = {
    "sym_size": lambda self, dim=None: tuple(map(int, self.shape)) if dim is None else int(self.shape[dim]),
    "sym_numel": lambda self: self.numel(),
    "sym_stride": lambda self, dim=None: self.stride() if dim is None else self.stride(dim),
    "sym_storage_offset": lambda self: self.storage_offset(),
}

_PLAIN: dict[str, Callable[..., Any]] = {
    **{
        f"_operator.{name}": getattr(operator, name)
        for name in (
            *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "pos"),
            *("eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "xor", "not_", "getitem"),
        )
    },
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc", "sqrt", "log2")},
    "torch.sym_int": int,
    "torch.sym_float": float,
    "torch.sym_not": operator.not_,
    "torch.sym_max": max,
    "torch.sym_min": min,
    "torch.sym_ite": lambda test, yes, no: yes if test else no,
    "torch._sym_sqrt": math.sqrt,
}
"""Functions of plain numbers that a graph may call."""


def _float(value: Any) -> Any:
    """JSON has no infinities: the file has them as text."""
    if isinstance(value, list):
        return [_float(v) for v in value]
    return float(value) if isinstance(value, (str, int)) else value


def _unflattened(layout: Any, leaves: list[Any]) -> Any:
    """The results as the model returned them: tuples, lists and dicts of tensors."""
    rest = iter(leaves)

    def build(spec: Any) -> Any:
        if not isinstance(spec, dict) or not spec.get("type"):
            return next(rest)
        children = [build(child) for child in spec["children_spec"]]
        if spec["type"] == "builtins.dict":
            return dict(zip(map(str, json.loads(spec["context"])), children, strict=True))
        return tuple(children) if spec["type"] == "builtins.tuple" else children

    try:
        return build(layout)
    except (StopIteration, ValueError, KeyError, TypeError, RecursionError):
        return leaves[0] if len(leaves) == 1 else tuple(leaves)
