"""Methods of a session about figures: totals, layers, memory, rooflines, training and operators."""

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
from explorer.facts.comparison import TorchinfoLayout
from explorer.session.methods.facade import Facade
from explorer.session.parts import figures as computed
from explorer.session.parts.figures import Batches
from explorer.session.parts.models import Cancel, InputShapes, OnProgress
from explorer.settings import filter
from explorer.settings.columns import StyleName

if TYPE_CHECKING:
    from explorer.facts.comparison import TorchinfoTable
    from explorer.facts.external.overlay import Overlay
    from explorer.facts.memory import Memory
    from explorer.facts.roofline import Machine, Roofline
    from explorer.facts.training import Optimizer, Training, TrainingMemory
    from explorer.settings.overlay import Outside


def open(session: Facade, *, on_progress: OnProgress = None, cancel: Cancel = None) -> Info:
    """Opens and analyzes the model.

    Returns:
        Totals of the model.

    Raises:
        BadModel: The source is not a model, or it is broken.
        Misuse: An option does not fit the model.
        MissingExtra: A required package is not installed.
    """
    return session.parts.models.examine_or_refuse(0, on_progress, cancel).info


def info(session: Facade, index: int | None = None) -> Info:
    """Returns the totals of the model at `index` of the history (None: the current one)."""
    return session.parts.models.examine_or_refuse(session.parts.models.resolve_index(index)).info


def info_at(
    session: Facade, input_shapes: InputShapes, *, on_progress: OnProgress = None, cancel: Cancel = None
) -> Info:
    """Returns the totals of the opened model at other input sizes. The session keeps its own sizes.

    Args:
        input_shapes: Input shapes, as `Session` takes them.
        on_progress: Callback with the progress of the analysis.
        cancel: Callback. If it returns True, the analysis stops.
    """
    models = session.parts.models
    examined = models.analyze_original_at(input_shapes, on_progress, cancel)
    models.refuse_failed_run(examined.failed_layer)
    return models.present_analysis(0, examined).info


def stored(session: Facade) -> Info:
    """Returns only the stored parameters of the opened module, for a module whose inputs are unknown.

    Raises:
        Misuse: The model is not an nn.Module.
    """
    opened: Any = session.parts.models.open_state()
    if not session.parts.models.from_torch:
        raise Misuse("only an nn.Module can have unknown inputs", where=session.parts.models.source)
    info: Info = opened.stored()
    return info


def analysis(
    session: Facade, index: int | None = None, *, on_progress: OnProgress = None, cancel: Cancel = None
) -> Analysis:
    """Returns the totals and all layers of the model at `index` of the history (None: the current one)."""
    return session.parts.models.analysis(session.parts.models.resolve_index(index), on_progress, cancel)


def packed_analysis(
    session: Facade, index: int | None = None, *, on_progress: OnProgress = None, cancel: Cancel = None
) -> Analysis:
    """Like `analysis`, but with packed layers, each decoded on access. For models with very many layers."""
    return session.parts.models.pages(session.parts.models.resolve_index(index), on_progress, cancel)


def memory(session: Facade, index: int | None = None) -> Memory:
    """Computes the live tensors at each step of the execution order, and the arena that holds them."""
    return session.parts.models.memory(session.parts.models.resolve_index(index))


def roofline(session: Facade, machine: Machine, index: int | None = None) -> Roofline:
    """Compares every layer with the limits of a machine (see `explorer.settings.machines`)."""
    return limits.compute_roofline(session.parts.models.examine_with_order(index).analysis, machine)


def training(
    session: Facade, *, batch: Count | None = None, optimizer: Optimizer = "sgd", index: int | None = None
) -> Training:
    """Computes the cost and memory of one training step, layer by layer and in total.

    The memory that a step takes is in `memory`: `steps[0].kept_bytes` and `peak_bytes`. The field
    `activation_bytes` is a theoretical figure, the outputs of all layers, and `sum_bytes` includes it.

    Args:
        batch: Batch size, for which the model is analyzed again. None keeps the model's own sizes.
        optimizer: 'sgd', 'momentum' or 'adam'.
        index: Index of the state in the history, or None for the current one.

    Raises:
        Misuse: The optimizer does not exist, or the model has no batch dimension or a fixed one of another
            size.
    """
    return training_over_time(session, batches=(batch,), optimizer=optimizer, index=index)


def _compute_step_cost(
    session: Facade, batch: int | None, optimizer: Optimizer, index: int | None
) -> Training:
    """Computes the cost of a training step without its memory over time."""
    step.check_options(batch, optimizer)
    models = session.parts.models
    gradients = models.open_state(models.resolve_index(index)).training(batch)
    models.refuse_failed_run(gradients.failed_layer)
    return step.compute_training(gradients, optimizer)


def training_memory(
    session: Facade,
    *,
    batches: Batches = (None,),
    optimizer: Optimizer = "sgd",
    checkpoint: Sequence[str] = (),
    card: Count | None = None,
    measured: bool = False,
    index: int | None = None,
) -> TrainingMemory:
    """Computes the live memory of a training step, moment by moment, and its peak.

    For an nn.Module, torch runs the step on shapes, in training mode. For a graph, the outputs of its layers
    are summed.

    Args:
        batches: Batch sizes, each a step of its own. None keeps the model's own sizes.
        optimizer: 'sgd', 'momentum' or 'adam'.
        checkpoint: Patterns of modules whose activations are recomputed in the backward pass
            (`torch.utils.checkpoint`): 'layer1.*'.
        card: Bytes of memory that the step may use. The largest batch that fits is searched.
        measured: Whether to run each step of a module on the CPU as well, and measure its memory.
        index: Index of the state in the history, or None for the current one.

    Raises:
        Misuse: See `training`. Also raised if a pattern matches no module or the model cannot be run this
            way.
    """
    return computed.compute_training_memory(
        session.parts.models, batches, optimizer, checkpoint, card, measured, index
    )


def training_over_time(
    session: Facade,
    *,
    batches: Batches = (None,),
    optimizer: Optimizer = "sgd",
    checkpoint: Sequence[str] = (),
    card: Count | None = None,
    measured: bool = False,
    index: int | None = None,
) -> Training:
    """Combines `training` at the first batch size with the result of `training_memory`.

    If the memory cannot be computed, `memory` is None and a note gives the reason. With several batch sizes,
    `checkpoint`, `card` or `measured`, this is an error instead.

    Args:
        batches: Batch sizes, as in `training_memory`.
        optimizer: Optimizer whose memory is counted.
        checkpoint: Patterns of modules, as in `training_memory`.
        card: Bytes of memory, as in `training_memory`.
        measured: Whether to measure the memory, as in `training_memory`.
        index: Index of the state in the history, or None for the current one.

    Raises:
        Misuse: See `training_memory`.
    """
    fact = _compute_step_cost(session, batches[0], optimizer, index)
    try:
        memory = computed.compute_training_memory(
            session.parts.models, batches, optimizer, checkpoint, card, measured, index
        )
    except Misuse as error:
        if len(batches) > 1 or checkpoint or card or measured:
            raise
        return replace(fact, notes=(*fact.notes, f"no memory over time: {error.what}"))
    return replace(fact, memory=memory)


def torchinfo(
    session: Facade,
    *,
    columns: Sequence[str] = (),
    depth: Count | None = None,
    width: Count | None = None,
    rows: Sequence[str] = (),
) -> TorchinfoTable:
    """Prints the opened model with torchinfo and lists the numbers that differ from Explorer's, with reasons.

    Args:
        columns: torchinfo's `col_names`. Empty for output size, parameters and multiply-adds.
        depth: Number of levels, from 1. None for all.
        width: torchinfo's `col_width`. None for its default.
        rows: torchinfo's `row_settings`. Empty for 'depth' and 'var_names'.

    Raises:
        Misuse: The model is an ONNX file, or torchinfo has no such column or row setting.
        MissingExtra: torchinfo is not installed.
        BadModel: torchinfo cannot run the model.
    """
    if not session.parts.models.from_torch:
        raise Misuse(
            "torchinfo reads nn.Modules, and this file has none",
            where=session.parts.models.source,
            hint="leave --style out: Explorer's own table is for every format",
            code="drop_option",
        )
    layout = TorchinfoLayout(tuple(columns), depth, width, tuple(rows))
    return computed.build_torchinfo_table(session.parts.models, layout)


def torchsummary(session: Facade, batch_size: Count | None = None) -> str:
    """Prints the opened model as torchsummary 1.5.1 does, with its numbers, indices and rounding.

    Args:
        batch_size: torchsummary's argument: the batch of the shapes and sizes in the table. None for its
            default, which it prints as -1.

    Raises:
        Misuse: The model has no nn.Module.
        BadModel: The model cannot run.
    """
    if not session.parts.models.from_torch:
        raise Misuse(
            "torchsummary reads nn.Modules, and this file has none",
            where=session.parts.models.source,
            hint="call layers(style='torchsummary') for Explorer's figures in its columns",
        )
    return computed.format_torchsummary(session.parts.models, batch_size or -1)


def ops(session: Facade, index: int | None = None) -> tuple[OpStat, ...]:
    """Summarizes each operator type of a model: its count, its cost, and the range of every attribute."""
    return session.parts.models.ops(session.parts.models.resolve_index(index))


def layers(
    session: Facade,
    query: str | None = "",
    columns: Sequence[str] | None = (),
    *,
    style: StyleName | None = "tree",
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
    """Builds a table of rows of the layer tree: filtered, folded and sorted, with the requested columns.

    Args:
        query: Filter (see `explorer.settings.filter`). The table keeps the matching rows and their groups,
            which sum the kept rows. Empty keeps all rows.
        columns: Names of columns (see `explorer.settings.columns`). Empty takes the columns of the style.
        style: 'tree', 'torchinfo', 'torchsummary', 'keras' or 'sizes'.
        sort: Name of the column by which siblings are sorted: largest number first, texts from A. A minus in
            front reverses the order.
        depth: Number of levels of the tree, from 1.
        flat: Whether to list only rows without children, sorted together.
        machine: Machine for the column `time`, which requires one.
        spec: Tiling for the column `utilization`. By default, a tiled model shows its own tiling if the
            column is requested.
        overlay: Figures from outside the program, as additional columns (see `overlay`).
        providers: Providers for the column `provider` (see `placement`). Empty selects all that onnxruntime
            has here.
        fold_constants: Whether constants and shape arithmetic become one row in each group.
        index: Index of the state in the history, or None for the current one.
        on_progress: Callback with the progress of a tiling plan.

    Raises:
        Misuse: A column or style does not exist, a column lacks its machine or tile, or the filter is
            invalid.
    """
    plan = _plan_utilization(session, spec, (query or "", sort or "", *(columns or ())), index, on_progress)
    placement = None if providers is None else session.placement(providers, index=index)
    models = session.parts.models
    table = computed.build_table(
        models,
        query or "",
        columns or (),
        style=style or "tree",
        sort=sort or "",
        depth=depth,
        flat=flat,
        fold=fold_constants,
        table_figures=computed.collect_figures(models, machine, plan, overlay, placement, index),
        index=index,
    )
    return replace(table, modules=models.list_own_modules(index)) if models.module is not None else table


def _plan_utilization(
    session: Facade,
    spec: TileSpec | None,
    column_texts: Iterable[str],
    index: int | None,
    on_progress: OnProgress,
) -> Plan | None:
    """Returns the plan for the column `utilization`: that of `spec`, else the plan of a tiled model.

    Returns None without `spec` if no text in `column_texts` names the column, or the model is not tiled.
    """
    if spec is not None:
        return session.plan(spec, index=index, on_progress=on_progress)
    state = session.parts.models.resolve_index(index)
    if (
        not any("utilization" in text for text in column_texts)
        or session.parts.models.examine_or_refuse(state).info.tiled is None
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
    """Returns a column of the layer tree as numbers to sort by: one per row, then one for the full model.

    Args:
        name: Name of the column, see `explorer.settings.columns`.
        machine: Machine for the column `time`.
        spec: Tiling for the column `utilization`, or None for the tiling of a tiled model.
        overlay: Figures from outside the program, which add columns.
        providers: Providers for the column `provider`.
        index: Index of the state in the history, or None for the current one.
        on_progress: Callback with the progress of a tiling plan.

    Returns:
        The figures in the order of the rows, NaN if unknown. For words and shapes, their rank in reverse
        alphabetical order, so that the first has the largest number.

    Raises:
        Misuse: The column does not exist, or it lacks its machine or tile.
    """
    plan = _plan_utilization(session, spec, (name,), index, on_progress)
    placement = None if providers is None else session.placement(providers, index=index)
    models = session.parts.models
    return computed.compute_column(
        models, name, computed.collect_figures(models, machine, plan, overlay, placement, index), index
    )


def overlay(session: Facade, figures: Outside, index: int | None = None) -> Overlay:
    """Matches figures of a profiler or a spreadsheet to the layers of a model.

    Args:
        figures: Path of an overlay file (see `explorer.settings.overlay`), several paths, or the figures
            themselves: a mapping from names, paths or globs to a number or to numbers by column.
        index: Index of the state in the history, or None for the current one.

    Raises:
        Misuse: A file cannot be read, or holds no figures.
    """
    return computed.match_overlay(session.parts.models, figures, index)


def search(session: Facade, text: str, index: int | None = None) -> tuple[int, ...]:
    """Finds the ids of the layers that match a query (see `explorer.settings.filter`)."""
    return filter.search(
        session.parts.models.examine_or_refuse(session.parts.models.resolve_index(index)).analysis.layers,
        text,
    )
