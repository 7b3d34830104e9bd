"""Two graphs in, numeric evidence out. Imports numpy and onnxruntime: import it when it is needed."""

from explorer.engine.verify.proof import recover_plan, verify

__all__ = ["recover_plan", "verify"]
