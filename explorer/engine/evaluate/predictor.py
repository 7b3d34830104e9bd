"""Predictor: runs a model of any format on samples, for any number of samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from explorer.base.errors import BadModel, Misuse, suggest_name
from explorer.base.units import printable, shape_text
from explorer.engine.evaluate.data_file import convert_samples
from explorer.engine.graph.model import Model
from explorer.engine.runtime.input_files import Array, InputSpec
from explorer.engine.runtime.onnxruntime import RuntimeSession

Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]


class Predictor:
    """Runs a model on samples.

    Args:
        name: The user's name for the model.
        inputs: Inputs of the model; the first size of a shape is the batch.
        run: Function from arrays by input name to outputs by name.
        output: Name of the output to score, or '' for the first.
        batch: Fixed batch size of the model, or None for any size.
        fallback: Batch size to use if the model turns out to have a fixed one.
        notes: Notes on the weights.

    Attributes:
        parts: Part of the data for each input, once assigned.
        seconds: Total run time in seconds.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[InputSpec],
        run: Run,
        *,
        output: str = "",
        batch: int | None = None,
        fallback: int | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.inputs = inputs
        self.notes = notes
        self.output = output
        self.parts: Mapping[str, str] = {}
        self.seconds = 0.0
        self._run = run
        self._batch = batch
        self._fallback = fallback

    def predict(self, samples: Mapping[str, Array]) -> Array:
        """Returns the output to score, with one row per sample.

        Raises:
            Misuse: There is no such output, it holds no numbers, or its first axis is not the batch.
            BadModel: The model fails.
        """
        feeds = {spec.name: convert_samples(samples[self.parts[spec.name]], spec) for spec in self.inputs}
        rows = len(next(iter(feeds.values())))
        began = time.perf_counter()
        try:
            return self._predict_in_batches(feeds, rows)
        except BadModel:
            if self._batch is not None or self._fallback in (None, rows):
                raise
            self._batch = self._fallback
            return self._predict_in_batches(feeds, rows)
        finally:
            self.seconds += time.perf_counter() - began

    def _predict_in_batches(self, feeds: Mapping[str, Array], rows: int) -> Array:
        """Returns the scores of all rows, from batches of the model's fixed size or from one batch."""
        size = self._batch or rows
        pieces = []
        for first in range(0, rows, size):
            count = min(size, rows - first)
            # fill up the last batch of a fixed size with copies of the last sample
            indices = np.minimum(np.arange(first, first + size), rows - 1)
            scores = self._select_output(self._run({name: values[indices] for name, values in feeds.items()}))
            if scores.ndim == 0 or len(scores) != size:
                problem = f"'{printable(self.output)}' is {shape_text(scores.shape)} for {size:,} samples"
                raise Misuse(f"its output {problem}: its first axis is not the batch", where=self.name)
            pieces.append(scores[:count])
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _select_output(self, outputs: Mapping[str, Array]) -> Array:
        self.output = self.output or next(iter(outputs), "")
        scores = outputs.get(self.output)
        if scores is None:
            names = list(outputs)
            message = f"no output is called '{printable(self.output)}'"
            raise Misuse(message, where=self.name, hint=suggest_name(self.output, names))
        if not isinstance(scores, np.ndarray) or scores.dtype.kind not in "biufV":
            raise Misuse(f"its output '{printable(self.output)}' holds no numbers", where=self.name)
        return scores


def create_graph_predictor(
    model: Model, name: str, output: str = "", notes: tuple[str, ...] = ()
) -> Predictor:
    """Returns a predictor that runs an ONNX graph in onnxruntime.

    Raises:
        BadModel: onnxruntime cannot load the graph.
        Misuse: Its inputs have different fixed batch sizes, or it has no output called `output`.
    """
    session = RuntimeSession(model, label=f"'{printable(name)}'")
    inputs = [InputSpec(value.name, value.dtype, value.shape) for value in model.graph.required_inputs]
    fixed = {spec.shape[0] for spec in inputs if spec.shape and isinstance(spec.shape[0], int)}
    if len(fixed) > 1:
        raise Misuse(
            "the first axes of its inputs differ: which of them is the batch is not clear", where=name
        )
    output_names = [output] if output in session.outputs else None

    def run(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        return session.run(feeds, output_names or session.outputs[:1])

    if output and output_names is None:
        message = f"no output is called '{printable(output)}'"
        raise Misuse(message, where=name, hint=suggest_name(output, session.outputs))
    size = next((s for s in fixed if isinstance(s, int)), None)
    return Predictor(name, inputs, run, output=output, batch=size, notes=notes)
