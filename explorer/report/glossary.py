"""Glossary: the meanings of terms, for a page of the manual and for the `?` help on the screen."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct


class Term(Struct, frozen=True):
    """A term and its meaning.

    Attributes:
        word: The term.
        meaning: One or two sentences.
        labels: Other labels of figures that the term explains.
    """

    word: str
    meaning: str
    labels: tuple[str, ...] = ()


GLOSSARY: tuple[Term, ...] = (
    Term("MACs", "Multiply-accumulates: a multiply and the add that goes with it, counted once; two FLOPs."),
    Term("FLOPs", "2 x MACs, and nothing else; elementwise operations stand beside them."),
    Term("elementwise operations", "Bias, activation, normalization, pooling, softmax: one for each"
         " arithmetic operation on an element; no MACs.", ("elementwise",)),
    Term("parameters", "Stored parameters, each once: a tied weight counts once.",
         ("params", "trainable")),
    Term("weight bytes", "Parameters at the width in which they are stored, with scales and zero points of"
         " packed ones.", ("weights",)),
    Term("activations", "Bytes of what a layer puts out, each output once.", ("activation bytes",)),
    Term("bytes read", "Each input once, weights too, without reuse on the chip.", ("reads",)),
    Term("bytes written", "Each output once.", ("writes",)),
    Term("key-value cache", "Bytes of the keys and values that attention keeps of the text so far.",
         ("KV cache",)),
    Term("arithmetic intensity", "FLOPs for each byte read or written; left of a machine's ridge memory"
         " limits, right of it computing.", ("intensity", "FLOPs/byte")),
    Term("shared with", "Other layers that use the same stored weights."),
    Term("inputs", "What a layer reads while the model runs, and who makes it; weights stand under tensors."),
    Term("outputs", "What a layer makes, and who reads it."),
    Term("tensors", "What a layer has stored: its weights, constants and statistics."),
    Term("attributes", "What the operator was told: kernel, strides, padding, as the file has it."),
    Term("declared", "A shape that the file says."),
    Term("inferred", "A shape that follows from the shapes before it."),
    Term("seen", "A shape that a run of the model had.", ("observed",)),
    Term("upper bound", "A figure that depends on the data: it is at most this.", ("bound",)),
    Term("coverage", "The share of the nodes of which every figure is known."),
    Term("peak", "The most bytes of activations that are live at one step of the execution."),
    Term("live", "Made already, and still to be read."),
    Term("site", "A matmul that can be tiled.", ("matmul", "matmuls")),
    Term("tile", "M x K x N that the hardware multiplies at once.", ("tiles",)),
    Term("tile matmuls", "Products of one tile with another: m x k x n of the grid, for each of a batch."),
    Term("tile utilization", "The share of the tiles' arithmetic that the matmul needs; the rest is idle.",
         ("utilization", "util.")),
    Term("padding overhead", "The share of the moved bytes that are zeros which fill up tiles."),
    Term("grid", "How many tiles lie along M, K and N."),
    Term("edges", "The last tile of an axis: partial, or padded with zeros.", ("partial", "padded")),
    Term("form", "How a tiled matmul is written as ONNX: lab (nested functions), scan (a loop), unrolled,"
         " batched."),
    Term("traffic", "Bytes between memory and the buffer of the tiles, both ways.", ("moved",)),
    Term("traffic without reuse", "What is moved if every tile matmul fetches all and puts its sum away."),
    Term("lower bound", "The least traffic that any order and any tile can have with so large a buffer."),
    Term("loop order", "Which loop over tiles is outside: mnk has M outermost and K innermost.",
         ("order", "mnk")),
    Term("stationary", "Whose tile stays in the buffer while the innermost loop turns: output, weight or"
         " input.", ("output-stationary", "weight-stationary", "input-stationary", "dataflow")),
    Term("buffer", "Bytes for one tile of each operand and of the sums; twice that where the next tiles"
         " arrive meanwhile.", ("double-buffered",)),
    Term("cycles", "Of the matrix unit: the longer of computing and moving; without a double buffer both."),
    Term("least time", "Layer after layer, each at its limit: no run is faster.", ("time",)),
    Term("ridge", "The arithmetic intensity from which on a machine computes longer than it moves."),
    Term("compute-bound", "Computing takes longer than moving.", ("compute",)),
    Term("memory-bound", "Moving takes longer than computing.", ("memory",)),
    Term("bit-equal", "The same in every bit.", ("bit for bit",)),
    Term("u", "Half a unit in the last place at the size of the result: what one rounding may cost.",
         ("rounding",)),
    Term("max error", "The largest difference of one element."),
    Term("RMS error", "The root of the mean squared difference, against a float64 run.", ("MSE",)),
    Term("cosine", "Of the angle between both results: 1 if they point the same way."),
    Term("to the limit", "The share of the error that is allowed; a full bar is the limit."),
    Term("backward", "The gradients of the input and of the weight, each as many MACs as forward; the first"
         " layer has none of its input."),
    Term("gradients", "Bytes of the derivatives of what is trained."),
    Term("optimizer state", "What the optimizer keeps for each parameter that is trained.", ("optimizer",)),
)  # fmt: skip
"""Terms ordered by subject: figures of layers, shapes, tilings, machines, proofs, training."""


def terms_in(lines: Iterable[str]) -> Sequence[Term]:
    """Return the terms whose words or labels occur in `lines`, in the order of the glossary."""
    text = "\n".join(lines).casefold()
    return [
        term
        for term in GLOSSARY
        if any(
            re.search(rf"(?<![\w-]){re.escape(label.casefold())}(?![\w-])", text)
            for label in (term.word, *term.labels)
        )
    ]
