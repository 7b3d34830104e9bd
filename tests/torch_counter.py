"""torch's own counter, FlopCounterMode, as an oracle that says the same in every version of torch.

It has no formula for some kernels of attention: in torch 2.14 it counts 0 for the flash kernel of the CPU.
On the plain kernel it counts the two products, which held for torch 2.9, 2.14 and 2.15.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


@contextmanager
def torch_counter() -> Iterator[FlopCounterMode]:
    """Counts what runs inside, with attention on its plain kernel."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        yield counter
