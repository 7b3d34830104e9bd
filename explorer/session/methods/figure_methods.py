"""Figures of a session's models: totals, layers, memory, rooflines, training, operators, headers."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from explorer.base.checked import Count
from explorer.base.errors import Misuse
from explorer.engine.costs.memory import roofline as limits
from explorer.engine.costs.training import step
from explorer.facts import Analysis, Info, LayerTable, OpStat, Plan, TileSpec
from explorer.session.methods.facade import Facade
from explorer.session.parts import figures as computed
from explorer.session.parts.figures import Batches
from explorer.session.parts.models import Cancel, InputShapes, OnProgress
from explorer.settings import filter

if TYPE_CHECKING:
    from explorer.facts.comparison import TorchinfoTable
    from explorer.facts.external.overlay import Overlay
    from explorer.facts.memory import Memory
    from explorer.facts.roofline import Machine, Roofline
    from explorer.facts.training import Optimizer, Training, TrainingMemory
    from explorer.settings.overlay import Outside


def open(session: Facade, *, on_progress: OnProgress = None, cancel: Cancel = None) -> Info:
    """Opens the model.

    Returns:
        Its totals.

    Raises:
        BadModel: The source is no model, or a broken one.
        Misuse: An option does not fit it.
        MissingExtra: It needs a package that is not installed.
    """
    return session.parts.models.examined(0, on_progress, cancel).info


def info(session: Facade, index: int | None = None) -> Info:
    """Totals of the model at `index` of the history (None: the current one)."""
    return session.parts.models.examined(session.parts.models.at(index)).info


def info_at(
    session: Facade, input_shapes: InputShapes, *, on_progress: OnProgress = None, cancel: Cancel = None
) -> Info:
    """Totals of the opened model at other sizes of its inputs; the session keeps those it has.

    Args:
        input_shapes: As `Session` takes them.
        on_progress: Told where the analysis stands.
        cancel: Asked meanwhile; True stops.
    """
    models = session.parts.models
    return models.presented(0, models.original_at(input_shapes, on_progress, cancel)).info


def stored(session: Facade) -> Info:
    """What the opened module stores, and nothing of its work: for one whose inputs are not known.

    Raises:
        Misuse: It is no nn.Module.
    """
    opened: Any = session.parts.models.opened()
    if not session.parts.models.from_torch:
        raise Misuse("only an nn.Module has inputs that nobody knows", where=session.parts.models.source)
    info: Info = opened.stored()
    return info


def analysis(
    session: Facade, index: int | None = None, *, on_progress: OnProgress = None, cancel: Cancel = None
) -> Analysis:
    """Totals and every layer of the model at `index` of the history (None: the current one)."""
    return session.parts.models.analysis(session.parts.models.at(index), on_progress, cancel)


def packed_analysis(
    session: Facade, index: int | None = None, *, on_progress: OnProgress = None, cancel: Cancel = None
) -> Analysis:
    """As `analysis`, but its layers are packed, and each is made when it is looked at: of very many."""
    return session.parts.models.pages(session.parts.models.at(index), on_progress, cancel)


def memory(session: Facade, index: int | None = None) -> Memory:
    """What is live at each step of the execution order, and the arena that holds it."""
    return session.parts.models.memory(session.parts.models.at(index))


def roofline(session: Facade, machine: Machine, index: int | None = None) -> Roofline:
    """Every layer against the limits of a machine (see `explorer.settings.machines`)."""
    return limits.roofline(session.parts.models.ordered(index).analysis, machine)


def training(
    session: Facade, *, batch: Count | None = None, optimizer: Optimizer = "sgd", index: int | None = None
) -> Training:
    """What one training step multiplies and keeps in memory, layer by layer and in total.

    `memory` holds the answer to how much memory it takes: `steps[0].kept_bytes` and `peak_bytes`. The field
    `activation_bytes` is a theoretical figure, the outputs of all layers, and `sum_bytes` has it in.

    Args:
        batch: Batch size; the model is analysed again for it. None leaves its sizes as they are.
        optimizer: 'sgd', 'momentum' or 'adam'.
        index: Which model of the history; None is the current one.

    Raises:
        Misuse: There is no such optimizer, or the model has no batch or only another one.
    """
    return training_over_time(session, batches=(batch,), optimizer=optimizer, index=index)


def _training_work(session: Facade, batch: int | None, optimizer: Optimizer, index: int | None) -> Training:
    """What `training` gives without the memory of the step."""
    step.check(batch, optimizer)
    opened = session.parts.models.opened(session.parts.models.at(index))
    return step.training(opened.training(batch), optimizer)


def training_memory(
    session: Facade,
    *,
    batches: Batches = (None,),
    optimizer: Optimizer = "sgd",
    checkpoint: Sequence[str] = (),
    card: Count | None = None,
    index: int | None = None,
) -> TrainingMemory:
    """What is live while a training step runs, moment by moment, and at its peak.

    Torch runs the step of an nn.Module on shapes, in training mode. A graph is counted by the outputs of
    its layers.

    Args:
        batches: Batch sizes, each a step; None leaves the sizes as they are.
        optimizer: 'sgd', 'momentum' or 'adam'.
        checkpoint: Patterns of modules whose activations are made again in the backward pass
            (`torch.utils.checkpoint`): 'layer1.*'.
        card: Bytes that the step may take; the largest batch that fits is sought.
        index: Which model of the history; None is the current one.

    Raises:
        Misuse: See `training`; or a pattern means no module, or the model cannot be run so.
    """
    return computed.training_memory(session.parts.models, batches, optimizer, checkpoint, card, index)


def training_over_time(
    session: Facade,
    *,
    batches: Batches = (None,),
    optimizer: Optimizer = "sgd",
    checkpoint: Sequence[str] = (),
    card: Count | None = None,
    index: int | None = None,
) -> Training:
    """`training` at the first batch size, with its `memory`, unknown only where no more was asked.

    Args:
        batches: See `training_memory`, and for the others too.
        optimizer: Whose memory is in it.
        checkpoint: Patterns of modules.
        card: Bytes.
        index: Which model of the history.

    Raises:
        Misuse: See `training_memory`.
    """
    fact = _training_work(session, batches[0], optimizer, index)
    try:
        memory = computed.training_memory(session.parts.models, batches, optimizer, checkpoint, card, index)
    except Misuse as error:
        if len(batches) > 1 or checkpoint or card:
            raise
        return replace(fact, notes=(*fact.notes, f"no memory over time: {error.what}"))
    return replace(fact, memory=memory)


def torchinfo(session: Facade) -> TorchinfoTable:
    """Torchinfo's own table of the opened model, and where its numbers are not ours and why.

    Raises:
        Misuse: The model is an ONNX file.
        MissingExtra: torchinfo is not installed.
        BadModel: torchinfo cannot run the model.
    """
    if not session.parts.models.from_torch:
        raise Misuse(
            "torchinfo reads nn.Modules, and this file has none",
            where=session.parts.models.source,
            hint="leave --style out: our own tree is for every format",
            code="drop_option",
        )
    return computed.torchinfo_table(session.parts.models)


def ops(session: Facade, index: int | None = None) -> tuple[OpStat, ...]:
    """Operator types of a model: how many, what they cost, the range of every attribute."""
    return session.parts.models.ops(session.parts.models.at(index))


def layers(
    session: Facade,
    query: str | None = "",
    columns: Sequence[str] | None = (),
    *,
    style: str | None = "tree",
    sort: str | None = "",
    depth: int | None = None,
    flat: bool = False,
    machine: Machine | None = None,
    spec: TileSpec | None = None,
    overlay: Overlay | Outside | None = None,
    providers: Sequence[str] | None = None,
    fold_constants: bool = False,
    index: int | None = None,
    on_progress: OnProgress = None,
) -> LayerTable:
    """Rows of the layer tree as a table: filtered, folded, sorted, with columns.

    Args:
        query: A filter (see `explorer.settings.filter`): what it finds stays, and the groups around it,
            which sum what is left in them. Empty keeps all.
        columns: By name (see `explorer.settings.columns`); empty takes those of the style.
        style: 'tree', 'torchinfo', 'torchsummary', 'keras' or 'sizes'.
        sort: A column: siblings with the largest first, texts from A; the other way behind a minus.
        depth: Levels of the tree, from 1.
        flat: Rows without others in them only, one below the other, sorted together.
        machine: Of the column `time`, which nobody knows without one.
        spec: A tiling: of the column `utilization`; of a model that is tiled already its own, where the
            column is asked for.
        overlay: Figures from outside, as columns of their own (see `overlay`).
        providers: Of the column `provider` (see `placement`); empty for all that onnxruntime has here.
        fold_constants: Constants and shape arithmetic are one row in each group.
        index: Which model of the history; None is the current one.
        on_progress: Told where a plan stands.

    Raises:
        Misuse: There is no such column or style, an order or a filter needs a machine, a column a tile,
            or the filter cannot be read.
    """
    plan = _table_plan(session, spec, (query or "", sort or "", *(columns or ())), index, on_progress)
    placed = None if providers is None else session.placement(providers, index=index)
    models = session.parts.models
    return computed.table(
        models,
        query or "",
        columns or (),
        style=style or "tree",
        sort=sort or "",
        depth=depth,
        flat=flat,
        fold=fold_constants,
        table_figures=computed.given(models, machine, plan, overlay, placed, index),
        index=index,
    )


def _table_plan(
    session: Facade,
    spec: TileSpec | None,
    column_texts: Iterable[str],
    index: int | None,
    on_progress: OnProgress,
) -> Plan | None:
    """How full tiles are: as they would be, or as they are where that is asked for."""
    if spec is not None:
        return session.plan(spec, index=index, on_progress=on_progress)
    at = session.parts.models.at(index)
    if (
        not any("utilization" in text for text in column_texts)
        or session.parts.models.examined(at).info.tiled is None
    ):
        return None
    return session.tiling(index)


def column(
    session: Facade,
    name: str,
    *,
    machine: Machine | None = None,
    spec: TileSpec | None = None,
    overlay: Overlay | Outside | None = None,
    providers: Sequence[str] | None = None,
    index: int | None = None,
    on_progress: OnProgress = None,
) -> array[float]:
    """A column of the layer tree as numbers to sort by: one a row, and behind them the whole model's.

    Args:
        name: Of the column, see `explorer.settings.columns`.
        machine: Of the column `time`.
        spec: A tiling: of the column `utilization`; None for that of a model that is tiled already.
        overlay: Figures from outside, whose columns there are then.
        providers: Of the column `provider`.
        index: Which model of the history; None is the current one.
        on_progress: Told where a plan stands.

    Returns:
        Its figures in the order of the rows, not a number where one is not known. Of words and shapes
        their places in the alphabet, the first with the largest number.

    Raises:
        Misuse: There is no such column, or it needs a machine or a tile.
    """
    plan = _table_plan(session, spec, (name,), index, on_progress)
    placed = None if providers is None else session.placement(providers, index=index)
    models = session.parts.models
    return computed.column(models, name, computed.given(models, machine, plan, overlay, placed, index), index)


def overlay(session: Facade, figures: Outside, index: int | None = None) -> Overlay:
    """Figures from outside, of a profiler or a spreadsheet, on the layers of a model.

    Args:
        figures: An overlay file (see `explorer.settings.overlay`), several of them, or the figures
            themselves: a mapping from names, paths or globs to a number or to numbers by column.
        index: Which model of the history; None is the current one.

    Raises:
        Misuse: A file cannot be read, or holds no figures.
    """
    return computed.overlay(session.parts.models, figures, index)


def search(session: Facade, text: str, index: int | None = None) -> tuple[int, ...]:
    """Ids of the layers that match a query (see `explorer.settings.filter`)."""
    return filter.search(session.parts.models.examined(session.parts.models.at(index)).analysis.layers, text)
