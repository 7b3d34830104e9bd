"""The layers of an ONNX graph, with what each costs."""
