"""Interpreter of ONNX in torch: models as nn.Modules, run by torch operator by operator.

onnx2torch is what one would take. It has no local functions, and Scan not at all: of our tiled files it reads
the batched form alone, and an unrolled AlexNet takes it 38 s, as every node becomes a module of its own. Here
the walk over nodes, functions, branches and loops is the one that the proof uses (`verify.interpret`), and an
operator is a line in a table.
"""
