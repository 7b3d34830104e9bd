"""Values of the original model on the samples, computed once for quantization to many formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from explorer.engine import shapes
from explorer.engine.graph.model import Model
from explorer.engine.quantize import calibration
from explorer.engine.quantize.calibration import Range, RangeUse, ValueDistribution
from explorer.engine.quantize.errors import add_outputs
from explorer.engine.quantize.integers.bias_correction import find_channel_axes
from explorer.engine.quantize.integers.channel_means import ChannelMeans
from explorer.engine.quantize.layers import FLOATS, find_layers
from explorer.engine.quantize.runs import get_sample_infos, observe_values
from explorer.engine.runtime.onnxruntime import RuntimeSession
from explorer.engine.runtime.samples import Samples
from explorer.engine.values.agreement import Agreement
from explorer.facts.quantize import Calibrator

Step = Callable[[int, int], None]


class OriginalRuns:
    """Distributions of the inputs of a model's layers, and its outputs, over samples.

    The ranges of the original's values do not depend on the format being tried. The original therefore runs
    once on each sample, and its outputs are kept in memory.

    Args:
        model: The model.
        samples: Inputs of the model.
        has_histograms: Whether to keep histograms, for calibrators that need more than minimum and maximum.
        step: Function called before each run with the number of completed runs and of all runs. It raises
            `Cancelled` to stop.

    Attributes:
        means: Channel means of the inputs of the layers.

    Raises:
        BadModel: The model does not run on a sample.
    """

    def __init__(
        self, model: Model, samples: Samples, *, has_histograms: bool, step: Step = lambda done, total: None
    ) -> None:
        self.samples = samples
        value_infos = shapes.infer(model).values
        layers = find_layers(model, value_infos, {})
        input_names = {operand.value for layer in layers for operand in layer.list_operands("input")}
        self.means = ChannelMeans(find_channel_axes(layers))
        self._distributions = {
            name: ValueDistribution(has_histogram=has_histograms) for name in sorted(input_names)
        }
        self._outputs: dict[str, list[Any]] = {value.name: [] for value in model.graph.outputs}
        for info in get_sample_infos(model, [*self._distributions], samples):
            if info.dtype not in FLOATS:
                del self._distributions[info.name]
        value_names = dict.fromkeys((*self._distributions, *self._outputs))
        observe_values(model, value_names, samples, self._take, step)

    def _take(self, name: str, value: Any) -> None:
        if name in self._distributions:
            self._distributions[name].add(value)
            self.means.add(name, value)
        if name in self._outputs:
            self._outputs[name].append(value)

    def calibrate_ranges(
        self,
        model: Model,
        uses: Mapping[RangeUse, RangeUse],
        calibrator: Calibrator,
        percentile: float,
        step: Step,
    ) -> dict[RangeUse, Range]:
        """Returns calibrated ranges of activations, like `calibration.calibrate_ranges`.

        Args:
            model: The original, in the operator set of the formats. It runs for values that were not observed
                yet.
            uses: Values with their formats.
            calibrator: Rule for a range.
            percentile: Share of numbers inside the range in percent.
            step: Callback for progress and cancellation.

        Raises:
            Misuse: A value holds NaN, or the percentile is out of range.
            BadModel: The model does not run on a sample.
        """
        calibration.check_percentile(percentile)
        unobserved = {use: use for use in uses if use.value not in self._distributions}
        range_by_use = (
            calibration.calibrate_ranges(model, unobserved, self.samples, calibrator, percentile, step)
            if unobserved
            else {}
        )
        for use in uses:
            if use.value in self._distributions:
                distribution = self._distributions[use.value]
                range_by_use[use] = calibration.choose_range(
                    distribution, use, self.samples.text, calibrator, percentile
                )
        return range_by_use

    def measure_agreement(self, quantized_model: Model, step: Step) -> dict[str, Agreement]:
        """Runs a quantized model and returns the agreement of its outputs with the original's, by name.

        Raises:
            BadModel: The quantized model does not run on a sample.
        """
        session = RuntimeSession(quantized_model, label="the quantized model")
        agreements = {name: Agreement() for name in self._outputs}
        for index, feeds in enumerate(self.samples):
            step(index, self.samples.count)
            original_values = {name: values[index] for name, values in self._outputs.items()}
            add_outputs(agreements, original_values, session.run(feeds))
        return agreements
