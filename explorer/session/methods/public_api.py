"""Types of the methods and functions of a session, written by `python -m tests.public_api`."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Unpack, overload

import torch
from torch import nn

from explorer.base.checked import Count, Natural, PathText, Seconds, Words
from explorer.engine.split.torch.stages import StagePipeline
from explorer.facts import (
    Analysis,
    Diff,
    History,
    Info,
    LayerTable,
    OpStat,
    Plan,
    Progress,
    SitePlan,
    TileResult,
    TileSpec,
    Verification,
)
from explorer.facts.blame import Blame
from explorer.facts.change import ProofRequest
from explorer.facts.check import Check, CheckSpec, ModelCheck
from explorer.facts.comparison import Comparison, FigureTable, TorchinfoTable, TreeDiff
from explorer.facts.conversion import Conversion, ExporterName, ScriptMethod
from explorer.facts.cost import Hardware, OrderName, PlanCost, TileSteps
from explorer.facts.emission import CodeForm, CodeFusion, CodeProof
from explorer.facts.evaluate.evaluation import Evaluation, Task
from explorer.facts.evaluate.training_run import TrainingRun
from explorer.facts.evaluate.training_sweep import TrainingSweep
from explorer.facts.external.overlay import Overlay
from explorer.facts.external.placement import Placement
from explorer.facts.graph.connections import Connections
from explorer.facts.graph.drawing import GraphDrawing, NodeFigures
from explorer.facts.graph.edges import RowEdges
from explorer.facts.graph.fx import FxGraph
from explorer.facts.graph.module_code import ModuleCode
from explorer.facts.graph.nodes import NodeTable
from explorer.facts.mapping import (
    Epilogue,
    GroupForm,
    MappingCost,
    MemoryMachine,
    ModelMapping,
    Objective,
    SiteMapping,
    Sizes,
)
from explorer.facts.mapping_sweep import MappingSweep
from explorer.facts.memory import Memory
from explorer.facts.profile.comparison import ProfileComparison
from explorer.facts.profile.profile import Profile, ProfileSpec
from explorer.facts.quantize import FormatSweep, FormatSweepSpec, Quantization, QuantizeSpec
from explorer.facts.roofline import Machine, Roofline
from explorer.facts.serving.serving import Serving
from explorer.facts.serving.spec import ServingSpec
from explorer.facts.serving.sweep import ServingSweep, ServingSweepSpec
from explorer.facts.settings import QuantizeSettings, Settings
from explorer.facts.sizes.curves import SizeCurves
from explorer.facts.sizes.decode import Decode
from explorer.facts.split.draft import SplitDraft
from explorer.facts.split.edit import Edit, EditSpec, EditStep
from explorer.facts.split.fold import FOLDS, Fold, FoldKind, FoldSpec
from explorer.facts.split.infer import InferenceResult, InferSpec
from explorer.facts.split.make import MadeModel
from explorer.facts.split.part import Extraction, PartSpec
from explorer.facts.split.run import PipelineRun
from explorer.facts.split.split import Split, SplitSpec, StageForm
from explorer.facts.summary import Counts, RowSetting, Summary
from explorer.facts.sweep import Sweep, SweepSpec
from explorer.facts.training import Optimizer, Training, TrainingMemory
from explorer.facts.user_pass import AppliedPass, PassSpec
from explorer.facts.values import Activations, HeatMap, TensorValues, Weights
from explorer.facts.verification import Tolerance
from explorer.session.parts.figures import Batches
from explorer.session.parts.keywords import (
    FormatSweepKeywords,
    OpeningKeywords,
    PairKeywords,
    SweepKeywords,
    TrainingKeywords,
    TrainingSweepKeywords,
)
from explorer.session.parts.models import Cancel, Dims, InputShapes, OnProgress
from explorer.session.parts.session_parts import SessionParts
from explorer.settings.columns import StyleName
from explorer.settings.overlay import Outside


class PublicMethods:
    """Methods that modules of `methods` and features add to `Session`."""

    parts: SessionParts

    def do(
        self,
        change: str,
        options: Any,
        *,
        state: int | None = None,
        proof: ProofRequest | None = None,
        output: PathText | None = None,
        overwrite: bool = False,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Any:
        """Changes a model of the history and makes the result the current state. All other states stay."""
        raise NotImplementedError

    def history(self) -> History:
        """Returns all states of the session, the parent of each, and the current state."""
        raise NotImplementedError

    def undo(self) -> History:
        """Moves one step back. At the original it does nothing."""
        raise NotImplementedError

    def redo(self) -> History:
        """Moves one step forward along the line of the last moves. At its end it does nothing."""
        raise NotImplementedError

    def go(self, index: int) -> History:
        """Makes any state the current one. The other states stay."""
        raise NotImplementedError

    def name(self, index: int, text: str) -> History:
        """Names a state. An empty text removes the name."""
        raise NotImplementedError

    def restore(self, history: History) -> History:
        """Restores the history of another session of the same source, whose process ended."""
        raise NotImplementedError

    def bind(
        self, dims: Mapping[str, int], *, on_progress: OnProgress = None, cancel: Cancel = None
    ) -> History:
        """Binds sizes to open dimensions. They replace the sizes with which the model was opened."""
        raise NotImplementedError

    def open(self, *, on_progress: OnProgress = None, cancel: Cancel = None) -> Info:
        """Opens and analyzes the model."""
        raise NotImplementedError

    def info(self, index: int | None = None) -> Info:
        """Returns the totals of the model at `index` of the history (None: the current one)."""
        raise NotImplementedError

    def info_at(
        self, input_shapes: InputShapes, *, on_progress: OnProgress = None, cancel: Cancel = None
    ) -> Info:
        """Returns the totals of the opened model at other input sizes. The session keeps its own sizes."""
        raise NotImplementedError

    def stored(self) -> Info:
        """Returns only the stored parameters of the opened module, for a module whose inputs are unknown."""
        raise NotImplementedError

    def analysis(
        self, index: int | None = None, *, on_progress: OnProgress = None, cancel: Cancel = None
    ) -> Analysis:
        """Returns the totals and all layers of the model at `index` of the history (None: the current one)."""
        raise NotImplementedError

    def packed_analysis(
        self, index: int | None = None, *, on_progress: OnProgress = None, cancel: Cancel = None
    ) -> Analysis:
        """Like `analysis`, but with packed layers, each decoded on access. For models with very many layers."""
        raise NotImplementedError

    def memory(self, index: int | None = None) -> Memory:
        """Computes the live tensors at each step of the execution order, and the arena that holds them."""
        raise NotImplementedError

    def roofline(self, machine: Machine, index: int | None = None) -> Roofline:
        """Compares every layer with the limits of a machine (see `explorer.settings.machines`)."""
        raise NotImplementedError

    def training(
        self, *, batch: Count | None = None, optimizer: Optimizer = "sgd", index: int | None = None
    ) -> Training:
        """Computes the cost and memory of one training step, layer by layer and in total."""
        raise NotImplementedError

    def training_memory(
        self,
        *,
        batches: Batches = (None,),
        optimizer: Optimizer = "sgd",
        checkpoint: Sequence[str] = (),
        card: Count | None = None,
        measured: bool = False,
        index: int | None = None,
    ) -> TrainingMemory:
        """Computes the live memory of a training step, moment by moment, and its peak."""
        raise NotImplementedError

    def training_over_time(
        self,
        *,
        batches: Batches = (None,),
        optimizer: Optimizer = "sgd",
        checkpoint: Sequence[str] = (),
        card: Count | None = None,
        measured: bool = False,
        index: int | None = None,
    ) -> Training:
        """Combines `training` at the first batch size with the result of `training_memory`."""
        raise NotImplementedError

    def torchinfo(
        self,
        *,
        columns: Sequence[str] = (),
        depth: Count | None = None,
        width: Count | None = None,
        rows: Sequence[str] = (),
    ) -> TorchinfoTable:
        """Prints the opened model with torchinfo and lists the numbers that differ from Explorer's, with reasons."""
        raise NotImplementedError

    def torchsummary(self, batch_size: Count | None = None) -> str:
        """Prints the opened model as torchsummary 1.5.1 does, with its numbers, indices and rounding."""
        raise NotImplementedError

    def ops(self, index: int | None = None) -> tuple[OpStat, ...]:
        """Summarizes each operator type of a model: its count, its cost, and the range of every attribute."""
        raise NotImplementedError

    def layers(
        self,
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
        """Builds a table of rows of the layer tree: filtered, folded and sorted, with the requested columns."""
        raise NotImplementedError

    def column(
        self,
        name: str,
        *,
        machine: Machine | None = None,
        spec: TileSpec | None = None,
        overlay: Overlay | Outside | None = None,
        providers: Sequence[str] | None = None,
        index: int | None = None,
        on_progress: OnProgress = None,
    ) -> array[float]:
        """Returns a column of the layer tree as numbers to sort by: one per row, then one for the full model."""
        raise NotImplementedError

    def overlay(self, figures: Outside, index: int | None = None) -> Overlay:
        """Matches figures of a profiler or a spreadsheet to the layers of a model."""
        raise NotImplementedError

    def search(self, text: str, index: int | None = None) -> tuple[int, ...]:
        """Finds the ids of the layers that match a query (see `explorer.settings.filter`)."""
        raise NotImplementedError

    def connections(self, layer: str | int, index: int | None = None) -> Connections:
        """Finds the producers of a layer's inputs and the readers of its outputs."""
        raise NotImplementedError

    def edges(self, index: int | None = None) -> RowEdges:
        """Lists the edges between rows of the layer tree that point downward, by row ids."""
        raise NotImplementedError

    def fx_graph(
        self,
        *,
        stat: str | None = None,
        input: PathText | None = None,
        seed: Natural = 0,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> FxGraph:
        """Traces the opened module with torch.fx: nodes with kind, target, type and shapes."""
        raise NotImplementedError

    def placement(self, providers: Sequence[str] = (), *, index: int | None = None) -> Placement:
        """Finds the execution provider of onnxruntime for each layer, and the tensors between providers."""
        raise NotImplementedError

    def save(self, path: PathText, *, overwrite: bool = False, on_progress: OnProgress = None) -> str:
        """Writes the current model to `path` as ONNX."""
        raise NotImplementedError

    def check_output(self, path: PathText, *, overwrite: bool = False) -> None:
        """Refuses an output path before any work starts, if the current model cannot be written to it."""
        raise NotImplementedError

    def script(
        self, path: PathText, *, index: int | None = None, branches: bool = False, overwrite: bool = False
    ) -> str:
        """Writes a shell script with the commands that make a state and the states before it."""
        raise NotImplementedError

    def script_text(self, index: int | None = None, *, branches: bool = False) -> str:
        """Returns the text that `script` writes. It opens only ONNX files, so no code of the model runs."""
        raise NotImplementedError

    def plan(self, spec: TileSpec, *, index: int | None = None, on_progress: OnProgress = None) -> Plan:
        """Plan a tiling without changing the model."""
        raise NotImplementedError

    def tiling(self, index: int | None = None) -> Plan | None:
        """Return the plan by which a state (None: the current one) was tiled, or None if it is not tiled."""
        raise NotImplementedError

    def cost(
        self,
        spec: TileSpec,
        hardware: Hardware | None = None,
        *,
        order: OrderName = "best",
        formulas: bool | None = None,
        on_progress: OnProgress = None,
    ) -> PlanCost:
        """Count the cost of a tiling of the current model on a machine, without tiling it."""
        raise NotImplementedError

    def tile_steps(
        self, site: SitePlan, *, order: OrderName = "best", first: Natural = 0, count: Count = 64
    ) -> TileSteps:
        """Return the buffer contents and the bytes moved at some steps of a site; a step is one tile matmul."""
        raise NotImplementedError

    def settings(self, spec: TileSpec, *, on_progress: OnProgress = None) -> Settings:
        """Return the settings of `spec` for every site of the current model, each with its source."""
        raise NotImplementedError

    def tile(
        self,
        spec: TileSpec,
        *,
        output: PathText | None = None,
        overwrite: bool = False,
        verify: bool = True,
        draws: Count = 1,
        seed: Natural = 0,
        input: PathText | None = None,
        discard: bool = False,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> TileResult:
        """Tile the current model; the result becomes the current state, and all other states stay."""
        raise NotImplementedError

    def plan_module(self, spec: TileSpec, *, on_progress: OnProgress = None) -> Plan:
        """Return the plan of `tile_module` without creating a module."""
        raise NotImplementedError

    def tile_module(
        self,
        spec: TileSpec,
        *,
        output: PathText | None = None,
        overwrite: bool = False,
        dynamic: Mapping[str, Mapping[int, str]] | None = None,
        verify: bool = True,
        draws: Count = 3,
        seed: Natural = 0,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> tuple[nn.Module, TileResult]:
        """Return a copy of the opened nn.Module whose layers compute their matmuls tile by tile."""
        raise NotImplementedError

    def module_command(
        self,
        spec: TileSpec,
        output: PathText | None = None,
        dynamic: Mapping[str, Mapping[int, str]] | None = None,
    ) -> str:
        """Return the shell command that does the same as `tile_module`, or '' if no command can."""
        raise NotImplementedError

    def command(self, spec: TileSpec, output: PathText | None = None) -> str:
        """Return the shell command that tiles the opened model in the same way."""
        raise NotImplementedError

    def keep_choices(self, path: PathText, *, overwrite: bool = False, on_progress: OnProgress = None) -> str:
        """Write the tilings of the session to a file for `--config`, with one rule for each site, by its name."""
        raise NotImplementedError

    def map(
        self,
        machine: str | MemoryMachine,
        *,
        objective: Objective = "cycles",
        sites: tuple[str, ...] = (),
        constrain: str = "",
        fuse: CodeFusion = "",
        grouped: GroupForm | None = None,
        mapping: PathText | None = None,
        capacity: str = "",
        formulas: bool = False,
        direct: bool = False,
        output: PathText | None = None,
        overwrite: bool = False,
        on_progress: OnProgress = None,
    ) -> ModelMapping:
        """Map every matrix product of the current model to a machine with memories."""
        raise NotImplementedError

    def mapping_cost(self, mapping: SiteMapping, machine: str | MemoryMachine) -> MappingCost:
        """Count the cost of one mapping on a machine, without a search."""
        raise NotImplementedError

    def emit(
        self,
        output: PathText,
        *,
        mapping: PathText | None = None,
        machine: str | MemoryMachine | None = None,
        form: CodeForm = "c",
        fuse: CodeFusion = "",
        grouped: GroupForm | None = None,
        sites: tuple[str, ...] = (),
        overwrite: bool = False,
        verify: bool = True,
        seed: Natural = 0,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> CodeProof:
        """Write mapped matrix products of the current model as C code, and prove the code."""
        raise NotImplementedError

    def epilogues(
        self, *, grouped: GroupForm = "batch", unit: Sizes = (1, 1, 1), on_progress: OnProgress = None
    ) -> dict[str, Epilogue]:
        """Find the operators that can be fused into the matrix products of the current model."""
        raise NotImplementedError

    def verify_code(
        self, folder: PathText, *, seed: Natural = 0, on_progress: OnProgress = None, cancel: Cancel = None
    ) -> CodeProof:
        """Prove the code in a folder again: compile its C files, run them, and compare numbers and counters."""
        raise NotImplementedError

    def quantize_choice(
        self,
        spec: QuantizeSpec,
        *,
        state: int | None = None,
        as_graph: bool = False,
        calibrate: PathText | None = None,
        draws: Count = 4,
        seed: Natural = 0,
        on_progress: OnProgress = None,
    ) -> Quantization:
        """Predict what `quantize` does to a model: formats, bits, BitOPs and bytes."""
        raise NotImplementedError

    def quantize_settings(self, spec: QuantizeSpec, *, on_progress: OnProgress = None) -> QuantizeSettings:
        """Return the settings that `spec` gives every layer of the current model, and the source of each value."""
        raise NotImplementedError

    def quantize(
        self,
        spec: QuantizeSpec,
        *,
        state: int | None = None,
        onnx: bool = False,
        output: PathText | None = None,
        overwrite: bool = False,
        calibrate: PathText | None = None,
        draws: Count = 4,
        seed: Natural = 0,
        report: bool = True,
        as_graph: bool = False,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Quantization:
        """Quantize a model; the result becomes the current state, and all other states stay."""
        raise NotImplementedError

    def quantize_module(
        self,
        spec: QuantizeSpec,
        *,
        output: PathText | None = None,
        overwrite: bool = False,
        dynamic: Mapping[str, Mapping[int, str]] | None = None,
        calibrate: PathText | None = None,
        draws: Count = 4,
        seed: Natural = 0,
        report: bool = True,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> tuple[nn.Module, Quantization]:
        """Return a copy of the opened nn.Module whose layers round to number formats."""
        raise NotImplementedError

    def quantize_trial(
        self,
        spec: QuantizeSpec,
        *,
        calibrate: PathText | None = None,
        draws: Count = 4,
        seed: Natural = 0,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Quantization:
        """Measure the error of `quantize` at the outputs, and the size reduction, without creating a state."""
        raise NotImplementedError

    def requantize(
        self,
        layer: str,
        *,
        weight: str | None = None,
        input: PathText | None = None,
        bias: str | None = None,
        on: bool | None = None,
        report: bool = True,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Quantization:
        """Repeat the quantization of the current state with another choice for one layer, as a new branch."""
        raise NotImplementedError

    def fold_choice(
        self, kinds: Sequence[FoldKind] = FOLDS, *, on_progress: OnProgress = None, cancel: Cancel = None
    ) -> Fold:
        """Predict the result of `fold` on the current model, and the reasons why nodes stay."""
        raise NotImplementedError

    @overload
    def fold(
        self,
        kinds: FoldSpec,
        *,
        output: PathText | None = None,
        overwrite: bool = False,
        verify: bool = True,
        draws: Count = 1,
        seed: Natural = 0,
        input: PathText | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Fold: ...
    @overload
    def fold(
        self,
        kinds: Sequence[FoldKind] = FOLDS,
        *,
        output: PathText | None = None,
        overwrite: bool = False,
        verify: bool = True,
        draws: Count = 1,
        seed: Natural = 0,
        input: PathText | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Fold: ...
    def fold(self, *args: Any, **kwargs: Any) -> Any:
        """Fold operators of the current model; every kind of fold that changes it makes a state."""
        raise NotImplementedError

    def infer_choice(
        self, spec: InferSpec | None = None, *, on_progress: OnProgress = None, cancel: Cancel = None
    ) -> InferenceResult:
        """Predict the result of `infer` on the current model, without a new state."""
        raise NotImplementedError

    def infer(
        self,
        spec: InferSpec | None = None,
        *,
        output: PathText | None = None,
        overwrite: bool = False,
        verify: bool = True,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> InferenceResult:
        """Declare the inferred type and shape of every value of the current model; the result becomes a state."""
        raise NotImplementedError

    @overload
    def edit(
        self,
        steps: EditSpec,
        *,
        output: PathText | None = None,
        overwrite: bool = False,
        verify: bool = True,
        each: bool = True,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Edit: ...
    @overload
    def edit(
        self,
        steps: Sequence[EditStep],
        *,
        output: PathText | None = None,
        overwrite: bool = False,
        verify: bool = True,
        each: bool = True,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Edit: ...
    def edit(self, *args: Any, **kwargs: Any) -> Any:
        """Edit the graph of the current model; the result becomes the current state."""
        raise NotImplementedError

    def apply_pass(
        self,
        spec: PassSpec,
        *,
        output: PathText | None = None,
        overwrite: bool = False,
        verify: bool = True,
        draws: Count = 1,
        seed: Natural = 0,
        input: PathText | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> AppliedPass:
        """Apply a pass of your own to the current model; the result becomes a state, with a proof."""
        raise NotImplementedError

    def rebatch(
        self,
        batch: Count | Words,
        output: PathText,
        *,
        axes: Mapping[str, int] | None = None,
        overwrite: bool = False,
        verify: bool = True,
        draws: Count = 3,
        seed: Natural = 0,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Conversion:
        """Write the current model with another batch size than its fixed batch size, and compare each row."""
        raise NotImplementedError

    def split(
        self,
        spec: SplitSpec,
        *,
        machines: Sequence[Machine] = (),
        output: PathText | None = None,
        overwrite: bool = False,
        verify: bool = True,
        seed: Natural = 0,
        index: int | None = None,
        form: StageForm = "onnx",
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Split:
        """Split a model into the stages of a pipeline."""
        raise NotImplementedError

    def split_draft(
        self,
        spec: SplitSpec,
        places: Sequence[int] | None = None,
        *,
        machines: Sequence[Machine] = (),
        index: int | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> SplitDraft:
        """Return the figures of the stages while the user moves cuts; nothing is written."""
        raise NotImplementedError

    def split_module(
        self,
        spec: SplitSpec,
        *,
        devices: Sequence[str] = (),
        machines: Sequence[Machine] = (),
        seed: Natural = 0,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> tuple[StagePipeline, Split]:
        """Split the opened nn.Module into stages that are modules, each on its device."""
        raise NotImplementedError

    def run_stages(
        self,
        folder: PathText,
        *,
        micro_batches: Count | None = None,
        threads: Count = 1,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> PipelineRun:
        """Run the stages that `split` wrote, one process per stage, with the session's sizes of open dimensions."""
        raise NotImplementedError

    def extract(
        self,
        spec: PartSpec,
        output: PathText | None = None,
        *,
        overwrite: bool = False,
        verify: bool = True,
        seed: Natural = 0,
        index: int | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Extraction:
        """Extract a part of a model as a model that runs alone."""
        raise NotImplementedError

    def conversions(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Return the formats that the opened model can be converted to: name and file extensions of each."""
        raise NotImplementedError

    def convert(
        self,
        output: PathText,
        *,
        exporter: ExporterName | None = None,
        opset: Count | None = None,
        input_names: Sequence[str] = (),
        output_names: Sequence[str] = (),
        dynamic: Mapping[str, Mapping[int, str]] | None = None,
        method: ScriptMethod | None = None,
        fold: bool = False,
        overwrite: bool = False,
        verify: bool = True,
        draws: Count = 3,
        seed: Natural = 0,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Conversion:
        """Write the opened model in another format, and compare both models."""
        raise NotImplementedError

    def check_input(self, input: PathText, *, on_progress: OnProgress = None) -> None:
        """Check early that the current model can run on a file of inputs."""
        raise NotImplementedError

    def verify(
        self,
        before: int = 0,
        after: int | None = None,
        *,
        draws: Count = 1,
        seed: Natural = 0,
        dims: Dims | None = None,
        input: PathText | None = None,
        tolerance: Tolerance | None = None,
        other: PathText | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Verification:
        """Verify that two models compute the same outputs."""
        raise NotImplementedError

    def blame(
        self,
        before: int = 0,
        after: int | None = None,
        *,
        spec: TileSpec | None = None,
        draws: Count = 3,
        seed: Natural = 0,
        dims: Dims | None = None,
        input: PathText | None = None,
        other: PathText | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Blame:
        """Find the first layer at which one model departs from another, and how the error grows."""
        raise NotImplementedError

    def diff(
        self,
        before: int = 0,
        after: int | None = None,
        *,
        other: PathText | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Diff:
        """Compare two models node by node, as ONNX graphs or as modules; arguments as for `tree_diff`."""
        raise NotImplementedError

    def tree_diff(
        self,
        before: int = 0,
        after: int | None = None,
        *,
        other: PathText | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> TreeDiff:
        """Align the layer trees of two models with the matching rules of `diff`."""
        raise NotImplementedError

    def compare(
        self,
        before: int = 0,
        after: int | None = None,
        *,
        other: PathText | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Comparison:
        """Compare the totals of two models and explain the differences; arguments as for `tree_diff`."""
        raise NotImplementedError

    def beside(
        self,
        states: Sequence[int | str],
        *,
        others: Sequence[str] = (),
        hardware: Hardware | None = None,
        verify: bool = False,
        draws: Count = 1,
        seed: Natural = 0,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> FigureTable:
        """Build a table of figures with a column for each of two or more states."""
        raise NotImplementedError

    def check(
        self,
        spec: CheckSpec,
        *,
        against: PathText | None = None,
        machine: Machine | None = None,
        index: int | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> ModelCheck:
        """Compare the figures of a model with its budgets."""
        raise NotImplementedError

    def profile(
        self,
        spec: ProfileSpec | None = None,
        *,
        batch: Count | None = None,
        machine: Machine | None = None,
        index: int | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Profile:
        """Measure the run time of a model, layer by layer; the history keeps the profile."""
        raise NotImplementedError

    def compare_profiles(
        self,
        before: int = 0,
        after: int | None = None,
        *,
        other: PathText | None = None,
        spec: ProfileSpec | None = None,
        batches: tuple[Count | None, Count | None] = (None, None),
        machine: Machine | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> ProfileComparison:
        """Time two models in turn and compare their layers, matched as `diff` matches them."""
        raise NotImplementedError

    def weights(
        self,
        names: Sequence[str] = (),
        *,
        kinds: Sequence[str] = (),
        stat: str | None = None,
        axis: int | None = None,
        bins: Count = 32,
        index: int | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Weights:
        """Measure stored tensors, reading one slab at a time."""
        raise NotImplementedError

    def activations(
        self,
        layers: Sequence[str] = (),
        *,
        kinds: Sequence[str] = (),
        stat: str | None = None,
        axis: int | None = None,
        input: PathText | None = None,
        batch: Count | None = None,
        seed: Natural = 0,
        loss: str | None = None,
        target: PathText | None = None,
        bins: Count = 32,
        output: PathText | None = None,
        overwrite: bool = False,
        index: int | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Activations:
        """Run a model and measure the outputs of its layers; optionally write the outputs to a file."""
        raise NotImplementedError

    def values(
        self,
        name: str,
        slice: str = "",
        *,
        before: int | PathText | None = None,
        before_name: str | None = None,
        input: PathText | None = None,
        seed: Natural = 0,
        output: PathText | None = None,
        overwrite: bool = False,
        index: int | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> TensorValues:
        """Read the numbers of one tensor: a stored tensor, or the value of a layer or graph tensor in a run."""
        raise NotImplementedError

    def heat_map(
        self,
        name: str,
        *,
        place: Sequence[int] = (),
        rows: tuple[int, int] | None = None,
        columns: tuple[int, int] | None = None,
        size: tuple[int, int] = (24, 64),
        whole: bool = True,
        before: int | PathText | None = None,
        input: PathText | None = None,
        seed: Natural = 0,
        index: int | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> HeatMap:
        """Draw a matrix of a tensor as few cells; each cell shows the number with the largest magnitude."""
        raise NotImplementedError

    def graph(
        self,
        layer: str | int | None = None,
        *,
        depth: int | None = None,
        steps: int | None = None,
        unfold: Sequence[str | int | tuple[int, int]] = (),
        between: tuple[str | int, str | int] | None = None,
        nested: bool = False,
        overlay: Overlay | Outside | None = None,
        index: int | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> GraphDrawing:
        """Lay out a model as a graph of its layers, with groups folded."""
        raise NotImplementedError

    def node_figures(
        self,
        figure: str = "macs",
        *,
        overlay: Overlay | Outside | None = None,
        index: int | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> NodeFigures:
        """Return a figure of every node of the graph, by the node names that Model Explorer uses."""
        raise NotImplementedError

    def module_code(self, module: str | Natural = "", *, ssa: bool = False) -> ModuleCode:
        """Return the code of a module of a TorchScript file, or its graph in SSA form."""
        raise NotImplementedError

    def nodes(
        self,
        layers: Sequence[str] = (),
        *,
        kinds: Sequence[str] = (),
        index: int | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> NodeTable:
        """List the nodes of an ONNX file with all attributes, and with every tensor that they read and write."""
        raise NotImplementedError

    def size_names(self, index: int | None = None) -> dict[str, int | None]:
        """Return the sizes that `sizes` can vary, each with its current value, or None if open."""
        raise NotImplementedError

    def sizes(
        self,
        over: str | None = None,
        low: int | None = None,
        high: int | None = None,
        *,
        machine: Machine | None = None,
        index: int | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> SizeCurves:
        """Count MACs, memory and least time over one size, and find sizes at which one figure passes another."""
        raise NotImplementedError

    def decode(
        self,
        tokens: int | None = None,
        *,
        index: int | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Decode:
        """Count one decode step after a text, the prefill pass over the text, and the growth of the KV cache."""
        raise NotImplementedError

    def serving(
        self,
        spec: ServingSpec,
        *,
        machine: Machine | None = None,
        index: int | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Serving:
        """Count the cost of running a language model: parameters, prompt, decode step, cache, times, layouts."""
        raise NotImplementedError

    def evaluate(
        self,
        data: PathText,
        *,
        labels: str = "",
        inputs: Sequence[str] = (),
        scores: str = "",
        batch: Count = 64,
        task: Task | None = None,
        states: Sequence[int] = (),
        others: Sequence[str] = (),
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Evaluation:
        """Score states of the session, and other models, on the samples of a file."""
        raise NotImplementedError

    def train(self, data: PathText, **options: Unpack[TrainingKeywords]) -> TrainingRun:
        """Train a copy of the opened module on the samples of a file. It is meant for small modules."""
        raise NotImplementedError

    def module_digest(self) -> str:
        """Return a digest of the opened module: of its layers, its values, and the files of its classes."""
        raise NotImplementedError

    def sweep(
        self,
        spec: SweepSpec,
        *,
        hardware: Hardware | None = None,
        order: OrderName = "best",
        verify: bool = False,
        draws: Count = 1,
        seed: Natural = 0,
        output: PathText | None = None,
        scheduler: str | None = None,
        workers: Count | None = None,
        layers: bool = False,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Sweep:
        """Compute a row for every combination of `spec` on the current model; `sweep_files` takes several models."""
        raise NotImplementedError

    def sweep_formats(
        self,
        spec: FormatSweepSpec,
        *,
        state: int | None = None,
        output: PathText | None = None,
        scheduler: str | None = None,
        workers: Count | None = None,
        seconds: Seconds | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> FormatSweep:
        """Try number formats on a model, optionally layer by layer."""
        raise NotImplementedError

    def sweep_mappings(
        self,
        machines: tuple[str, ...],
        *,
        capacity: str = "",
        objective: Objective = "cycles",
        sites: tuple[str, ...] = (),
        output: PathText | None = None,
        scheduler: str | None = None,
        workers: Count | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> MappingSweep:
        """Map the matrix products of the current model to several machines and sizes of their first memory."""
        raise NotImplementedError

    def sweep_training(
        self, data: PathText, over: str, **options: Unpack[TrainingSweepKeywords]
    ) -> TrainingSweep:
        """Train copies of the module with several settings and rank them by the held-out samples."""
        raise NotImplementedError


def make_model(
    text: str,
    output: str,
    *,
    name: str | None = None,
    seed: int = 0,
    batch: int | str = 1,
    stored: bool = True,
    overwrite: bool = False,
    shapes: bool = False,
) -> MadeModel:
    """Write a small ONNX model that a line of text describes; the same line gives the same bytes."""
    raise NotImplementedError


def run_pipeline(
    folder: str,
    *,
    input: PathText | None = None,
    batch: Count | None = None,
    micro_batches: Count | None = None,
    dims: Mapping[str, int] | None = None,
    threads: Count = 1,
    seed: Natural = 0,
    output: PathText | None = None,
    overwrite: bool = False,
    scheduler: str | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> PipelineRun:
    """Run the stages that `Session.split` wrote, one process per stage, and send micro-batches through them."""
    raise NotImplementedError


def verify_files(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    draws: Count = 1,
    seed: Natural = 0,
    input: PathText | None = None,
    tolerance: Tolerance | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **options: Unpack[PairKeywords],
) -> Verification:
    """Verify that the models `a` and `b` compute the same outputs, or outputs within `tolerance`."""
    raise NotImplementedError


def blame_files(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    draws: Count = 3,
    seed: Natural = 0,
    input: PathText | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **options: Unpack[PairKeywords],
) -> Blame:
    """Find the layers at which the values of the model `b` begin to differ from those of `a`."""
    raise NotImplementedError


def diff_files(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **options: Unpack[PairKeywords],
) -> Diff:
    """Compare the models `a` and `b` node by node; `options` are those of `explorer.session.Session`."""
    raise NotImplementedError


def tree_diff_files(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **options: Unpack[PairKeywords],
) -> TreeDiff:
    """Align the layer trees of two models; `options` are those of `explorer.session.Session`."""
    raise NotImplementedError


def compare_files(
    *sources: str | os.PathLike[str],
    hardware: Hardware | None = None,
    verify: bool = False,
    draws: Count = 1,
    first_seed: Natural = 0,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **options: Unpack[OpeningKeywords],
) -> Comparison:
    """Compare the figures of two or more models with those of the first, and mark the best of each figure."""
    raise NotImplementedError


def check_files(
    *models: str | os.PathLike[str],
    spec: CheckSpec | None = None,
    against: PathText | None = None,
    update: bool = False,
    overwrite: bool = False,
    config: PathText | None = None,
    machine: Machine | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **options: Unpack[OpeningKeywords],
) -> Check:
    """Compare the figures of models with their budgets."""
    raise NotImplementedError


def sweep_serving(
    *sources: str | os.PathLike[str],
    spec: ServingSweepSpec,
    machine: Machine | None = None,
    output: PathText | None = None,
    scheduler: str | None = None,
    workers: Count | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **options: Unpack[OpeningKeywords],
) -> ServingSweep:
    """Count every combination of model, type, context, batch, device count and layout, one row each."""
    raise NotImplementedError


def evaluate_files(
    *sources: str | os.PathLike[str],
    data: PathText,
    labels: str = "",
    inputs: Sequence[str] = (),
    scores: str = "",
    batch: Count = 64,
    task: Task | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **options: Any,
) -> Evaluation:
    """Score models on the samples of a file; the arguments are those of `Session.evaluate`."""
    raise NotImplementedError


def sweep_files(*sources: str | os.PathLike[str], spec: SweepSpec, **options: Unpack[SweepKeywords]) -> Sweep:
    """Compute a row for every model and every combination."""
    raise NotImplementedError


def sweep_formats(
    *sources: str | os.PathLike[str], spec: FormatSweepSpec, **options: Unpack[FormatSweepKeywords]
) -> FormatSweep:
    """Compute a row for every model and every choice of number formats."""
    raise NotImplementedError


def count(
    model: nn.Module | str | os.PathLike[str],
    input_size: Sequence[int] | Sequence[Sequence[int]] | None = None,
    input_data: object = None,
    *,
    dtypes: Sequence[torch.dtype] | None = None,
    dims: Mapping[str, int] | None = None,
    **kwargs: object,
) -> Counts:
    """Count the MACs, parameters and bytes of a model."""
    raise NotImplementedError


def progress_bar() -> AbstractContextManager[Callable[[Progress], None]]:
    """Return a context manager that draws the progress of a job while its `with` block runs."""
    raise NotImplementedError


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
    """Summarize a model as a table of its layers, with the arguments of torchinfo's `summary`."""
    raise NotImplementedError
