"""Minimum number of inputs and required attributes of each operator, over all its versions.

Code that reads a graph may use `node.inputs[1]` of a MatMul without a check, because `formats.onnx.validate`
rejects a model in which a MatMul has one input. The numbers are the minimum over the schemas of onnx and
onnxruntime. Optional and repeated inputs do not count. For the same reason, code may use
`node.attributes["equation"]` of an Einsum.
"""

from __future__ import annotations

from collections.abc import Mapping

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
"""Minimum number of inputs by domain and operator; an operator that is not listed may have none."""

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

REQUIRED_ATTRIBUTES: Mapping[str, frozenset[str]] = {
    op: frozenset(name for name, listed in _ATTRIBUTES.items() if op in listed.split())
    for operators in _ATTRIBUTES.values()
    for op in operators.split()
}
"""Names of the attributes that every version of a standard operator requires, by operator."""
