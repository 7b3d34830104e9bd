"""A machine as a roofline sees it: a compute limit and a memory limit."""

from __future__ import annotations

from explorer.base.checked import Positive, Spec


class Machine(Spec, frozen=True):
    """A machine of the roofline model.

    Attributes:
        name: Name that the user gives the machine, or '' if the user gave only the two numbers.
        peak_macs: Peak multiply-accumulates per second.
        bandwidth: Peak bytes per second between memory and the compute units.
        origin: Source of the numbers: 'command line', or the path of the config file.
    """

    name: str
    peak_macs: Positive
    bandwidth: Positive
    origin: str = "command line"
