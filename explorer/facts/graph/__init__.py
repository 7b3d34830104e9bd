"""Facts about a model as a graph: which layer produces each tensor and which layers read it."""
