"""JSON documents (`--json`): converts facts to the documented names and structure.

Scripts depend on these names (`explorer help json`), so they are written out here and do not follow the names
of the facts. Integers are exact. Unknown is null. A number that is not finite is the string 'nan', 'inf' or
'-inf'. A key that does not apply to a format is missing, such as the opset of an nn.Module or the trainable
parameters of an ONNX file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from explorer.facts import (
    Analysis,
    Diff,
    History,
    Info,
    LayerTable,
    ModelInfo,
    NodeDiff,
    OpStat,
    Plan,
    TileResult,
    Totals,
    Verification,
    to_json,
)
from explorer.facts.comparison import FIGURES, TABLE_FIGURES
from explorer.facts.cost import Hardware
from explorer.report.json_records import (
    Document,
    encode_chosen_statistics,
    encode_layer,
    encode_model,
    encode_range,
    encode_stats,
    encode_tensor,
    encode_totals,
    envelope,
    pick_fields,
    record_of,
)
from explorer.report.json_text import Records

if TYPE_CHECKING:
    from msgspec import Struct

    from explorer.facts.blame import Blame
    from explorer.facts.comparison import Comparison, FigureTable, RowPair, TorchinfoTable, TreeDiff
    from explorer.facts.conversion import Conversion
    from explorer.facts.cost import PlanCost
    from explorer.facts.external.overlay import Overlay
    from explorer.facts.external.placement import Placement
    from explorer.facts.graph.connections import Connections
    from explorer.facts.graph.fx import FxGraph
    from explorer.facts.memory import Memory
    from explorer.facts.quantize import FormatSweep, Quantization
    from explorer.facts.roofline import Roofline
    from explorer.facts.serving.serving import Serving
    from explorer.facts.sizes.curves import SizeCurves
    from explorer.facts.sizes.decode import Decode
    from explorer.facts.sweep import Sweep
    from explorer.facts.training import Training
    from explorer.facts.values import Activations, Weights

_SITE = (
    *("name", "op", "M", "K", "N", "batch", "tile", "grid", "products", "macs", "utilisation", "form"),
    *("edges", "output", "weight", "bias", "dtype", "accumulator", "dynamic", "place", "calls"),
    *("in_floats", "sums", "at_most", "right", "layer"),
)


def info(fact: Info, tool: str, sha256: str | None = None) -> Document:
    """Return the document of `explorer info`: model, assumptions, totals.

    Args:
        fact: Facts about the model.
        tool: Name and version of the program.
        sha256: Digest of the model's file, which replaces the digest in `fact`.
    """
    assumptions = {"dims": {}, **to_json(fact.assumptions)}
    return {
        **envelope(tool),
        "model": encode_model(fact.model, sha256),
        "assumptions": assumptions,
        "totals": encode_totals(fact.totals),
        **({} if fact.tiled is None else {"tiled": to_json(fact.tiled)}),
    }


def layers(fact: Analysis, tool: str, sha256: str | None = None) -> Document:
    """Return the document of `explorer layers`: the document of `info`, and all rows of the tree."""
    rows = fact.layers
    # large models use another sequence, whose rows are created on access
    records = [encode_layer(row) for row in rows] if isinstance(rows, tuple) else Records(encode_layer, rows)
    return {**info(fact.info, tool, sha256), "layers": records}


def layer(
    about: Info, fact: Connections, outside: Overlay | None, tool: str, sha256: str | None = None
) -> Document:
    """Return the document of `explorer layers --layer`: one layer and its connections."""
    document = {**info(about, tool, sha256), **to_json(fact), "layer": encode_layer(fact.layer)}
    if outside is None:
        return document
    outside_values = {
        name: rows[fact.layer.id] for name, rows in outside.figures.items() if fact.layer.id in rows
    }
    return {**document, "overlay": overlay(outside), "outside": outside_values}


def table(fact: LayerTable, tool: str, sha256: str | None = None) -> Document:
    """Return the document of `explorer layers` with columns: the document of `layers`, and the table.

    A row of the table contains the layer's position in the tree, and one key per column.
    """
    position_keys = ("id", "parent", "path", "name", "depth", "group")
    rows = [
        {**pick_fields(row, position_keys), **dict(zip(fact.columns, to_json(values), strict=True))}
        for row, values in zip(fact.layers, fact.values, strict=True)
    ]
    return {
        **layers(Analysis(fact.info, fact.layers), tool, sha256),
        "columns": list(fact.columns),
        "table": rows,
        "table_total": dict(zip(fact.columns, to_json(fact.totals), strict=True)),
        **({} if fact.found is None else {"found": fact.found}),
        **({"table_notes": list(fact.notes)} if fact.notes else {}),
        **({} if fact.overlay is None else {"overlay": overlay(fact.overlay)}),
        **({} if fact.placement is None else {"placement": _build_placement_document(fact.placement)}),
    }


def overlay(fact: Overlay) -> Document:
    """Return the sources of external figures and the number of matched rows. The figures are columns."""
    names = ("sources", "columns", "rows", "matched", "layers", "unmatched", "ambiguous", "notes")
    return pick_fields(fact, names)


def _build_placement_document(fact: Placement) -> Document:
    """Return the execution providers in use. The provider of each layer is a column."""
    return {name: value for name, value in to_json(fact).items() if name != "providers"}


def ops(fact: Info, stats: Sequence[OpStat], tool: str, sha256: str | None = None) -> Document:
    """Return the document of `explorer ops`: the document of `info`, and one row per operator type."""
    rows = [
        {**record_of(stat), "attributes": {name: encode_range(s) for name, s in stat.attributes.items()}}
        for stat in stats
    ]
    return {**info(fact, tool, sha256), "ops": rows}


def memory(about: Info, fact: Memory, tool: str, sha256: str | None = None) -> Document:
    """Return the document of `explorer memory`: the document of `info`, figures, steps and tensors."""
    figures = ("sum_bytes", "peak_bytes", "peak_step", "arena_bytes", "weight_bytes", "status", "reason")
    tensors = [
        {**encode_tensor(life.tensor), **pick_fields(life, ("bytes", "born", "dies", "offset"))}
        for life in fact.lifetimes
    ]
    steps = [{"step": index, **record_of(step)} for index, step in enumerate(fact.steps)]
    return {
        **info(about, tool, sha256),
        "memory": pick_fields(fact, figures),
        "steps": steps,
        "tensors": tensors,
    }


def roofline(about: Info, fact: Roofline, tool: str, sha256: str | None = None) -> Document:
    """Return the document of `explorer roofline`: the document of `info`, machine, totals, layer bounds."""
    document = record_of(fact)
    machine, points = document.pop("machine"), document.pop("points")
    return {**info(about, tool, sha256), "machine": machine, "roofline": document, "layers": points}


def plan_cost(about: Info, fact: PlanCost, tool: str, sha256: str | None = None) -> Document:
    """Return the document of `explorer plan`: the document of `info`, machine, totals, and rows per site.

    A row of `sites` also contains the figures of the chosen loop order. All six orders are in `orders`.
    """
    document = record_of(fact)
    machine = document.pop("hardware")
    rows: dict[str, list[Document]] = {"sites": [], "orders": [], "systolic": [], "formulas": []}
    for site, record in zip(fact.sites, document.pop("sites"), strict=True):
        for key in ("orders", "systolic", "formulas"):
            rows[key] += [{"site": site.name, **row} for row in record.pop(key)]
        rows["sites"].append({**record, **record_of(site.chosen)})
    return {**info(about, tool, sha256), "machine": machine, "cost": document, **rows}


def sweep(fact: Sweep, tool: str, figures: FigureTable | None = None) -> Document:
    """Return the document of `explorer sweep`: one row per tiling of each model."""
    rows = []
    for row in fact.rows:
        record = record_of(row)
        tile = dict(zip(("tile_m", "tile_k", "tile_n"), record.pop("tile"), strict=True))
        about = {name: record.pop(name) for name in ("model", "opening")}
        about["machine"] = record.pop("hardware")
        rows.append({**about, **tile, **record, "share": to_json(row.share)})
    return {
        **envelope(tool),
        "machine": record_of(fact.hardware),
        **pick_fields(fact, ("made", "kept", "proved", "workers", "seconds", "notes")),
        "output": fact.output or None,
        "rows": rows,
        **_build_compared(figures),
    }


def format_sweep(fact: FormatSweep, tool: str) -> Document:
    """Return the document of `explorer sweep --quantize`: one row per choice of number formats.

    It has all keys of `sweep`; the machine, the proofs and the rows of tilings are empty.
    """
    return {
        **envelope(tool),
        "machine": record_of(Hardware()),
        **pick_fields(fact, ("made", "kept")),
        "proved": 0,
        **pick_fields(fact, ("workers", "seconds", "notes")),
        "output": fact.output or None,
        "rows": [],
        "choices": [record_of(row) for row in fact.rows],
        **pick_fields(fact, ("mixed",)),
    }


def training(about: Info, fact: Training, tool: str, sha256: str | None = None) -> Document:
    """Return the document of `explorer training`: the document of `info`, totals of a step, and layers."""
    document = record_of(fact)
    rows = document.pop("layers")
    return {**info(about, tool, sha256), "training": document, "layers": rows}


def sizes(about: Info, fact: SizeCurves, tool: str, sha256: str | None = None) -> Document:
    """Return the document of `explorer sizes`: the document of `info`, range, formulas, sizes, crossings."""
    document = record_of(fact)
    document.pop("curves")
    document["over"] = {name: document.pop(name) for name in ("name", "low", "high", "at", "others")}
    document["curves"] = [pick_fields(curve, ("name", "form")) for curve in fact.curves]
    document["sizes"] = [
        {"size": size, **{curve.name: curve.values[index] for curve in fact.curves}}
        for index, size in enumerate(fact.sizes)
    ]
    return {**info(about, tool, sha256), **document}


def decode(about: Info, fact: Decode, tool: str, sha256: str | None = None) -> Document:
    """Return the document of `explorer decode`: the document of `info`, the figures, and all layers."""
    document = record_of(fact)
    rows = document.pop("rows")
    return {**info(about, tool, sha256), "decode": document, "layers": rows}


def serving(answers: Sequence[tuple[Info, Serving, str | None]], tool: str) -> Document:
    """Return the document of `explorer serving`: the model and the figures, or a list of models.

    It has no `totals`: the model is counted at the sizes of its passes, which `serving` holds.
    """
    if len(answers) == 1:
        about, fact, digest = answers[0]
        document = info(about, tool, digest)
        del document["totals"]
        return {**document, **_build_serving_document(fact)}
    models = [
        {"model": record_of(about.model), **_build_serving_document(fact)} for about, fact, _ in answers
    ]
    return {**envelope(tool), "models": models}


def serving_times(answers: Sequence[tuple[Info, Serving, str | None]]) -> list[Document]:
    """Return memory and minimum times of several models as rows, with the model's name in each row."""
    return [
        {"model": about.model.source, **record_of(times)}
        for about, fact, _ in answers
        for times in fact.times
    ]


def _build_serving_document(fact: Serving) -> Document:
    """Return the figures under `serving`, and the rows under `times`, `layouts` and `layers`."""
    document = record_of(fact)
    rows = {key: document.pop(key) for key in ("times", "layouts", "layers")}
    forms = {key: getattr(fact, key).text for key in ("prefill_macs", "decode_macs")}
    forms["cache_bytes"] = fact.cache.bytes.text
    return {"serving": {**document, "forms": forms}, **rows}


def weights(about: Info, fact: Weights, tool: str, sha256: str | None = None) -> Document:
    """Return the document of `explorer weights`: the document of `info`, tensor statistics, duplicates."""
    return {
        **info(about, tool, sha256),
        "tensors": [encode_stats(stats) for stats in fact.tensors],
        **pick_fields(fact, ("tied", "duplicates", "notes")),
        "statistics": [encode_chosen_statistics(row) for row in fact.statistics],
    }


def activations(about: Info, fact: Activations, tool: str, sha256: str | None = None) -> Document:
    """Return the document of `explorer activations`: the document of `info`, inputs, tensor statistics."""
    return {
        **info(about, tool, sha256),
        "inputs": list(fact.inputs),
        "tensors": [encode_stats(stats) for stats in fact.tensors],
        "skipped": [{"layer": layer, "reason": reason} for layer, reason in fact.skipped],
        "output": fact.output or None,
        **pick_fields(fact, ("seconds", "notes")),
        "statistics": [encode_chosen_statistics(row) for row in fact.statistics],
    }


def compare(fact: Comparison, tool: str) -> Document:
    """Return the document of `explorer compare`: the totals of all models, and explained differences."""
    return {
        **envelope(tool),
        "agree": fact.agree,
        "models": [
            {
                "source": model.model.source,
                "format": model.model.format,
                **encode_totals(model.totals),
                **{name: value for name, value in compared.items() if name not in _OF_TOTALS},
            }
            for model, compared in zip(fact.models, _list_compared_records(fact.figures), strict=True)
        ],
        "operators": [{"op": op, "counts": list(counts)} for op, counts in fact.operators],
        "differences": [record_of(difference) for difference in fact.differences],
        "figures": record_of(fact.figures),
    }


_OF_TOTALS = {"name", *(name for name in TABLE_FIGURES if name in Totals.__struct_fields__)}
"""Names of compared figures that the totals of a model contain already."""


def _list_compared_records(fact: FigureTable) -> list[Document]:
    """Return one record per compared model or state: all figures, and the names of its best figures."""
    rows = {row.name: row for row in fact.rows}
    documents: list[Document] = []
    for index, name in enumerate(fact.names):
        values = {figure: row.values[index] for figure, row in rows.items()}
        figures = {
            figure: to_json(figure_value and figure_value.value)
            for figure in TABLE_FIGURES
            for figure_value in [values.get(figure)]
        }
        best = [figure for figure, row in rows.items() if index in row.best]
        documents.append({"name": name, **figures, "best": best})
    return documents


def _build_compared(fact: FigureTable | None) -> Document:
    """Return the part of a document that `--beside` adds."""
    return {} if fact is None else {"figures": record_of(fact), "compared": _list_compared_records(fact)}


def torchinfo(
    about: Info,
    fact: TorchinfoTable,
    analysis: Analysis | None,
    compared: bool,
    tool: str,
    sha256: str | None = None,
) -> Document:
    """Return the document of `explorer layers --style torchinfo` and `--compare`.

    Args:
        about: Facts about the model.
        fact: Table of torchinfo, and the rows in which it is wrong.
        analysis: Explorer's own rows, or None if they were not requested.
        compared: Whether the differences were requested.
        tool: Name and version of the program.
        sha256: Digest of the model's file.
    """
    document = layers(analysis, tool, sha256) if analysis else info(about, tool, sha256)
    document["torchinfo"] = {"version": fact.version, "text": fact.text}
    if compared:
        document["differences"] = [record_of(difference) for difference in fact.differences]
    return document


def output_file(about: Info, output: str, tool: str) -> Document:
    """Return the document of `explorer plot` and `report`: the document of `info`, and the output path."""
    return {**info(about, tool), "output": output}


def tile(
    fact: TileResult,
    model: ModelInfo,
    tool: str,
    sha256: str | None = None,
    first: Quantization | None = None,
) -> Document:
    """Return the document of `explorer tile`. `output` is null if no file was written.

    If the model was quantized first, `quantization` describes it; otherwise the key is missing.
    """
    return {
        **envelope(tool),
        "model": encode_model(model, sha256),
        "plan": plan(fact.plan),
        "output": fact.output or None,
        "verification": None if fact.verification is None else record_of(fact.verification),
        **pick_fields(fact, ("command", "seconds")),
        **({} if first is None else {"quantization": record_of(first)}),
    }


def plan(fact: Plan) -> Document:
    """Return a tiling plan, as nested in the document of `explorer tile`."""
    return {**record_of(fact), "sites": [pick_fields(site, _SITE) for site in fact.sites]}


def build_document(about: Info, fact: Struct, tool: str, sha256: str | None = None) -> Document:
    """Return the default document of a command: the document of `info`, and the fields of its fact."""
    return {**info(about, tool, sha256), **to_json(fact)}


def fx_graph(info: Info, fact: FxGraph, tool: str, sha256: str | None = None) -> Document:
    """Return the document of `explorer ops --fx`: the document of `info`, counts, nodes with statistics."""
    nodes = []
    for node in fact.nodes:
        record = record_of(node)
        nodes.append({**record, **record["values"]})  # both forms are documented, and scripts use both
    return {**build_document(info, fact, tool, sha256), "nodes": nodes}


def history(
    fact: History, source: str, output: str | None, tool: str, figures: FigureTable | None = None
) -> Document:
    """Return the document of `explorer history`: the states of a session, and the current one."""
    states = [
        {
            **pick_fields(entry, ("name", "label", "command")),
            "saved": entry.saved or None,
            "products": None if entry.record is None else entry.record.products,
            "passed": None if entry.verification is None else entry.verification.passed,
            "parent": fact.parent(index),
        }
        for index, entry in enumerate(fact.entries)
    ]
    return {
        **envelope(tool),
        "source": source,
        "current": fact.current,
        "states": states,
        "output": output,
        **_build_compared(figures),
    }


def conversion(fact: Conversion, tool: str) -> Document:
    """Return the document of `explorer convert`. `output` is null if no file was written."""
    return {
        **envelope(tool),
        "source": fact.source,
        "from": fact.source_format,
        "to": fact.format,
        "output": fact.output or None,
        **pick_fields(fact, ("file_bytes", "how", "opset")),
        "inputs": [encode_tensor(t) for t in fact.inputs],
        "outputs": [encode_tensor(t) for t in fact.outputs],
        "verification": None if fact.verification is None else record_of(fact.verification),
        **pick_fields(fact, ("stored", "notes", "unknown", "command", "seconds")),
    }


def verification(fact: Verification, tool: str) -> Document:
    """Return the document of `explorer verify`: the evidence per site and per output."""
    return {**envelope(tool), **record_of(fact)}


def blame(fact: Blame, tool: str) -> Document:
    """Return the document of `explorer blame`: the verdict, and all values that both models contain."""
    unpaired = [{"value": value, "reason": reason} for value, reason in fact.unpaired]
    return {**envelope(tool), **record_of(fact), "unpaired": unpaired}


def diff(fact: Diff, tool: str) -> Document:
    """Return the document of `explorer diff`: changes by operator and by node, and both models' totals."""
    return {
        **envelope(tool),
        **pick_fields(fact, ("before", "after", "equal", "summary")),
        "nodes": [_build_node_document(row) for row in fact.nodes],
        "totals": {"before": encode_totals(fact.totals_before), "after": encode_totals(fact.totals_after)},
    }


def _build_node_document(row: NodeDiff) -> Document:
    names = ("status", "before", "after", "what", "op_before", "op_after", "match", "confidence")
    children = [{"op": op, "count": count} for op, count in row.children]
    return {**pick_fields(row, names), "children": children}


def tree_diff(fact: TreeDiff, tool: str) -> Document:
    """Return the document of `explorer diff --tree`: both trees row by row.

    `nodes` contains the changes that belong to no row.
    """
    return {
        **envelope(tool),
        **pick_fields(fact, ("before", "after", "equal")),
        "summary": [],
        "nodes": [_build_node_document(row) for row in fact.graph],
        "totals": {"before": encode_totals(fact.totals_before), "after": encode_totals(fact.totals_after)},
        "tree_of": fact.form,
        "values_compared": fact.values_compared,
        "tree_counts": dict(fact.counts),
        "tree": Records(_build_pair_document, fact.rows),
    }


def _build_pair_document(row: RowPair) -> Document:
    return {
        **pick_fields(row, ("depth", "status", "what", "inside", "before", "after")),
        "delta": {figure: row.delta(figure) for figure in FIGURES},
    }
