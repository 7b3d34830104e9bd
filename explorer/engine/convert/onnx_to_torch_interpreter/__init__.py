"""Interpreter of ONNX in torch: an nn.Module that runs an ONNX graph operator by operator.

The usual converter, onnx2torch, supports neither local functions nor Scan. Of Explorer's tiled files it reads
only the batched form. It needs 38 s for an unrolled AlexNet, because every node becomes a module. This
interpreter uses the same traversal of nodes, functions, branches and loops as the proof
(`graph.interpreter`). Tables map each operator to its torch function.
"""
