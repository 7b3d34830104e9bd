"""Table of fast forms, one row per line, as measured by `python -m tests.bench.fast_forms --write`."""

from __future__ import annotations

ROWS = """
operator instructions onnxruntime weight input form unsaturated bias_correction time snr_db
Conv avx2 1.32 int8 uint8 chain true true 0.41 36.3
ConvTranspose avx2 1.32 int8 uint8 qdq false true 1.09 37.3
Gemm avx2 1.32 int8 uint8 qdq true true 0.46 32.9
MatMul avx2 1.32 int8 uint8 chain true true 0.57 27.3
"""
