"""Methods of a session, what it can be asked: functions by subject, which `session.Session` has."""

from explorer.session.methods import (
    data,
    exports,
    figures,
    fold,
    graph,
    profile,
    proofs,
    quantize,
    sizes,
    split,
    states,
    tiling,
    values,
)

# fmt: off
__all__ = [
    "data", "exports", "figures", "fold", "graph", "profile", "proofs", "quantize", "sizes", "split",
    "states", "tiling", "values",
]
# fmt: on
