"""Weight matching: which stored tensors two models share, and why the other tensors differ.

The parameters of two models differ by exactly the tensors that one has and the other has not. So the
tensors of both are matched, by name, then by shape (transposed ones too), then by what a layer has in
all; what is left over is classified by what owns it. Every class says how many elements and bytes it
accounts for, and what fits no class stays open.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

from msgspec import Struct

from explorer.base.units import printable, shape_text
from explorer.facts import Analysis, Layer

NAMED = 3
"""How many weights that only one model has are named."""

_FAMILIES = {
    "convolution": """conv convolution _convolution qlinearconv convinteger fusedconv nhwcconv depthwise_conv
        stablehlo_convolution""",
    "transposed convolution": "convtranspose conv_transpose transpose_conv conv_3d_transpose",
    "matrix product": """linear nondynamicallyquantizablelinear addmm mm bmm matmul baddbmm einsum gemm
        qlinearmatmul matmulinteger matmulnbits qgemm fusedmatmul fusedgemm fully_connected batch_matmul
        stablehlo_dot_general""",
    "batch norm": "batchnorm syncbatchnorm batch_norm frozenbatchnorm batchnormalization",
    "layer norm": """layernorm layer_norm layernormalization skiplayernormalization rmsnorm rms_norm
        rmsnormalization""",
    "recurrent layer": """lstm gru rnn rnn_tanh rnn_relu unidirectional_sequence_lstm
        bidirectional_sequence_lstm unidirectional_sequence_rnn bidirectional_sequence_rnn""",
    "attention": "multiheadattention scaled_dot_product_attention attention groupqueryattention",
    "embedding": "embedding embeddingbag gather embedding_lookup",
    "activation": """relu relu6 hardtanh clip clamp silu sigmoid hardswish hardsigmoid gelu erf tanh leakyrelu
        leaky_relu elu prelu mish softplus fusedgelu quickgelu logistic hard_swish relu_n1_to_1
        relu_0_to_1""",
    "dropout or identity": "dropout alphadropout featurealphadropout stochasticdepth identity",
    "max pooling": "maxpool max_pool",
    "average pooling": """avgpool adaptiveavgpool adaptive_avg_pool avg_pool averagepool
        globalaveragepool average_pool""",
    "softmax": "softmax logsoftmax log_softmax",
    "addition": "add sum iadd",
    "multiplication": "mul multiply imul",
    "concatenation": "cat concat concatenation",
    "quantization": "quantizelinear dequantizelinear dynamicquantizelinear quantize dequantize",
    "constant": "constant constantofshape",
    "change of shape": """flatten reshape view unflatten permute transpose squeeze unsqueeze contiguous shape
        cast expand slice select getitem chunk split unbind to strided_slice expand_dims split_v pack
        unpack""",
}
_FAMILY_OF = {kind: name for name, kinds in _FAMILIES.items() for kind in kinds.split()}

_MADE_UP = ("Constant", "onnx::", "val_", "_val_", "/")
"""How names begin or what they contain that an exporter gave to values of its own."""

_COUNTED = ("running_mean", "running_var", "num_batches_tracked")
"""How torch calls what a batch normalisation counts and does not learn."""

_STATISTICS = ("running_mean", "running_var", "mean", "var", "moving_mean", "moving_variance")


def family(kind: str) -> str:
    """The kind of work of an operator or leaf module in any format; its own name if unknown."""
    plain = kind.lower().rstrip("_")
    # Conv2d is a convolution; GPT-2's Conv1D, spelled with a capital D, is not
    ranked = plain
    if plain.endswith(("1d", "2d", "3d")) and kind != "Conv1D":
        ranked = plain[:-2].rstrip("_")
    return "matrix product" if kind == "Conv1D" else _FAMILY_OF.get(ranked, kind)


def graphless(analysis: Analysis) -> bool:
    """Whether a model is a file of tensors without a graph."""
    return not analysis.info.totals.nodes and not analysis.info.totals.coverage


Zeros = Callable[[str], bool]
"""Whether a stored tensor is known to be all zeros."""


class ComparedTensor(Struct):
    """A stored tensor of a model, once, however many layers use it.

    Attributes:
        names: Its names: an initializer's, or those of the state_dict.
        shape: As stored.
        dtype: In numpy's spelling.
        owners: The layers that use it.
        place: Position among the weights of the first owner.
        size: Bytes, where they differ from what the type gives: packed in blocks.
    """

    names: set[str]
    shape: tuple[int, ...]
    dtype: str
    owners: list[Layer]
    place: int
    size: int | None = None

    @property
    def elements(self) -> int:
        """How many numbers."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """As stored, as far as the type tells."""
        return (self.elements * _bits(self.dtype) + 7) // 8 if self.size is None else self.size

    @property
    def family(self) -> str:
        """Of its first owner."""
        return family(self.owners[0].kind)


def _bits(dtype: str) -> int:
    digits = "".join(c for c in dtype.partition("_")[0] if c.isdigit())
    return int(digits) if digits else 8


class Cause(Struct):
    """A reason why the weights of two models differ: elements and bytes more (positive) or fewer."""

    why: str
    params: int = 0
    bytes: int = 0


class Causes(Struct, frozen=True):
    """Why the weights of two models differ.

    Attributes:
        known: What is explained.
        folds: One model has batch norms that the other folded into its weights. That is so only where
            every convolution and product of the one has its weight in the other.
        alone: In words, the largest weights that only one of the two has; empty if there are none.
    """

    known: list[Cause]
    folds: bool
    alone: str


def _listed(alone: Mapping[int, Sequence[ComparedTensor]]) -> str:
    texts = []
    for sign, where in ((1, "only here"), (-1, "only in the first")):
        tensors = sorted(alone[sign], key=lambda t: -t.elements)
        names = ", ".join(f"{printable(min(t.names))} {shape_text(t.shape)}" for t in tensors[:NAMED])
        rest = f" and {len(tensors) - NAMED:,} more" if len(tensors) > NAMED else ""
        if tensors:
            texts.append(f"{where}: {names}{rest}")
    return "; ".join(texts)


def stored(analysis: Analysis) -> list[ComparedTensor] | None:
    """The stored tensors of a model; None when they do not add up to its parameters.

    A layer names the layers that it shares tensors with, not the tensors. A shared tensor is the one of the
    same name or, if the sizes then do not add up, the one of the same shape.
    """
    whole = analysis.info.model.is_graph or analysis.info.model.format == "tflite"
    for same in (_no_other if whole else _same_name, _same_name, _same_shape):
        tensors = _stored_tensors(analysis, whole, same)
        if tensors is None or sum(t.elements for t in tensors) == analysis.info.totals.params:
            return tensors
    return None


_Same = Callable[[str, tuple[int, ...], ComparedTensor], bool]


def _no_other(name: str, shape: tuple[int, ...], tensor: ComparedTensor) -> bool:
    return False


def _same_name(name: str, shape: tuple[int, ...], tensor: ComparedTensor) -> bool:
    last = name.rpartition(".")[2]
    return tensor.shape == shape and any(n.rpartition(".")[2] == last for n in tensor.names)


def _same_shape(name: str, shape: tuple[int, ...], tensor: ComparedTensor) -> bool:
    return tensor.shape == shape


def _stored_tensors(analysis: Analysis, whole: bool, same: _Same) -> list[ComparedTensor] | None:
    """The stored tensors, by one rule for which are the same; None if a size is unknown."""
    bare = graphless(analysis)
    by_name: dict[str, ComparedTensor] = {}
    by_path: defaultdict[str, list[ComparedTensor]] = defaultdict(list)
    for layer in analysis.layers:
        if layer.group:
            continue
        for place, info in enumerate(layer.weights):
            if info.shape is None or any(not isinstance(d, int) for d in info.shape):
                return None
            shape = tuple(d for d in info.shape if isinstance(d, int))
            name = info.name if whole or bare else f"{layer.path}.{info.name}"
            shared = (t for path in layer.shared_with for t in by_path[path] if same(name, shape, t))
            tensor = by_name.get(name) or next(shared, None)
            if tensor is None:
                size = layer.weight_bytes if bare else None
                tensor = ComparedTensor(set(), shape, info.dtype or "", [], place, size)
            by_name[name] = tensor
            tensor.names.add(name)
            tensor.owners.append(layer)
            by_path[layer.path].append(tensor)
    return list({id(t): t for t in by_name.values()}.values())


# -- matching


def _matched(
    first: Sequence[ComparedTensor], second: Sequence[ComparedTensor]
) -> tuple[list[tuple[ComparedTensor, ComparedTensor]], list[ComparedTensor], list[ComparedTensor]]:
    """Pairs of tensors that are the same, and the unpaired tensors of either side."""
    pairs: list[tuple[ComparedTensor, ComparedTensor]] = []
    first_rest, second_rest = list(first), list(second)
    keys: tuple[Callable[[ComparedTensor], Iterable[Hashable]], ...] = (
        lambda t: [(n, tuple(sorted(t.shape))) for n in sorted(t.names)],
        lambda t: [(t.family, t.shape)],
        lambda t: [(t.family, tuple(sorted(t.shape)))],
        lambda t: [t.shape] if _movable(t) else [],
        lambda t: [tuple(sorted(t.shape))] if _movable(t) else [],
        lambda t: [tuple(sorted(d for d in t.shape if d != 1))] if _movable(t) and t.elements > 1 else [],
        lambda t: [t.shape] if t.dtype == "int32" or t.family == "convolution" else [],
    )
    for key in keys:
        waiting: dict[Hashable, list[ComparedTensor]] = defaultdict(list)
        for tensor in second_rest:
            for value in key(tensor):
                waiting[value].append(tensor)
        taken: set[int] = set()
        rest = []
        for tensor in first_rest:
            partner = None
            for value in key(tensor):
                partner = next((t for t in waiting[value] if id(t) not in taken), None)
                if partner is not None:
                    break
            if partner is None:
                rest.append(tensor)
            else:
                taken.add(id(partner))
                pairs.append((tensor, partner))
        first_rest, second_rest = rest, [t for t in second_rest if id(t) not in taken]
    return pairs, first_rest, second_rest


def _movable(tensor: ComparedTensor) -> bool:
    """Whether a tensor may belong to other work in the other model: the bias of a product to an addition.

    Tensors of batch norms and biases of convolutions may not: where norms are folded, one would be taken
    for the other.
    """
    name = tensor.family
    return name != "batch norm" and (len(tensor.shape) > 1 or "convolution" not in name)


def _stacked(
    lost: list[ComparedTensor], gained: list[ComparedTensor]
) -> tuple[list[ComparedTensor], list[ComparedTensor]]:
    """Removes tensors that differ only in layout: a layer's weights in one tensor or in several."""
    for name in {t.family for t in lost} & {t.family for t in gained}:
        a, b = [t for t in lost if t.family == name], [t for t in gained if t.family == name]
        if sum(t.elements for t in a) == sum(t.elements for t in b):
            lost = [t for t in lost if t.family != name]
            gained = [t for t in gained if t.family != name]
    return lost, gained


# -- causes


def weight_causes(
    first: Analysis, second: Analysis, needless: frozenset[str] = frozenset(), zeros: Sequence[Zeros] = ()
) -> Causes | None:
    """Why the second model stores other parameters than the first; None if their tensors are not known.

    Args:
        first: A model.
        second: Another.
        needless: Paths of layers whose work no output needs.
        zeros: Of either model, whether a tensor of this name is all zeros.
    """
    a, b = stored(first), stored(second)
    if a is None or b is None:
        return None

    def spare(tensor: ComparedTensor) -> bool:
        return all(owner.path in needless or not owner.calls for owner in tensor.owners)

    # tensors that no output needs are paired last: an export omits them, and others have their shape
    pairs, lost, gained = _matched(sorted(a, key=spare), sorted(b, key=spare))
    lost, gained = _stacked(lost, gained)
    booked: dict[tuple[int, tuple[str, str]], list[ComparedTensor]] = defaultdict(list)
    alone: dict[int, list[ComparedTensor]] = {1: [], -1: []}
    norms, norms_left = _norms(first), _norms(second)
    apart = graphless(first) or graphless(second)
    folds = not apart and norms != norms_left and not any(_works(t) for t in (*lost, *gained))
    joined = _joined(lost, gained) | _joined(gained, lost)
    cut = first.info.tiled is not None or second.info.tiled is not None
    grown = _filled(lost, gained) + _filled(gained, lost) if cut else []
    filled = {id(t) for pair in grown for t in pair}
    for sign, model, others, tensors in ((-1, first, b, lost), (1, second, a, gained)):
        # above 0: the model with the tensor has batch norms that the other folded; below 0: the reverse
        more = (norms - norms_left) * -sign if folds else 0
        for tensor in tensors:
            words = _cause(tensor, sign, more > 0, more < 0, others, model)
            if id(tensor) in joined:
                words = _JOINED
            elif id(tensor) in filled:
                words = _FILLED
            elif words is None and needless.issuperset(owner.path for owner in tensor.owners):
                words = _NEEDLESS
            elif words in (None, _SHARED, _OWN) and len(tensor.shape) == 1 and zeros:
                nothing = all(map(zeros[max(sign, 0)], tensor.names))
                words = _ZEROS if nothing else words
            if words is None:
                alone[sign].append(tensor)
            else:
                booked[sign, words].append(tensor)
    causes = [_booked(sign, words, tensors) for (sign, words), tensors in booked.items()]
    changed: dict[tuple[str, str], list[tuple[ComparedTensor, ComparedTensor]]] = defaultdict(list)
    for x, y in pairs:
        if x.dtype != y.dtype:
            changed[x.dtype, y.dtype].append((x, y))
    for (old, new), changed_pairs in changed.items():
        tensors_text = f"{len(changed_pairs):,} tensor{'s' if len(changed_pairs) > 1 else ''}"
        text = f"{tensors_text} stored as {new} instead of {old}"
        causes.append(Cause(text, 0, sum(y.bytes - x.bytes for x, y in changed_pairs)))
    scales = _beside(second, b) - _beside(first, a)
    if scales:
        causes.append(Cause("scales and zero points that stand beside quantized tensors", 0, scales))
    return Causes(causes, folds, _listed(alone))


def _filled(
    wholes: Sequence[ComparedTensor], tiled: Sequence[ComparedTensor]
) -> list[tuple[ComparedTensor, ComparedTensor]]:
    """Pairs of a weight and the padded one that a tiling made of it: its name begins with the weight's."""
    pairs = []
    for tensor in tiled:
        for whole in wholes:
            longer = all(a <= b for a, b in zip(sorted(whole.shape), sorted(tensor.shape), strict=False))
            named = any(n.startswith(f"{w}/") for n in tensor.names for w in whole.names)
            if named and longer and len(whole.shape) == len(tensor.shape):
                pairs.append((whole, tensor))
    return pairs


def _joined(parts: Sequence[ComparedTensor], wholes: Sequence[ComparedTensor]) -> set[int]:
    """Ids of vectors that one model concatenates, and of the result, which the other model stores."""
    joined: set[int] = set()
    ends: dict[str, list[ComparedTensor]] = defaultdict(list)
    for tensor in parts:
        for owner in tensor.owners:
            if family(owner.kind) == "concatenation" and len(tensor.shape) == 1:
                ends[owner.path].append(tensor)
    for tensors in ends.values():
        owner = next(o for o in tensors[0].owners if family(o.kind) == "concatenation")
        shapes = [o.shape for o in owner.outputs]
        whole = next((w for w in wholes if w.shape in shapes and id(w) not in joined), None)
        if whole is not None:
            joined |= {id(whole), *map(id, tensors)}
    return joined


def _beside(model: Analysis, tensors: Sequence[ComparedTensor]) -> int:
    """Bytes beside the elements of weights; TensorFlow Lite stores scales and zero points there."""
    if model.info.model.format != "tflite":
        return 0
    return model.info.totals.weight_bytes - sum(t.bytes for t in tensors)


def _works(tensor: ComparedTensor) -> bool:
    """Whether a convolution or product multiplies by the tensor."""
    return len(tensor.shape) > 1 and tensor.family in _FOLDS


def _booked(sign: int, words: tuple[str, str], tensors: Sequence[ComparedTensor]) -> Cause:
    """A cause with its count in front; batch norms are counted as layers, the rest as tensors."""
    layers = {owner.path for tensor in tensors for owner in tensor.owners}
    count = len(layers) if words is _FOLDED else len(tensors)
    return Cause(
        f"{count:,} {words[count != 1]}",
        sign * sum(t.elements for t in tensors),
        sign * sum(t.bytes for t in tensors),
    )


def _norms(analysis: Analysis) -> int:
    return sum(1 for layer in analysis.layers if not layer.group and family(layer.kind) == "batch norm")


_FOLDED = ("batch normalisation folded into other weights", "batch normalisations folded into other weights")
_BIAS = ("bias that comes with folding", "biases that come with folding")
_RUNNING = (
    "running statistic of a batch normalisation: a buffer of the module, a weight of the file",
    "running statistics of batch normalisations: buffers of the module, weights of the file",
)
_OWN = (
    "weight with storage of its own that is shared in the first",
    "weights with storage of their own that are shared in the first",
)
_SHARED = (
    "weight that shares its storage and has its own in the first",
    "weights that share their storage and have their own in the first",
)
_SCALES = ("scale or zero point of the quantization", "scales and zero points of the quantization")
_MADE = ("constant that an exporter made", "constants that an exporter made")
_JOINED = (
    "bias that is put together with others, and with zeros between them: one constant in the graph",
    "biases that are put together, with zeros between them: one constant in the graph",
)
_ZEROS = (
    "bias of zeros that the other has in common with more, or not at all",
    "biases of zeros that the other has as one constant, or not at all",
)
_FILLED = ("weight filled up to whole tiles", "weights filled up to whole tiles")
_NEEDLESS = (
    "parameter of a layer that no output of the graph needs",
    "parameters of layers that no output of the graph needs",
)
_IDLE = ("parameter of a layer that does not run", "parameters of layers that do not run")


def _cause(
    tensor: ComparedTensor,
    sign: int,
    folding: bool,
    unfolding: bool,
    others: Sequence[ComparedTensor],
    model: Analysis,
) -> tuple[str, str] | None:
    """The class of a tensor that only one model has, for one and for several; None if it fits none."""
    name = min(tensor.names)
    owner = tensor.owners[0]
    shape = tuple(sorted(tensor.shape))
    onnx = model.info.model.is_graph
    if tensor.family == "batch norm" and folding:
        return _FOLDED
    if tensor.family == "batch norm" and onnx and (tensor.place >= 2 or name.endswith(_STATISTICS)):
        return _RUNNING
    if graphless(model) and name.endswith(_COUNTED):
        return _RUNNING
    if unfolding and len(shape) == 1 and tensor.family in _FOLDS and tensor.place >= 1:
        return _BIAS
    if any(_tied(t, shape, tensor.family) for t in others):
        return _OWN if sign > 0 else _SHARED
    if _is_scale(tensor):
        return _SCALES
    if not owner.calls:
        return _IDLE
    if onnx and not owner.macs and (name.startswith(_MADE_UP) or "Constant" in name or _is_size(tensor)):
        return _MADE
    return None


def _tied(tensor: ComparedTensor, shape: tuple[int, ...], name: str) -> bool:
    """Whether a tensor of this shape is used by several layers, work of the family `name` among them."""
    kinds = {family(owner.kind) for owner in tensor.owners}
    return len(tensor.owners) > 1 and tuple(sorted(tensor.shape)) == shape and name in kinds


def _is_size(tensor: ComparedTensor) -> bool:
    """Whether the tensor is a size or position for a Reshape or Slice, not a learned parameter."""
    return tensor.dtype in ("int64", "int32") and len(tensor.shape) <= 1 and tensor.elements <= 16


_FOLDS = ("convolution", "transposed convolution", "matrix product")


_NARROW = ("int8", "uint8", "int4", "uint4", "float8_e4m3fn", "float8_e5m2")


def _is_scale(tensor: ComparedTensor) -> bool:
    """Whether the tensor is a scale or zero point of quantization: one number, or one for each channel."""
    kinds = [owner.kind.lower() for owner in tensor.owners]
    quantizes = any("quantize" in k or k.startswith("qlinear") or k.endswith("integer") for k in kinds)
    # a weight that a product reads through a dequantization is listed at the product
    quantizes = quantizes or any(w.dtype in _NARROW for o in tensor.owners for w in o.weights if w.shape)
    is_named_scale = any("scale" in n.lower() or "zero" in n.lower() for n in tensor.names)
    return quantizes and len(tensor.shape) <= 1 and (is_named_scale or tensor.elements == 1)
