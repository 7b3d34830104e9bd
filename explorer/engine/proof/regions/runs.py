"""Runs of a changed region alone: both sides run on the same values, and their outputs are compared.

The outputs may differ by rounding. So the region's output in the other model must be as close to float64 as
its output in the original.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.base.units import printable
from explorer.base.verdicts import NOT_NEEDED
from explorer.engine.graph.dtypes import get_element_type
from explorer.engine.graph.model import Model
from explorer.engine.graph.random_operators import RANDOM_REASON
from explorer.engine.proof.outputs import run as outputs
from explorer.engine.proof.outputs.independence import count_independent
from explorer.engine.proof.outputs.nonfinite_inputs import (
    EXTREME,
    NONFINITE,
    count_differences,
    count_extreme_differences,
    count_nonfinite_differences,
    draw_extreme,
    insert_nonfinite,
    list_kinds,
)
from explorer.engine.proof.outputs.run import ModelOutputs, Noise, shift_by_one_ulp
from explorer.engine.proof.regions.correspondence import ChangedRegion
from explorer.engine.proof.regions.float64_layers import run_in_float64
from explorer.engine.proof.regions.original_values import OriginalValues
from explorer.engine.proof.regions.region_models import RegionModels
from explorer.engine.proof.regions.synthetic_values import Feeds
from explorer.engine.proof.regions.value_sets import SetKind, ValueSets
from explorer.engine.proof.structure.probes import build_region_model_of_one
from explorer.engine.runtime.onnxruntime import Array, RuntimeSession
from explorer.engine.runtime.parallel import ThreadShare
from explorer.engine.runtime.random_inputs import RandomInput
from explorer.facts import OutputEvidence, RegionEvidence

RunPair = Callable[[Feeds], tuple[Array, Array]]
"""Function that runs both sides of a region on the same values and returns both outputs."""

_MAX_ONE_THREAD_BYTES = 1 << 20
"""Bytes of a region up to which it runs in one thread, because each session creates its threads anew."""

_KERNEL_ERROR = 2.0**-18
"""Largest error of a kernel, relative to the largest element of its result."""

_KERNEL_STEPS = 8
"""Largest error of a kernel, relative to the change of its result if its inputs change by one unit in the
last place."""

_ERROR_AROUND_ONE = 2.0**-22
"""Largest absolute error of a kernel in `_UP_TO_ONE`, which rounds small results like results near 1."""

_UP_TO_ONE = frozenset(("Erf", "GRU", "LSTM", "RNN", "Sigmoid", "Softmax", "Tanh"))
"""Operators whose results have magnitudes of at most 1."""

_LABEL = "a changed region alone"
"""Name of a region in a message of the runtime."""


class _SecondFailed(BadModel):
    """The original runs on some values, and the other model does not."""


class RunResults(Struct):
    """Results of the runs of a region.

    Attributes:
        results: Comparisons that show no difference, one for each call of `RegionRuns.run_sets`.
        first_output: Output of the original for the first set of values, as a list of at most one array.
        draws: Number of sets of values on which both sides ran.
        has_changed: Whether the output changed between sets of values.
        varied: Names of the branch conditions and loop counts that ran with both settings.
        unmet_range: Description of a range of an operator that no run met, or ''.
        nonfinite: Kinds of numbers in `NONFINITE` and `EXTREME` for which the sides differ.
    """

    results: list[OutputEvidence] = field(default_factory=list)
    first_output: list[Array] = field(default_factory=list)
    draws: int = 0
    has_changed: bool = False
    varied: set[str] = field(default_factory=set)
    unmet_range: str = ""
    nonfinite: list[str] = field(default_factory=list)

    def add_output(self, output: Array) -> None:
        """Compares an output of the original with the first one."""
        self.first_output = self.first_output or [output]
        self.has_changed = self.has_changed or not outputs.is_identical(output, self.first_output[0])

    @property
    def output_elements(self) -> int:
        """Number of elements of the first output, or 1 for an output that is no tensor."""
        return max((o.size for o in self.first_output if isinstance(o, np.ndarray)), default=1)

    @property
    def is_rounded(self) -> bool:
        """Whether the outputs differ by rounding. Zeros of different signs are not rounding."""
        return not all(r.equal or r.max_abs == 0 for r in self.results)


class RegionRuns:
    """Runs regions on the values of `ValueSets`, and compares the outputs of both sides.

    Args:
        original_values: Values of the original.
        models: Both sides of the regions.
        value_sets: Sets of values to run on.
        share: Threads that a run may use, and whether the runs are canceled.
    """

    def __init__(
        self, original_values: OriginalValues, models: RegionModels, value_sets: ValueSets, share: ThreadShare
    ) -> None:
        self._original_values, self._models, self._value_sets = original_values, models, value_sets
        self._share = share

    def load_pair(self, region: ChangedRegion, before_model: Model, after_model: Model) -> RunPair:
        """Returns a function that runs two models on the inputs of a region."""
        size = sum(map(self._models.correspondence.estimate_bytes, region.reads))
        size += sum(
            t.nbytes for model in (before_model, after_model) for t in model.graph.initializers.values()
        )
        threads = 1 if size < _MAX_ONE_THREAD_BYTES else self._share.threads
        before, after = (
            RuntimeSession(model, label=_LABEL, optimize=False, threads=threads)
            for model in (before_model, after_model)
        )

        def run(values: Feeds) -> tuple[Array, Array]:
            (old,) = before.run({n: values[n] for n in region.before.inputs}).values()
            try:
                (new,) = after.run({n: values[twin or n] for n, twin in region.twins.items()}).values()
            except BadModel as error:
                raise _SecondFailed(str(error)) from error
            return old, new

        return run

    def run_sets(
        self, region: ChangedRegion, run: RunPair, kind: SetKind, feeds: Sequence[Feeds], trials: RunResults
    ) -> OutputEvidence | None:
        """Runs a region on sets of values, and returns the comparison that shows a difference, or None.

        Args:
            region: The region.
            run: Runs both sides.
            kind: Kind of the values.
            feeds: The sets of values.
            trials: Receives the results that show no difference.

        Raises:
            BadModel: The region cannot run on the original's values.
        """
        pairs = []
        for values in feeds:
            try:
                pairs.append((*run(values), values))
            except _SecondFailed as error:
                if not kind:
                    raise
                if kind == "integers":  # such as an index that only one of two tables has
                    reason = f"only the first model runs: {printable(str(error))}"
                    return outputs.build_empty_evidence(region.pair.before, "", (), reason)
            except BadModel:
                if not kind:
                    raise
        if not pairs:
            return None
        output = self._compare(region, pairs, run)
        if kind and not (output.passed or output.equal):
            exact_output = self._compare_exact_operators(region, pairs, run)
            if exact_output is not None and exact_output.passed:
                output = exact_output
        trials.draws += len(pairs)
        if kind == "driven" and output.passed:
            count = sum(count_nonfinite_differences(old, new) for old, new, _ in pairs)
            if count:  # even if the original overflows, the models are not equal
                side = _name_nonfinite_side([(old, new) for old, new, _ in pairs])
                reason = f"{count:,} results are NaN or infinite in {side} model alone"
                return replace(output, reason=reason, passed=False)
        if not output.passed:
            # two equal NaN outputs are not evidence
            return None if output.equal else output
        trials.results.append(output)
        for old, _, _ in pairs:
            trials.add_output(old)
        names = (n for n, v in feeds[0].items() if v.dtype.kind in "bi" and v.size == 1)
        if kind == "steered":
            trials.varied.update(names if len(pairs) == len(feeds) else ())
        return None

    def _compare_exact_operators(
        self, region: ChangedRegion, pairs: Sequence[tuple[Array, Array, Feeds]], run: RunPair
    ) -> OutputEvidence | None:
        """Compares both sides again, with each operator computed exactly and rounded once.

        A kernel of onnxruntime may have fewer exact digits, such as that of Sigmoid for results near 0.

        Returns:
            The comparison, or None if a side cannot run in float64 or differs too much from onnxruntime.
        """
        exact_pairs = []
        old_error, new_error = (
            _ERROR_AROUND_ONE if any(node.op in _UP_TO_ONE for node in nodes) else 0.0
            for nodes in self._models.list_nodes(region)
        )
        for old, new, values in pairs:
            inputs = {n: values[n] for n in region.before.inputs}
            other_inputs = {n: values[twin or n] for n, twin in region.twins.items()}
            try:
                shifted_old, shifted_new = run(dict(shift_by_one_ulp(values)))
            except BadModel:
                return None
            results = []
            for wiring, side, feeds, runtime_result, shifted, least_error in (
                (self._models.before, region.before, inputs, old, shifted_old, old_error),
                (self._models.after, region.after, other_inputs, new, shifted_new, new_error),
            ):
                exact = run_in_float64(wiring, side, feeds, self._share.stopped, rounds_results=True)
                if exact is None or not _is_nearly(runtime_result, exact, shifted, least_error):
                    return None
                results.append(np.asarray(exact).astype(runtime_result.dtype))
            exact_pairs.append((results[0], results[1], values))
        output = self._compare(region, exact_pairs, run)
        note = "with exact operators, each rounded once; the kernels of onnxruntime have fewer exact digits"
        return replace(output, reason=f"{output.reason} {note}")

    def find_nonfinite_differences(
        self, region: ChangedRegion, run: RunPair, trials: RunResults
    ) -> list[str]:
        """Lists the kinds in `NONFINITE` and `EXTREME` for which the two sides of a region differ.

        Args:
            region: The region.
            run: Runs both sides.
            trials: Records whether the output changes.
        """
        values = self._original_values.compute_first(region)
        differing_kinds = []
        # in an affine function, both infinities have the same effect except for the sign
        number_count = 1 if self._models.is_decided_by_one_spread(region) else None
        for kind in list_kinds(node for side in self._models.list_nodes(region) for node in side):
            numbers = NONFINITE[kind][:number_count]
            nonfinite_feeds = (
                f for number in numbers for f in insert_nonfinite(values, number, self._original_values.seed)
            )
            for feeds in nonfinite_feeds:
                try:
                    old, new = run(feeds)
                    if count_differences(old, new):
                        differing_kinds.append(kind)
                        break
                    trials.add_output(old)
                except BadModel:
                    # one complete model may fail on inputs that the other accepts
                    differing_kinds.append(kind)
                    break
        exact = partial(run_in_float64, self._models.before, region.before, cancel=self._share.stopped)
        for kind, magnitude in EXTREME.items() if number_count is None else ():
            feeds = draw_extreme(values, magnitude, self._original_values.seed)
            truth = partial(exact, {name: feeds[name] for name in region.before.inputs})
            with contextlib.suppress(BadModel):
                if count_extreme_differences(*run(feeds), truth):
                    differing_kinds.append(kind)
        return differing_kinds

    def distinguishes(self, region: ChangedRegion, before: Model, after: Model) -> bool:
        """Whether a run shows a difference between two models of a region."""
        region_inputs = self._original_values.compute_first(region)
        sets = self._value_sets.draw_sets(region, region_inputs, self._original_values.random_inputs[0])
        try:
            run = self.load_pair(region, before, after)
            pairs = [
                (*run(values), values) for kind, feeds in sets if kind in ("", "dense") for values in feeds
            ]
            return not self._compare(region, pairs, run).passed
        except BadModel:  # a model that cannot run is not evidence
            return False

    def changes_output(self, region: ChangedRegion, model: Model, replacement: Model) -> bool:
        """Whether a run changes if `replacement` takes the place of `model`, one side of the region.

        A replacement that is invalid or fails counts as a change.
        """
        input_names = {value.name for value in model.graph.required_inputs}
        twins = {name: twin or name for name, twin in region.twins.items()}
        unchanged_session = RuntimeSession(model, label=_LABEL, optimize=False, threads=1)
        try:
            replacement_session = RuntimeSession(replacement, label=_LABEL, optimize=False, threads=1)
        except BadModel:
            return True  # not a valid model any more
        for inputs in self._original_values.random_inputs:
            try:
                region_inputs = self._original_values.compute(
                    region.reads, inputs, self._original_values.seed
                )
            except BadModel:
                continue
            for _, feeds in self._value_sets.draw_sets(region, region_inputs, inputs):
                for values in feeds:
                    side_inputs = {name: values[twins.get(name, name)] for name in input_names}
                    try:
                        old = unchanged_session.run(side_inputs)
                    except BadModel:
                        continue
                    try:
                        new = replacement_session.run(side_inputs)
                    except BadModel:
                        return True
                    if not all(outputs.is_identical(old[name], new[name]) for name in old):
                        return True
        return False

    def _compare(
        self, region: ChangedRegion, pairs: Sequence[tuple[Array, Array, Feeds]], run: RunPair
    ) -> OutputEvidence:
        """Compares the outputs of both sides, with a larger noise floor after each failed comparison."""
        name = (region.pair.before,)
        old, new = (ModelOutputs(name, tuple((pair[index],) for pair in pairs)) for index in (0, 1))
        noise = Noise(NOT_NEEDED, outputs.estimate_depth(self._models.build(region)[0]))
        if not _differs_in_floats(pairs):
            (output,) = outputs.compare(old, new, [], noise)
            return output
        exact = partial(run_in_float64, self._models.before, region.before, cancel=self._share.stopped)
        truths = [exact({n: values[n] for n in region.before.inputs}) for _, _, values in pairs]
        results = [{name[0]: true} for true in truths if true is not None]
        text = "float64" if len(results) == len(pairs) else "none: the region cannot be run in float64"
        truth = results if text == "float64" else []
        noise_without_reference = noise
        noise = replace(noise, reference=text)
        (output,) = outputs.compare(old, new, truth, noise)
        if not (output.passed and outputs.is_judged_by_float64(output)):
            change = outputs.measure_rms_change(pairs[0][0], run(dict(shift_by_one_ulp(pairs[0][2])))[0])
            old = replace(old, sensitivity=(change,))
            (output,) = outputs.compare(old, new, truth, noise)
        if output.passed:
            return output
        inputs = {n: pairs[0][2][n] for n in region.before.inputs}
        part = build_region_model_of_one(
            self._models.before, region.before, {n: get_element_type(v) for n, v in inputs.items()}
        )
        independent_counts = count_independent(
            part, [RandomInput(n, get_element_type(v), v.shape) for n, v in inputs.items()]
        )
        independent_count = min(independent_counts.values(), default=old.draws[0][0].size)
        noise = replace(noise, independent=dict.fromkeys(name, independent_count))
        (output,) = outputs.compare(old, new, truth, noise)
        if not output.passed and self._models.compare_stored_numbers(region).are_roundings:
            (relaxed_output,) = outputs.compare(
                replace(old, sensitivity=()), new, [], noise_without_reference
            )
            if relaxed_output.passed:
                return relaxed_output  # the stored numbers differ by a rounding error, and so may the output
        return output


def _is_nearly(runtime_result: Array, exact: Array, shifted: Array, least_error: float) -> bool:
    """Whether a result of the runtime is nearly the exact one.

    The error may be as large as the largest of three limits: `_KERNEL_ERROR`, `_KERNEL_STEPS` and
    `least_error`.

    Args:
        runtime_result: Result of the runtime.
        exact: The result in float64.
        shifted: Result of the runtime for inputs that differ by one unit in the last place. A kernel such as
            that of InstanceNormalization is exact for inputs that differ by a few of them.
        least_error: Absolute error that is always allowed.
    """
    if not isinstance(runtime_result, np.ndarray) or runtime_result.dtype.name not in ("float32", "float64"):
        return False
    if not runtime_result.shape == np.shape(exact) == shifted.shape or not np.array_equal(
        np.isfinite(runtime_result), np.isfinite(exact)
    ):
        return False
    is_finite = np.isfinite(runtime_result)
    differences = np.abs(runtime_result[is_finite] - np.asarray(exact)[is_finite])
    largest = np.abs(runtime_result[is_finite]).max(initial=0.0)
    both_finite = is_finite & np.isfinite(shifted)
    change = np.abs(shifted[both_finite] - runtime_result[both_finite]).max(initial=0.0)
    allowed = max(_KERNEL_ERROR * largest, least_error, _KERNEL_STEPS * change)
    return bool(differences.max(initial=0.0) <= allowed)


def _differs_in_floats(pairs: Sequence[tuple[Array, Array, Feeds]]) -> bool:
    """Whether two outputs of the original's float type are not equal bit for bit in some pair."""
    first = pairs[0][0]
    is_float = isinstance(first, np.ndarray) and get_element_type(first).startswith("float")
    return is_float and not all(outputs.is_identical(old, new) for old, new, _ in pairs)


def _name_nonfinite_side(pairs: Sequence[tuple[Array, Array]]) -> str:
    """Names the model, 'the first' or 'the second', whose results alone are not finite, or returns 'one'."""
    sides = {
        name
        for old, new in pairs
        for name, result, other in (("the first", old, new), ("the second", new, old))
        if isinstance(old, np.ndarray)
        and isinstance(new, np.ndarray)
        and old.shape == new.shape
        and np.any(~np.isfinite(result) & np.isfinite(other))
    }
    return sides.pop() if len(sides) == 1 else "one"


def compare_random_region(
    evidence: RegionEvidence, draws: Sequence[bool], first: Sequence[Array], second: Sequence[Array]
) -> RegionEvidence:
    """Compares two runs on the same values, for a region that draws random numbers.

    A difference between the graphs shows nothing if both draw random numbers. If only one of them does, and
    its output changes from run to run, the region differs.
    """
    varies = [
        drawn and not outputs.is_identical(*runs)
        for drawn, runs in zip(draws, zip(first, second, strict=True), strict=True)
    ]
    if varies[0] == varies[1] or all(draws):
        return replace(evidence, draws=2, reason=RANDOM_REASON)
    ordinal, opposite = ("the first", "the second") if varies[0] else ("the second", "the first")
    reason = f"random numbers change the output of {ordinal}, but {opposite} draws none"
    return replace(evidence, draws=2, kind="different", own=True, reason=reason)
