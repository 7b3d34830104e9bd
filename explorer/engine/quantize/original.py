"""Original of many quantizations: its values on the samples, computed once for all formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from explorer.engine import shapes
from explorer.engine.graph.model import Model
from explorer.engine.quantize import calibration
from explorer.engine.quantize.calibration import Range, RangeUse, ValueDistribution
from explorer.engine.quantize.errors import agree
from explorer.engine.quantize.integers.bias_correction import read_axes
from explorer.engine.quantize.integers.channel_means import ChannelMeans
from explorer.engine.quantize.layers import FLOATS, find_layers
from explorer.engine.quantize.runs import infos, observe_values
from explorer.engine.runtime.onnxruntime import RuntimeSession
from explorer.engine.runtime.samples import Samples
from explorer.engine.values.agreement import Agreement
from explorer.facts.quantize import Calibrator

Step = Callable[[int, int], None]


class OriginalRuns:
    """A model on its samples: distributions of its layers' inputs, and its outputs.

    The ranges of the original's values do not depend on the tried format, so the original runs once on each
    sample. Its outputs are held.

    Args:
        model: The model.
        samples: Its inputs.
        fine: Keep histograms, for calibrators that need more than the ends.
        step: Called before each run with the number of finished runs and of all runs; raises `Cancelled` to
            stop.

    Attributes:
        means: Means of the inputs of its layers.

    Raises:
        BadModel: The model does not run on a sample.
    """

    def __init__(
        self, model: Model, samples: Samples, *, fine: bool, step: Step = lambda done, total: None
    ) -> None:
        self.samples = samples
        value_infos = shapes.infer(model).values
        layers = find_layers(model, value_infos, {})
        read = {operand.value for layer in layers for operand in layer.of("input")}
        self.means = ChannelMeans(read_axes(layers))
        self._distributions = {name: ValueDistribution(fine=fine) for name in sorted(read)}
        self._outputs: dict[str, list[Any]] = {value.name: [] for value in model.graph.outputs}
        for info in infos(model, [*self._distributions], samples):
            if info.dtype not in FLOATS:
                del self._distributions[info.name]
        looked = dict.fromkeys((*self._distributions, *self._outputs))
        observe_values(model, looked, samples, self._take, step)

    def _take(self, name: str, value: Any) -> None:
        if name in self._distributions:
            self._distributions[name].add(value)
            self.means.add(name, value)
        if name in self._outputs:
            self._outputs[name].append(value)

    def ranges(
        self,
        model: Model,
        uses: Mapping[RangeUse, RangeUse],
        calibrator: Calibrator,
        percentile: float,
        step: Step,
    ) -> dict[RangeUse, Range]:
        """Ranges of activations, as `calibration.ranges` finds them.

        Args:
            model: The original in the operator set of the formats; it is run for values not observed yet.
            uses: The values, with their formats.
            calibrator: See `calibration.ranges`.
            percentile: See `calibration.ranges`.
            step: See `calibration.ranges`.

        Raises:
            Misuse: See `calibration.ranges`.
            BadModel: See `calibration.ranges`.
        """
        calibration.check_percentile(percentile)
        rest = {use: use for use in uses if use.value not in self._distributions}
        range_by_use = (
            calibration.ranges(model, rest, self.samples, calibrator, percentile, step) if rest else {}
        )
        for use in uses:
            if use.value in self._distributions:
                distribution = self._distributions[use.value]
                range_by_use[use] = calibration.calibrated_range(
                    distribution, use, self.samples.text, calibrator, percentile
                )
        return range_by_use

    def agreement(self, after: Model, step: Step) -> dict[str, Agreement]:
        """The agreement of a quantized model's outputs with the original's, by name.

        Raises:
            BadModel: The quantized model does not run on a sample.
        """
        session = RuntimeSession(after, what="the quantized model")
        agreements = {name: Agreement() for name in self._outputs}
        for at, feeds in enumerate(self.samples):
            step(at, self.samples.count)
            agree(
                agreements, {name: values[at] for name, values in self._outputs.items()}, session.run(feeds)
            )
        return agreements
