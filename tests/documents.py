"""JSON documents as types: what `--json` prints of every verb, put together from the facts in it.

`explorer.report.document` writes the documents; here each is a type, so that `msgspec.json.schema` says what
it is, the manual lists it, and what is really printed is held against it.
"""

from __future__ import annotations

import inspect
import re
from typing import Any, Literal, get_type_hints

import msgspec
from msgspec import defstruct

from explorer import facts
from explorer.base.verdicts import VerdictKind
from explorer.facts import (
    blame,
    comparison,
    conversion,
    cost,
    memory,
    quantize,
    roofline,
    settings,
    sweep,
    training,
    values,
)
from explorer.facts.external import overlay, placement
from explorer.facts.models import listing
from explorer.facts.serving import serving
from explorer.facts.sizes import curves, decode
from explorer.host import doctor
from explorer.host.cache_folder import CacheUsage

__all__ = ["DOCUMENTS", "schema", "tables"]

Schema = dict[str, Any]
Fields = dict[str, Any]


def fields(fact: type, *, leave: tuple[str, ...] = ()) -> Fields:
    """A fact's keys and their types, some left out."""
    leave = (*leave, "NOT_IN_JSON", *getattr(fact, "NOT_IN_JSON", ()))
    return {name: kind for name, kind in get_type_hints(fact).items() if name not in leave}


def record(about: type | str, keys: Fields, name: str = "") -> type:
    """A record of a document; `about` is the fact that it is made of, or its docstring."""
    doc = about if isinstance(about, str) else about.__doc__
    return defstruct(name or about.__name__, list(keys.items()), namespace={"__doc__": doc})


OPTIONAL = {
    "choices",
    "mixed",
    *(
        "origin",
        "conflict",
        "sha256",
        "opset",
        "file_bytes",
        "trainable_params",
        "activation_bytes_functional",
    ),
    *(
        "kv_cache_bytes",
        "repeated_params",
        "tiled",
        "torchinfo",
        "differences",
        "columns",
        "table",
        "table_total",
        "found",
    ),
    *("tree_of", "tree_counts", "tree", "values_compared", "overlay", "placement", "figures", "compared"),
}
"""Keys that are absent where they make no sense."""


HEAD: Fields = {"schema_version": Literal[1], "tool": str}
INFO: Fields = {
    **HEAD,
    **fields(facts.Info, leave=("schema_version", "tool", "tiled")),
    "tiled": facts.TiledMacs,
}
Children = record("Operators behind a tiled or merged row.", {"op": str, "count": int}, "Children")
NodeDiff = record(facts.NodeDiff, {**fields(facts.NodeDiff), "children": list[Children]})
RowPair = record(
    comparison.RowPair,
    {**fields(comparison.RowPair, leave=("end",)), "delta": dict[str, int | None]},
)
BothTotals = record("Of both models.", {"before": facts.Totals, "after": facts.Totals}, "BothTotals")
Value = record("A value that an attribute takes.", {"value": Any, "count": int}, "Value")
Range = record(
    "The values that an attribute takes over all nodes of one operator type: elementwise where they are"
    " lists, the most frequent first, at most 16 of `distinct`.",
    {"min": Any, "max": Any, "distinct": int, "values": list[Value]},
    "Range",
)
OpStat = record(facts.OpStat, {**fields(facts.OpStat), "attributes": dict[str, Range]})
TENSOR = fields(facts.TensorInfo)
Layer = record(facts.Layer, fields(facts.Layer))
MemoryStep = record(memory.MemoryStep, {"step": int, **fields(memory.MemoryStep)})
Lifetime = record(memory.Lifetime, {**TENSOR, **fields(memory.Lifetime, leave=("tensor",))})
Quantile = record("A quantile.", {"q": float, "value": float | None}, "Quantile")
TensorStats = record(
    values.TensorStats,
    {**TENSOR, **fields(values.TensorStats, leave=("tensor", "chosen")), "quantiles": list[Quantile]},
)
StatisticsRow = record(
    "Chosen statistics of one tensor, or of one index of an axis of it, under their own names ('var',"
    " 'quantile:0.97'), and what is known of its layer.",
    fields(values.StatisticsRow, leave=("values",)),
    "StatisticsRow",
)
Skipped = record("A layer whose values are not there.", {"layer": str, "reason": str}, "Skipped")
SiteCost = record(
    cost.SiteCost,
    {**fields(cost.SiteCost, leave=("orders", "systolic", "formulas")), **fields(cost.OrderCost)},
)
SitePlan = record(facts.SitePlan, fields(facts.SitePlan, leave=("rows",)))
SkippedSite = record(facts.SkippedSite, fields(facts.SkippedSite))
Plan = record(facts.Plan, {**fields(facts.Plan), "sites": list[SitePlan], "skipped": list[SkippedSite]})
SweepRow = record(
    sweep.SweepRow,
    {
        **dict.fromkeys(("model", "opening", "machine"), str),
        **dict.fromkeys(("tile_m", "tile_k", "tile_n"), int),
        **fields(sweep.SweepRow, leave=("model", "opening", "hardware", "tile")),
        "share": float | None,
    },
)
HistoryEntry = record(
    facts.HistoryEntry,
    {
        **dict.fromkeys(("name", "label", "command"), str),
        "saved": str | None,
        "products": int | None,
        "passed": bool | None,
        "parent": int | None,
    },
)
Row = record(
    "A row of an outline. Its kind is module, operator, tensor, input, output or function; model, of a"
    " folder; more: what was left out. Its type is a tensor's elements', an operator's or a module's.",
    {
        **dict.fromkeys(("path", "kind", "type", "note"), str),
        "shape": list[Any] | None,
        "bytes": int | None,
    },
    "Row",
)
Format = record(
    "A format that can be opened. analysed: MACs and memory are known, not sizes and values alone.",
    {
        **dict.fromkeys(("name", "about", "recognised_by", "shows"), str),
        "endings": list[str],
        "analysed": bool,
        "outline": bool,
        "converts_to": list[str],
        "needs": str | None,
    },
    "Format",
)
Unpaired = record(
    "A value of the first model that was not compared, and why.", {"value": str, "reason": str}, "Unpaired"
)
FIGURE_TYPES: dict[str, Any] = {
    **dict.fromkeys(("count", "whole", "bytes"), int | None),
    **dict.fromkeys(("seconds", "share", "number"), float | None),
    "verdict": VerdictKind | None,
}
OperatorCounts = record("How many each model has.", {"op": str, "counts": list[int]}, "OperatorCounts")
BESIDE: Fields = {
    **{name: FIGURE_TYPES[unit] for name, (unit, _) in comparison.TABLE_FIGURES.items()},
    "best": list[str],
}
ModelTotals = record(
    facts.Totals, {"source": str, "format": str, **BESIDE, **fields(facts.Totals)}, "ModelTotals"
)
Compared = record(comparison.FigureTable, {"name": str, **BESIDE}, "Compared")
COMPARED: Fields = {"figures": comparison.FigureTable, "compared": list[Compared]}
Torchinfo = record("torchinfo's own table.", {"version": str, "text": str}, "Torchinfo")
OutlineModel = record("The file.", {"source": str, "format": str, "file_bytes": int | None}, "OutlineModel")
OutlineFact = record("What the header says of the whole.", {"name": str, "text": str}, "OutlineFact")
Memory = record(memory.Memory, fields(memory.Memory, leave=("steps", "lifetimes")))
Roofline = record(roofline.Roofline, fields(roofline.Roofline, leave=("machine", "points")))
PlanCost = record(cost.PlanCost, fields(cost.PlanCost, leave=("hardware", "sites")))
SizeRange = record(
    "A size and its range.",
    {"name": str, "low": int, "high": int, "at": int | None, "others": dict[str, int]},
    "SizeRange",
)
SizeForm = record(
    "A curve: each of `sizes` has its value under this name.",
    fields(curves.SizeCurve, leave=("values",)),
    "SizeForm",
)
DecodeFigures = record(decode.Decode, fields(decode.Decode, leave=("rows",)), "DecodeFigures")
ServingFigures = record(
    serving.Serving,
    {**fields(serving.Serving, leave=("times", "layouts", "layers")), "forms": dict[str, str]},
    "ServingFigures",
)
Training = record(training.Training, fields(training.Training, leave=("layers",)))

PYTHON_INFO, MACHINE_INFO, TERMINAL_INFO, FOLDER_INFO, PACKAGE_INFO, EXTRA_INFO, PROBLEM = (
    record(about, fields(about))
    for about in (
        *(doctor.PythonInfo, doctor.MachineInfo, doctor.TerminalInfo, doctor.FolderInfo),
        *(doctor.PackageInfo, doctor.ExtraInfo, doctor.Problem),
    )
)
Overlay = record(overlay.Overlay, fields(overlay.Overlay, leave=("figures",)))
Placement = record(placement.Placement, fields(placement.Placement, leave=("providers",)))


def at_site(fact: type) -> type:
    """A record of one site among those of all."""
    return record(fact, {"site": str, **fields(fact)}, f"Site{fact.__name__}")


DOCUMENTS: dict[str, Fields] = {
    "info": INFO,
    "layers": {
        **INFO,
        "layers": list[Layer],
        "torchinfo": Torchinfo,
        "columns": list[str],
        "table": list[dict[str, Any]],
        "table_total": dict[str, Any],
        "found": int,
        "overlay": Overlay,
        "placement": Placement,
        "differences": list[comparison.TorchinfoDifference],
    },
    "ops": {**INFO, "ops": list[OpStat]},
    "memory": {**INFO, "memory": Memory, "steps": list[MemoryStep], "tensors": list[Lifetime]},
    "roofline": {
        **INFO,
        "machine": roofline.Machine,
        "roofline": Roofline,
        "layers": list[roofline.RooflinePoint],
    },
    "sizes": {
        **INFO,
        **fields(curves.SizeCurves, leave=("name", "low", "high", "at", "others", "sizes", "curves")),
        "over": SizeRange,
        "curves": list[SizeForm],
        "sizes": list[dict[str, Any]],
    },
    "decode": {**INFO, "decode": DecodeFigures, "layers": list[decode.DecodeRow]},
    "serving": {
        **INFO,
        "serving": ServingFigures,
        "times": list[serving.ServingTime],
        "layouts": list[serving.DeviceLayout],
        "layers": list[serving.ServedLayer],
    },
    "training": {**INFO, "training": Training, "layers": list[training.LayerTraining]},
    "weights": {
        **INFO,
        "tensors": list[TensorStats],
        **dict.fromkeys(("tied", "duplicates"), list[list[str]]),
        "notes": list[str],
        "statistics": list[StatisticsRow],
    },
    "activations": {
        **INFO,
        "inputs": list[str],
        "tensors": list[TensorStats],
        "skipped": list[Skipped],
        "output": str | None,
        "seconds": float,
        "notes": list[str],
        "statistics": list[StatisticsRow],
    },
    "compare": {
        **HEAD,
        "agree": bool,
        "models": list[ModelTotals],
        "operators": list[OperatorCounts],
        "differences": list[comparison.Difference],
        "figures": comparison.FigureTable,
    },
    "graph": {**INFO, "output": str},
    "plot": {**INFO, "output": str},
    "report": {**INFO, "output": str},
    "plan": {
        **INFO,
        "machine": cost.Hardware,
        "cost": PlanCost,
        "sites": list[SiteCost],
        "orders": list[at_site(cost.OrderCost)],
        "systolic": list[at_site(cost.Systolic)],
        "formulas": list[at_site(cost.Formula)],
    },
    "tile": {
        **HEAD,
        "model": facts.ModelInfo,
        "plan": Plan,
        "output": str | None,
        "verification": facts.Verification | None,
        "command": str,
        "seconds": float,
    },
    "sweep": {
        **HEAD,
        "machine": cost.Hardware,
        **fields(sweep.Sweep, leave=("rows", "hardware", "layers", "output")),
        "output": str | None,
        "rows": list[SweepRow],
        "choices": list[quantize.FormatRow],
        "mixed": list[quantize.MixedPrecision],
        **COMPARED,
    },
    "settings": {**INFO, **fields(settings.Settings)},
    "history": {
        **HEAD,
        "source": str,
        "current": int,
        "states": list[HistoryEntry],
        "output": str | None,
        **COMPARED,
    },
    "values": {**HEAD, **fields(values.TensorValues)},
    "cache": {**HEAD, **fields(CacheUsage)},
    "doctor": {
        **HEAD,
        "explorer": str,
        "python": PYTHON_INFO,
        "machine": MACHINE_INFO,
        "terminal": TERMINAL_INFO,
        "folders": list[FOLDER_INFO],
        "packages": list[PACKAGE_INFO],
        "extras": list[EXTRA_INFO],
        "problems": list[PROBLEM],
    },
    "list": {**HEAD, **fields(listing.ModelListing)},
    "machines": {**HEAD, **fields(roofline.Machines)},
    "convert": {
        **HEAD,
        "source": str,
        "from": str,
        "to": str,
        "output": str | None,
        **{
            k: t
            for k, t in fields(conversion.Conversion).items()
            if k not in ("source", "source_format", "format", "output")
        },
    },
    "rebatch": {
        **HEAD,
        "source": str,
        "from": str,
        "to": str,
        "output": str | None,
        **{
            k: t
            for k, t in fields(conversion.Conversion).items()
            if k not in ("source", "source_format", "format", "output")
        },
    },
    "verify": {**HEAD, **fields(facts.Verification)},
    "blame": {**HEAD, **fields(blame.Blame), "unpaired": list[Unpaired]},
    "diff": {
        **HEAD,
        **fields(facts.Diff, leave=("nodes", "totals_before", "totals_after")),
        "nodes": list[NodeDiff],
        "totals": BothTotals,
        "tree_of": comparison.TreeForm,
        "values_compared": bool,
        "tree_counts": dict[str, int],
        "tree": list[RowPair],
    },
    "outline": {**HEAD, "model": OutlineModel | None, "facts": list[OutlineFact], "rows": list[Row]},
    "formats": {**HEAD, "formats": list[Format]},
}


MADE_OF: dict[str, type] = {
    "verify": facts.Verification,
    "blame": blame.Blame,
    "diff": facts.Diff,
    "compare": comparison.Comparison,
    "convert": conversion.Conversion,
    "rebatch": conversion.Conversion,
    "sweep": sweep.Sweep,
    "settings": settings.Settings,
    "weights": values.Weights,
    "activations": values.Activations,
    "values": values.TensorValues,
    "cache": CacheUsage,
    "doctor": doctor.Checkup,
    "machines": roofline.Machines,
    "list": listing.ModelListing,
}
"""The facts whose docstrings say what is in a document."""

ABOUT = {
    "schema_version": "Of this contract.",
    "tool": "The program and its version.",
    "assumptions": "What was assumed to get the numbers: sizes of open dimensions, and more.",
    "tiled": "Of a tiled model: what runs on tiles.",
    "torchinfo": "With `--style torchinfo`.",
    "columns": "With `--columns`, `--filter`, `--sort` and such: names, from left to right.",
    "table": "Beside them: of each of `layers` where it stands, and what it has in the columns.",
    "table_total": "What they add up to.",
    "found": "With `--filter`: how many layers it found, and groups without any of their layers.",
    "overlay": "With `--overlay`: its figures are among the columns.",
    "placement": "With `--provider`: that of each layer is a column.",
    "differences": "With `--compare`: where torchinfo's numbers are not ours.",
    "summary": "By operator; empty with `--tree`.",
    "nodes": "What differs; with `--tree` in no row: inputs, outputs, operator sets.",
    "tree_of": "With `--tree`: ONNX graphs, the ONNX form of a module beside one, or modules and tensors.",
    "values_compared": "With `--tree`: whether the values of weights are among what was compared.",
    "tree_counts": "With `--tree`: how many layers are in which state.",
    "tree": "With `--tree`: both layer trees, row by row, as `before` has them.",
    "delta": "By how much each figure grew; null where that is not known.",
    "output": "The file that was written; null where nothing was.",
    "machine": "What is null is not known, and what follows from it neither.",
    "orders": "The figures of all six orders of the loops, for every site.",
    "systolic": "Of a systolic array, tile by tile, by dataflow and site.",
    "formulas": "How the figures come about.",
    "sites": "Each with the figures of its chosen order.",
    "verification": "As in `verify`; null where it was not asked for, or nothing runs.",
    "command": "What does the same on the command line.",
    "seconds": "That it took.",
    "current": "Position of the current state.",
    "states": "The model as opened first.",
    "source": "As it was named.",
    "from": "The format of the source.",
    "to": "The format that was made.",
    "inputs": "Each with its name, type and shape; a named dimension is left open.",
    "stored": "Where tensors are all there is: they were compared byte for byte.",
    "facts": "What the header says of the whole: opset, producer, ...",
    "rows": "One after the other, as the file is read.",
    "model": "What was opened; of an outline null for a folder.",
}
"""What other keys of documents are."""


def _hidden(kind: type = msgspec.Struct) -> dict[str, tuple[str, ...]]:
    """Fields that JSON leaves out, by the name of their fact."""
    names = {kind.__name__: getattr(kind, "NOT_IN_JSON", ())}
    for inner in kind.__subclasses__():
        names |= {name: fields for name, fields in _hidden(inner).items() if fields}
    return names


def _hide(components: dict[str, Schema]) -> None:
    """Takes the fields that JSON leaves out of the types of facts."""
    for kind, names in _hidden().items():
        for name in names:
            components.get(kind, {}).get("properties", {}).pop(name, None)


def schema(verb: str) -> Schema:
    """The JSON schema of a verb's document: no other keys, and numbers that may be 'nan', 'inf' or '-inf'."""
    made = msgspec.json.schema(record("", DOCUMENTS[verb], verb))
    _hide(made.get("$defs", {}))

    def strict(part: Any) -> Any:
        if isinstance(part, list):
            return [strict(one) for one in part]
        if not isinstance(part, dict):
            return part
        if part.get("type") == "number":
            return {"anyOf": [part, {"enum": ["nan", "inf", "-inf"]}]}
        inside = {key: value if key == "default" else strict(value) for key, value in part.items()}
        if "properties" not in part:
            return inside
        needed = [key for key in part["properties"] if key not in OPTIONAL]
        return {**inside, "additionalProperties": False, "required": needed}

    found: Schema = strict(made)
    return found


def _meanings(doc: str) -> tuple[str, dict[str, str]]:
    """What a docstring says of the whole, and of each attribute."""
    doc = inspect.cleandoc(doc)  # as Python 3.13 leaves it
    for python, name in (("None", "null"), ("True", "true"), ("False", "false")):
        doc = re.sub(rf"\b{python}\b", name, doc)
    about, _, listed = doc.partition("Attributes:")
    found = {}
    for names, text in re.findall(r"^ {4}(\w[\w, \n]*?): (.*?)(?=^ {4}\w|\Z)", f"{listed}\n", re.M | re.S):
        found.update(dict.fromkeys(re.split(r",\s*", names), " ".join(text.split())))
    return " ".join(about.split()), found


def _type(part: Schema) -> str:
    """A type in words."""
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in part:
        return " or ".join(dict.fromkeys(_type(one) for one in part["anyOf"]))
    if "enum" in part:
        return ", ".join(f"`{json_text(one)}`" for one in part["enum"])
    kind = part.get("type")
    if kind == "array":
        inside = part.get("items") or next(iter(part.get("prefixItems", ())), {})
        several = f"{len(part['prefixItems'])} " if "prefixItems" in part else ""
        return f"list of {several}{_type(inside)}"
    if kind == "object":
        inside = part.get("additionalProperties")
        return f"object of {_type(inside)}" if isinstance(inside, dict) else "object"
    return {
        "integer": "integer",
        "number": "number",
        "string": "text",
        "boolean": "true or false",
        "null": "null",
    }.get(str(kind), "anything")


def json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _table(part: Schema, meanings: dict[str, str], leave: Fields) -> list[str]:
    rows = ["| key | type | meaning |", "|---|---|---|"]
    for key, one in part["properties"].items():
        if key not in leave:
            meaning = re.sub(r"([|*])", r"\\\1", meanings.get(key, ""))
            rows.append(f"| `{key}`{' ?' * (key in OPTIONAL)} | {_type(one)} | {meaning} |")
    return [*rows, ""]


def tables() -> str:
    """Every document, then every record in them, as Markdown."""
    lines: list[str] = []
    kinds = [record("", keys, verb) for verb, keys in DOCUMENTS.items()]
    made, components = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    _hide(components)
    for (verb, keys), whole in zip(DOCUMENTS.items(), made, strict=True):
        part = components[verb] if "$ref" in whole else whole
        adds = verb != "info" and INFO.items() <= keys.items()
        lines += [f"## `explorer {verb}`", ""]
        lines += ["All of [info](#explorer-info), and", ""] if adds else []
        known = _meanings(MADE_OF[verb].__doc__ or "")[1] if verb in MADE_OF else {}
        lines += _table(part, ABOUT | known, INFO if adds else {})
    lines += ["## Records", ""]
    for name, part in sorted(components.items()):
        if name not in DOCUMENTS:
            about, meanings = _meanings(part.get("description", ""))
            lines += [f"### {name}", "", *([about, ""] if about else []), *_table(part, meanings, {})]
    return "\n".join(lines).strip()
