"""Writers of quantized layers to ONNX: QDQ nodes, QOperator, MatMulNBits and functions."""
