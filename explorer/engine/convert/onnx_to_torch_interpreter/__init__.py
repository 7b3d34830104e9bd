"""Interpreter of ONNX in torch: a model as an nn.Module that torch runs operator by operator.

onnx2torch is the usual tool, but it supports neither local functions nor Scan. Of our tiled files it reads
only the batched form, and an unrolled AlexNet takes it 38 s, because every node becomes a module. Here the
walk over nodes, functions, branches and loops is the one that the proof uses (`verify.interpret`), and each
operator is a line in a table.
"""
