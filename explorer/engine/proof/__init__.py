"""Two graphs in, numeric evidence out. Imports numpy and onnxruntime: import it when it is needed."""

from explorer.engine.proof.proof import verify
from explorer.engine.proof.sites.recovery import recover_plan

__all__ = ["recover_plan", "verify"]
