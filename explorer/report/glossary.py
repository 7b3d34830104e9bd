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
    Term("MACs", "Multiply-accumulates. One MAC is a multiplication and the addition of its result; 1 MAC = 2"
         " FLOPs."),
    Term("FLOPs", "Floating-point operations: 2 x MACs. Elementwise operations are counted separately."),
    Term("elementwise operations", "Arithmetic operations of bias, activation, normalization, pooling and"
         " softmax, one for each element. They are not part of the MACs.", ("elementwise",)),
    Term("parameters", "Stored parameters. A parameter that several layers share counts once.",
         ("params", "trainable")),
    Term("weight bytes", "Bytes of the parameters in their stored type, with the scales and zero points of"
         " packed weights.", ("weights",)),
    Term("activations", "Bytes of the outputs of layers, each output once.", ("activation bytes",)),
    Term("bytes read", "Bytes of a layer's inputs and weights, each once. Reuse on the chip is not counted.",
         ("reads",)),
    Term("bytes written", "Bytes of a layer's outputs, each once.", ("writes",)),
    Term("key-value cache", "The keys and values that attention keeps of the text so far, in bytes.",
         ("KV cache",)),
    Term("arithmetic intensity", "FLOPs for each byte read or written. Below a machine's ridge a layer is"
         " memory-bound, above it compute-bound.", ("intensity", "FLOPs/byte")),
    Term("shared with", "Other layers that use the same stored weights. Each row counts the whole weight."),
    Term("inputs", "Values that a layer reads in each run, with the layers that make them. Weights are listed"
         " under tensors."),
    Term("outputs", "Values that a layer makes, with the layers that read them."),
    Term("tensors", "Stored weights, constants and statistics of a layer."),
    Term("attributes", "Settings of the operator in the file, such as kernel, strides and padding."),
    Term("declared", "A shape that the file states."),
    Term("inferred", "A shape that follows from earlier shapes."),
    Term("seen", "A shape that occurred in a run of the model.", ("observed",)),
    Term("upper bound", "The largest value that a figure can have when it depends on the data.", ("bound",)),
    Term("kind", "The operator or module of a layer."),
    Term("output", "The shape of a layer's output."),
    Term("share", "A part of the whole, in percent. For layers, the whole is the model's MACs."),
    Term("coverage", "The share of nodes whose figures are all known."),
    Term("peak", "The most bytes of activations that are live at one step of the execution."),
    Term("sum of buffers", "Bytes of all activation buffers and the inputs, each once. A result in place"
         " needs no buffer, so the sum differs from that of the activations.", ("Buffers, sum",)),
    Term("arena", "The smallest block of memory into which all buffers of a run fit.", ("smallest arena",)),
    Term("live", "In memory: already computed, and still to be read."),
    Term("site", "A matmul that can be tiled.", ("matmul", "matmuls")),
    Term("M x K x N", "Size of a matmul: M rows, N columns, and K products in each sum.", ("M, K, N",)),
    Term("tile", "The part of a matmul, M x K x N, that the hardware computes at once.", ("tiles",)),
    Term("tile matmuls", "Products of one tile with another: the grid's m x k x n, for each batch item."),
    Term("tile utilization", "The share of the tiles' arithmetic that the matmul needs; the rest is idle.",
         ("utilization", "util.")),
    Term("padding overhead", "The share of the moved bytes that are padding zeros."),
    Term("grid", "The number of tiles along M, K and N."),
    Term("edges", "The last tile of an axis: partial, or padded with zeros.", ("partial", "padded")),
    Term("form", "The way in which a tiled matmul is written as ONNX: lab (nested functions), scan (a loop),"
         " unrolled (all nodes side by side) or batched (one stacked product)."),
    Term("2DMM", "The operator of one tile matmul in a tiled file: 2DMM_64x64x64 multiplies tiles of"
         " M x K x N."),
    Term("Split2D", "The operator that cuts a matrix into tiles; Concat2D joins tiles to a matrix.",
         ("Concat2D",)),
    Term("traffic", "Bytes between memory and the buffer of the tiles, in both directions.", ("moved",)),
    Term("traffic without reuse", "The traffic if each tile matmul reads its operands and writes its sum."),
    Term("lower bound", "Bytes that the traffic cannot fall below with a buffer of this size. Even the best"
         " mapping may move more."),
    Term("loop order", "The order of the loops over tiles: mnk has M outermost and K innermost.",
         ("order", "mnk")),
    Term("stationary", "The operand whose tile stays in the buffer in the innermost loop: output, weight or"
         " input.", ("output-stationary", "weight-stationary", "input-stationary", "dataflow")),
    Term("buffer", "Bytes for one tile of each operand and of the sums; no tile is larger than its matmul. A"
         " double buffer also holds the next tiles, so it is twice as large.",
         ("double-buffered", "buffer needed")),
    Term("cycles", "Clock cycles of the matrix unit: the longer of computing and moving, or without a double"
         " buffer their sum."),
    Term("least time", "The sum of the layers' shortest possible times; no run is faster.", ("time",)),
    Term("ridge", "The arithmetic intensity at which computing and moving take equally long on a machine."),
    Term("compute-bound", "Limited by arithmetic: computing takes longer than moving.", ("compute",)),
    Term("memory-bound", "Limited by bandwidth: moving takes longer than computing.", ("memory",)),
    Term("equal by construction", "The same operators, attributes, constants and inputs as in the original:"
         " no run is needed to show it."),
    Term("equal within rounding", "A verdict: every part is proved, and sums may be added in another order."
         " Each result stays within the limit of rounding."),
    Term("equal on evidence", "A verdict: a part that cannot be proved equal, such as the export from"
         " PyTorch, gave the same results on all inputs that were tried."),
    Term("bit-equal", "The same in each bit.", ("bit for bit",)),
    Term("u", "The largest relative error of one rounding: 2^-24 for float32. An error of 2 u is 2 u times"
         " the sum of the absolute products.", ("rounding",)),
    Term("max error", "The largest difference of one element.", ("max difference",)),
    Term("tiles bit-equal", "The number of tiles that equal their part of the weight in each bit."),
    Term("rows compared", "The rows of a matmul's result that were compared: all M rows of the model's own"
         " values, and rows of dense random values. The number may exceed M."),
    Term("relative RMS", "The root of the mean squared difference, divided by the root of the mean square of"
         " the output."),
    Term("rounding vs exact", "The largest error of a tiled matmul against a float64 run, in u; also on dense"
         " random values.", ("worst rounding",)),
    Term("changed region", "A part of the graph that changed other than by tiles, such as a recurrent layer"
         " that was taken apart. Each runs alone on several sets of values.", ("region", "sets of values")),
    Term("MSE", "The mean squared difference of two results."),
    Term("RMS error", "The root of the mean squared difference from a float64 run."),
    Term("cosine", "The cosine of the angle between two results; 1 means the same direction."),
    Term("to the limit", "The error as a share of its limit; a full bar is the limit. explorer help proof"
         " lists the limits."),
    Term("number format", "How each number is stored, such as int8, mxfp4 or fixed8.4: fixed point of 8 bits,"
         " 4 of them after the point. explorer help number_formats lists all formats.",
         ("fixed8.4", "int8", "int4", "mxfp4")),
    Term("SNR", "Signal to noise ratio of the rounded numbers, in dB: 20 dB is an error of a tenth of the"
         " amplitude, and each bit is worth 6 dB.", ("SNR dB", "weight dB", "input dB", "output dB")),
    Term("saturated", "The share of a layer's inputs beyond the range of their format."),
    Term("accumulator", "Bits of a signed integer that holds each possible sum of a layer: 19 of 20 means 19"
         " for the stored weights, and 20 for any weights of this format."),
    Term("BitOPs", "MACs x bits of a weight x bits of an input."),
    Term("same choice", "The share of rows along an output's last axis whose largest element is at the same"
         " index as in the original. It says something only about class scores.", ("in its top 5",)),
    Term("runs as", "The operator that onnxruntime executes for a layer of the written file; integer kernels"
         " have names such as QLinearConv.", ("integer kernels",)),
    Term("backward", "The pass that computes the gradients of inputs and weights, each with the MACs of the"
         " forward pass. The first layer needs no gradient of its input."),
    Term("kept by autograd", "Values of the forward pass that the backward pass needs, without parameters and"
         " inputs.", ("kept",)),
    Term("temporary", "Tensors that are freed before a training step ends: gradients of activations,"
         " workspaces, and copies that the optimizer makes."),
    Term("optimizer's step", "The last phase of a training step: the optimizer changes the parameters."),
    Term("gradients", "Bytes of the derivatives of the trained parameters."),
    Term("optimizer state", "Numbers that the optimizer keeps for each trained parameter.", ("optimizer",)),
)  # fmt: skip
"""Terms ordered by subject: figures of layers, shapes, tilings, machines, proofs, quantization, training."""


def find_terms(lines: Iterable[str]) -> Sequence[Term]:
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
