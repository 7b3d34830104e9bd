"""Machine: two limits that layers are held against."""

from __future__ import annotations

from explorer.base.checked import Positive, Spec


class Machine(Spec, frozen=True):
    """A machine as the roofline model sees it.

    Attributes:
        name: What the user calls it; '' when it was given by numbers alone.
        peak_macs: Multiply-accumulates per second at best.
        bandwidth: Bytes per second between memory and the compute units at best.
        origin: Where the numbers came from: 'command line', or the path of the config file.
    """

    name: str
    peak_macs: Positive
    bandwidth: Positive
    origin: str = "command line"
