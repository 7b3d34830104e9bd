"""Numerical comparison of a conversion: source and result run on the same random inputs.

Each model runs in its own framework. The source also runs in float64, which measures the error of its normal
run. The result must be at least as accurate (`proof.outputs.run.compare`). If dimensions are open, both
models also run at sizes that the export did not use.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.base.units import bytes_text, shape_text
from explorer.engine.convert.job import ConversionJob
from explorer.engine.graph.model import Model
from explorer.engine.proof.outputs import run
from explorer.engine.proof.verdict import Grounds, decide_verdict
from explorer.engine.runtime.random_inputs import RandomInput, draw
from explorer.engine.runtime.torch_arrays import NUMPY_TYPES, convert_to_array, convert_to_tensor
from explorer.facts import OutputEvidence, Verification
from explorer.host import input_files, processor
from explorer.host.optional_packages import format_error

if TYPE_CHECKING:
    from torch import nn

    from explorer.engine.formats.torch_module.arguments import BoundInputs
    from explorer.engine.formats.torch_module.loaded_module import LoadedModule

QUANTIZED_NOTE = (
    "quantized: both models round to 8 bits at every layer, so their outputs may differ; the allowed"
    " difference is derived from the effect of one quantization step in the inputs"
)
"""Note about a comparison of quantized models."""

QUANTIZED_TYPES = (np.int8, np.uint8, np.int16)
"""Types of quantized numbers."""

ROUNDING_OPERATORS = frozenset({"QuantizeLinear", "Conv", "ConvTranspose", "MatMul", "Gemm"})
"""Operators that count as one rounding to 8 bits: of a result (`QuantizeLinear`), or of a product's input."""

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]


class _Case(NamedTuple):
    """A set of sizes at which source and result are compared.

    Attributes:
        inputs: Inputs at these sizes.
        draws: Number of random inputs.
        label: Suffix for the names of the outputs in the evidence.
    """

    inputs: BoundInputs
    draws: int
    label: str = ""


def _list_cases(bound_inputs: BoundInputs, other_inputs: Sequence[BoundInputs], draws: int) -> list[_Case]:
    """Returns the cases to compare: the sizes used for the export, and further sizes of open dimensions."""
    cases = [_Case(bound_inputs, draws)]
    for resized in other_inputs:
        pairs = zip(bound_inputs.inputs, resized.inputs, strict=True)
        changed = [f"{new.name} {shape_text(new.shape)}" for old, new in pairs if old.shape != new.shape]
        cases.append(_Case(resized, 1, f" with {', '.join(changed)}"))
    return cases


def prove(
    job: ConversionJob,
    loaded: LoadedModule,
    bound_inputs: BoundInputs,
    other_inputs: Sequence[BoundInputs],
    make_result_runner: Callable[[BoundInputs], Callable[[Feeds], Sequence[Any]]],
    *,
    depth: int,
    names: Sequence[str] = (),
    make_plans: Callable[[BoundInputs], Mapping[str, RandomInput]] | None = None,
) -> Verification:
    """Runs an nn.Module and the model converted from it, and compares the outputs.

    Args:
        job: The conversion.
        loaded: Source model.
        bound_inputs: Inputs at the sizes used for the export.
        other_inputs: Inputs at further sizes, if dimensions are open.
        make_result_runner: Function that returns, for some inputs, a function that runs the result on arrays
            by input name.
        depth: Number of successive roundings in the model; sets the tolerance if no float64 results exist.
        names: Output names of the result, or empty if it has none.
        make_plans: Function that returns random-input plans by input name, or None to derive them from the
            module.

    Raises:
        BadModel: The source or the result cannot be run.
        Misuse: No input can be drawn.
        Cancelled: The user canceled (`job.cancel`).
    """
    started = time.perf_counter()
    original = _load_original(job, loaded)
    float64_copy, no_float64_reason = _copy_to_float64(original)
    seeds = tuple(job.seed + index for index in range(job.draws))
    evidence: list[OutputEvidence] = []
    input_texts: list[str] = []
    draws = 0
    cases = _list_cases(bound_inputs, other_inputs, job.draws)
    step = job.make_step_counter("comparing with the source", sum(2 * case.draws + 1 for case in cases))
    for case in cases:
        plans = make_plans(case.inputs) if make_plans is not None else {}
        input_plans = _plan_inputs(loaded, case.inputs, plans)
        input_texts += [plan.text() for plan in input_plans]
        feeds = [draw(input_plans, seed) for seed in seeds[: case.draws]]
        if feeds and input_plans and all(plan.values is not None for plan in input_plans):
            feeds = feeds[:1]  # another run on the same values shows nothing
        draws = max(draws, len(feeds))
        source_outputs, references, float64_note = _run_source(
            loaded, original, float64_copy, case.inputs, feeds, step
        )
        result_outputs = run.run_each(make_result_runner(case.inputs), (), feeds, step)
        output_names = (
            tuple(names)
            if len(names) == len(source_outputs.draws[0])
            else tuple(_number_names(source_outputs.draws[0]))
        )
        source_outputs = replace(source_outputs, names=output_names)
        result_outputs = replace(result_outputs, names=_match_names(output_names, result_outputs.draws[0]))
        references_by_name = [dict(zip(output_names, values, strict=True)) for values in references]
        noise = run.Noise(no_float64_reason or float64_note, depth)
        case_evidence = run.compare(source_outputs, result_outputs, references_by_name, noise)
        evidence += [replace(output, name=f"{output.name}{case.label}") for output in case_evidence]
    return _summarize(job, seeds[:draws], input_texts, tuple(evidence), started)


def prove_written(
    job: ConversionJob,
    loaded: LoadedModule,
    bound_inputs: BoundInputs,
    other_inputs: Sequence[BoundInputs],
    format: str,
    depth: int,
) -> Verification | None:
    """Compares a module with the file that torch wrote from it, or returns None without `job.verify`.

    The arguments are those of `prove`; `format` is a key of `LOADERS`.
    """
    if not job.verify:
        return None
    job.report_progress("reading the written file")
    with loaded.quiet():
        result_module = LOADERS[format](job.path)
    make_result_runner = partial(make_module_runner, result_module, label="the written file")
    return prove(job, loaded, bound_inputs, other_inputs, make_result_runner, depth=depth)


def compare_runs(
    job: ConversionJob,
    model: Model,
    run_original: Callable[[Feeds], Sequence[Any]],
    run_result: Callable[[Feeds], Sequence[Any]],
    input_plans: Sequence[RandomInput],
    layers: int | None,
) -> Verification:
    """Compares two models that run as functions, for a source that is not an nn.Module.

    A quantized model rounds to 8 bits at every layer, and two runtimes rarely round alike. For such a model
    the noise of one layer is the effect of one quantization step in the inputs. The noise grows with the
    square root of the number of layers, as rounding errors do.

    Args:
        job: The conversion.
        model: Source or result, whichever is the ONNX model. If it is not quantized, its float64 results are
            the reference.
        run_original: Function that runs the source on arrays by input name.
        run_result: Function that runs the result on the same arrays.
        input_plans: Random-input plan of each input.
        layers: Number of layers that round to 8 bits, or None for a model that is not quantized.
    """
    started = time.perf_counter()
    seeds = tuple(job.seed + index for index in range(job.draws))
    feeds = [draw(tuple(input_plans), seed) for seed in seeds]
    step = job.make_step_counter("comparing with the source", 3 * len(feeds))
    names = [value.name for value in model.graph.outputs]
    perturb = run.shift_by_one_ulp if layers is None else _shift_by_one_step
    old = run.run_each(run_original, names, feeds, step, perturb=perturb)
    new = run.run_each(run_result, names, feeds, step)
    references: list[dict[str, Array]] = []
    float64_note = "none: the reference is the effect of one quantization step in the inputs"
    if layers is None:
        references, float64_note = run.run_in_float64(model, feeds, job.cancel, step)
    growth = math.sqrt(max(layers or 1, 1))
    noise = run.Noise(
        float64_note,
        run.estimate_depth(model),
        growth,
        both=True,  # neither runtime is the more accurate one by definition
        has_steps=layers is not None,  # a small error may move a value across a threshold of 8-bit rounding
    )
    evidence = run.compare(old, new, references, noise)
    return _summarize(job, seeds, [plan.text() for plan in input_plans], evidence, started)


def _summarize(
    job: ConversionJob,
    seeds: tuple[int, ...],
    texts: Sequence[str],
    evidence: tuple[OutputEvidence, ...],
    started: float,
) -> Verification:
    """Returns the verdict on the outputs that were compared.

    Raises:
        BadModel: There is no output.
    """
    if not evidence:
        raise BadModel("the model gives no tensor: nothing can be compared", hint=NO_VERIFY_HINT)
    return Verification(
        **decide_verdict(Grounds(model_outputs=evidence, draws=len(seeds))),
        before=job.source,
        after=job.target,
        seeds=seeds,
        inputs=tuple(texts),
        sites=(),  # a conversion has no tiled sites
        outputs=evidence,
        seconds=time.perf_counter() - started,
    )


NO_VERIFY_HINT = "no output file was kept; --no-verify converts without the comparison"


def _number_names(results: Sequence[Any]) -> list[str]:
    return ["output"] if len(results) == 1 else [f"output.{index}" for index in range(len(results))]


def _match_names(names: tuple[str, ...], results: Sequence[Any]) -> tuple[str, ...]:
    """Returns the output names of the source if the result has as many outputs, else numbered names."""
    return names if len(names) == len(results) else tuple(f"result.{index}" for index in range(len(results)))


def draw_inputs(loaded: LoadedModule, bound_inputs: BoundInputs, seed: int) -> dict[str, Array]:
    """Draws one set of random inputs of a module, by input name, as `prove` does."""
    return draw(_plan_inputs(loaded, bound_inputs, {}), seed)


def _plan_inputs(
    loaded: LoadedModule, bound_inputs: BoundInputs, plans: Mapping[str, RandomInput]
) -> tuple[RandomInput, ...]:
    """Returns the random-input plan of each input.

    Integers without a plan stay below the number of rows of the smallest embedding. Integers of the user's
    example are kept, as they may be lengths or positions.
    """
    index_limit = 0 if len(plans) == len(bound_inputs.inputs) else _count_rows_of_smallest_embedding(loaded)
    input_plans = []
    for info in bound_inputs.inputs:
        shape = tuple(size for size in info.shape or () if isinstance(size, int))
        input_plans.append(
            plans.get(info.name) or _plan_input(info.name, info.dtype or "float32", shape, index_limit)
        )
    if bound_inputs.example is not None:
        pairs = zip(input_plans, bound_inputs.example.list_tensors(), strict=True)
        input_plans = [_keep_user_integers(plan, tensor) for plan, tensor in pairs]
    return tuple(input_plans)


def _keep_user_integers(plan: RandomInput, tensor: Any) -> RandomInput:
    """Returns the plan of an input. An integer or boolean tensor of the planned shape replaces its values."""
    if tuple(tensor.shape) != plan.shape or tensor.is_floating_point() or tensor.is_complex():
        return plan
    return replace(plan, low=0, high=0, why="as given", values=convert_to_array(tensor))


def _plan_input(name: str, dtype: str, shape: tuple[int, ...], index_limit: int) -> RandomInput:
    """Plans an input from its type.

    Integers are indices below `index_limit`. If the limit is 0, 8-bit integers cover the range of their type,
    and wider integers are 0 or 1.
    """
    kind = np.dtype(dtype).kind if dtype in NUMPY_TYPES else "f"
    if kind in "fc":
        return RandomInput(name, dtype, shape, why="standard normal")
    low, high, why = 0, 2, "at random" if kind == "b" else "as a mask"
    if kind != "b" and index_limit:
        high, why = min(index_limit, np.iinfo(dtype).max), "rows of the smallest embedding"
    elif kind != "b" and np.dtype(dtype).itemsize == 1:
        low, high, why = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max) + 1, "the whole range of the type"
    return RandomInput(name, dtype, shape, low, high, why)


def _count_rows_of_smallest_embedding(loaded: LoadedModule) -> int:
    """Returns the limit below which every index is valid in all embeddings, or 0 without an embedding."""
    from torch import nn

    tables = [m for m in loaded.meta().modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
    return min((int(m.weight.shape[0]) for m in tables if m.weight is not None), default=0)


def _shift_by_one_step(feeds: Feeds) -> Feeds:
    """Shifts the inputs by one 8-bit quantization step, alternately up and down.

    The step of a float input is 1/255 of its range.
    """
    shifted = {}
    for name, value in feeds.items():
        signs = np.where(np.arange(value.size) % 2, 1, -1).reshape(value.shape)
        if value.dtype.type in QUANTIZED_TYPES:
            limits = np.iinfo(value.dtype)
            shifted[name] = np.clip(value.astype(np.int32) + signs, limits.min, limits.max).astype(
                value.dtype
            )
        elif value.dtype.kind == "f" and value.size:
            shifted[name] = (value + signs * (np.ptp(value) / 255)).astype(value.dtype)
        else:
            shifted[name] = value
    return shifted


class _FailedRun(BadModel):
    """Error of a module that raised an exception when it was called."""

    def __init__(self, cause: str, label: str) -> None:
        super().__init__(f"cannot be run {cause}", where=label, hint=NO_VERIFY_HINT)
        self.cause = cause


def make_module_runner(module: Any, bound_inputs: BoundInputs, label: str) -> Callable[[Feeds], list[Array]]:
    """Returns a function that runs a module or a loaded program on arrays. Errors call it `label`."""
    import torch  # takes 2 s and can be missing; comparing ONNX files works without torch

    from explorer.engine.formats.torch_module.modules import walk_tensors

    device = next((p.device for p in module.parameters()), torch.device("cpu"))

    def call(feeds: Feeds) -> list[Array]:
        args, kwargs = bound_inputs.pack_arguments(
            [convert_to_tensor(feeds[info.name]).to(device) for info in bound_inputs.inputs]
        )
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                result = module(*args, **kwargs)
        except Exception as error:
            raise _FailedRun(f"({format_error(error)})", label) from error
        return [convert_to_array(tensor) for _, tensor in walk_tensors(result)]

    return call


def _load_torchscript(path: str) -> Any:
    import torch

    load: Any = torch.jit.load
    with input_files.open_binary(path) as file:
        return load(file, map_location="cpu").eval()


def _load_program(path: str) -> Any:
    import torch

    with input_files.open_binary(path) as file:
        return torch.export.load(file).module()


LOADERS: Mapping[str, Callable[[str], Any]] = {
    "torchscript": _load_torchscript,
    "torch.export": _load_program,
}
"""Torch's own loader for each format; it may run code from the file."""


def _load_original(job: ConversionJob, loaded: LoadedModule) -> nn.Module:
    """Loads the source: by torch if its code may run (`job.trust`), else by Explorer's reader.

    Raises:
        BadModel: torch cannot load the source.
    """
    load = LOADERS.get(job.opened.format) if job.trust else None
    if load is None:
        return loaded.materialize()
    try:
        with loaded.quiet():
            module: nn.Module = load(job.source)
    except Exception as error:
        raise BadModel(f"torch itself cannot load it ({format_error(error)})", where=job.source) from error
    return module


def _run_source(
    loaded: LoadedModule,
    original: nn.Module,
    float64_copy: nn.Module | None,
    bound_inputs: BoundInputs,
    feeds: Sequence[Feeds],
    step: Callable[[], None],
) -> tuple[run.ModelOutputs, list[list[Array]], str]:
    """Runs the source; returns its outputs, its float64 outputs, and a description of the float64 run."""
    with loaded.quiet():
        source_outputs = run.run_each(
            make_module_runner(original, bound_inputs, loaded.source),
            (),
            feeds,
            step,
            perturb=run.shift_by_one_ulp,
        )
    if float64_copy is None:
        return source_outputs, [], "none"
    step()
    float64_feeds = [{name: _convert_to_float64(value) for name, value in feed.items()} for feed in feeds]
    try:
        with loaded.quiet():
            call = make_module_runner(float64_copy, bound_inputs, loaded.source)
            return source_outputs, [call(feed) for feed in float64_feeds], "float64"
    except BadModel as error:
        reason = error.cause if isinstance(error, _FailedRun) else error.what
        return source_outputs, [], f"none: the module does not run in float64 {reason}"


def _copy_to_float64(model: nn.Module) -> tuple[nn.Module | None, str]:
    """Returns a float64 copy of a module, or None and the reason, such as too little memory."""
    from explorer.engine.formats.torch_module.meta_copy import copy_module  # imports torch

    # a float64 copy of a float32 module takes twice its bytes; half of the memory is left for the run
    needed_bytes = 2 * sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
    free_bytes = processor.free_bytes()
    if free_bytes is not None and needed_bytes > free_bytes // 2:
        return None, f"none: it would take {bytes_text(needed_bytes)}"
    try:
        return copy_module(model).double(), ""
    except Exception as error:
        return None, f"none: the module has no copy in float64 ({format_error(error)})"


def _convert_to_float64(value: Array) -> Array:
    is_float = value.dtype.kind == "f" or value.dtype.name == "bfloat16"
    return value.astype(np.float64) if is_float else value


def estimate_module_depth(module: nn.Module) -> int:
    """Estimates the number of successive roundings in a module.

    The estimate is one for each module, plus the largest dimension of each float parameter.
    """
    depths = (max(p.shape, default=1) for p in module.parameters() if p.is_floating_point())
    return sum(1 for _ in module.modules()) + sum(depths)
