"""Types of the JSON documents: the keys of every answer that `--json` prints, made from the facts in it.

`explorer.report.document` writes the documents. Here each document is a type, from which `document_schema`
makes a JSON Schema.
"""

from __future__ import annotations

from types import GenericAlias
from typing import Any, Literal, get_type_hints

from msgspec import defstruct

from explorer import facts
from explorer.base.features import list_offers, load
from explorer.base.verdicts import VerdictKind
from explorer.facts import (
    blame,
    comparison,
    conversion,
    cost,
    emission,
    mapping,
    memory,
    quantize,
    roofline,
    settings,
    sweep,
    training,
    values,
)
from explorer.facts.evaluate import training_sweep
from explorer.facts.external import overlay, placement
from explorer.facts.graph import connections, fx, module_code, nodes
from explorer.facts.mapping_sweep import MappingSweep
from explorer.facts.models import listing
from explorer.facts.profile import comparison as profile_comparison
from explorer.facts.profile import profile
from explorer.facts.serving import serving
from explorer.facts.serving import sweep as serving_sweep
from explorer.facts.sizes import curves, decode
from explorer.host import doctor
from explorer.host.cache_folder import CacheUsage

Fields = dict[str, Any]


def fields(fact: type, *, without: tuple[str, ...] = ()) -> Fields:
    """Return the keys of a fact with their types, without those in `without` and those that JSON omits."""
    without = (*without, "NOT_IN_JSON", *getattr(fact, "NOT_IN_JSON", ()))
    return {name: kind for name, kind in get_type_hints(fact).items() if name not in without}


def record(about: type | str, keys: Fields, name: str = "") -> type:
    """Return the type of a record in a document.

    Args:
        about: Fact whose docstring describes the record, or the docstring itself.
        keys: Types by key.
        name: Name of the type; by default the fact's name.
    """
    doc = about if isinstance(about, str) else about.__doc__
    return defstruct(name or getattr(about, "__name__", ""), list(keys.items()), namespace={"__doc__": doc})


def build_list_type(kind: type) -> Any:
    """Return the type of a list of records."""
    return GenericAlias(list, (kind,))


OPTIONAL = {
    "outside",
    "quantization",
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
        "differences",
        "columns",
        "table",
        "table_total",
        "found",
        "table_notes",
    ),
    *("tree_of", "tree_counts", "tree", "values_compared", "overlay", "placement", "figures", "compared"),
}
"""Keys that a document omits if they do not apply."""

OPEN = {"StatisticsRow"}
"""Records with further keys, which the user's options name."""


HEAD: Fields = {"schema_version": Literal[1], "tool": str}
INFO: Fields = {
    **HEAD,
    **fields(facts.Info, without=("schema_version", "tool", "tiled")),
    "tiled": facts.TiledMacs,
}
Children = record(
    "Number of operators of one type that a tiled or merged row contains.",
    {"op": str, "count": int},
    "Children",
)
NodeDiff = record(facts.NodeDiff, {**fields(facts.NodeDiff), "children": build_list_type(Children)})
RowPair = record(
    comparison.RowPair,
    {**fields(comparison.RowPair, without=("end",)), "delta": dict[str, int | None]},
)
BothTotals = record("Totals of both models.", {"before": facts.Totals, "after": facts.Totals}, "BothTotals")
Value = record(
    "A value of an attribute, and the number of nodes that have it.", {"value": Any, "count": int}, "Value"
)
Range = record(
    "Values of an attribute over all nodes of one operator type: the most frequent first, at most 16 of"
    " `distinct`. The range of lists is elementwise.",
    {"min": Any, "max": Any, "distinct": int, "values": build_list_type(Value)},
    "Range",
)
OpStat = record(facts.OpStat, {**fields(facts.OpStat), "attributes": GenericAlias(dict, (str, Range))})
TENSOR = fields(facts.TensorInfo)
Layer = record(facts.Layer, fields(facts.Layer))
MemoryStep = record(memory.MemoryStep, {"step": int, **fields(memory.MemoryStep)})
Lifetime = record(memory.Lifetime, {**TENSOR, **fields(memory.Lifetime, without=("tensor",))})
Quantile = record("A quantile.", {"q": float, "value": float | None}, "Quantile")
TensorStatistics = record(
    values.TensorStats,
    {
        **TENSOR,
        **fields(values.TensorStats, without=("tensor", "chosen")),
        "quantiles": build_list_type(Quantile),
    },
    "TensorStatistics",
)
StatisticsRow = record(
    "Chosen statistics of one tensor, or of one index of an axis, under their own names ('var',"
    " 'quantile:0.97'), with the fields of the layer.",
    fields(values.StatisticsRow, without=("values",)),
    "StatisticsRow",
)
Skipped = record("A layer without values, and the reason.", {"layer": str, "reason": str}, "Skipped")
SiteCost = record(
    cost.SiteCost,
    {**fields(cost.SiteCost, without=("orders", "systolic", "formulas")), **fields(cost.OrderCost)},
)
SitePlan = record(facts.SitePlan, fields(facts.SitePlan, without=("rows",)))
SkippedSite = record(facts.SkippedSite, fields(facts.SkippedSite))
Plan = record(
    facts.Plan,
    {**fields(facts.Plan), "sites": build_list_type(SitePlan), "skipped": build_list_type(SkippedSite)},
)
SweepRow = record(
    sweep.SweepRow,
    {
        **dict.fromkeys(("model", "opening", "machine"), str),
        **dict.fromkeys(("tile_m", "tile_k", "tile_n"), int),
        **fields(sweep.SweepRow, without=("model", "opening", "hardware", "tile")),
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
    "A row of an outline. The kind is module, operator, tensor, input, output or function; 'model' in a"
    " folder; 'more' for omitted rows. The type is that of the elements, the operator or the module.",
    {
        **dict.fromkeys(("path", "kind", "type", "note"), str),
        "shape": list[Any] | None,
        "bytes": int | None,
    },
    "Row",
)
Format = record(
    "A format that Explorer opens. `analysed` tells whether it also computes MACs and memory.",
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
    "A value of the first model without a comparison, and the reason.",
    {"value": str, "reason": str},
    "Unpaired",
)
FIGURE_TYPES: dict[str, Any] = {
    **dict.fromkeys(("count", "whole", "bytes"), int | None),
    **dict.fromkeys(("seconds", "share", "number"), float | None),
    "verdict": VerdictKind | None,
}
OperatorCounts = record(
    "Number of operators of one type in each model.", {"op": str, "counts": list[int]}, "OperatorCounts"
)
BESIDE: Fields = {
    **{name: FIGURE_TYPES[unit] for name, (unit, _) in comparison.TABLE_FIGURES.items()},
    "best": list[str],
}
ModelTotals = record(
    facts.Totals, {"source": str, "format": str, **BESIDE, **fields(facts.Totals)}, "ModelTotals"
)
Compared = record(comparison.FigureTable, {"name": str, **BESIDE}, "Compared")
COMPARED: Fields = {"figures": comparison.FigureTable, "compared": build_list_type(Compared)}
Torchinfo = record("Table that torchinfo prints.", {"version": str, "text": str}, "Torchinfo")
TORCHINFO: Fields = {"torchinfo": Torchinfo, "differences": list[comparison.TorchinfoDifference]}
OutlineModel = record(
    "File or folder of the outline.", {"source": str, "format": str, "file_bytes": int | None}, "OutlineModel"
)
OutlineFact = record(
    "Fact in the header of a file, such as its producer.", {"name": str, "text": str}, "OutlineFact"
)
Memory = record(memory.Memory, fields(memory.Memory, without=("steps", "lifetimes")))
Roofline = record(roofline.Roofline, fields(roofline.Roofline, without=("machine", "points")))
PlanCost = record(cost.PlanCost, fields(cost.PlanCost, without=("hardware", "sites")))
SizeRange = record(
    "Open size, and the range over which it varies.",
    {"name": str, "low": int, "high": int, "at": int | None, "others": dict[str, int]},
    "SizeRange",
)
SizeForm = record(
    "A curve. Each record in `sizes` has its value under this name.",
    fields(curves.SizeCurve, without=("values",)),
    "SizeForm",
)
DecodeFigures = record(decode.Decode, fields(decode.Decode, without=("rows",)), "DecodeFigures")
ServingFigures = record(
    serving.Serving,
    {**fields(serving.Serving, without=("times", "layouts", "layers")), "forms": dict[str, str]},
    "ServingFigures",
)
SERVING: Fields = {
    "serving": ServingFigures,
    "times": list[serving.ServingTime],
    "layouts": list[serving.DeviceLayout],
    "layers": list[serving.ServedLayer],
}
ServedModel = record(
    "A model, and what it costs to run.", {"model": facts.ModelInfo, **SERVING}, "ServedModel"
)
Training = record(training.Training, fields(training.Training, without=("layers",)))

PYTHON_INFO, MACHINE_INFO, TERMINAL_INFO, FOLDER_INFO, PACKAGE_INFO, EXTRA_INFO, PROBLEM = (
    record(about, fields(about))
    for about in (
        *(doctor.PythonInfo, doctor.MachineInfo, doctor.TerminalInfo, doctor.FolderInfo),
        *(doctor.PackageInfo, doctor.ExtraInfo, doctor.Problem),
    )
)
Overlay = record(overlay.Overlay, fields(overlay.Overlay, without=("figures",)))
Placement = record(placement.Placement, fields(placement.Placement, without=("providers",)))


def build_site_type(fact: type) -> type:
    """Return the record of one site in a list over all sites."""
    return record(fact, {"site": str, **fields(fact)}, f"Site{fact.__name__}")


CONVERSION: Fields = {
    **HEAD,
    "source": str,
    "from": str,
    "to": str,
    "output": str | None,
    **fields(conversion.Conversion, without=("source", "source_format", "format", "output")),
}

ANSWERS: dict[str, type] = {
    verb: command.answer
    for verb in list_offers("verbs")
    if (command := load("verbs", verb)).answer is not None
}
"""Facts that verbs of features print with all their fields, as their commands declare (`Command.answer`)."""

DOCUMENTS: dict[str, Fields] = {
    "info": INFO,
    "layers": {
        **INFO,
        "layers": build_list_type(Layer),
        "columns": list[str],
        "table": list[dict[str, Any]],
        "table_total": dict[str, Any],
        "found": int,
        "table_notes": list[str],
        "overlay": Overlay,
        "placement": Placement,
    },
    "ops": {**INFO, "ops": build_list_type(OpStat)},
    "nodes": {**INFO, **fields(nodes.NodeTable)},
    "memory": {
        **INFO,
        "memory": Memory,
        "steps": build_list_type(MemoryStep),
        "tensors": build_list_type(Lifetime),
    },
    "roofline": {
        **INFO,
        "machine": roofline.Machine,
        "roofline": Roofline,
        "layers": list[roofline.RooflinePoint],
    },
    "sizes": {
        **INFO,
        **fields(curves.SizeCurves, without=("name", "low", "high", "at", "others", "sizes", "curves")),
        "over": SizeRange,
        "curves": build_list_type(SizeForm),
        "sizes": list[dict[str, Any]],
    },
    "decode": {**INFO, "decode": DecodeFigures, "layers": list[decode.DecodeRow]},
    "serving": {**{key: kind for key, kind in INFO.items() if key != "totals"}, **SERVING},
    "training": {**INFO, "training": Training, "layers": list[training.LayerTraining]},
    "weights": {
        **INFO,
        "tensors": build_list_type(TensorStatistics),
        **dict.fromkeys(("tied", "duplicates"), list[list[str]]),
        "notes": list[str],
        "statistics": build_list_type(StatisticsRow),
    },
    "activations": {
        **INFO,
        "inputs": list[str],
        "tensors": build_list_type(TensorStatistics),
        "skipped": build_list_type(Skipped),
        "output": str | None,
        "seconds": float,
        "notes": list[str],
        "statistics": build_list_type(StatisticsRow),
    },
    "compare": {
        **HEAD,
        "agree": bool,
        "models": build_list_type(ModelTotals),
        "operators": build_list_type(OperatorCounts),
        "differences": list[comparison.Difference],
        "figures": comparison.FigureTable,
    },
    "graph": {**INFO, "output": str},
    "plot": {**INFO, "output": str},
    "report": {**INFO, "output": str},
    "map": {**INFO, **fields(mapping.ModelMapping)},
    "emit": {**INFO, **fields(emission.CodeProof)},
    "plan": {
        **INFO,
        "machine": cost.Hardware,
        "cost": PlanCost,
        "sites": build_list_type(SiteCost),
        "orders": build_list_type(build_site_type(cost.OrderCost)),
        "systolic": build_list_type(build_site_type(cost.Systolic)),
        "formulas": build_list_type(build_site_type(cost.Formula)),
    },
    "tile": {
        **HEAD,
        "model": facts.ModelInfo,
        "plan": Plan,
        "output": str | None,
        "verification": facts.Verification | None,
        "command": str,
        "seconds": float,
        "quantization": quantize.Quantization,
    },
    "sweep": {
        **HEAD,
        "machine": cost.Hardware,
        **fields(sweep.Sweep, without=("rows", "hardware", "layers", "output")),
        "output": str | None,
        "rows": build_list_type(SweepRow),
        "choices": list[quantize.FormatRow],
        "mixed": list[quantize.MixedPrecision],
        **COMPARED,
    },
    "settings": {**INFO, **fields(settings.Settings)},
    "history": {
        **HEAD,
        "source": str,
        "current": int,
        "states": build_list_type(HistoryEntry),
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
        "folders": build_list_type(FOLDER_INFO),
        "packages": build_list_type(PACKAGE_INFO),
        "extras": build_list_type(EXTRA_INFO),
        "problems": build_list_type(PROBLEM),
    },
    "list": {**HEAD, **fields(listing.ModelListing)},
    "machines": {**HEAD, **fields(roofline.Machines)},
    "convert": CONVERSION,
    "rebatch": CONVERSION,
    "verify": {**HEAD, **fields(facts.Verification)},
    "blame": {**HEAD, **fields(blame.Blame), "unpaired": build_list_type(Unpaired)},
    "diff": {
        **HEAD,
        **fields(facts.Diff, without=("nodes", "totals_before", "totals_after")),
        "nodes": build_list_type(NodeDiff),
        "totals": BothTotals,
        "tree_of": comparison.TreeForm,
        "values_compared": bool,
        "tree_counts": dict[str, int],
        "tree": build_list_type(RowPair),
    },
    "outline": {
        **HEAD,
        "model": OutlineModel | None,
        "facts": build_list_type(OutlineFact),
        "rows": build_list_type(Row),
    },
    "formats": {**HEAD, "formats": build_list_type(Format)},
    "quantize": {**INFO, **fields(quantize.Quantization)},
    "profile": {**INFO, **fields(profile.Profile)},
    **{verb: {**HEAD, **fields(fact)} for verb, fact in ANSWERS.items()},
}
"""Keys of each verb's document, in its usual form."""

FORMS: dict[str, dict[str, Fields]] = {
    "layers": {
        "with `--layer`": {
            **INFO,
            **fields(connections.Connections),
            "layer": Layer,
            "overlay": Overlay,
            "outside": dict[str, Any],
        },
        "with `--style torchinfo`": {**INFO, **TORCHINFO},
        "with `--style tree --compare`": {**INFO, "layers": build_list_type(Layer), **TORCHINFO},
    },
    "formats": {"of a model or a folder": DOCUMENTS["outline"]},
    "graph": {"with `--code`": {**HEAD, **fields(module_code.ModuleCode)}},
    "ops": {"with `--fx`": {**INFO, **fields(fx.FxGraph), "nodes": list[dict[str, Any]]}},
    "values": {"with `--map`": {**HEAD, **fields(values.HeatMap)}},
    "emit": {"as the file `mapping.json`": fields(emission.CodeManifest)},
    "verify": {"of a folder of emitted code": {**HEAD, **fields(emission.CodeProof)}},
    "plan": {"with `--steps`": {**INFO, **fields(cost.TileSteps)}},
    "settings": {"with `--formats`": {**INFO, **fields(settings.QuantizeSettings)}},
    "serving": {
        "of several models": {**HEAD, "models": build_list_type(ServedModel)},
        "with `--sweep`": {**HEAD, **fields(serving_sweep.ServingSweep)},
    },
    "sweep": {
        "with `--map`": {**HEAD, **fields(MappingSweep)},
        "with `--train`": {**HEAD, **fields(training_sweep.TrainingSweep)},
        "of a results file of `serving`": {**HEAD, **fields(serving_sweep.ServingSweep)},
    },
    "profile": {
        "of several batch sizes": {**INFO, **fields(profile.ProfileSeries)},
        "of two models": {**HEAD, **fields(profile_comparison.ProfileComparison)},
    },
}
"""Keys of each verb's other documents, by the circumstance that selects them."""
SOURCES: dict[str, type] = {
    "quantize": quantize.Quantization,
    "profile": profile.Profile,
    "verify": facts.Verification,
    "blame": blame.Blame,
    "diff": facts.Diff,
    "compare": comparison.Comparison,
    "convert": conversion.Conversion,
    "rebatch": conversion.Conversion,
    "map": mapping.ModelMapping,
    "emit": emission.CodeProof,
    "verify of a folder of emitted code": emission.CodeProof,
    "emit as the file `mapping.json`": emission.CodeManifest,
    "sweep": sweep.Sweep,
    "settings": settings.Settings,
    "weights": values.Weights,
    "activations": values.Activations,
    "values": values.TensorValues,
    "nodes": nodes.NodeTable,
    "cache": CacheUsage,
    "doctor": doctor.Checkup,
    "machines": roofline.Machines,
    "list": listing.ModelListing,
    "layers with `--layer`": connections.Connections,
    "graph with `--code`": module_code.ModuleCode,
    "ops with `--fx`": fx.FxGraph,
    "values with `--map`": values.HeatMap,
    "plan with `--steps`": cost.TileSteps,
    "settings with `--formats`": settings.QuantizeSettings,
    "serving with `--sweep`": serving_sweep.ServingSweep,
    "sweep with `--map`": MappingSweep,
    "sweep with `--train`": training_sweep.TrainingSweep,
    "sweep of a results file of `serving`": serving_sweep.ServingSweep,
    "profile of several batch sizes": profile.ProfileSeries,
    "profile of two models": profile_comparison.ProfileComparison,
    **ANSWERS,
}
"""Facts whose docstrings describe the keys of a document, by its verb and circumstance."""

ABOUT = {
    "schema_version": "Version of the JSON contract.",
    "tool": "Name and version of the program.",
    "assumptions": "Assumptions behind the numbers, such as the sizes of open dimensions.",
    "tiled": "Part of a tiled model that runs on tiles; only for tiled models.",
    "torchinfo": "Table of torchinfo, with `--style torchinfo`.",
    "columns": "Names of the columns from left to right, with `--columns`, `--filter`, `--sort` and others.",
    "table": "Rows of the table: the position of each layer, and its value in each column.",
    "table_total": "Sum of each column.",
    "table_notes": "Remarks on the figures of the table, in words.",
    "found": "Number of layers that `--filter` finds, and of groups without any of their layers.",
    "overlay": "Sources of the figures from `--overlay`, which are columns of the table.",
    "outside": "Figures of the layer from `--overlay`, by column.",
    "placement": "Execution providers, with `--provider`. The provider of each layer is a column.",
    "differences": "Rows where the numbers of torchinfo differ from Explorer's, with `--compare`.",
    "summary": "Changes by operator; empty with `--tree`.",
    "nodes": "Differences; with `--tree` only those outside of all rows: inputs, outputs, operator sets.",
    "tree_of": "Content of both trees, with `--tree`: ONNX graphs, the ONNX form of a module, or modules.",
    "values_compared": "Whether the values of weights were compared, with `--tree`.",
    "tree_counts": "Number of layers in each state, with `--tree`.",
    "tree": "Both layer trees row by row in the order of `before`, with `--tree`.",
    "delta": "Growth of each figure, or null if unknown.",
    "output": "Path of the written file, or null if none was written.",
    "machine": "Machine of the figures. An unknown rate is null, and so are the figures that depend on it.",
    "orders": "Figures of all six loop orders of every site.",
    "systolic": "Figures of a systolic array by dataflow and site.",
    "formulas": "Formulas of the figures.",
    "sites": "Matmuls, each with the figures of its loop order.",
    "verification": "Proof, as in `verify`, or null without one.",
    "quantization": "Quantization before the tiling, with `--quantize`.",
    "command": "Command that does the same.",
    "seconds": "Duration in seconds.",
    "current": "Position of the current state.",
    "states": "States of the session; the first is the opened model.",
    "source": "Name of the model, as the user typed it.",
    "from": "Format of the source.",
    "to": "Format of the result.",
    "inputs": "Inputs with name, type and shape. A named dimension is open.",
    "stored": "Comparison of the stored tensors, byte by byte, for formats without a graph.",
    "facts": "Facts in the header: operator set, producer and others.",
    "rows": "Rows in the order of the file.",
    "model": "Opened model; null in the outline of a folder.",
}
"""Descriptions of the other keys of documents."""
