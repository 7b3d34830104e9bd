"""Matches the stored tensors of two models, and explains why unmatched tensors differ.

The parameter counts of two models differ by the tensors that only one of them stores. Tensors are matched by
name, then by shape (also transposed), then by the totals of a layer. Each remaining tensor is classified by
the layer that owns it. Each class states how many elements and bytes it explains; a tensor without a class
remains unexplained.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from explorer.base.units import many_text, printable, shape_text
from explorer.facts import Analysis, Layer

_MAX_NAMED = 3
"""Maximum number of unmatched tensors of a model that a message names."""

_BATCH_NORM = "batch norm"
_FAMILIES = {
    "convolution": """conv convolution _convolution qlinearconv convinteger fusedconv nhwcconv depthwise_conv
        stablehlo_convolution""",
    "transposed convolution": "convtranspose conv_transpose transpose_conv conv_3d_transpose",
    "matrix product": """linear nondynamicallyquantizablelinear addmm mm bmm matmul baddbmm einsum gemm
        qlinearmatmul matmulinteger matmulnbits qgemm fusedmatmul fusedgemm fully_connected batch_matmul
        stablehlo_dot_general""",
    _BATCH_NORM: "batchnorm syncbatchnorm batch_norm frozenbatchnorm batchnormalization",
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
"""Family (kind of work) of operators and module classes of all formats, by lowercase name."""

_INITIAL_STATE = "initial state"
_RECURRENT = "recurrent layer"

_EXPORTER_NAMES = ("Constant", "onnx::", "val_", "_val_", "/")
"""Prefixes of the names that exporters give to their own values."""

_OPERATOR_NAME = re.compile(
    r"(unsqueeze|squeeze|expand|view|reshape|transpose|permute|slice|select|index|cat|stack|where|arange|full"
    r"|(new_)?(ones|zeros)(_like)?|scalar_tensor|clone|_to_copy|embedding|cumsum|triu|tril|eq|ne|le|lt|ge|gt"
    r"|(logical|bitwise)_(and|or|not))(_\d+)?"
)
"""Names that the torch.export exporter gives to values of operators without learned operands of their own."""

_CONSTANT_NODE = re.compile(r"(^|/)Constant(_\d+)?_output_\d+$")
"""Name of the value of a Constant node, such as an initial state. Exporters never name a learned weight
like this."""

_TILE_OPERATORS = ("2DMM_", "Split2D_")
"""Prefixes of the operators of a tiled file that read a weight."""

_BATCH_NORM_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
"""Names of the buffers of a batch normalization in torch, which are measured and not learned."""

_STATISTIC_NAMES = ("running_mean", "running_var", "mean", "var", "moving_mean", "moving_variance")


def find_family(kind: str) -> str:
    """Returns the family of an operator or module, equal in all formats, or `kind` if it is unknown."""
    lowercase = kind.lower().rstrip("_")
    # Conv2d is a convolution; GPT-2's Conv1D (capital D) is a linear layer
    key = lowercase
    if lowercase.endswith(("1d", "2d", "3d")) and kind != "Conv1D":
        key = lowercase[:-2].rstrip("_")
    return "matrix product" if kind == "Conv1D" else _FAMILY_OF.get(key, kind)


def is_graphless(analysis: Analysis) -> bool:
    """Whether a model is a file of tensors without a graph."""
    return not analysis.info.totals.nodes and not analysis.info.totals.coverage


Zeros = Callable[[str], bool]
"""Function of a tensor's name: whether all elements of the stored tensor are known to be zero."""


Buffers = Callable[[], Mapping[str, tuple[int, ...]]]
"""Shapes of a module's buffers by name; empty for a model that is not a module."""


class ComparedTensor(Struct):
    """A stored tensor of a model, listed once even if several layers use it.

    Attributes:
        names: Its initializer name, or its names in the state_dict.
        shape: Shape as stored.
        dtype: Data type in numpy's spelling.
        owners: Layers that use it.
        index_in_owner: Index among the weights of the first owner.
        size: Bytes if they do not follow from the dtype (block-packed weights), else None.
    """

    names: set[str]
    shape: tuple[int, ...]
    dtype: str
    owners: list[Layer]
    index_in_owner: int
    size: int | None = None

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Stored bytes, computed from the dtype if the size is not recorded."""
        return (self.elements * _read_bits(self.dtype) + 7) // 8 if self.size is None else self.size

    @property
    def family(self) -> str:
        """Family of its first owner, or 'initial state' for the first state of a recurrent layer.

        An ONNX layer stores W, R and B before its states, which have three dimensions. In a torch module, no
        weight after the third has three dimensions.
        """
        family = find_family(self.owners[0].kind)
        is_state = family == _RECURRENT and self.index_in_owner >= 3 and len(self.shape) == 3
        return _INITIAL_STATE if is_state else family


def _read_bits(dtype: str) -> int:
    digits = "".join(c for c in dtype.partition("_")[0] if c.isdigit())
    return int(digits) if digits else 8


class Cause(Struct):
    """A reason why the weights differ.

    Attributes:
        reason: The reason, with a count.
        params, bytes: Elements and bytes of the second model minus those of the first, for this reason.
    """

    reason: str
    params: int = 0
    bytes: int = 0


class Causes(Struct, frozen=True):
    """Reasons why the weights of two models differ.

    Attributes:
        explained: Explained differences.
        folds: Whether one model has batch norms that the other folded into its weights. This requires that
            the weights of all convolutions and matrix products match.
        unmatched_text: Text that lists the largest unmatched tensors, or '' if there are none.
        zero_biases: Biases of zeros that only the first model (-1) or only the second (1) stores.
    """

    explained: list[Cause]
    folds: bool
    unmatched_text: str
    zero_biases: Mapping[int, Sequence[ComparedTensor]]


def _format_unmatched(unmatched: Mapping[int, Sequence[ComparedTensor]]) -> str:
    texts = []
    for sign, where in ((1, "only here"), (-1, "only in the first")):
        tensors = sorted(unmatched[sign], key=lambda t: -t.elements)
        names = ", ".join(f"{printable(min(t.names))} {shape_text(t.shape)}" for t in tensors[:_MAX_NAMED])
        more_text = f" and {len(tensors) - _MAX_NAMED:,} more" if len(tensors) > _MAX_NAMED else ""
        if tensors:
            texts.append(f"{where}: {names}{more_text}")
    return "; ".join(texts)


def list_stored_tensors(analysis: Analysis) -> list[ComparedTensor] | None:
    """Returns the stored tensors of a model, or None if their sizes do not add up to its parameters.

    A layer lists the layers that it shares tensors with, not the shared tensors. A tensor counts as shared if
    the names match or, if the sizes do not add up then, if the shapes match.
    """
    has_full_names = analysis.info.model.is_graph or analysis.info.model.format == "tflite"
    for is_same in (_is_never_same if has_full_names else _has_same_name, _has_same_name, _has_same_shape):
        tensors = _list_stored_tensors(analysis, has_full_names, is_same)
        if tensors is None or sum(t.elements for t in tensors) == analysis.info.totals.params:
            return tensors
    return None


_Same = Callable[[str, tuple[int, ...], ComparedTensor], bool]
"""Whether the tensor with a name and a shape is a compared tensor of an earlier layer."""


def _is_never_same(name: str, shape: tuple[int, ...], tensor: ComparedTensor) -> bool:
    return False


def _has_same_name(name: str, shape: tuple[int, ...], tensor: ComparedTensor) -> bool:
    last = name.rpartition(".")[2]
    return tensor.shape == shape and any(n.rpartition(".")[2] == last for n in tensor.names)


def _has_same_shape(name: str, shape: tuple[int, ...], tensor: ComparedTensor) -> bool:
    return tensor.shape == shape


def _list_stored_tensors(
    analysis: Analysis, has_full_names: bool, is_same: _Same
) -> list[ComparedTensor] | None:
    """Returns the stored tensors, with `is_same` deciding which are shared, or None if a size is unknown."""
    has_no_graph = is_graphless(analysis)
    by_name: dict[str, ComparedTensor] = {}
    by_path: defaultdict[str, list[ComparedTensor]] = defaultdict(list)
    for layer in analysis.layers:
        if layer.group:
            continue
        for position, info in enumerate(layer.weights):
            if info.shape is None or any(not isinstance(d, int) for d in info.shape):
                return None
            shape = tuple(d for d in info.shape if isinstance(d, int))
            name = info.name if has_full_names or has_no_graph else f"{layer.path}.{info.name}"
            shared = (t for path in layer.shared_with for t in by_path[path] if is_same(name, shape, t))
            tensor = by_name.get(name) or next(shared, None)
            if tensor is None:
                size = layer.weight_bytes if has_no_graph else None
                tensor = ComparedTensor(set(), shape, info.dtype or "", [], position, size)
            by_name[name] = tensor
            tensor.names.add(name)
            tensor.owners.append(layer)
            by_path[layer.path].append(tensor)
    return list({id(t): t for t in by_name.values()}.values())


# -- matching


_MatchingKeys = tuple[Callable[[ComparedTensor], Iterable[Hashable]], ...]
"""Functions that return keys of a tensor, strictest first. Tensors with a common key of one function
match."""

_KEYS_IN_FAMILY: _MatchingKeys = (
    # a quantization, also that of onnxruntime, appends _quantized to the name of a tensor of codes
    lambda t: [(n.removesuffix("_quantized"), tuple(sorted(t.shape))) for n in sorted(t.names)],
    lambda t: [(t.family, t.shape)],
    lambda t: [(t.family, tuple(sorted(t.shape)))],
)
_KEYS_ACROSS_FAMILIES: _MatchingKeys = (
    lambda t: [t.shape] if _is_movable(t) else [],
    lambda t: [tuple(sorted(t.shape))] if _is_movable(t) else [],
    lambda t: [tuple(sorted(d for d in t.shape if d != 1))] if _is_movable(t) and t.elements > 1 else [],
    lambda t: [t.shape] if t.dtype == "int32" or t.family == "convolution" else [],
)


def _pair_tensors(
    first: Sequence[ComparedTensor], second: Sequence[ComparedTensor], keys: _MatchingKeys
) -> tuple[list[tuple[ComparedTensor, ComparedTensor]], list[ComparedTensor], list[ComparedTensor]]:
    """Returns pairs of tensors with an equal key, then the unpaired tensors of the first and second model."""
    pairs: list[tuple[ComparedTensor, ComparedTensor]] = []
    unpaired_first, unpaired_second = list(first), list(second)
    for key in keys:
        candidates: dict[Hashable, list[ComparedTensor]] = defaultdict(list)
        for tensor in unpaired_second:
            for value in key(tensor):
                candidates[value].append(tensor)
        paired_ids: set[int] = set()
        unpaired = []
        for tensor in unpaired_first:
            partner = None
            for value in key(tensor):
                partner = next((t for t in candidates[value] if id(t) not in paired_ids), None)
                if partner is not None:
                    break
            if partner is None:
                unpaired.append(tensor)
            else:
                paired_ids.add(id(partner))
                pairs.append((tensor, partner))
        unpaired_first, unpaired_second = unpaired, [t for t in unpaired_second if id(t) not in paired_ids]
    return pairs, unpaired_first, unpaired_second


def _is_movable(tensor: ComparedTensor) -> bool:
    """Whether a tensor may belong to another family in the other model, as a bias may belong to an addition.

    Tensors of batch norms and biases of convolutions may not: with folded norms, they could match each other
    by mistake.
    """
    family = tensor.family
    return family != _BATCH_NORM and (len(tensor.shape) > 1 or "convolution" not in family)


def _drop_regrouped(
    lost: list[ComparedTensor], gained: list[ComparedTensor]
) -> tuple[list[ComparedTensor], list[ComparedTensor]]:
    """Drops families with equal totals, where one model stores one tensor and the other stores its parts."""
    for family in {t.family for t in lost} & {t.family for t in gained}:
        a, b = [t for t in lost if t.family == family], [t for t in gained if t.family == family]
        if sum(t.elements for t in a) == sum(t.elements for t in b):
            lost = [t for t in lost if t.family != family]
            gained = [t for t in gained if t.family != family]
    return lost, gained


# -- causes


def find_weight_causes(
    first: Analysis,
    second: Analysis,
    needless: frozenset[str] = frozenset(),
    zeros: Sequence[Zeros] = (),
    buffers: Sequence[Buffers] = (),
) -> Causes | None:
    """Explains why the second model stores other parameters than the first.

    The result is None if the stored tensors of a model are unknown.

    Args:
        first: Analysis of the reference model.
        second: Analysis of the other model.
        needless: Paths of layers that no output of the model needs.
        zeros: For each model, whether the tensor with a name is all zeros.
        buffers: For each model, the shapes of a module's buffers by name.
    """
    first_tensors, second_tensors = list_stored_tensors(first), list_stored_tensors(second)
    if first_tensors is None or second_tensors is None:
        return None

    def is_needless(tensor: ComparedTensor) -> bool:
        return all(owner.path in needless or not owner.calls for owner in tensor.owners)

    splits = {
        1: _find_split_complex(first_tensors, second_tensors),
        -1: _find_split_complex(second_tensors, first_tensors),
    }
    split_ids = {id(t) for pairs in splits.values() for whole, parts in pairs for t in (whole, *parts)}
    first_whole, second_whole = (
        sorted((t for t in tensors if id(t) not in split_ids), key=is_needless)
        for tensors in (first_tensors, second_tensors)
    )
    # tensors that no output needs are paired last: an export omits them, and others may have their shape
    pairs, lost, gained = _pair_tensors(first_whole, second_whole, _KEYS_IN_FAMILY)
    # sliced parameters are set aside: a tensor of another family may have the same shape by chance
    sliced_ids = _find_sliced_ids(lost, gained) | _find_sliced_ids(gained, lost)
    slices = [[t for t in tensors if id(t) in sliced_ids] for tensors in (lost, gained)]
    unsliced = [[t for t in tensors if id(t) not in sliced_ids] for tensors in (lost, gained)]
    further_pairs, lost, gained = _pair_tensors(unsliced[0], unsliced[1], _KEYS_ACROSS_FAMILIES)
    lost, gained = _drop_regrouped(lost, gained)
    pairs, lost, gained = pairs + further_pairs, lost + slices[0], gained + slices[1]
    tensors_by_cause: dict[tuple[int, tuple[str, str]], list[ComparedTensor]] = defaultdict(list)
    unmatched: dict[int, list[ComparedTensor]] = {1: [], -1: []}
    first_norms, second_norms = _count_batch_norms(first), _count_batch_norms(second)
    any_graphless = is_graphless(first) or is_graphless(second)
    folds = (
        not any_graphless
        and first_norms != second_norms
        and not any(_is_multiplied_weight(t) for t in (*lost, *gained))
    )
    any_tiled = first.info.tiled is not None or second.info.tiled is not None
    related_texts, table_ids = _find_related_texts(lost, gained, sliced_ids, any_tiled)
    # the sign of a tensor's elements in the difference: -1 if only the first model has it, else 1
    for sign, model, others, tensors in (
        (-1, first, second_tensors, lost),
        (1, second, first_tensors, gained),
    ):
        # positive if this model has batch norms that the other folded, negative in the reverse case
        extra_norms = (first_norms - second_norms) * -sign if folds else 0
        for tensor in tensors:
            cause_texts = _classify(tensor, sign, extra_norms > 0, extra_norms < 0, others, model)
            if id(tensor) in related_texts:
                cause_texts = related_texts[id(tensor)]
            elif cause_texts is None and id(tensor) in table_ids:
                cause_texts = _GATHERED_TABLES
            elif cause_texts is None and needless.issuperset(owner.path for owner in tensor.owners):
                cause_texts = _UNUSED_BY_OUTPUTS
            elif cause_texts in (None, _SHARED_HERE, _SHARED_IN_FIRST) and len(tensor.shape) == 1 and zeros:
                is_zero = all(map(zeros[max(sign, 0)], tensor.names))
                cause_texts = _ZERO_BIASES if is_zero else cause_texts
            if cause_texts is None and buffers and model.info.model.is_graph:
                # an exporter stores the buffers of the other model, such as an initial state, like parameters
                shapes = buffers[0 if sign > 0 else 1]()
                cause_texts = (
                    _MODULE_BUFFERS if any(shapes.get(n) == tensor.shape for n in tensor.names) else None
                )
            if cause_texts is None and not model.info.tiled and _is_recurrent_bias(tensor):
                has_parts = any(_BIAS_PARTS in n for t in others for n in t.names)
                cause_texts = _RECURRENT_BIASES if has_parts else None
            if cause_texts is None:
                unmatched[sign].append(tensor)
            else:
                tensors_by_cause[sign, cause_texts].append(tensor)
    causes = [
        _make_cause(sign, cause_texts, tensors) for (sign, cause_texts), tensors in tensors_by_cause.items()
    ]
    causes += _list_type_causes(pairs)
    causes += (_build_split_cause(sign, split_pairs) for sign, split_pairs in splits.items() if split_pairs)
    scale_bytes = _count_scale_bytes(second, second_tensors) - _count_scale_bytes(first, first_tensors)
    if scale_bytes:
        causes.append(Cause("scales and zero points of quantized tensors", 0, scale_bytes))
    zero_biases = {sign: tensors_by_cause.get((sign, _ZERO_BIASES), []) for sign in (-1, 1)}
    return Causes(causes, folds, _format_unmatched(unmatched), zero_biases)


def _find_related_texts(
    lost: Sequence[ComparedTensor],
    gained: Sequence[ComparedTensor],
    sliced_ids: Collection[int],
    any_tiled: bool,
) -> tuple[dict[int, tuple[str, str]], set[int]]:
    """Finds the tensors that only one model stores because the other stores them in another form.

    Args:
        lost: Tensors without a match that only the first model stores.
        gained: Tensors without a match that only the second model stores.
        sliced_ids: Ids of parameters that one model slices, and of the slices.
        any_tiled: Whether one of the models is tiled.

    Returns:
        The class of each such tensor, as (singular, plural) text, by its id; and the ids of the tables that
        one model indexes, which may have another class.
    """
    sides = (lost, gained), (gained, lost)
    table_ids: set[int] = set()
    texts: dict[int, tuple[str, str]] = {}
    # a later relation replaces an earlier one
    for tensors, others in sides:
        ids, constant_ids = _find_gathered_ids(tensors, others)
        table_ids |= ids
        texts |= dict.fromkeys(constant_ids, _GATHERED_CONSTANTS)
    for tensor in (*lost, *gained):
        if id(tensor) in sliced_ids:
            is_sliced = tensor.family in _SLICING_FAMILIES
            texts[id(tensor)] = _SLICED_PARAMETERS if is_sliced else _STORED_SLICES
    for tensors, others in sides if any_tiled else ():
        for pair in _find_padded_pairs(tensors, others):
            texts |= dict.fromkeys(map(id, pair), _PADDED_WEIGHTS)
    for tensors, others in sides:
        texts |= dict.fromkeys(_find_concatenated_ids(tensors, others), _JOINED_BIASES)
    return texts, table_ids


_SplitPairs = list[tuple[ComparedTensor, list[ComparedTensor]]]
"""Complex tensors, each with the one or two tensors of floats in which the other model stores its parts."""


def _find_split_complex(
    whole_tensors: Sequence[ComparedTensor], tensors: Sequence[ComparedTensor]
) -> _SplitPairs:
    """Pairs each complex tensor with its real and imaginary parts: one tensor of both, or one of each."""
    names = {name for tensor in whole_tensors for name in tensor.names}
    candidates = [t for t in tensors if names.isdisjoint(t.names)]
    pairs: _SplitPairs = []
    for whole in whole_tensors:
        dtype = {"complex64": "float32", "complex128": "float64"}.get(whole.dtype)
        fitting = [t for t in candidates if t.dtype == dtype]
        both = [t for t in fitting if sorted(t.shape) == sorted((*whole.shape, 2))][:1]
        parts = both or [t for t in fitting if sorted(t.shape) == sorted(whole.shape)][:2]
        if both or len(parts) == 2:
            pairs.append((whole, parts))
            candidates = [t for t in candidates if t not in parts]
    return pairs


def _build_split_cause(sign: int, split_pairs: _SplitPairs) -> Cause:
    """Builds the cause for complex tensors whose parts the other model counts as elements of their own."""
    text = f"{many_text(len(split_pairs), 'complex tensor')} stored as real and imaginary parts"
    side = "here" if sign > 0 else "by the first model"
    return Cause(
        f"{text} {side}",
        sign * sum(part.elements for _, parts in split_pairs for part in parts)
        - sign * sum(whole.elements for whole, _ in split_pairs),
        sign * sum(part.bytes for _, parts in split_pairs for part in parts)
        - sign * sum(whole.bytes for whole, _ in split_pairs),
    )


def _list_type_causes(pairs: Sequence[tuple[ComparedTensor, ComparedTensor]]) -> Iterator[Cause]:
    """Yields a cause for each change of a number type, with the bytes that the change adds."""
    changed: dict[tuple[str, str], list[tuple[ComparedTensor, ComparedTensor]]] = defaultdict(list)
    for x, y in pairs:
        if x.dtype != y.dtype:
            changed[x.dtype, y.dtype].append((x, y))
    for (old, new), changed_pairs in changed.items():
        tensors_text = f"{len(changed_pairs):,} tensor{'s' if len(changed_pairs) > 1 else ''}"
        text = f"{tensors_text} stored as {new} instead of {old}"
        yield Cause(text, 0, sum(y.bytes - x.bytes for x, y in changed_pairs))


def _find_padded_pairs(
    weights: Sequence[ComparedTensor], tiled: Sequence[ComparedTensor]
) -> list[tuple[ComparedTensor, ComparedTensor]]:
    """Pairs each weight with its padded form in the tiled model, whose name starts with the weight's name."""
    pairs = []
    for tensor in tiled:
        for weight in weights:
            is_larger = all(a <= b for a, b in zip(sorted(weight.shape), sorted(tensor.shape), strict=False))
            has_prefix = any(n.startswith(f"{w}/") for n in tensor.names for w in weight.names)
            if has_prefix and is_larger and len(weight.shape) == len(tensor.shape):
                pairs.append((weight, tensor))
    return pairs


def _find_sliced_ids(parameters: Sequence[ComparedTensor], constants: Sequence[ComparedTensor]) -> set[int]:
    """Finds the ids of parameters that one model slices, and of the slices that the other model stores."""
    ids: set[int] = set()
    for tensor in parameters:
        if tensor.family not in _SLICING_FAMILIES:
            continue
        shapes = [output.shape for output in tensor.owners[0].outputs]
        for constant in constants:
            is_slice = constant.shape in shapes and constant.dtype == tensor.dtype and id(constant) not in ids
            if is_slice and constant.elements < tensor.elements and _is_exporter_name(min(constant.names)):
                ids |= {id(tensor), id(constant)}
                break
    return ids


def _find_gathered_ids(
    tables: Sequence[ComparedTensor], constants: Sequence[ComparedTensor]
) -> tuple[set[int], set[int]]:
    """Finds the ids of tables that one model indexes, and of the results that the other model stores.

    The result of indexing may have another shape in the file, but it has as many elements.

    Args:
        tables: Stored tensors of one model, without a match in the other.
        constants: Stored tensors of the other model, without a match in the first.
    """
    table_ids: set[int] = set()
    constant_ids: set[int] = set()
    for table in tables:
        owner = table.owners[0]
        if len(table.owners) > 1 or owner.kind not in _INDEXING_KINDS or owner.macs:
            continue
        counts = {math.prod(d for d in o.shape if isinstance(d, int)) for o in owner.outputs if o.shape}
        for constant in constants:
            if (
                constant.elements in counts
                and constant.elements > 1
                and constant.dtype == table.dtype
                and table.shape[-1] in constant.shape
                and id(constant) not in constant_ids
                and _is_exporter_name(min(constant.names))
            ):
                table_ids.add(id(table))
                constant_ids.add(id(constant))
                break
    return table_ids, constant_ids


def _is_exporter_name(name: str) -> bool:
    """Whether an exporter gave a stored tensor its name, which no parameter of a module has."""
    return (
        name.startswith(_EXPORTER_NAMES) or "Constant" in name or _OPERATOR_NAME.fullmatch(name) is not None
    )


def _find_concatenated_ids(
    parts: Sequence[ComparedTensor], stored_tensors: Sequence[ComparedTensor]
) -> set[int]:
    """Finds the ids of vectors that one model concatenates, and of the result that the other model stores."""
    joined_ids: set[int] = set()
    inputs_by_path: dict[str, list[ComparedTensor]] = defaultdict(list)
    for tensor in parts:
        for owner in tensor.owners:
            if find_family(owner.kind) == "concatenation" and len(tensor.shape) == 1:
                inputs_by_path[owner.path].append(tensor)
    for tensors in inputs_by_path.values():
        owner = next(o for o in tensors[0].owners if find_family(o.kind) == "concatenation")
        shapes = [o.shape for o in owner.outputs]
        result = next((w for w in stored_tensors if w.shape in shapes and id(w) not in joined_ids), None)
        if result is not None:
            joined_ids |= {id(result), *map(id, tensors)}
    return joined_ids


def _count_scale_bytes(model: Analysis, tensors: Sequence[ComparedTensor]) -> int:
    """Counts the bytes that TensorFlow Lite stores for scales and zero points."""
    if model.info.model.format != "tflite":
        return 0
    return model.info.totals.weight_bytes - sum(t.bytes for t in tensors)


def _is_multiplied_weight(tensor: ComparedTensor) -> bool:
    """Whether a convolution or matrix product multiplies by the tensor."""
    return len(tensor.shape) > 1 and tensor.family in _MULTIPLYING_FAMILIES


def _make_cause(sign: int, texts: tuple[str, str], tensors: Sequence[ComparedTensor]) -> Cause:
    """Builds a cause with its count: the number of layers for batch norms, else the number of tensors."""
    layers = {owner.path for tensor in tensors for owner in tensor.owners}
    count = len(layers) if texts is _FOLDED_NORMS else len(tensors)
    return Cause(
        f"{count:,} {texts[count != 1]}",
        sign * sum(t.elements for t in tensors),
        sign * sum(t.bytes for t in tensors),
    )


def _count_batch_norms(analysis: Analysis) -> int:
    """Counts the calls of batch normalizations: a graph has an operator for each call of a module."""
    return sum(
        layer.calls for layer in analysis.layers if not layer.group and find_family(layer.kind) == _BATCH_NORM
    )


_FOLDED_NORMS = (
    "batch normalization folded into other weights",
    "batch normalizations folded into other weights",
)
_FOLDING_BIASES = ("bias that the folding adds", "biases that the folding adds")
_RUNNING_STATISTICS = (
    "running statistic of a batch normalization: a buffer of the module, a weight of the file",
    "running statistics of batch normalizations: buffers of the module, weights of the file",
)
_SHARED_IN_FIRST = (
    "weight that layers of the first model share and that is stored separately here",
    "weights that layers of the first model share and that are stored separately here",
)
_SHARED_HERE = (
    "weight that layers share here and that the first model stores separately",
    "weights that layers share here and that the first model stores separately",
)
_QUANTIZATION_SCALES = (
    "scale or zero point of the quantization",
    "scales and zero points of the quantization",
)
_EXPORTER_CONSTANTS = ("constant that the exporter added", "constants that the exporter added")
_JOINED_BIASES = (
    "bias that the graph stores with other biases and zeros as one constant",
    "biases that the graph stores with zeros as one constant",
)
_ZERO_BIASES = (
    "bias of zeros that the other model shares or omits",
    "biases of zeros that the other model shares or omits",
)
_SLICING_FAMILIES = frozenset({"change of shape"})
_SLICED_PARAMETERS = (
    "parameter of which the other model stores only the slice that it reads",
    "parameters of which the other model stores only the slices that it reads",
)
_INDEXING_KINDS = frozenset({"getitem", "index", "index_select", "gather", "embedding", "Embedding"})
"""Kinds of layers that read elements of a tensor by index."""

_GATHERED_TABLES = (
    "parameter of which the other model stores the elements that it reads by index",
    "parameters of which the other model stores the elements that it reads by index",
)
_GATHERED_CONSTANTS = (
    "constant of the elements that the other model reads by index from a parameter",
    "constants of the elements that the other model reads by index from parameters",
)
_STORED_SLICES = ("slice of a parameter, stored as a constant", "slices of parameters, stored as constants")
_PADDED_WEIGHTS = ("weight padded to whole tiles", "weights padded to whole tiles")
_UNUSED_BY_OUTPUTS = (
    "parameter of a layer that no output of the graph needs",
    "parameters of layers that no output of the graph needs",
)
_MODULE_BUFFERS = (
    "buffer of the module: not one of its parameters, but a weight of the file",
    "buffers of the module: not among its parameters, but weights of the file",
)
_BIAS_PARTS = "/parts/B"
"""Part of the names that the decomposition of a recurrent layer gives to the parts of its biases."""

_RECURRENT_BIASES = (
    "bias of a recurrent layer that its tiled form stores in other parts, or added to another bias",
    "biases of recurrent layers that their tiled forms store in other parts, or added to others",
)
_IDLE_PARAMETERS = ("parameter of a layer that does not run", "parameters of layers that do not run")


def _classify(
    tensor: ComparedTensor,
    sign: int,
    folded_by_other: bool,
    folds_norms_of_other: bool,
    other_tensors: Sequence[ComparedTensor],
    model: Analysis,
) -> tuple[str, str] | None:
    """Returns the class of a tensor that only one model stores, as (singular, plural) text, or None."""
    name = min(tensor.names)
    owner = tensor.owners[0]
    shape = tuple(sorted(tensor.shape))
    is_graph = model.info.model.is_graph
    if tensor.family == _BATCH_NORM and folded_by_other:
        return _FOLDED_NORMS
    if (
        tensor.family == _BATCH_NORM
        and is_graph
        and (tensor.index_in_owner >= 2 or name.endswith(_STATISTIC_NAMES))
    ):
        return _RUNNING_STATISTICS
    if is_graphless(model) and name.endswith(_BATCH_NORM_BUFFERS):
        return _RUNNING_STATISTICS
    if (
        folds_norms_of_other
        and len(shape) == 1
        and tensor.family in _MULTIPLYING_FAMILIES
        and tensor.index_in_owner >= 1
    ):
        return _FOLDING_BIASES
    if any(_is_tied(t, shape, tensor.family) for t in other_tensors):
        return _SHARED_IN_FIRST if sign > 0 else _SHARED_HERE
    if _is_scale(tensor):
        return _QUANTIZATION_SCALES
    if not owner.calls:
        return _IDLE_PARAMETERS
    if (
        is_graph
        and (not owner.macs or tensor.family == _INITIAL_STATE or _CONSTANT_NODE.search(name))
        and (_is_exporter_name(name) or _is_size(tensor))
    ):
        return _EXPORTER_CONSTANTS
    return None


def _is_recurrent_bias(tensor: ComparedTensor) -> bool:
    """Whether the tensor is the bias of a recurrent layer, of one direction or of two."""
    return tensor.family == _RECURRENT and (
        len(tensor.shape) == 1 or (len(tensor.shape) == 2 and tensor.shape[0] <= 2)
    )


def _is_tied(tensor: ComparedTensor, shape: tuple[int, ...], family: str) -> bool:
    """Whether several layers share a tensor of this shape, at least one of them a layer of `family`.

    The operators of a tiled file stand for the product that they are parts of.
    """
    families = {find_family(owner.kind) for owner in tensor.owners}
    same_family = _MULTIPLYING_FAMILIES if family.startswith(_TILE_OPERATORS) else (family,)
    return (
        len(tensor.owners) > 1
        and tuple(sorted(tensor.shape)) == shape
        and not families.isdisjoint(same_family)
    )


def _is_size(tensor: ComparedTensor) -> bool:
    """Whether the tensor is a size or position for a Reshape or Slice instead of a learned parameter."""
    return tensor.dtype in ("int64", "int32") and len(tensor.shape) <= 1 and tensor.elements <= 16


_MULTIPLYING_FAMILIES = ("convolution", "transposed convolution", "matrix product")


_QUANTIZED_TYPES = ("int8", "uint8", "int4", "uint4", "float8_e4m3fn", "float8_e5m2")


def _is_scale(tensor: ComparedTensor) -> bool:
    """Whether the tensor is a quantization scale or zero point: one number, or one per channel."""
    owner_kinds = [owner.kind.lower() for owner in tensor.owners]
    quantizes = any("quantize" in k or k.startswith("qlinear") or k.endswith("integer") for k in owner_kinds)
    # a weight that a product reads through a DequantizeLinear is listed at the product
    quantizes = quantizes or any(
        w.dtype in _QUANTIZED_TYPES for o in tensor.owners for w in o.weights if w.shape
    )
    is_named_scale = any("scale" in n.lower() or "zero" in n.lower() for n in tensor.names)
    return quantizes and len(tensor.shape) <= 1 and (is_named_scale or tensor.elements == 1)
