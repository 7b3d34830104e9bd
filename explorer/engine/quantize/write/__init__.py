"""Quantized layers as ONNX: QuantizeLinear and DequantizeLinear, QOperator, MatMulNBits, functions."""
