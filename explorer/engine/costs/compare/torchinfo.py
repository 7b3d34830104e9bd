"""Runs torchinfo on a model, and explains where its numbers differ from Explorer's.

Many users know torchinfo and check other tools against it. It runs on the same model and inputs as the
analysis. Its multiply-adds are split by the rule that computes them (parameters times outputs,
`torchinfo/layer_info.py`). Each part that is missing or is not a multiply-accumulate is named. A difference
that no rule explains is reported as such.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace
from torch import nn

from explorer.base.errors import BadModel, ExplorerError, Misuse, suggest_name
from explorer.base.units import many_text, printable
from explorer.engine.compat.torch import parameters_of
from explorer.engine.costs.torch.signature import bind
from explorer.engine.runtime.torch_fastpath import restore_modes
from explorer.facts import Analysis, Layer
from explorer.facts.comparison import TorchinfoDifference, TorchinfoLayout, TorchinfoTable
from explorer.host.optional_packages import format_error, require

if TYPE_CHECKING:
    from explorer.engine.formats.torch_module.loaded_module import LoadedModule

COLUMNS = ("output_size", "num_params", "mult_adds")
ROWS = ("depth", "var_names")


def build_torchinfo_table(
    loaded: LoadedModule,
    analysis: Analysis,
    *,
    layout: TorchinfoLayout = TorchinfoLayout(),  # noqa: B008  a frozen record
    input_shapes: Mapping[str, tuple[str | None, tuple[int, ...]]] | None = None,
    dims: Mapping[str, int] | None = None,
) -> TorchinfoTable:
    """Runs torchinfo on a model and compares its numbers with the analysis.

    Args:
        loaded: Model to run: its copy on the meta device, or the model with values if the copy cannot run.
        analysis: Analysis of the same model with the same inputs.
        layout: Columns, depth, width and row names of the printed table.
        input_shapes: Input dtypes and shapes by name, as passed to the analysis.
        dims: Sizes of dimensions by name, as passed to the analysis.

    Raises:
        MissingExtra: torchinfo is not installed.
        BadModel: torchinfo cannot run the model.
        Misuse: torchinfo has no such column or row setting.
    """
    torchinfo = require("torchinfo", loaded.source)
    bound_inputs = bind(loaded, input_shapes, dims)
    options = _build_summary_arguments(layout)
    try:
        summary, model = _run_torchinfo(loaded, bound_inputs, "meta", options), loaded.meta()
    except ExplorerError:
        raise
    except Exception:
        # operators that need values do not run on the meta device
        try:
            model = loaded.materialize()
            summary = _run_torchinfo(loaded, bound_inputs, "cpu", options)
        except ExplorerError:
            raise
        except Exception as error:
            cause = error.__cause__ or error
            raise BadModel(f"torchinfo cannot run it: {format_error(cause)}", where=loaded.source) from error
    text = "\n".join(printable(line) for line in str(summary).splitlines())
    return TorchinfoTable(text, str(torchinfo.__version__), _list_differences(summary, model, analysis))


def _build_summary_arguments(layout: TorchinfoLayout) -> dict[str, Any]:
    """Returns the arguments of `torchinfo.summary` that the layout sets.

    Raises:
        Misuse: torchinfo has no such column or row setting.
    """
    from torchinfo.enums import ColumnSettings, RowSettings

    for flag, names, settings in (
        ("--columns", layout.columns, ColumnSettings),
        ("--row-settings", layout.rows, RowSettings),
    ):
        valid_names = [str(setting.value) for setting in settings]
        for name in names:
            if name not in valid_names:
                raise Misuse(f"torchinfo has no '{name}'", where=flag, hint=suggest_name(name, valid_names))
    options = {
        "col_names": layout.columns,
        "row_settings": layout.rows,
        "col_width": layout.width,
        "depth": layout.depth,
    }
    return {name: option for name, option in options.items() if option}


def _run_torchinfo(loaded: LoadedModule, bound_inputs: Any, device: str, options: Mapping[str, Any]) -> Any:
    import torchinfo
    from torchinfo.torchinfo import clear_cached_forward_pass

    model = loaded.meta() if device == "meta" else loaded.materialize()
    args, kwargs = bound_inputs.build_arguments(device=device)
    deepest = max((name.count(".") + 1 for name, _ in model.named_modules() if name), default=1)
    formatting: dict[str, Any] = {"col_names": COLUMNS, "row_settings": ROWS, "depth": deepest + 1, **options}
    with loaded.quiet(), restore_modes(model.modules()):
        try:
            return torchinfo.summary(
                model,
                input_data=list(args) if args else kwargs,
                device=device,
                verbose=0,
                **formatting,
                **(kwargs if args else {}),
            )
        finally:
            clear_cached_forward_pass()


# -- splitting torchinfo's numbers


class _ModuleCount(Struct):
    """torchinfo's counts for one module, summed over its calls.

    Attributes:
        module: The module.
        is_leaf: Whether torchinfo shows it without children.
        macs: Multiply-adds as torchinfo adds them to its total.
        weights, biases: Parts of `macs` from weights and from biases.
        outputs: Output shape of each call.
    """

    module: nn.Module
    is_leaf: bool
    macs: int = 0
    weights: int = 0
    biases: int = 0
    outputs: list[list[int]] = field(default_factory=list)


def _collect_counts(summary: Any, paths: Mapping[int, str]) -> dict[str, _ModuleCount]:
    """Returns torchinfo's counts by module path; `paths` has the path by the id of the module."""
    counts: dict[str, _ModuleCount] = {}
    for info in summary.summary_list:
        path = paths.get(info.layer_id)
        if path is None:
            continue
        count = counts.setdefault(path, _ModuleCount(info.module, info.is_leaf_layer))
        size = [int(d) for d in info.output_size if not isinstance(d, (list, tuple))]
        count.outputs.append(size)
        if not info.is_leaf_layer:
            continue
        count.macs += info.macs
        if not info.executed:
            continue
        for name, parameter in info.module.named_parameters():
            part = _count_torchinfo_macs(info.class_name, name, parameter.numel(), size)
            if name.rpartition(".")[2].startswith("bias"):
                count.biases += part
            else:
                count.weights += part
    return counts


def _count_torchinfo_macs(kind: str, name: str, elements: int, out: Sequence[int]) -> int:
    """Counts multiply-adds as torchinfo does for one parameter (`LayerInfo.calculate_macs`)."""
    if name in ("weight", "bias"):
        if "Conv" in kind:
            return elements * math.prod([*out[:1], *out[2:]])
        return elements * (out[0] if out else 1)
    return elements * math.prod(out[:2]) if "weight" in name or "bias" in name else 0


def _list_differences(summary: Any, model: nn.Module, analysis: Analysis) -> tuple[TorchinfoDifference, ...]:
    """Returns the differences of single rows in MACs, then the differences in totals."""
    paths = {id(module): path for path, module in model.named_modules()}
    counts = _collect_counts(summary, paths)
    differences: list[TorchinfoDifference] = []
    reasons: Counter[str] = Counter()
    for layer, ours in _list_comparable_rows(analysis, counts):
        count = counts.get("" if layer.path == _find_single_leaf_class(counts) else layer.path)
        theirs = count.macs if count is not None and count.is_leaf else 0
        if ours is None:
            differences.append(
                TorchinfoDifference(layer.path, layer.kind, "macs", theirs, None, layer.reason)
            )
            continue
        if theirs == ours:
            continue
        parts = _explain_difference(layer, count, ours)
        unexplained = theirs - ours - sum(parts.values())
        if unexplained:
            parts[_UNKNOWN] += unexplained
        reasons.update({why: n for why, n in parts.items() if n})
        why = "; ".join(f"{text} ({n:+,})" for text, n in parts.items() if n)
        differences.append(TorchinfoDifference(layer.path, layer.kind, "macs", theirs, ours, why))
    return (
        *differences,
        *_compare_total_macs(summary, analysis, reasons),
        *_compare_totals(summary, model, analysis, counts),
    )


def _find_single_leaf_class(counts: Mapping[str, _ModuleCount]) -> str:
    """Names the class of a model that is a single leaf module, which torchinfo shows as one row; else ''."""
    return type(counts[""].module).__name__ if "" in counts and counts[""].is_leaf else ""


def _list_comparable_rows(
    analysis: Analysis, counts: Mapping[str, _ModuleCount]
) -> Iterator[tuple[Layer, int | None]]:
    """Yields the rows to compare, with Explorer's MACs: leaf modules (also expanded ones) and operators."""
    model_class = _find_single_leaf_class(counts)
    if model_class and analysis.layers:
        row = replace(analysis.layers[0], path=model_class, kind=model_class, reason="")
        yield row, analysis.info.totals.macs
        return
    covered: set[int] = set()
    for layer in analysis.layers:
        if layer.parent in covered:
            covered.add(layer.id)
            continue
        count = counts.get(layer.path)
        if layer.group and count is not None and count.is_leaf:
            # torchinfo has one row for a leaf module, where Explorer has a row for each of its operators
            covered.add(layer.id)
            yield layer, layer.macs
        elif not layer.group:
            yield layer, layer.macs


# -- reasons for differences

_BIAS = "a bias is added, not multiplied"
_NORM = "scale and shift of a normalization are elementwise"
_TABLE = "an embedding only reads rows of its table"
_ROWS = "torchinfo takes only the first dimension of the output as rows of the product"
_TRANSPOSED = "a transposed convolution multiplies at every input, not at every output"
_UNBATCHED = "the output has no batch: torchinfo takes its channels for the batch and omits its length"
_CONV1D = "Conv1D of GPT-2 is a linear layer, but torchinfo takes it for a convolution"
_ATTENTION = "attention counts 0: only leaf modules that own parameters are counted"
_FUNCTION = "an operator that is not a module counts 0"
_CALLED = "its parameters are multiplied by a function, not by a leaf module, and count 0"
_ELEMENTWISE = "its parameters are applied elementwise"
_SEQUENCE = "torchinfo takes the first two dimensions of the output for steps and batch"
_BARE = "a module without parameters of its own counts 0, whatever it multiplies"
_SUBTRACTED_TWICE = (
    "torchinfo counts the parameters outside of leaf layers as a remainder, and subtracts tied ones twice"
)
_UNKNOWN = "no known rule explains this"


def _explain_difference(layer: Layer, count: _ModuleCount | None, ours: int) -> Counter[str]:
    """Returns MACs that torchinfo counts in excess (positive) or misses (negative), by reason."""
    macs_by_reason: Counter[str] = Counter()
    if count is None or not count.is_leaf:
        reason = _ATTENTION if "ttention" in layer.kind else _CALLED if layer.weights else _FUNCTION
        macs_by_reason[reason] -= ours
        return macs_by_reason
    module = count.module
    kind = type(module).__name__
    weights = count.weights - ours
    macs_by_reason[_BIAS] += count.biases
    if not weights:
        return macs_by_reason
    if isinstance(module, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)):
        macs_by_reason[_TRANSPOSED] += weights
    elif isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) and any(
        len(output) == len(module.kernel_size) + 1 for output in count.outputs
    ):
        macs_by_reason[_UNBATCHED] += weights
    elif kind == "Conv1D":
        macs_by_reason[_CONV1D] += weights
    elif isinstance(module, nn.Linear):
        macs_by_reason[_ROWS] += weights
    elif isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        macs_by_reason[_TABLE] += weights
    elif isinstance(module, nn.RNNBase):
        macs_by_reason[_SEQUENCE] += weights
    elif not ours and "Norm" in kind:
        macs_by_reason[_NORM] = macs_by_reason.pop(_BIAS) + weights
    elif not ours:
        macs_by_reason[_ELEMENTWISE] = macs_by_reason.pop(_BIAS) + weights
    elif not count.weights:
        macs_by_reason[_BARE] += weights
    return macs_by_reason


def _compare_total_macs(summary: Any, analysis: Analysis, reasons: Counter[str]) -> list[TorchinfoDifference]:
    theirs, ours = int(summary.total_mult_adds), analysis.info.totals.macs
    if theirs == ours:
        return []
    known_first = sorted(reasons.most_common(), key=lambda reason: reason[0] == _UNKNOWN)
    parts = [f"{why} ({n:+,})" for why, n in known_first]
    unexplained = theirs - (ours or 0) - sum(reasons.values())
    if unexplained:
        parts.append(f"{_UNKNOWN} ({unexplained:+,})")
    return [TorchinfoDifference("", "", "macs", theirs, ours, "; ".join(parts))]


def _compare_totals(
    summary: Any, model: nn.Module, analysis: Analysis, counts: Mapping[str, _ModuleCount]
) -> Iterator[TorchinfoDifference]:
    """Yields the differences in parameters, their bytes, and activations of the whole model."""
    totals = analysis.info.totals
    tied = _find_tied_parameters(model)
    repeated = sum((len(owners) - 1) * p.numel() for p, owners in tied)
    if int(summary.total_params) != totals.params:
        theirs = int(summary.total_params)
        reasons = []
        if repeated:
            names = ", ".join(owners[0] for _, owners in tied[:3])
            reasons.append(f"a tied weight counts once for every layer that has it ({names}: {repeated:+,})")
        unexplained = theirs - totals.params - repeated
        unowned = sum(p.numel() for p in _find_parameters_outside_leaves(summary, model))
        if unexplained:
            # torchinfo subtracts the layers' parameters from the module's, and tied parameters twice
            is_subtracted_twice = repeated and 0 < -unexplained <= unowned
            reasons.append(f"{_SUBTRACTED_TWICE if is_subtracted_twice else _UNKNOWN} ({unexplained:+,})")
        yield TorchinfoDifference("", "", "params", theirs, totals.params, "; ".join(reasons))
    if int(summary.total_param_bytes) != totals.weight_bytes:
        yield _compare_weight_bytes(summary, model, totals.weight_bytes, tied)
    theirs, ours = int(summary.total_output_bytes), totals.activation_bytes_sum
    if theirs != ours:
        owning = [i for i in summary.summary_list if i.is_leaf_layer and i.num_params > 0]
        owner_count = len({i.layer_id for i in owning})
        other_leaves = sum(1 for count in counts.values() if count.is_leaf) - owner_count
        why = (
            f"forward/backward: torchinfo counts the first output of {many_text(owner_count, 'layer')} with"
            " parameters of their own, twice, and leaves out the outputs of"
            f" {many_text(other_leaves, 'other layer')}"
        )
        yield TorchinfoDifference("", "", "activation_bytes", theirs, ours, why)


def _find_parameters_outside_leaves(summary: Any, model: nn.Module) -> Iterator[nn.Parameter]:
    """Yields the parameters that belong to no called leaf layer."""
    leaf_ids = {id(i.module) for i in summary.summary_list if i.is_leaf_layer}
    for module in model.modules():
        if id(module) not in leaf_ids:
            yield from (p for p in parameters_of(module).values() if p is not None)


def _find_tied_parameters(model: nn.Module) -> list[tuple[nn.Parameter, list[str]]]:
    """Returns parameters that several modules share, and their names in those modules."""
    names: defaultdict[int, list[str]] = defaultdict(list)
    parameters: dict[int, nn.Parameter] = {}
    for path, module in model.named_modules():
        for name, parameter in parameters_of(module).items():
            if parameter is not None:
                parameters[id(parameter)] = parameter
                names[id(parameter)].append(f"{path}.{name}" if path else name)
    return [(parameters[key], owners) for key, owners in names.items() if len(owners) > 1]


def _compare_weight_bytes(
    summary: Any, model: nn.Module, ours: int, tied: Sequence[tuple[nn.Parameter, list[str]]]
) -> TorchinfoDifference:
    theirs = int(summary.total_param_bytes)
    repeated = sum((len(owners) - 1) * p.numel() * p.element_size() for p, owners in tied)
    unowned = sum(p.numel() * p.element_size() for p in _find_parameters_outside_leaves(summary, model))
    reasons = []
    if repeated:
        reasons.append(f"a tied weight counts once for every layer that has it ({repeated:+,})")
    if unowned:
        reasons.append(f"parameters that belong to no called leaf layer are left out ({-unowned:+,})")
    unexplained = theirs - ours - repeated + unowned
    if unexplained:
        reasons.append(f"{_UNKNOWN} ({unexplained:+,})")
    return TorchinfoDifference("", "", "weight_bytes", theirs, ours, "; ".join(reasons))
