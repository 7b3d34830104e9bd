"""Requirements that all versions of an operator share: inputs, required attributes and attribute types.

Code that reads a graph may use `node.inputs[1]` of a MatMul without a check, because `formats.onnx.validate`
rejects a model in which a MatMul has one input. A number of inputs is the minimum over the schemas of onnx
and onnxruntime. Optional and repeated inputs do not count. For the same reason, code may use
`node.attributes["equation"]` of an Einsum without a check, and assume that the pads of a Conv are integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real

_OPERATORS: Mapping[str, Mapping[int, str]] = {
    "": {
        1: (
            "Abs Acos Acosh ArgMax ArgMin Asin Asinh Atan Atanh AveragePool Bernoulli BitCast BitwiseNot "
            "BlackmanWindow Cast Ceil Celu Clip ConcatFromSequence ConstantOfShape Cos Cosh DFT DepthToSpace "
            "Det Dropout DynamicQuantizeLinear Elu Erf Exp EyeLike Flatten Floor Gelu GlobalAveragePool "
            "GlobalLpPool GlobalMaxPool HammingWindow HannWindow HardSigmoid HardSwish Hardmax Identity If "
            "ImageDecoder IsInf IsNaN LRN LeakyRelu Log LogSoftmax LpNormalization LpPool MaxPool "
            "MeanVarianceNormalization Mish Multinomial Neg NonZero Not OptionalGetElement Pad "
            "RandomNormalLike RandomUniformLike Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp "
            "ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare RegexFullMatch Relu Reshape "
            "Resize Round Selu SequenceErase SequenceLength SequenceMap Shape Shrink Sigmoid Sign Sin Sinh "
            "Size Slice Softmax Softplus Softsign SpaceToDepth Split SplitToSequence Sqrt Squeeze "
            "StringNormalizer StringSplit Swish Tan Tanh TfIdfVectorizer ThresholdedRelu TopK Transpose "
            "Trilu Unique Unsqueeze Upsample"
        ),
        2: (
            "Add AffineGrid And BitShift BitwiseAnd BitwiseOr BitwiseXor CastLike CausalConvWithState "
            "CenterCropPad Compress Conv ConvInteger ConvTranspose CumProd CumSum DequantizeLinear Div Equal "
            "Expand Gather GatherElements GatherND Gemm Greater GreaterOrEqual GridSample LayerNormalization "
            "Less LessOrEqual MatMul MatMulInteger MaxRoiPool MaxUnpool Mod Mul NegativeLogLikelihoodLoss "
            "NonMaxSuppression Or PRelu Pow QuantizeLinear RMSNormalization ReverseSequence STFT SequenceAt "
            "SequenceInsert SoftmaxCrossEntropyLoss StringConcat Sub SwiGLU TensorScatter Tile Xor"
        ),
        3: (
            "Attention Col2Im DeformConv GRU GroupNormalization InstanceNormalization LSTM LinearAttention "
            "OneHot RNN Range RoiAlign RotaryEmbedding Scatter ScatterElements ScatterND Where"
        ),
        5: ("BatchNormalization MelWeightMatrix"),
        8: ("QLinearConv QLinearMatMul"),
    },
    "com.microsoft": {
        1: (
            "BitmaskDropout BranchwiseRMSNorm DecoderMaskedMultiHeadAttention DynamicSparseAttention "
            "DynamicTimeWarping EmbedLayerNormalization FastGelu GatedDeltaNet Gelu GroupQueryAttention "
            "Inverse Irfft MatMulNBitsMlp MatMulNBitsQkv MulInteger MultiHeadAttention MurmurHash3 "
            "NhwcMaxPool PackedMultiHeadAttention PackedSparseAttentionIndexer PagedAttention "
            "QEmbedLayerNormalization QuantizeBFP QuickGelu ReduceSumInteger Rfft SampleOp ScaledSiLU "
            "SparseAttention SparseAttentionIndexer SparsePagedAttention SwiGLU Tokenizer Trilu UnfoldTensor "
            "Unique"
        ),
        2: (
            "Attention BeamSearch BiasDropout BiasGelu BiasSoftmax BiasSplitGelu BitmaskBiasDropout CDist "
            "CausalConvWithState ComplexMul ComplexMulConj ConvTransposeWithDynamicPads DequantizeLinear "
            "DequantizeWithOrder ExpandDims FusedConv FusedGemm FusedMatMul FusedMatMulActivation GatherND "
            "GatherPacked GemmFastGelu GemmFloat8 GreedySearch GridSample HyperConnectionPreMix "
            "MatMulInteger16 MatMulPacked MaxpoolWithMask MoEGroupRouter NGramRepeatBlock NhwcConv "
            "NhwcFusedConv Pad QLinearAdd QLinearAveragePool QLinearConcat QLinearLeakyRelu QLinearMul "
            "QLinearReduceMean QLinearSigmoid QLinearSoftmax QuantizeLinear QuantizeWithOrder Range "
            "RemovePadding RestorePadding RouterGateUpProj Sampling SparseToDenseMatMul TorchEmbedding "
            "TransposeMatMul WhisperBeamSearch"
        ),
        3: (
            "AttnLSTM BiasAdd BifurcationDetector DecoderMaskedSelfAttention DequantizeBFP "
            "DynamicQuantizeLSTM DynamicQuantizeMatMul GatedAdd GatedRMSNorm GatherBlockQuantized GroupNorm "
            "HyperConnectionPostMix LinearAttention LinearAttentionGate MatMulBlockQuantizedFp8Weight "
            "MatMulBnb4 MatMulFpQ4 MatMulNBits MoE MoEPacked NGramHashMapping "
            "PackedSparseAttentionIndexerMerge QMoE QOrderedGelu QOrderedLayerNormalization "
            "RelativePositionBias SkipLayerNormalization SkipSimplifiedLayerNormalization "
            "VarlenCausalConvWithState"
        ),
        4: (
            "ConvStateReplay CropAndResize GatedDeltaNetStateReplay MRotaryEmbedding "
            "MatMulBlockQuantizedFp4Weight MatMulIntegerToFloat RotaryEmbedding SkipGroupNorm "
            "VarlenNGramHashMapping WordConvEmbedding"
        ),
        5: (
            "DecoderAttention EngramGate GemmaRotaryEmbedding HyperConnectionLowRankMix PackedAttention "
            "QAttention QLinearGlobalAveragePool QOrderedMatMul RMSNormRotary"
        ),
        6: ("GatedRelativePositionBias QGemm"),
        7: ("LongformerAttention MatMulNBitsQLoRA SpeculativePrefixCommit"),
        8: ("QLinearConv"),
        9: ("QLinearWhere"),
        10: ("Mamba2Verify"),
        14: ("QOrderedAttention QOrderedLongformerAttention"),
    },
}

MIN_INPUTS: Mapping[tuple[str, str], int] = {
    (domain, op): least
    for domain, table in _OPERATORS.items()
    for least, operators in table.items()
    for op in operators.split()
}
"""Minimum number of inputs by domain and operator; an operator that is not listed has no known minimum."""

_ATTRIBUTES: Mapping[str, str] = {
    "axis": "ConcatFromSequence",
    "blocksize": "DepthToSpace SpaceToDepth",
    "body": "Loop Scan SequenceMap",
    "direction": "BitShift",
    "else_branch": "If",
    "equation": "Einsum",
    "kernel_shape": "AveragePool MaxPool MaxUnpool",
    "kv_num_heads": "LinearAttention",
    "max_gram_length": "TfIdfVectorizer",
    "max_skip_count": "TfIdfVectorizer",
    "min_gram_length": "TfIdfVectorizer",
    "mode": "TfIdfVectorizer",
    "ngram_counts": "TfIdfVectorizer",
    "ngram_indexes": "TfIdfVectorizer",
    "num_groups": "GroupNormalization",
    "num_scan_inputs": "Scan",
    "pooled_shape": "MaxRoiPool",
    "q_num_heads": "LinearAttention",
    "shape": "RandomNormal RandomUniform",
    "size": "LRN",
    "then_branch": "If",
    "to": "BitCast Cast",
}

NO_REQUIRED_INPUTS = frozenset(
    (
        *("Concat", "Constant", "Einsum", "Loop", "Max", "Mean", "Min", "Optional", "OptionalHasElement"),
        *("RandomNormal", "RandomUniform", "Scan", "SequenceConstruct", "SequenceEmpty", "Sum"),
    )
)
"""Standard operators that do not require an input, in at least one of their versions."""

REQUIRED_ATTRIBUTES: Mapping[str, frozenset[str]] = {
    op: frozenset(name for name, listed in _ATTRIBUTES.items() if op in listed.split())
    for operators in _ATTRIBUTES.values()
    for op in operators.split()
}
"""Names of the attributes that every version of a standard operator requires, by operator."""

_INTEGER, _FLOAT, _TEXT = "an integer", "a float", "a text"
_INTEGERS, _FLOATS, _TEXTS = "a list of integers", "a list of floats", "a list of texts"

_TYPES: Mapping[str, str] = {
    _INTEGER: (
        "align_corners allowzero antialias axis batch_axis batch_dims block_size blocksize "
        "broadcast ceil_mode center_point_box chunk_size count_include_pad detect_negative "
        "detect_positive dtype end exclude_outside exclusive fmod group hidden_size ignore_index "
        "input_forget interleaved inverse is_case_sensitive is_causal is_test k keepdims "
        "kv_num_heads largest layout left_window_size linear_before_reset max_gram_length "
        "max_skip_count maxsplit min_gram_length new_axis noop_with_empty_axes num_groups "
        "num_heads num_outputs num_scan_inputs offset_group onesided output_datatype output_dtype "
        "output_height output_sequence output_width periodic precision q_num_heads "
        "qk_matmul_output_mode reverse right_window_size rotary_embedding_dim sample_size "
        "sampling_ratio saturate select_last_index size softmax_precision sorted spatial start "
        "stash_type storage_order time_axis training_mode transA transB upper value_int"
    ),
    _FLOAT: (
        "alpha beta bias clip cubic_coeff_a epsilon extrapolation_value gamma height_scale high "
        "lambd low max mean min momentum ratio scale softcap spatial_scale value_float "
        "width_scale"
    ),
    _TEXT: (
        "activation approximate auto_pad case_change_action coordinate_transformation_mode "
        "delimiter direction equation keep_aspect_ratio_policy locale mode nearest_mode "
        "padding_mode pattern pixel_format reduction round_mode update_rule value_string"
    ),
    _INTEGERS: (
        "axes consumed_inputs dilations directions ends kernel_shape ngram_counts ngram_indexes "
        "output_padding output_shape paddings pads perm pool_int64s pooled_shape scan_input_axes "
        "scan_input_directions scan_output_axes scan_output_directions shape split starts strides "
        "value_ints"
    ),
    _FLOATS: "activation_alpha activation_beta scales value_floats weights",
    _TEXTS: "activations pool_strings stopwords value_strings",
}

ATTRIBUTE_TYPES: Mapping[str, str] = {n: kind for kind, names in _TYPES.items() for n in names.split()}
"""Type of each attribute of the standard operators in words, by name. The few names of attributes that have
more than one type are absent."""

_MICROSOFT = "K N bits block_size kv_num_heads num_heads transA transB transBatchA transBatchB"

MICROSOFT_TYPES: Mapping[str, str] = dict.fromkeys(str.split(_MICROSOFT), _INTEGER)
"""Type of the attributes of onnxruntime's operators that this program reads as integers, by name."""

_Types = tuple[frozenset[type], type]
"""Exact types that need no slow `isinstance`, and a class whose subclasses are accepted too."""

_ELEMENTS: Mapping[str, _Types] = {
    _INTEGER: (frozenset({int}), Integral),
    _FLOAT: (frozenset({float, int}), Real),
    _TEXT: (frozenset({str, bytes}), str),
}
_ELEMENTS_OF_LISTS: Mapping[str, _Types] = {
    _INTEGERS: _ELEMENTS[_INTEGER],
    _FLOATS: _ELEMENTS[_FLOAT],
    _TEXTS: _ELEMENTS[_TEXT],
}


def has_type(value: object, kind: str) -> bool:
    """Whether an attribute's value has the type `kind`, in the words of `ATTRIBUTE_TYPES`.

    An integer also counts as a float.
    """
    if kind in _ELEMENTS:
        exact, base = _ELEMENTS[kind]
        return type(value) in exact or isinstance(value, base)
    exact, base = _ELEMENTS_OF_LISTS[kind]
    return isinstance(value, list | tuple) and (
        exact.issuperset(map(type, value)) or all(isinstance(element, base) for element in value)
    )
